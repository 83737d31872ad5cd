"""The snapshot that a replay starts from, and whether the tapes that exist can start there."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from clocks import actor_of, number_of
from ddloco.stage.driver.resume import RESTORED, RESTORED_PLACE, Start, StartPoint, place_now
from replay import Tape, tape
from snapshot import NEWEST, Manifest, Part, SnapshotError, Store


@dataclass(frozen=True)
class SnapshotCut:
    """The cut of a snapshot: for each incarnation, the event after which its state was taken."""

    parts: Mapping[str, Part]

    def precedes(self, each: Tape) -> bool:
        """Whether the cut is before the first event of a tape, so that events between are lost."""
        name, after = each.incarnation, each.header.after
        if not after:
            return False
        part = self.parts.get(name)
        return part.number < after if part is not None else not self._is_past(name)

    def leaves_out(self, each: Tape) -> bool:
        """Whether a tape has events after the cut although its actor is not in the snapshot. The
        tape shows that if its actor knew an event of another actor after the cut. Otherwise all of
        it may have happened before the cut."""
        if each.incarnation in self.parts or not self._is_past(each.incarnation):
            return False
        if self._is_former(each.incarnation):
            return False
        known = final_clock(each)
        return any(known.get(who, 0) > part.number for who, part in self.parts.items())

    def complete(self, tapes: Sequence[Tape]) -> bool:
        """Whether each actor of the snapshot has a tape, and no tape after the cut is left out."""
        there = {each.incarnation for each in tapes}
        return set(self.parts) <= there and not any(self.leaves_out(each) for each in tapes)

    def _is_past(self, name: str) -> bool:
        heard = any(part.clock.get(name, 0) for part in self.parts.values())
        return heard or self._is_former(name)

    def _is_former(self, name: str) -> bool:
        actor, number = actor_of(name), number_of(name)
        known = (who for part in self.parts.values() for who in (part.who, *part.clock))
        return any(actor_of(who) == actor and number < number_of(who) for who in known)


def cut_of(parts: Sequence[Part]) -> SnapshotCut:
    return SnapshotCut({part.who: part for part in parts})


def final_clock(each: Tape) -> dict[str, int]:
    """Return the clock of an actor after the last event of its tape, which has been scanned."""
    return {**each.header.clock, **each.heard}


S = TypeVar("S", bound=Start)

ReadStartPoint = Callable[[str | Path, str], StartPoint[S]]


Permit = Callable[[str | Path], None]
"""Refuses a place that may not be opened; see ``check_states``."""


def choose_start_point(
    tapes: Sequence[Tape], place: str | Path, read: ReadStartPoint[S], snapshot: str, permit: Permit
) -> StartPoint[S] | None:
    """Read the snapshot that a replay of these tapes starts from; None if all tapes are complete.
    That is the one that is asked for, or that the run itself continued from or, if tapes have lost
    their beginnings, the first from which all of them can be replayed. ``SnapshotError`` if tapes
    begin after the snapshot that is asked for, there is none, or it is damaged; ``ConfigError`` if
    the place may not be opened."""
    dropped = any(each.dropped for each in tapes)
    if snapshot or dropped:
        permit(place)
    if snapshot == NEWEST:
        return _newest(tapes, place, read)
    if snapshot:
        start_point = read(place, snapshot)
        _check(start_point, tapes, place)
        return _of_these(start_point, tapes, place)
    if dropped:
        return _first(tapes, place, read)
    for each in tapes:
        if each.header.after:
            facts = each.header.facts
            if RESTORED not in facts or RESTORED_PLACE not in facts:
                said = f"begins after event {each.header.after}, and names no snapshot"
                raise SnapshotError(f"{each.path}: {said}")
            there = place_now(facts[RESTORED_PLACE], each.path)
            permit(there)
            return _of_these(read(there, facts[RESTORED]), tapes, there)
    return None


def _of_these(
    start_point: StartPoint[S], tapes: Sequence[Tape], place: str | Path
) -> StartPoint[S]:
    problem = mismatch(start_point.parts, tapes)
    if problem is not None:
        where = f"{place}: {start_point.snapshot}"
        raise SnapshotError(f"{where} is of another run than these tapes: {problem}")
    return start_point


def mismatch(parts: Sequence[Part], tapes: Sequence[Tape]) -> str | None:
    """Return why a snapshot is of another run than these tapes; None if it may be of the same. Two
    runs of one job have the same names, but never the same clocks: at the event of the cut an
    actor's clock in the snapshot must be that of its tape."""
    by_name = {part.who: part for part in parts}
    seen = False
    for each in tapes:
        part = by_name.get(each.incarnation)
        if part is None or part.number < each.header.after:
            continue
        seen = True
        if part.number > each.events:
            if each.closed is None:
                continue  # Its end was lost.
            return f"it has event {part.number} of {part.who}, whose tape ends with {each.events}"
        known = clock_at(each, part.number)
        for name, count in part.clock.items():
            if known.get(name, 0) != count:
                there = f"{part.who} had heard of {name}:{count} at its event {part.number}"
                return f"{there}, its tape says {name}:{known.get(name, 0)}"
    return None if seen else "none of its actors has a tape here"


