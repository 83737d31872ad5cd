"""What a recorded run computed, by meaning: so that two runs can be compared that were timed
differently. What both share is an *item*, such as an inner step or a merge, with a key that both
runs share, its content, and the items that it was computed from."""

import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from ddloco.debugger.merge_history import Merge, MergeAnswer
from ddloco.debugger.recorded_job import RecordedJob
from ddloco.debugger.recorded_run import parse_event
from ddloco.job.config import DATA_PARALLEL
from ddloco.job.protocol.messages import GlobalFragment, Resume, StatePiece
from ddloco.job.protocol.work import FragmentEncoded, StepFinished
from ddloco.stage.files.toml import ConfigError
from transport import MessageArrived

Kind = Literal[
    "batch", "install", "step", "update", "contribution", "merge", "event", "computation"
]

LEARNED = StepFinished, FragmentEncoded, GlobalFragment, Resume, StatePiece
"""What is read of a learner's tape."""


class Key(NamedTuple):
    """What an item is.

    Attributes:
        who: the learner's incarnation; for a merge its fragment, as ``fragment 3``; for a
            computation its function and a digest of its inputs.
        number: the inner step; for a contribution and a merge the global step; of an event its
            number.
    """

    kind: Kind
    who: str
    number: int

    def __str__(self) -> str:
        match self.kind:
            case "batch":
                return f"the batch of inner step {self.number} of {self.who}"
            case "install":
                return f"what {self.who} installed before inner step {self.number}"
            case "step":
                return f"inner step {self.number} of {self.who}"
            case "update":
                return f"the update of inner step {self.number} of {self.who}"
            case "contribution":
                return f"the contribution of {self.who} to merge {self.number}"
            case "event":
                return f"{self.who}:{self.number}"
            case "computation":
                return f"the result of {self.who}"
            case _:
                return f"merge {self.number} ({self.who})"


class Item(NamedTuple):
    """One item.

    Attributes:
        decided: what arrival times and pacing decide: who takes part, which versions, which step.
        computed: what came out: bits of a loss, weights, digests.
        tensors: of an update, a contribution or a merge, the names of its tensors, and their
            digests, if they are on the tape.
    """

    actor: str
    at: int
    decided: tuple[Any, ...]
    computed: tuple[Any, ...]
    causes: tuple[Key, ...]
    tensors: tuple[tuple[str, ...], bytes] = ((), b"")

    @property
    def event(self) -> str:
        return f"{self.actor}:{self.at}"

    @property
    def content(self) -> tuple[Any, ...]:
        return self.decided, self.computed


class Alignment:
    """All items of a run.

    Attributes:
        held_out: the held-out loss of the final model; None if it is not on the tapes.
    """

    compared = ""

    def __init__(self) -> None:
        self.items: dict[Key, Item] = {}
        self.losses: dict[str, dict[int, float]] = {}
        self.held_out: float | None = None
        self.notes: list[str] = []


