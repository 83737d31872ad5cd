"""A recorded run, cut at an event: the tapes of a run that continues from there.

Real runs continue from snapshots, which take a second each to make. What the debugger sees of one
is tapes that begin after a cut, and the actors as they were there; a simulated run has both at any
of its events.
"""

import shutil

import msgspec

from ddloco.debugger.recorded_job import RecordedJob
from ddloco.machines.registry import states_for
from ddloco.stage.driver.resume import RESTORED
from replay import TapeHeader, TapeWriter
from replay.tape import Closed, Event
from snapshot import Part


class Cut:
    """Where the tapes of a run begin, as a start point says it: each actor, and its last event."""

    def __init__(self, run, clock):
        self.starts = {who: Begun(run, who, number) for who, number in clock.items()}

    def start(self, incarnation):
        """The actor's state at the cut; None if it began later."""
        return self.starts.get(incarnation)


class Begun:
    """One actor at the cut."""

    def __init__(self, run, who, number):
        run.at(who, number)
        actor = run.walker(who).actor
        self.part = Part(who, number, actor.clock.wire(), (), {})
        self.actor = states_for(run.job, who).read(actor.write())


def cut(run, to, who, number):
    """Write the tapes of a run after the causal past of an event into a folder; returns the cut.

    Tapes of actors that the event knew only as former incarnations are left out.
    """
    clock = {name: n for name, n in run.clock(who, number).wire().items() if n}
    (to / "tapes").mkdir(parents=True)
    shutil.copy(run.path / "job.toml", to / "job.toml") if (
        run.path / "job.toml"
    ).exists() else None
    for name, each in run.tapes.items():
        after = clock.get(name, 0)
        known = run.clock(name, after).wire() if after else {}
        facts = {**each.header.facts, RESTORED: "cut"} if after else each.header.facts
        header = msgspec.structs.replace(
            each.header,
            after=after,
            clock={k: n for k, n in known.items() if k != name},
            facts=facts,
        )
        assert isinstance(header, TapeHeader)
        writer = TapeWriter(to / "tapes" / f"{name}.tape", header)
        for record in each.records(after):
            writer.append(record)
        writer.close()
    return Cut(run, clock)


def killed(run, to, at):
    """Write the tapes of a run as if all its processes had been killed at a time, in seconds."""
    (to / "tapes").mkdir(parents=True)
    for name, each in run.tapes.items():
        events = [record for record in each.records() if isinstance(record, Event)]
        before = [event for event in events if run.common(name, event.at) <= at]
        if before:
            writer = TapeWriter(to / "tapes" / f"{name}.tape", each.header)
            for record in each.records():
                if getattr(record, "n", 0) <= before[-1].n and not isinstance(record, Closed):
                    writer.append(record)
            writer.close()
    return to


def opened_at(folder, begun, monkeypatch):
    """Have every run that is opened in a folder begin at its cut."""
    found = RecordedJob.__dict__["_start_point"]

    def start_point(run):
        return begun if run.path == folder or folder in run.path.parents else found.func(run)

    monkeypatch.setattr(RecordedJob, "_start_point", property(start_point))
