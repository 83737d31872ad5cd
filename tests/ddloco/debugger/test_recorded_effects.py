"""What a run tells of an event's effects beside their digest: its log, and the tapes that heard."""

import json
import shutil

from ddloco.debugger.recorded_effects import compared, recorded_effects, told_of
from ddloco.debugger.recorded_run import parse_event
from ddloco.stage.actors.effects import Observe
from transport import Transmit


def test_what_is_told_is_what_was_done(run):
    """Of each event of a run: the lines of its log, and the messages that came, and no other."""
    asked = 0
    for who in ("learner-0.1", "syncer.1"):
        for step in list(run.stepper(who).steps())[3:400:90]:
            told = recorded_effects(run.path, who, step.number)
            differ, equal = compared(told, step.effects)
            assert equal == len(told)
            assert all(then == "only a digest is on the tape" for _, then, _ in differ), differ
            asked += equal
    assert asked > 4


def test_an_effect_that_differs_stands_beside_the_recorded_one(run):
    """Of its kind; what is equal is counted, what only one of them did is said."""
    step = next(
        step
        for step in run.stepper("learner-0.1").steps()
        if {Observe, Transmit} <= {type(each) for each in step.effects} and step.number > 40
    )
    told = recorded_effects(run.path, "learner-0.1", step.number)
    other = Observe("step", {"step": -1})
    effects = [other if type(each) is Observe else each for each in step.effects]
    [(kind, then, now)], equal = compared(told, effects)
    assert (kind, now, equal) == ("log", "step, step -1", len(told) - 1)
    assert then.startswith("step, step ")
    without = [each for each in step.effects if type(each) is not Observe]
    [(kind, _, now)], _ = compared(told, without)
    assert (kind, now) == ("log", "nothing")


def test_nothing_is_told_where_nothing_can_be_read(run, tmp_path):
    """Without a log, with one of no JSON, or with a damaged tape."""
    folder = shutil.copytree(run.path, tmp_path / "run")
    log = (folder / "log.jsonl").read_text()
    event = next(json.loads(line)["ref"] for line in log.splitlines() if '"merge"' in line)
    who, number = parse_event(event)
    assert recorded_effects(folder, who, number)
    (folder / "log.jsonl").write_text(f"{{{event}\n")
    assert recorded_effects(folder, who, number) == []
    (folder / "log.jsonl").unlink()
    assert recorded_effects(folder, who, number) == []


def test_other_effects_are_told_nowhere():
    """Timers and work."""
    assert told_of(object()) is None
