"""Everything that ``ddloco why RUN`` looks for without being asked. Each detector reads one kind of
evidence and is quiet if there is nothing to say; none of them says who is to blame, but that of the
losses (``loss_analysis``)."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from statistics import median

from msgspec import Struct

from clocks import actor_of
from ddloco.debugger.absences import absences_of
from ddloco.debugger.drawn_batches import STEPS_MIN, one_again, shapes_of, twins_of
from ddloco.debugger.learner_time import LearnerTime, held_back, times_of
from ddloco.debugger.loss_analysis import analyse_losses, went_back
from ddloco.debugger.not_finite import signs_of_learners
from ddloco.debugger.recorded_job import RecordedJob
from ddloco.debugger.wording import listed
from ddloco.job.protocol.work import TENSOR_DIGEST_BYTES, StepFinished
from ddloco.machines.syncer.apart import far_held_out, own_batches, shaped_otherwise
from ddloco.monitoring.status_view import seconds
from ddloco.stage.process.run_identity import apart
from ddloco.workers.data_stream import unpack_cursor

LOSSES = "losses"
"""The detector of losses that left their band."""

STANDS_SHARE, MOVES_SHARE = 0.9, 0.1
"""A tensor stands still in a learner if so many of its last updates left it as it was, while of
another learner's last updates no more than the smaller share did."""

LAST_STEPS = 16
"""Updates that are looked at for that."""

ABSENT_SHARE, AWAY_S = 0.25, 1.0
"""A learner is seldom merged if it is in less than this share of the merges, and was away for long
if it is in none of so many in a row, for so many seconds."""

DATA_SHARE, DATA_TIMES, DATA_STEP_S = 0.25, 3.0, 0.005
"""A learner is held up by its data if it waits for it for this share of its time, for so many times
the share of the median learner, and for so many seconds a step."""

HELD_SHARE, HELD_TIMES = 0.5, 3.0
"""A learner holds merges back if they wait for it alone for this share of their time, and for so
many times as long as for the others together."""

STOPPED_SHARE, STOPPED_S = 0.05, 2.0
"""A learner was stopped in its steps for a share of its time worth naming, and for so long."""


class Found(Struct, frozen=True):
    """What a detector found; the first line is a sentence of its own.

    Attributes:
        learner: whose; empty if it is of all.
        event: an event that shows it; empty if there is no single one.
    """

    detector: str
    lines: tuple[str, ...]
    learner: str = ""
    event: str = ""


def detect(run: RecordedJob, without: str = "") -> tuple[list[Found], list[str]]:
    """Return what all detectors found, but for that one ``without`` which others look already; and
    which were quiet."""
    found: list[Found] = []
    quiet: list[str] = []
    for name in [each for each in DETECTORS if each != without]:
        some = list(DETECTORS[name](run))
        found += some
        quiet += [] if some else [name]
    return found, quiet


def _losses(run: RecordedJob) -> Iterator[Found]:
    """Losses that left their band for good, and whom the evidence points to. A loss that rose as
    an older version came is what merges do, and nothing that stands out."""
    findings = analyse_losses(run)
    firsts = [each for each in findings.breaks if each.first and each.lasts]
    lasts = next((each for each in firsts if not went_back(run, each)), None)
    if findings.suspect or lasts is not None:
        event = lasts.event if lasts is not None else ""
        yield Found(LOSSES, tuple(findings.lines()), findings.suspect, event)


def _not_finite(run: RecordedJob) -> Iterator[Found]:
    """The first loss, and the first state, of each learner that is not finite."""
    for each in signs_of_learners(run):
        said = f"{each.whose}: {each.what} ({each.event})"
        yield Found("finite numbers", (said,), each.whose, each.event)


def _batches(run: RecordedJob) -> Iterator[Found]:
    """Learners that draw the same batches, or one batch again and again, or of another shape."""
    if run.is_simulated:
        return  # Their batches are numbers, with which each learner begins at 1.
    for one, other, shared, of in twins_of(run):
        said = f"{one} and {other} drew the same data: {shared} of {of} batches are equal"
        yield Found("batches", (said,), one)
    for who in run.learners:
        step, count = one_again(run, who)
        if count >= STEPS_MIN:
            until = step + count - 1
            said = f"{who} drew the same batch {count} times, inner steps {step} to {until}"
            yield Found("batches", (said,), who)
    own = own_batches(run.job)
    shapes = {who: shapes_of(run, who) for who in run.learners if actor_of(who) not in own}
    who, said = shaped_otherwise(shapes)
    if who:
        yield Found("batches", (f"{who}: {said}",), who)


