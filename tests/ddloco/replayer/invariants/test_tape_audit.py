"""The invariants on tapes: each can fail, by the bugs that worlds are held against, and by hand."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import msgspec
import pytest

from ddloco.replayer.invariants import training
from ddloco.replayer.invariants.tape_audit import CLOCK, INVARIANTS, SAME, InvariantResult
from ddloco.simulation.tapes import recorder_maker
from ddloco.simulation.world import EndlessError, World
from replay import Tape, TapeWriter, open_tapes, tape
from tests.lab import hostile_world, launches
from tests.lab.audit import audit
from tests.lab.mutations import MUTATIONS
from tests.lab.test_mutations import names_in

SEEDS_MAX = 30
"""Seeds that are tried after those in which a bug is known to be noticed."""

SYNCER_CRASHES = 38


def leave_tapes(folder, world):
    """The tapes of a hostile world without checks beside it; a bug may end it early."""
    drawn = hostile_world.draw(world, folder) if isinstance(world, int) else by_hand(folder, world)
    happening = World(drawn.job, drawn.physics)
    try:
        happening.begin(drawn.faults)
        for name, begin, end in drawn.poisoned:
            happening.call(begin, hostile_world._poison, happening, name, True)
            happening.call(end, hostile_world._poison, happening, name, False)
        for name, begin, end, how in drawn.wrong:
            happening.call(begin, hostile_world._spoil, happening, name, how)
            happening.call(end, hostile_world._spoil, happening, name, None)
        happening.run(drawn.end_at, events_max=hostile_world.EVENTS_MAX)
    except (AssertionError, LookupError, EndlessError, ValueError):
        pass  # What a bug has led to later is not looked at.
    finally:
        happening.close()
    return open_tapes(folder)


def by_hand(folder, drawn):
    """A world made by hand, with tapes."""
    physics = replace(drawn.physics, recorder=recorder_maker(drawn.job, folder, arithmetic=True))
    return replace(drawn, physics=physics)


def violated(tapes):
    """What is not held on tapes, by invariant."""
    return {each.invariant: each for each in audit(tapes) if each.violation is not None}


@cache
def on_tapes():
    """What checks of worlds and of tapes alike can object to, from their source."""
    return {
        name
        for module in (training, launches)
        for name in names_in(Path(module.__file__).read_text())
    }


# In the array itself, or in a clock that a tape cannot be written with.
IN_WORLDS_ONLY = {
    "a contribution is of the step before",
    "timers are no events",
    "a message moves ones own entry",
    "a relay mixes its learners up",
    "a worker takes only the first of several steps",
}
PLANTED = [
    each for each in MUTATIONS if each.invariant in on_tapes() and each.name not in IN_WORLDS_ONLY
]


def test_every_invariant_is_told():
    """Those that the checks can raise, and the one of the tapes themselves."""
    assert on_tapes() | {SAME} == {*INVARIANTS, *launches.Launches.invariants}
    told = {
        name
        for check in (
            training.Merging,
            training.Learning,
            training.Causal,
            training.Durable,
            launches.Launches,
        )
        for name in check.invariants
    }
    assert told == on_tapes()
    assert on_tapes() == {each.invariant for each in PLANTED}


@pytest.mark.parametrize("mutation", PLANTED, ids=[each.name for each in PLANTED])
def test_planted_bugs_are_found_on_tapes(mutation, monkeypatch, tmp_path):
    """By the very invariant that is broken, with the event."""
    mutation.plant(monkeypatch)
    for world in (*mutation.worlds, *range(SEEDS_MAX)):
        found = violated(leave_tapes(tmp_path / f"{len(list(tmp_path.iterdir()))}", world))
        if mutation.invariant in found:
            assert ":" in found[mutation.invariant].ref
            return
    pytest.fail(f"not noticed by {mutation.invariant}")


@pytest.mark.parametrize("seed", [SYNCER_CRASHES, 0, 14, 12, 36])
def test_worlds_without_a_bug_hold(seed, tmp_path):
    """Nothing is objected to, also where learners, links and the syncer break."""
    findings = audit(leave_tapes(tmp_path, seed))
    assert [] == [each.line() for each in findings if each.violation or each.until]
    looked = {each.invariant for each in findings if each.looked}
    assert set(INVARIANTS) - looked <= {"ack-after-durable", "in-step"}  # No learner waits here.
    assert ("ack-after-durable" in looked) is (seed == SYNCER_CRASHES)


@pytest.fixture(scope="module")
def tapes(tmp_path_factory):
    """The tapes of a world in which the syncer came back twice."""
    folder = tmp_path_factory.mktemp("tapes")
    leave_tapes(folder, SYNCER_CRASHES)
    return folder / "tapes"


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
@pytest.mark.parametrize("name", ["learner-0.2", "syncer.1", "syncer.3"])
@pytest.mark.parametrize("gone", [True, False])
def test_what_is_missing_is_no_violation(tapes, name, share, gone, tmp_path):
    """A tape that is gone or cut short takes knowledge away, and lets nothing be objected to."""
    for each in tapes.iterdir():
        data = each.read_bytes()
        if each.stem == name:
            data = b"" if gone else data[: int(len(data) * share)]
        if data:
            (tmp_path / each.name).write_bytes(data)
    assert {} == violated(open_tapes(tmp_path))


def doctor(source, target, change):
    """Copy a tape, its records changed by ``change``."""
    read = Tape(source)
    writer = TapeWriter(target, read.header)
    for record in read.records():
        writer.append(change(record))
    writer.close()


def test_a_doctored_clock_is_found(tapes, tmp_path):
    """An entry that an event cannot have brought."""

    def change(record):
        if isinstance(record, tape.Event) and record.n == 7:
            return msgspec.structs.replace(record, clock={**record.clock, "syncer.1": 10**6})
        return record

    doctor(tapes / "learner-0.1.tape", tmp_path / "learner-0.1.tape", change)
    found = violated(open_tapes(tmp_path))
    assert ["learner-0.1:7"] == [found[CLOCK].ref]


def test_other_decisions_are_found(tapes, tmp_path):
    """What this program decides otherwise than the recording is named; nothing after is judged."""

    def change(record):
        if isinstance(record, tape.Effects) and record.n == 9:
            return msgspec.structs.replace(record, digest=b"\0" * 16)
        return record

    doctor(tapes / "learner-0.1.tape", tmp_path / "learner-0.1.tape", change)
    findings = audit(open_tapes(tmp_path))
    assert "learner-0.1:9" == findings[0].ref
    assert (SAME, 8) == (findings[0].invariant, findings[0].looked)


def test_a_doctored_event_is_found(tapes, tmp_path):
    """What no version of the program can have written is refused with tape and event."""
    target = tmp_path / "learner-0.1.tape"

    def change(record):
        if isinstance(record, tape.Event) and record.n == 5:
            return msgspec.structs.replace(record, event=msgspec.Raw(b"\x81\xa4type\xa3odd"))
        return record

    doctor(tapes / "learner-0.1.tape", target, change)
    with pytest.raises(ValueError, match="event 5 is unknown to this version"):
        audit(open_tapes(tmp_path))


def test_lines_say_what_was_looked_at():
    """One line each: held, with nothing to look at, violated with its event, or not to the end."""
    lines = [InvariantResult("overlap", 3).line(), InvariantResult("overlap").line(),
             InvariantResult("overlap", 3, until="syncer.1:9").line(),
             InvariantResult("overlap", 3, "2 under way", "syncer.1:9").line()]  # fmt: skip
    assert [line.split(maxsplit=1)[1] for line in lines] == [
        "held, looked at 3 times",
        "nothing to look at",
        "looked at 3 times, not after syncer.1:9",
        "VIOLATED at syncer.1:9: 2 under way",
    ]
