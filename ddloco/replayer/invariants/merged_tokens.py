"""Which trained tokens reach a merge: the share that is not lost to overwrites, faults or refusals.

A trained token changes every fragment, so it can be merged up to P times. Two shares are counted:

* ``merged``: of the trained tokens, those of steps that are in at least one merge;
* ``in_fragments``: of token times fragment. The difference to 100 % is what overwrites replace:
  steps that end between a pull's snapshot and the arrival of the new version (paper, Algorithm 1,
  line 16: up to tau of H steps), and steps since a version that was never pulled.

Steps that had not been reported to the syncers at the launch of their last sync are not counted,
because they could not have been requested before the job ended.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from ddloco.job.protocol.messages import Contribution, Progress, Pull
from ddloco.job.protocol.work import FragmentMerged, MergeFragment, StepFinished
from ddloco.replayer.invariants.base import Effects, Incarnation, InvariantCheck, Stage
from ddloco.stage.actors.effects import Observe
from transport import Event, MessageArrived, Transmit


@dataclass
class TrainedTokens:
    """What one incarnation has trained, and which of its steps are in a merge."""

    tokens: dict[int, int] = field(default_factory=dict[int, int])
    """The tokens of each finished step, by step."""
    merged: set[int] = field(default_factory=set[int])
    in_fragments: int = 0
    """Tokens in merges, counted once per fragment."""


@dataclass(frozen=True)
class MergedShare:
    """The percentage of ``trained`` tokens that are in a merge (``merged``), and by fragment
    (``in_fragments``); and in how many of all ``merges`` each incarnation took part."""

    trained: int
    merged: float
    in_fragments: float
    merges: int
    took_part: dict[str, int]

    def line(self) -> str:
        return (
            f"{self.merged:.2f} % of {self.trained} trained tokens are in a merge, "
            f"{self.in_fragments:.2f} % counted by fragment"
        )


class MergedTokens(InvariantCheck[Stage, Incarnation]):
    """Counts trained and merged tokens from events and effects; it raises no violations."""

    def __init__(self) -> None:
        super().__init__()
        self._trained: dict[str, TrainedTokens] = {}
        self._contributions: dict[tuple[str, int, int], Contribution] = {}
        self._work: dict[tuple[str, int], tuple[int, int]] = {}
        self._heard: dict[str, int] = {}
        self._linked: dict[str, set[str]] = {}
        """The linked learners, by syncer."""
        self._until: dict[str, dict[str, int]] = {}
        """By syncer, the learners linked at its last launch, and their steps reported by then."""
        self._took_part: Counter[str] = Counter()
        self._merges = 0

    def started(self, stage: Stage, role: Incarnation) -> None:
        if role.actor_name in stage.job.syncer_names():
            self._linked[role.actor_name] = set()

    def see(self, stage: Stage, role: Incarnation, event: Event, effects: Effects) -> None:
        del stage
        # Exact types are compared because a simulated world passes every event and effect here.
        if type(event) is StepFinished:
            trained = self._trained.setdefault(role.incarnation, TrainedTokens())
            trained.tokens.update((step, each.tokens) for step, each in event.steps())
        elif type(event) is MessageArrived:
            self._message(event)
        elif type(event) is FragmentMerged:
            launched = self._work.pop((role.incarnation, event.work), None)
            if launched is not None:  # Averaged gradients are not fragments.
                self._merged(*launched, event)
        for effect in effects:
            if type(effect) is Transmit:
                if type(effect.body) is Pull:
                    self._launched(role.actor_name)
            elif type(effect) is MergeFragment:
                self._work[role.incarnation, effect.work] = effect.t, effect.fragment
            elif type(effect) is Observe:
                self._observed(role.actor_name, effect)

    def _message(self, event: MessageArrived[Any]) -> None:
        said = event.body
        if type(said) is Progress:
            self._heard[event.sender] = said.step
        elif type(said) is Contribution:
            self._contributions[event.sender, said.t, said.fragment] = said

    def _launched(self, syncer: str) -> None:
        heard, linked = self._heard, self._linked[syncer]
        self._until[syncer] = {name: heard.get(name, 0) for name in linked}

    def _observed(self, actor: str, seen: Observe) -> None:
        if seen.event == "joined":
            self._linked[actor].add(seen.fields["learner"])
        elif seen.event == "lost" and actor in self._linked:
            self._linked[actor].discard(seen.fields["learner"])

    def _merged(self, t: int, fragment: int, event: FragmentMerged) -> None:
        self._merges += 1
        for name in event.accepted:
            said = self._contributions[name, t, fragment]
            self._took_part[name] += 1
            trained = self._trained.setdefault(name, TrainedTokens())
            trained.in_fragments += said.tokens
            trained.merged.update(range(said.step - said.steps + 1, said.step + 1))
        self._contributions = {
            key: said for key, said in self._contributions.items() if key[1:] != (t, fragment)
        }

    def results(self, fragments: int) -> dict[str, float]:
        share = self.share(fragments)
        if not share.merges:
            return {}
        return {"in a merge": share.merged, "by fragment": share.in_fragments}

    def share(self, fragments: int) -> MergedShare:
        total, merged, in_fragments = 0, 0, 0
        for name, each in self._trained.items():
            known = [until[name] for until in self._until.values() if name in until]
            last = max(known) if known else max(each.tokens, default=0)
            counted = {step: n for step, n in each.tokens.items() if step <= last}
            total += sum(counted.values())
            merged += sum(n for step, n in counted.items() if step in each.merged)
            in_fragments += each.in_fragments
        return MergedShare(
            trained=total,
            merged=100 * merged / total if total else 100.0,
            in_fragments=100 * in_fragments / (total * fragments) if total else 100.0,
            merges=self._merges,
            took_part=dict(sorted(self._took_part.items())),
        )