def _counts(run: RecordedJob) -> Iterator[Found]:
    """The first count of a schedule that falls within an incarnation of a learner: its learning
    rate begins again. Who comes back goes on with another's counts, which is no fall."""
    for who in run.learners:
        before: list[int] = []
        for record, event in run.finished(who):
            _, counts = unpack_cursor(event.cursor)
            fell = [(a, b) for a, b in zip(before, counts, strict=False) if b < a]
            if fell:
                (was, now), at = fell[0], f"{who}:{record.n}"
                said = f"{who}: the count of a schedule falls from {was:,} to {now:,}"
                yield Found("counts", (f"{said} at inner step {event.step} ({at})",), who, at)
                break
            before = counts


def _tensors(run: RecordedJob) -> Iterator[Found]:
    """Tensors that stand still in a learner, and move in another. Where one stands still in
    several, what they merged has stopped it, and nobody is named for it alone."""
    plan = run.plan
    if plan is None:
        return
    of = [p for p, fragment in enumerate(plan.fragments) for _ in fragment]
    names = [leaf.name for fragment in plan.fragments for leaf in fragment]
    if not any(_stood_once(run, who, len(of)) for who in run.learners):
        return  # Messages are decoded only where there is something to explain.
    still = {who: _still_of(run, who, of) for who in run.learners}
    stand: dict[tuple[str, ...], list[str]] = {}
    for at, name in enumerate(names):
        stopped = tuple(who for who, own in still.items() if own.get(at, 0.0) >= STANDS_SHARE)
        moves = {actor_of(who) for who, own in still.items() if own.get(at, 1.0) <= MOVES_SHARE}
        if stopped and moves - {actor_of(who) for who in stopped}:
            stand.setdefault(stopped, []).append(name)
    for stopped, which in stand.items():
        alone = len({actor_of(who) for who in stopped}) == 1
        were = "as they were" if which[1:] else "as it was"
        whose = "its" if alone else "their"
        said = f"{listed(stopped)}: {whose} last updates left {listed(which)} {were}"
        yield Found("tensors", (f"{said}; another learner's did not",), stopped[0] if alone else "")


def _stood_once(run: RecordedJob, learner: str, tensors: int) -> bool:
    """Whether any tensor was after one request of steps as it was after the one before."""
    width = TENSOR_DIGEST_BYTES
    digests = [event.tensors for _, event in run.finished(learner)]
    whole = [each for each in digests if len(each) == width * tensors]
    places = [slice(at * width, (at + 1) * width) for at in range(tensors)]
    return any(one[p] == other[p] for one, other in pairwise(whole) for p in places)


def _still_of(run: RecordedJob, learner: str, of: Sequence[int]) -> dict[int, float]:
    """For each tensor, by its place, the share of a learner's last updates that left it as it was;
    without those of which there are too few. Updates before which a version of the tensor's
    fragment was installed say nothing: ``of`` has the fragments."""
    width = TENSOR_DIGEST_BYTES
    kept: list[list[bool]] = [[] for _ in of]
    for installed, before, after in _updates(run, learner):
        if len(before) == len(after) == width * len(of):
            for at, p in enumerate(of):
                if p not in installed:
                    place = slice(at * width, (at + 1) * width)
                    kept[at].append(before[place] == after[place])
    last = {at: each[-LAST_STEPS:] for at, each in enumerate(kept)}
    return {at: sum(each) / len(each) for at, each in last.items() if len(each) >= STEPS_MIN}


def _updates(run: RecordedJob, learner: str) -> Iterator[tuple[set[int], bytes, bytes]]:
    """Yield of each of a learner's requests of steps the fragments of which a version may have been
    installed before it, and the digests of all tensors before and after. A request begins when the
    one before it is finished, with all that has come by then."""
    came: set[int] = set()
    taken: set[int] = set()
    before = b""
    for _, each in run.told(learner):
        if isinstance(each, StepFinished):
            yield taken, before, each.tensors
            before, taken, came = each.tensors, came, set()
        else:
            came.add(each)


