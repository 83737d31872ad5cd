"""The numbers of a job: goodput, steps, tokens, refusals. They are counted here and nowhere else:
the log, displays, trackers, ``status``, the report and the simulator show what this says."""

from collections.abc import Container, Iterable, Mapping

from msgspec import Struct, field
from msgspec.structs import astuple

from clocks import actor_of
from ddloco.job.protocol.messages import Progress
from ddloco.job.protocol.status import Numbers
from ddloco.job.protocol.time_spent import TimeSpent
from ddloco.machines.syncer.apart import counts_otherwise, shaped_otherwise

LATE = "it came after its sync was closed"
"""Why a late contribution is refused."""

DIGITS = 6
"""Of a share or a number of seconds: what is shown has fewer."""

SPENT_S_MAX = 1e9
"""Thirty years: no learner has spent more on anything."""

COUNT_MAX = 2**63 - 1
"""What a message can carry; learners may report any counts."""


class Totals(Struct, frozen=True):
    """What a learner has reported since it started, or a sum of that."""

    steps: int = 0
    tokens: int = 0
    spent: TimeSpent = TimeSpent()

    def plus(self, other: "Totals") -> "Totals":
        steps, tokens = self.steps + other.steps, self.tokens + other.tokens
        return Totals(steps, tokens, self.spent + other.spent)

    def minus(self, other: "Totals") -> "Totals":
        steps, tokens = self.steps - other.steps, self.tokens - other.tokens
        return Totals(steps, tokens, self.spent - other.spent)


DISREGARDED = 5
"""Contributions of a learner refused in a row, or late or refused without ever being merged, from
which on people are told of it: twice what a learner that starts over may need."""


PASSED = 16
"""Merges without a learner that trains, and was in none yet, from which on people are told of it:
after its first step, a learner is asked for each fragment at its next merge."""

TOLD_STEPS = 8
"""Steps of a learner from which on its tokens a step are compared with those of the others."""


class Fate(Struct, forbid_unknown_fields=True):
    """What became of a learner's contributions.

    Attributes:
        refused: how many were refused for what they are.
        late: how many came after their sync was closed.
        in_row: how many have been refused since the last one that was merged.
        passed: how many merges were done without it, while it trained, before its first one.
    """

    merged: int = 0
    refused: int = 0
    late: int = 0
    in_row: int = 0
    reason: str = ""
    passed: int = 0

    @property
    def is_disregarded(self) -> bool:
        """Whether the learner's work is of no use to the job, or has not been for a while."""
        unused = self.refused + self.late if not self.merged else 0
        return max(self.in_row, unused) >= DISREGARDED

    @property
    def is_passed_by(self) -> bool:
        return not self.merged and self.passed >= PASSED

    @property
    def is_new(self) -> bool:
        """Whether that has just become so, or twice as bad as when it was said last."""
        times, rest = divmod(self.in_row, DISREGARDED)
        return times > 0 and not rest and not times & (times - 1)

    def words(self, merges: int) -> str:
        turned = f"refused {self.refused} times, because {self.reason}" if self.refused else ""
        late = f"late {self.late} times" if self.late else ""
        passed = f"it trained during {self.passed} of them" if self.is_passed_by else ""
        said = "; ".join(filter(None, (turned, late, passed)))
        return f"was in {self.merged} of {merges} merges: {said}"