def clock_at(each: Tape, number: int) -> dict[str, int]:
    clock = dict(each.header.clock)
    for record in each.records():
        if isinstance(record, tape.Event):
            if record.n > number:
                break
            clock.update(record.clock)
    clock[each.incarnation] = number
    return clock


def _check(start_point: StartPoint[S], tapes: Sequence[Tape], place: str | Path) -> None:
    cut = cut_of(start_point.parts)
    late = next((each for each in tapes if cut.precedes(each)), None)
    if late is None:
        return
    first = next(iter(usable_snapshots(tapes, place)), None)
    hint = f"the first usable one is {first.id}" if first is not None else "no snapshot is usable"
    raise SnapshotError(
        f"--from {start_point.snapshot}: {late.path.name} begins after event {late.header.after}, "
        f"after that snapshot; {hint}"
    )


def _newest(tapes: Sequence[Tape], place: str | Path, read: ReadStartPoint[S]) -> StartPoint[S]:
    """Read the newest intact snapshot of this run; the place may hold those of other runs."""
    problem = "holds no snapshot of this run"
    for each in Store(place).snapshots():
        manifest = each.manifest
        if manifest is None or manifest.facts.get("job", tapes[0].header.job_id) != (
            tapes[0].header.job_id
        ):
            continue
        if mismatch(manifest.parts, tapes) is not None:
            continue
        try:
            start_point = read(place, manifest.id)
            _check(start_point, tapes, place)
        except SnapshotError as error:
            problem = f"the newest snapshot of this run: {error}"
            continue
        return start_point
    raise SnapshotError(f"{place}: {problem}")


def _first(tapes: Sequence[Tape], place: str | Path, read: ReadStartPoint[S]) -> StartPoint[S]:
    """Read the first intact snapshot from which all tapes can be replayed."""
    problem = ""
    for manifest in usable_snapshots(tapes, place):
        try:
            return _of_these(read(place, manifest.id), tapes, place)
        except SnapshotError as error:
            problem = problem or str(error)
    late = next(each for each in tapes if each.dropped)
    said = problem or f"holds no snapshot at or after event {late.header.after}"
    raise SnapshotError(f"{late.path} has lost its beginning, and {place}: {said}")


def usable_snapshots(tapes: Sequence[Tape], place: str | Path) -> list[Manifest]:
    """Return the snapshots from which all these tapes can be replayed: complete ones first (see
    ``SnapshotCut.complete``), and among these the oldest."""
    job_id = tapes[0].header.job_id
    listed = (each.manifest for each in Store(place).snapshots())
    found = [each for each in listed if each is not None and each.facts.get("job") == job_id]
    cuts = {each.id: cut_of(each.parts) for each in found}
    fit = [each for each in found if not any(cuts[each.id].precedes(tape) for tape in tapes)]
    return sorted(fit, key=lambda each: (not cuts[each.id].complete(tapes), each.order))
