"""What the actors of any program did, so that two runs of it can be compared. As long as everything
in an event's causal past is equal, the same event has the same number; when it happened is not
compared. A *computation* is compared by its inputs, wherever it stands."""

import hashlib
import sys
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any, Literal

import msgspec

from ddloco.debugger.alignment import Alignment, Item, Key
from ddloco.debugger.recorded_run import RecordedRun
from ddloco.debugger.wording import clipped, phrase
from ddloco.stage.actors.effects import Calculation, Work
from ddloco.stage.actors.events import Captured, Computed, WorkResult
from ddloco.stage.actors.messages import SnapshotPart
from replay import Divergence, Step
from transport import CancelTimer, MessageArrived, SetTimer, Transmit
from transport.message import Hello, Welcome

DIGEST_BYTES = 8
"""Of what is compared and not shown: enough for a tape of a billion events."""


class AlignedEvents(Alignment):
    """The events and the computations of a run, by key, in a causal order."""

    compared = "events and computations"

    def __init__(self, run: RecordedRun) -> None:
        super().__init__()
        found: list[tuple[int, Key, Item]] = []
        for who in run.tapes:
            found += _Reader(run, who, self.notes).items()
        found.sort(key=lambda each: (each[0], each[1]))
        for _, key, item in found:
            self.items.setdefault(key, item)  # A computation may be done twice.


class _Reader:
    def __init__(self, run: RecordedRun, who: str, notes: list[str]) -> None:
        self.run, self.who, self.notes = run, who, notes
        self.known = dict(run.tape_of(who).header.clock)
        self.arrays: dict[str, bytes] = {}
        self.asked: dict[int, Calculation] = {}

    def items(self) -> Iterator[tuple[int, Key, Item]]:
        """Yield each item after the sum of its clock; see ``RecordedRun.clock_sums``."""
        stepper = self.run.stepper(self.who)
        try:
            for step in stepper.steps():
                if isinstance(step.event, MessageArrived):
                    self.known.update(step.event.clock)
                others = sum(n for who, n in self.known.items() if who != self.who)
                for key, item in self._of(step):
                    yield others + step.number, key, item
        except Divergence:
            self.notes.append(
                f"{self.run.path}: events of {self.who} from {stepper.number + 1} on were not "
                "compared: this program decides otherwise than the tape says"
            )

    def _of(self, step: Step) -> Iterator[tuple[Key, Item]]:
        event, n = step.event, step.number
        causes = [Key("event", self.who, n - 1)] if n > self.run.first(self.who) else []
        decided: tuple[Any, ...] = (type(event).__name__,)
        computed: tuple[Any, ...] = ()
        if isinstance(event, MessageArrived):
            causes.append(Key("event", sys.intern(event.sender), event.clock.get(event.sender, 0)))
            decided += (event.sender, event.lane, _digest(_timeless_body(event.body)))
            computed = (event.payload,)
            if event.handle:
                self.arrays[event.handle] = event.payload
        elif isinstance(event, WorkResult):
            decided += (event.work,)
            computed = (_digest(event),) if not isinstance(event, Captured) else (event.failed,)
        else:
            decided += (_digest(event),)
        effects = _digest([_timeless(each) for each in step.effects])
        yield (
            Key("event", self.who, n),
            Item(self.who, n, decided, (*computed, effects), (*causes,)),
        )
        if isinstance(event, Computed):
            yield from self._computation(event, n)
        for effect in step.effects:
            if isinstance(effect, Calculation):
                self.asked[effect.work] = effect

    def _computation(self, event: Computed, n: int) -> Iterator[tuple[Key, Item]]:
        work = self.asked.pop(event.work, None)
        if work is None:
            return
        given = [self.arrays.get(handle) for handle in work.source]
        self.arrays.update(zip(work.out, event.made, strict=False))
        if None in given:
            return  # From a snapshot: its bytes are not on the tape.
        fields = {name: getattr(work, name) for name in work.__struct_fields__}
        inputs = {**fields, "work": 0, "source": given, "out": len(work.out)}
        name = fields.get("function") or type(work).__name__
        key = Key("computation", f"{name} (inputs {_digest(inputs).hex()})", 0)
        value = {name: getattr(event, name) for name in event.__struct_fields__ if name != "work"}
        yield key, Item(self.who, n, (), (_digest(value),), ())


def event_difference(
    key: Key, one: Item, other: Item, runs: tuple[RecordedRun, RecordedRun]
) -> tuple[Literal["other event", "other result", "other effects"], str]:
    """Return how an event or a computation differs whose causes are equal, and that in words."""
    mine, theirs = (
        _in_words(run.event(item.actor, item.at)[1])
        for run, item in zip(runs, (one, other), strict=True)
    )
    both = f"{mine} in the one, {theirs} in the other"
    if key.kind == "computation":
        return "other result", f"{both}; its arguments and arrays are equal"
    if one.decided != other.decided:
        return "other event", f"{both}; all that this actor had handled before is equal"
    if one.computed[:-1] != other.computed[:-1]:
        return "other result", f"{both}; all that this actor had handled before is equal"
    effects = [
        [_timeless(each) for each in run.at(item.actor, item.at).effects]
        for run, item in zip(runs, (one, other), strict=True)
    ]
    pairs = zip_longest(*effects, fillvalue="nothing")
    x, y = next((pair for pair in pairs if pair[0] != pair[1]), ("nothing", "nothing"))
    said = f"{clipped(str(x))} in the one, {clipped(str(y))} in the other"
    return "other effects", f"{mine}, as in the other, and the actor asked for {said}"


def _in_words(event: Any) -> str:
    lane = f" on lane {event.lane}" if isinstance(event, MessageArrived) else ""
    return f"{phrase(event)}{lane}"


def _timeless(effect: Any) -> Any:
    """An effect without what says which run it is, or when; never equal in two live runs."""
    name = type(effect).__name__
    match effect:
        case SetTimer() | CancelTimer():
            return name, effect.timer
        case Transmit(body=body):
            return name, effect.peer, effect.lane, _timeless_body(body), effect.payload
        case Work() if not isinstance(effect, Calculation):
            return (name,)  # A part of a snapshot: it has the time of the cut.
        case _:
            return name, effect


def _timeless_body(body: Any) -> Any:
    """A message without what says which run it is; and of a snapshot, only that there is one."""
    name = type(body).__name__
    return (name,) if isinstance(body, Hello | Welcome | SnapshotPart) else (name, body)


def _digest(value: Any) -> bytes:
    data = msgspec.msgpack.encode(value, order="deterministic")
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