class Accounts(Struct, forbid_unknown_fields=True):
    """Counts what learners report and what becomes of it, since this syncer started.

    Attributes:
        first: for the newest incarnation of each learner, by that, what it had done before it
            joined this syncer.
        newest: the same as of its last report.
        former: the sum over incarnations that a newer one has replaced.
        merged: for each fragment, the tokens merged into it.
        refused: contributions that were refused; late ones are not among them.
        late: contributions that were not there when their sync was closed and merged.
        restarted: whether an earlier incarnation of this syncer has counted, which is not in here.
        intervals: how many intervals between two merges of one fragment were counted, and the sum
            of their inner steps, each those of the median learner.
        merged_at: the global step of the newest merge of that fragment, and the step of each
            learner then.
        otherwise: by name, who counts tokens or has batches otherwise than all others, in words.
    """

    joined: dict[str, float] = {}
    first: dict[str, Totals] = {}
    newest: dict[str, Totals] = {}
    former: Totals = field(default_factory=Totals)
    merged: dict[int, int] = {}
    refused: int = 0
    late: int = 0
    restarted: bool = False
    fates: dict[str, Fate] = {}
    intervals: tuple[int, float] = 0, 0.0
    merged_at: tuple[int, dict[str, int]] = 0, {}
    otherwise: dict[str, str] = {}

    def fate(self, incarnation: str) -> Fate:
        return self.fates.setdefault(actor_of(incarnation), Fate())

    def refuse(self, incarnation: str, reason: str) -> Fate:
        """A contribution was refused; returns what has become of that learner's."""
        fate = self.fate(incarnation)
        if reason == LATE:
            fate.late += 1
            return fate
        self.refused += 1
        fate.refused, fate.in_row, fate.reason = fate.refused + 1, fate.in_row + 1, reason
        return fate

    def use(self, incarnation: str) -> None:
        fate = self.fate(incarnation)
        fate.merged, fate.in_row = fate.merged + 1, 0

    def pass_by(self, incarnations: Iterable[str]) -> list[str]:
        """A merge was done without these learners, which train; returns who has just been passed by
        too often."""
        fates = [(each, self.fate(each)) for each in incarnations]
        for _, fate in fates:
            fate.passed += not fate.merged
        return [each for each, fate in fates if not fate.merged and fate.passed == PASSED]

    def compare(self, shapes: Mapping[str, str], own: Container[str]) -> tuple[str, str]:
        """Return who counts tokens otherwise than all others, or has batches of other ``shapes``,
        and that in words, once; learners with batches of their ``own`` are left out."""
        counted = {
            who: totals.tokens / totals.steps
            for who, totals in self.newest.items()
            if totals.steps >= TOLD_STEPS and actor_of(who) not in own
        }
        alike = {who: each for who, each in shapes.items() if who in counted}
        learner, said = counts_otherwise(counted)
        if not learner:
            learner, said = shaped_otherwise(alike)
        if not learner or actor_of(learner) in self.otherwise:
            return "", ""
        self.otherwise[actor_of(learner)] = said
        return learner, said

    def count_interval(self, t: int, steps: dict[str, int], interval: int) -> None:
        """A fragment was merged at global step ``t``, always the same one, when the learners had
        done so many ``steps``; ``interval`` global steps are asked for between two such merges."""
        (before_t, before), self.merged_at = self.merged_at, (t, steps)
        ran = sorted(steps[who] - before[who] for who in steps if who in before)
        if ran and t > before_t:
            count, total = self.intervals
            median = ran[(len(ran) - 1) // 2]
            self.intervals = count + 1, total + median * interval / (t - before_t)

    def disregarded(self, merges: int) -> dict[str, str]:
        fates = sorted(self.fates.items())
        turned = [each for each in fates if each[1].is_disregarded or each[1].is_passed_by]
        return {actor: fate.words(merges) for actor, fate in turned} | self.otherwise

    def unused(self) -> list[str]:
        """Return whose contributions were refused or late each time, by name."""
        fates = sorted(self.fates.items())
        return [actor for actor, fate in fates if fate.is_disregarded and not fate.merged]

    def join(self, at: float, incarnation: str) -> None:
        """A learner has joined; what an earlier incarnation of it has done is kept."""
        actor = actor_of(incarnation)
        self.joined.setdefault(actor, at)
        for other in [each for each in self.newest if actor_of(each) == actor]:
            if other != incarnation:
                self.former = self.former.plus(self.newest.pop(other).minus(self.first.pop(other)))

    def report(self, incarnation: str, progress: Progress) -> None:
        """Note a report. The first one is what the learner did before it joined: it sends one when
        the link is established."""
        totals = Totals(progress.step, progress.trained, plausible(progress.spent))
        self.first.setdefault(incarnation, totals)
        self.newest[incarnation] = totals

    def merge(self, fragment: int, tokens: int, late: int = 0) -> None:
        """Count tokens merged into a fragment, by this incarnation or an earlier one; ``late`` of
        the learners that were pulled had not answered."""
        self.late += late
        self.merged[fragment] = self.merged.get(fragment, 0) + tokens

    def numbers(self, at: float, *, live: int, quorum: int, merges: int, fragments: int) -> Numbers:
        """Return the numbers at ``at`` seconds. Goodput is the share of the learners' time, from
        when each first joined, that was spent computing finished steps. Only merged steps are
        useful: it is unknown before the first merge, and 0 while fewer learners than the quorum are
        connected. Merged tokens are averaged over ``fragments``."""
        counted, total = self.intervals
        done = self.former
        for incarnation, newest in self.newest.items():
            done = done.plus(newest.minus(self.first[incarnation]))
        whole = sum(at - since for since in self.joined.values())
        spent = done.spent
        known = sum(astuple(spent))
        goodput = min(max(spent.computing / whole, 0.0), 1.0) if whole > 0 else None
        if not merges:
            goodput = None
        elif live < quorum:
            goodput = 0.0
        return Numbers(
            goodput=round(goodput, DIGITS) if goodput is not None else None,
            live=live,
            inner_steps=min(done.steps, COUNT_MAX),
            trained_tokens=min(done.tokens, COUNT_MAX),
            merged_tokens=mean_tokens(sum(self.merged.values()), fragments),
            refusals=self.refused,
            late=self.late,
            computing_s=round(spent.computing, DIGITS),
            compiling_s=round(spent.compiling, DIGITS),
            data_s=round(spent.data, DIGITS),
            parameters_s=round(spent.parameters, DIGITS),
            stopped_s=round(spent.stopped, DIGITS),
            versions_s=round(spent.versions, DIGITS),
            away_s=round(max(whole - known, 0.0), DIGITS),
            restarted=self.restarted,
            interval_steps=round(total / counted, 3) if counted else None,
        )


def plausible(said: TimeSpent) -> TimeSpent:
    """Return what a learner says of its time, without what cannot be."""
    return TimeSpent(*(each if 0.0 <= each <= SPENT_S_MAX else 0.0 for each in astuple(said)))


def mean_tokens(total: int, fragments: int) -> int:
    """Return tokens in merges on average over the fragments, as ``job.tokens`` counts them: a
    trained token is in as many merges as there are fragments, if none is lost."""
    return total // fragments if fragments else 0