def _settings(run: RecordedJob) -> Iterator[Found]:
    """Versions, variables, source files, and files of one name, in which learners differ."""
    said = {who: _software(run.identity(who)) for who in run.learners if who in run.tapes}
    for who, line in apart(said):
        yield Found("settings", (f"{listed(who)}: {line}",), who[0] if len(who) == 1 else "")


def _software(identity: dict[str, str]) -> dict[str, str]:
    """What of an identity a person sets: machines of one job may well be of several kinds."""
    hardware = {"cpu", "device", "devices"}
    return {key: value for key, value in identity.items() if key not in hardware}


def _held_out(run: RecordedJob) -> Iterator[Found]:
    """A held-out loss far from the training loss."""
    if run.is_simulated:
        return  # Each learner's loss is of a target of its own there.
    told = [
        (f"{syncer}:{record.n}", event.loss)
        for syncer in run.syncers
        for record, event in run.held_out(syncer)
        if event.loss is not None
    ]
    losses = {who: [each.loss for *_, each in run.steps_of(who)] for who in run.learners}
    known = [each for each in losses.values() if len(each) >= STEPS_MIN]
    if not told or not known:
        return
    event, held_out = told[-1]
    training = [loss for each in known for loss in each[-STEPS_MIN:]]
    said = far_held_out(held_out, training, median(each[0] for each in known))
    if said:
        yield Found("held-out loss", (f"{said} ({event})",), event=event)


def _merged(run: RecordedJob) -> Iterator[Found]:
    """Learners that are never merged, or seldom from their first merge on, and those that were away
    for long. Who starts later than others is in no merge until then."""
    for each in absences_of(run):
        there = each.merges - each.before
        spans = [span for span in each.spans[bool(each.before) :] if span.for_s >= AWAY_S]
        away = max((span.merges for span in spans), default=0)
        long = away >= max(STEPS_MIN, ABSENT_SHARE * there)
        seldom = there >= STEPS_MIN and each.present < ABSENT_SHARE * there
        if seldom or long or each.before == each.merges >= STEPS_MIN:
            yield Found("merges", tuple(each.lines()), each.learner)


def _time(run: RecordedJob) -> Iterator[Found]:
    """Learners that wait for data, or were stopped, far longer than the others."""
    times = times_of(run)
    usual = median(each.data_share for each in times) if times else 0.0
    for each in times:
        share = each.data_share
        long = each.spent.data >= DATA_STEP_S * each.steps
        if long and share >= DATA_SHARE and (len(times) == 1 or share >= DATA_TIMES * usual):
            others = f"; of the median learner {usual:.0%}" if times[1:] else ""
            said = f"{each.learner} waits for data {share:.0%} of its time{_of_step(each)}{others}"
            yield Found("time", (said,), each.learner)
        if each.share("stopped") >= STOPPED_SHARE and each.spent.stopped >= STOPPED_S:
            said = f"{each.learner} was stopped in its steps for {seconds(each.spent.stopped)}"
            yield Found("time", (said,), each.learner)
    yield from _held_back(run)


def _held_back(run: RecordedJob) -> Iterator[Found]:
    """A learner for which most merges waited, for most of their time, when all others had come."""
    held = held_back(run.merges())
    others = sum(each.alone_s for each in held[1:])
    for each in held[:1]:
        long = each.alone_s >= max(HELD_SHARE * each.of_s, HELD_TIMES * others, STOPPED_S)
        if long and each.merges >= STEPS_MIN:
            yield Found("time", (each.line(),), each.learner)


def _of_step(each: LearnerTime) -> str:
    spent = each.spent.data, each.stepping_s
    data_s, step_s = (1000 * all_s / max(each.steps, 1) for all_s in spent)
    return f" ({data_s:.3g} of {step_s:.3g} ms a step)"


DETECTORS: dict[str, Callable[[RecordedJob], Iterator[Found]]] = {
    LOSSES: _losses,
    "finite numbers": _not_finite,
    "batches": _batches,
    "tensors": _tensors,
    "counts": _counts,
    "merges": _merged,
    "held-out loss": _held_out,
    "settings": _settings,
    "time": _time,
}
"""In the order in which their findings matter."""
