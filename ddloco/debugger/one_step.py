"""What tapes say of one inner step of a learner: its batch and loss beside those before, how long
it took, what was installed before it, what its update moved, and which merges it came into."""

from collections.abc import Sequence
from statistics import median

from msgspec import Struct

from clocks import actor_of
from ddloco.debugger.loss_analysis import BEFORE_STEPS
from ddloco.debugger.recorded_job import RecordedJob
from ddloco.debugger.wording import listed
from ddloco.job.protocol.work import OneStep, RunStep, StepFinished, tensors_apart
from ddloco.monitoring.status_view import seconds
from ddloco.stage.files.toml import ConfigError
from ddloco.workers.data_stream import unpack_cursor

BATCH_CHARS = 8
"""Hexadecimal digits of a batch's digest that are shown."""

INSTALLED_MAX = 2
"""Fragments that are named which were installed."""


class StepTime(Struct, frozen=True):
    """How long the request took that a step was in, in seconds; ``usual_s`` is that of the requests
    before it, for as many steps; ``count`` is how many steps it had. ``took_s`` is None if it was
    asked for before the tape begins: then it is not known what was installed, either."""

    took_s: float | None
    data_s: float
    compiling_s: float
    count: int
    usual_s: float | None


class StepAnswer(Struct, frozen=True):
    """One inner step.

    Attributes:
        at: when its result came, in seconds on the one axis of the run.
        batch: the digest of its batch, in hex; ``twins`` are other steps with the same batch.
        before: losses of the steps just before it.
        installed: the fragments, each with its version, that were installed just before it.
        moved: the tensors that its update moved, ``still`` those that it left as they were; both
            empty if the tapes do not say.
        merges: those that the learner's contribution of this step or the next ones came into first,
            one of each fragment: the global step, the learner's inner step, and the weight.
        first: the first step of its request.
        counts: those of the optimizer's schedules after its request, in the order of its leaves.
    """

    learner: str
    step: int
    event: str
    at: float
    loss: float
    tokens: int
    batch: str
    twins: tuple[str, ...]
    before: tuple[float, ...]
    time: StepTime
    installed: tuple[tuple[int, int], ...]
    moved: tuple[str, ...]
    still: tuple[str, ...]
    merges: tuple[tuple[int, int, float], ...]
    first: int
    counts: tuple[int, ...] = ()

    def lines(self) -> list[str]:
        lines = [f"inner step {self.step} of {self.learner} ({self.event}), at {self.at:.2f} s"]
        usual = ""
        if self.before:
            low, high = min(self.before), max(self.before)
            usual = f"; in the {len(self.before)} steps before {low:.4g} to {high:.4g}, median "
            usual += f"{median(self.before):.4g}"
        lines.append(f"  loss {self.loss:.6g}{usual}")
        twins = f", the same as of {listed(self.twins)}" if self.twins else ""
        counts = f"; schedules at {', '.join(map(str, self.counts))}" if self.counts else ""
        lines.append(f"  batch {self.batch[:BATCH_CHARS]}, {self.tokens:,} tokens{twins}{counts}")
        if self.time.took_s is None:
            lines.append("  it was asked for before the tape begins")
        else:
            took = self._took(self.time.took_s)
            lines += [f"  {took}", f"  before it, {self._installed()}"]
        if self.moved or self.still:
            left = f"; it left {listed(self.still)} as it was" if self.still else ""
            lines.append(f"  its update moved {self._of_tensors()}{left}")
        return [*lines, f"  {self._merged()}"]

    def _merged(self) -> str:
        if not self.merges:
            return "it came into no merge"
        (t, step, weight), *others = self.merges
        said = (
            f"it came into merge {t}, of the learner after inner step {step}, weight {weight:.3f}"
        )
        more = len(others)
        return said + (f"; into {more} more, until merge {others[-1][0]}" if more else "")

    def _took(self, took_s: float) -> str:
        time, said = self.time, f"took {seconds(took_s)}"
        if time.count > 1:
            said = f"{time.count} steps from {self.first} on took {seconds(took_s)} together"
        said += f" (usually {seconds(time.usual_s)})" if time.usual_s is not None else ""
        said += f", {seconds(time.data_s)} of it for data"
        return said + (f", {seconds(time.compiling_s)} compiling" if time.compiling_s else "")

    def _installed(self) -> str:
        if not self.installed:
            return "no version was installed"
        if len(self.installed) > INSTALLED_MAX:
            versions = [version for _, version in self.installed]
            which = f"versions {min(versions)} to {max(versions)}"
            return f"{which} of {len(versions)} fragments were installed"
        said = [f"version {version} of fragment {p}" for p, version in self.installed]
        return f"{listed(said)} {'was' if len(said) == 1 else 'were'} installed"

    def _of_tensors(self) -> str:
        return f"{len(self.moved)} of {len(self.moved) + len(self.still)} tensors"