class AlignedRun(Alignment):
    compared = "batches, losses, updates, installed fragments, contributions and merges"

    def __init__(self, run: RecordedJob, merges: Iterable[Merge] | None = None) -> None:
        method = run.job.job.method
        if method in DATA_PARALLEL:
            raise ConfigError(f"{run.path}: job.method = {method!r} has no merges to compare")
        super().__init__()
        self._tensors: dict[tuple[str, bytes], bytes] = {}
        """The digests of the tensors of what each learner encoded, by its payload's digest."""
        plan = run.plan
        self._names = [tuple(leaf.name for leaf in each) for each in plan.fragments] if plan else []
        for learner in run.learners:
            self.items.update(self._steps(run, learner))
        newest: dict[int, Key] = {}
        for merge in run.merges() if merges is None else merges:
            self.items.update(self._items_of(merge, newest.get(merge.fragment)))
            newest[merge.fragment] = _merge_key(merge.fragment, merge.t)
        for syncer in run.syncers:
            for _, event in run.held_out(syncer):
                self.held_out = event.loss

    def _steps(self, run: RecordedJob, learner: str) -> Iterator[tuple[Key, Item]]:
        """Yield a learner's steps, each after what was installed before it. A step begins when the
        one before it is finished, and takes every fragment that has arrived by then; when the first
        one begins is asked of the machine. A batch follows from the one before it alone, however
        the run was timed."""
        asked = run.first_step(learner)
        begun = asked.number if asked is not None else run.tapes[learner].events
        losses = self.losses.setdefault(learner, {})
        names = tuple(name for each in self._names for name in each)
        arrived: list[tuple[int, int, bytes]] = []
        installed: list[tuple[int, int, bytes]] = []
        before: tuple[Key, ...] = ()
        drawn: tuple[Key, ...] = ()
        started = False
        resumed: tuple[Any, ...] = ()
        """Where a learner that came back began: batches skipped, donor, and the donor's step."""
        given: tuple[bytes, ...] = ()
        """The digests of the state that it was given."""
        for record, event in run.events(learner, *LEARNED):
            if not started and record.n > begun:
                started, installed, arrived = True, arrived, []
            if isinstance(event, MessageArrived) and isinstance(event.body, GlobalFragment):
                arrived.append((event.body.fragment, event.body.version, event.payload))
            elif isinstance(event, MessageArrived) and isinstance(event.body, Resume):
                resumed = event.body.batches, event.body.donor
            elif isinstance(event, MessageArrived) and isinstance(event.body, StatePiece):
                resumed, given = (*resumed[:2], event.body.copy), (*given, event.payload)
            elif isinstance(event, FragmentEncoded):
                if event.tensors:
                    self._tensors[learner, event.digest] = event.tensors
            elif isinstance(event, StepFinished):
                for number, each in event.steps():
                    losses[number] = each.loss
                    n = record.n
                    batch = Key("batch", learner, number)
                    install = Key("install", learner, number)
                    step = Key("step", learner, number)
                    yield batch, Item(learner, n, resumed[:1], (each.batch,), drawn)
                    merges = tuple(_merge_key(p, version) for p, version, _ in installed if version)
                    versions = tuple(sorted((p, version) for p, version, _ in installed))
                    bytes_of = tuple(sorted((p, digest) for p, _, digest in installed))
                    donor = [Key("update", *resumed[1:])] if len(resumed) > 2 else []
                    causes = (*before, *merges, *donor)
                    yield install, Item(learner, n, versions, (*bytes_of, *given), causes)
                    loss = struct.pack("<d", each.loss)
                    yield step, Item(learner, n, resumed[1:], (loss,), (*before, batch, install))
                    if event.tensors and number == event.step:
                        update = Key("update", learner, number)
                        causes, tensors = (*before, batch, install, step), (names, event.tensors)
                        yield update, Item(learner, n, (), (event.tensors,), causes, tensors)
                        step = update
                    before, drawn, installed, resumed, given = (step,), (batch,), [], (), ()
                installed, arrived = arrived, []

    def _items_of(self, merge: Merge, before: Key | None) -> Iterator[tuple[Key, Item]]:
        causes: list[Key] = []
        for each in (*merge.contributions, *merge.refused):
            key = Key("contribution", each.learner, merge.t)
            causes.append(key)
            if each.event:  # Of one that arrived before the tape begins, the bytes are not known.
                yield key, self._contribution(each, merge.fragment)
        took = tuple(sorted(key.who for key in causes))
        weights = [(each.learner, struct.pack("<d", each.weight)) for each in merge.contributions]
        computed = (tuple(weights), merge.theta, merge.state, merge.wire)
        if before is not None:
            causes.append(before)
        tensors = self._named(merge.fragment, bytes.fromhex(merge.tensors))
        key = _merge_key(merge.fragment, merge.t)
        yield key, Item(*parse_event(merge.event), took, computed, tuple(causes), tensors)

    def _named(self, fragment: int, digests: bytes) -> tuple[tuple[str, ...], bytes]:
        return self._names[fragment] if self._names else (), digests

    def _contribution(self, each: MergeAnswer, fragment: int) -> Item:
        update = Key("update", each.learner, each.step)
        if update not in self.items:
            update = Key("step", each.learner, each.step)
        causes = (update, _merge_key(fragment, each.base))
        decided = (each.base, each.step, each.steps, each.tokens)
        digests = self._tensors.get((each.learner, bytes.fromhex(each.digest)), b"")
        tensors = self._named(fragment, digests)
        return Item(*parse_event(each.event), decided, (each.digest,), causes, tensors)


def _merge_key(fragment: int, t: int) -> Key:
    return Key("merge", sys.intern(f"fragment {fragment}"), t)


def first_differences(one: Mapping[Key, Item], other: Mapping[Key, Item]) -> list[Key]:
    """Return the items that differ although all that they were computed from is equal, by key. An
    item that only one of the runs has differs from nothing. The causes of both runs together may go
    round in a circle; where no item is left then, those of the first run decide."""
    differing = {
        key for key, item in one.items() if key in other and item.content != other[key].content
    }
    parted = differing | _parted_later(one, differing)
    here = [key for key in differing if parted.isdisjoint(one[key].causes)]
    both = [key for key in here if parted.isdisjoint(other[key].causes)]
    return sorted(both or here)


def _parted_later(items: Mapping[Key, Item], differing: set[Key]) -> set[Key]:
    """Return the inner steps, the updates and the events after a difference. A small difference of
    parameters may be rounded away in the loss of a step, and show only in the loss of a later one;
    the parameters differ all the time. So does the state of an actor."""
    parted: set[Key] = set()
    for key, item in items.items():  # A learner's steps are in order, and events in a causal one.
        if key.kind in {"step", "update", "event"} and any(
            cause in parted or cause in differing for cause in (key, *item.causes)
        ):
            parted.add(key)
    return parted
