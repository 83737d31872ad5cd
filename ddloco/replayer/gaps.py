"""What is missing of a run's tapes: whole tapes, their ends, their beginnings, and what is damaged.
It is found from what the tapes have heard of others; nothing is executed."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from clocks import actor_of
from ddloco.replayer.recording import job_of
from ddloco.replayer.report import damage_said
from ddloco.stage.actors.events import Restored
from ddloco.stage.driver.resume import RESTORED
from ddloco.stage.programs.program import is_program
from replay import Tape, TapeError, tape, whose
from replay.tape import SUFFIX
from transport.message import Welcome

LISTED_MAX = 8
"""Gaps that are printed; a job may have a thousand learners."""


def gaps_of(
    tapes: Sequence[Tape], path: Path, growing: Callable[[str], bool] = lambda _: False
) -> list[str]:
    """Return what is missing or damaged, a line for each; the end of a tape that is still
    ``growing`` is not."""
    gaps = [f"{name}: no tape" for name in missing_tapes(tapes, path)]
    gaps += [f"{each.incarnation}: {damage_said(each)}" for each in tapes if each.damage]
    for each in tapes:
        heard = max(other.heard.get(each.incarnation, 0) for other in tapes)
        if each.closed is None and heard > each.events and not growing(each.incarnation):
            lost = f"events {each.events + 1} to {heard} are missing: others have heard of them"
            gaps.append(f"{each.incarnation}: {lost}")
    return gaps


def begins_said(tapes: Sequence[Tape]) -> list[str]:
    dropped = [each for each in tapes if each.dropped]
    lines = [f"{each.incarnation}: {dropped_before(each)}" for each in dropped]
    snapshots = {
        each.header.facts.get(RESTORED, ""): None
        for each in tapes
        if each.header.after and not each.dropped
    }
    lines += [
        f"these tapes continue from snapshot {snapshot or '(unnamed)'}: what was before it is on "
        "the tapes of the run that it is of"
        for snapshot in snapshots
    ]
    return lines


def dropped_before(each: Tape) -> str:
    return f"begins after event {each.header.after}: earlier events were deleted"


def listed(gaps: Sequence[str]) -> list[str]:
    lines = [f"gap: {each}" for each in gaps[:LISTED_MAX]]
    more = len(gaps) - LISTED_MAX
    return [*lines, f"gap: and {more} more"] if more > 0 else lines


def missing_tapes(tapes: Sequence[Tape], path: Path) -> list[str]:
    """Return the incarnations that took part in what the tapes tell and have no tape, and the
    syncers that have none. A single tape is expected to come without the others. One that an actor
    heard of before its tape begins, and that did not come along, took no part. Where tapes are
    bounded by snapshots, those of former incarnations may have been deleted."""
    if path.is_file():
        return []
    present = {each.incarnation for each in tapes} | {
        whose(path)[0] for path in tapes[0].path.parent.glob(f"*{SUFFIX}")
    }
    before = {name for each in tapes for name in _left_behind(each)}
    known: dict[str, int] = {}
    for each in tapes:
        for name, number in each.header.clock.items():
            known[name] = max(known.get(name, 0), number)
    heard = {
        name
        for each in tapes
        for name, number in each.heard.items()
        if number > known.get(name, 0) and name not in before
    }
    here = {actor_of(name) for name in present}
    if any(each.header.after for each in tapes):
        heard = {name for name in heard if actor_of(name) not in here}
    if not is_program(tapes[0].header.job):
        there = here | {actor_of(name) for name in heard}
        heard |= {name for name in job_of(tapes[0]).syncer_names() if name not in there}
    return sorted(heard - present)


def two_runs(tapes: Sequence[Tape]) -> str | None:
    """Return who was two actors under one name, in words; None if nobody was. A listening actor
    names its run to those who dial it. One that is started in an empty folder has another run, and
    numbers its incarnations and events from the beginning again."""
    runs: dict[str, str] = {}
    for each in tapes:
        for record in each.records():
            if type(record) is not tape.Event or b"Welcome" not in bytes(record.event):
                continue
            event = _plain(each, record)
            body = event.get("body")
            if not isinstance(body, dict) or body.get("type") != Welcome.__name__:
                continue
            sender, run = str(event.get("sender")), str(body.get("run", ""))
            if run and runs.setdefault(sender, run) != run:
                return (
                    f"{each.incarnation}:{record.n}: {sender} names another run than before: an "
                    f"actor that was started in an empty folder took the place of {sender} under "
                    "the same name, and only one of the two has its tape here; replay each tape by "
                    "itself"
                )
    return None


def _left_behind(each: Tape) -> tuple[str, ...]:
    """The links of an actor whose peers did not resume from the snapshot that its tape continues
    from; what it hears of them was said before."""
    first = next((record for record in each.records() if type(record) is tape.Event), None)
    if not each.header.after or each.dropped or first is None:
        return ()
    event = _plain(each, first)
    restored = event.get("type") == Restored.__name__
    return tuple(map(str, event.get("missing", ()))) if restored else ()


def _plain(each: Tape, record: tape.Event) -> dict[str, Any]:
    try:
        event = msgspec.msgpack.decode(record.event)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = f"event {record.n} is unknown to this version: {error}"
        raise TapeError(each.path, 0, problem) from None
    return event if isinstance(event, dict) else {}