def step_of(run: RecordedJob, learner: str, number: int) -> StepAnswer:
    """Return what tapes say of an inner step; ``ConfigError`` if there is none, or no such
    learner."""
    if learner not in run.learners and learner not in {actor_of(each) for each in run.learners}:
        there = ", ".join(run.learners[:8])
        raise ConfigError(f"{run.path}: no tape of {learner}; there are {there}")
    who, event_number = run.resolve(f"step:{learner}:{number}")
    steps = run.steps_of(who)
    place = next(at for at, (_, step, _) in enumerate(steps) if step == number)
    _, _, each = steps[place]
    result = next(event for record, event in run.finished(who) if record.n == event_number)
    asked, time = _asked(run, who, event_number, result)
    first = result.step - len(result.before)
    moved, still = _moved(run, who, result)
    at = run.event(who, event_number)[0]
    return StepAnswer(
        learner=who,
        step=number,
        event=f"{who}:{event_number}",
        at=run.common(who, at),
        loss=each.loss,
        tokens=each.tokens,
        batch=each.batch.hex(),
        twins=tuple(_twins(run, who, number, each)),
        before=tuple(one.loss for *_, one in steps[max(0, place - BEFORE_STEPS) : place]),
        time=time,
        installed=tuple((o.fragment, o.version) for o in asked.overwrites)
        if number == first
        else (),
        moved=moved,
        still=still,
        merges=tuple(_merges(run, who, number)),
        first=first,
        counts=tuple(unpack_cursor(result.cursor)[1]),
    )


def _asked(
    run: RecordedJob, who: str, event_number: int, result: StepFinished
) -> tuple[RunStep, StepTime]:
    """The request that a result is of, and how long it took beside those before it."""
    requests: dict[int, tuple[float, RunStep]] = {}
    took: list[tuple[float, int]] = []
    for step in run.stepper(who).steps(event_number):
        for effect in step.effects:
            if isinstance(effect, RunStep):
                requests[effect.work] = step.at, effect
        if isinstance(step.event, StepFinished) and step.event.work in requests:
            begun, _ = requests[step.event.work]
            took.append((step.at - begun, step.event.count))
    if result.work not in requests:  # It was asked for before the tape begins.
        nothing = RunStep(result.work, result.step, (), "")
        return nothing, StepTime(None, result.data_s, result.compiling_s, result.count, None)
    usual = [each_s / count for each_s, count in took[-1 - BEFORE_STEPS : -1]]
    usual_s = median(usual) * result.count if usual else None
    spent = StepTime(took[-1][0], result.data_s, result.compiling_s, result.count, usual_s)
    return requests[result.work][1], spent


def _moved(
    run: RecordedJob, who: str, result: StepFinished
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The tensors that differ after the update from what they were after the one before, which may
    be by an installed version, and those that do not; of steps that were asked for together, after
    all of them."""
    plan, before = run.plan, b""
    for _, event in run.finished(who):
        if event.step >= result.step:
            break
        before = event.tensors
    names = [leaf.name for fragment in plan.fragments for leaf in fragment] if plan else []
    return tensors_apart(names, before, result.tensors)


def _twins(run: RecordedJob, who: str, number: int, own: OneStep) -> Sequence[str]:
    if run.is_simulated:
        return []  # Such batches are numbers, with which each learner begins at 1.
    return [
        f"step {step} of {other}"
        for other in run.learners
        for _, step, each in run.steps_of(other)
        if each.batch == own.batch and (other, step) != (who, number)
    ]


def _merges(run: RecordedJob, who: str, number: int) -> Sequence[tuple[int, int, float]]:
    """The first merge of each fragment whose contribution was taken after the step."""
    found: dict[int, tuple[int, int, float]] = {}
    for merge in sorted(run.merges(), key=lambda each: each.t):
        for each in merge.contributions:
            began = each.step - each.steps
            if each.learner == who and began < number <= each.step:
                found.setdefault(merge.fragment, (merge.t, each.step, each.weight))
    return sorted(found.values())
