"""What a person reads of a difference: each kind in a sentence, with the values that differ."""

import pytest
from msgspec import Struct
from msgspec.structs import replace

from ddloco.debugger.divergence_screen import CAUSES, explained, screen
from ddloco.job.protocol.events import Started
from ddloco.job.protocol.messages import Progress, Pull
from ddloco.job.protocol.work import (
    FragmentMerged,
    MergeFragment,
    ModelSaved,
    OneStep,
    StepFinished,
)
from ddloco.replayer.comparer import NEVER_SAID, NOT_ASKED
from ddloco.replayer.report import Report
from replay import Divergence
from transport import CONTROL, MessageArrived, SetTimer, TimerFired
from transport.timer import Redial

STEP = StepFinished(7, 9, 0.25, 8, bytes(16), tensors=b"abcdefgh")
MERGED = FragmentMerged(4, ("a.1",), (1.0,), (), bytes(16), b"", bytes(16))
PULL = MessageArrived("syncer", CONTROL, "syncer.1", 1, 3, {"syncer.1": 9}, Pull(8, 1))
MERGE = MergeFragment(4, 40, 2, "theta", "state", (), {}, {}, ("a", "b", "c"))


def differs(event, then, now, aspect="result", **more):
    """A difference at an event of learner-0.1."""
    values = {"happened": event, "values": (then, now), **more}
    return Divergence("learner-0.1", 12, aspect, "", "", {}, **values)


def result(then, now, **more):
    """A result that differs."""
    return differs(then, then, now, **more)


EARLIER = (OneStep(0.5, 8, b"x"),)
CASES = {
    "DATA: the batch of inner step 9 of learner-0.1": result(STEP, replace(STEP, batch=b"1")),
    "DATA: the batch of inner step 8 of learner-0.1": result(
        replace(STEP, before=EARLIER), replace(STEP, before=(OneStep(0.5, 8, b"y"),))
    ),
    "DATA: the position of the data after inner step 9": result(STEP, replace(STEP, cursor=b"1")),
    "ARITHMETIC: the loss of inner step 9 of learner-0.1": result(STEP, replace(STEP, loss=0.26)),
    "ARITHMETIC: the update of inner step 9 of learner-0.1": result(
        STEP, replace(STEP, tensors=b"abcdefgx"), tensor="out/w"
    ),
    "ARITHMETIC: metrics.accuracy of inner step 9": result(
        replace(STEP, metrics={"accuracy": 0.5}), replace(STEP, metrics={"accuracy": 0.6})
    ),
    "ARITHMETIC: the merge of global step 40 (fragment 2)": result(
        MERGED, replace(MERGED, theta=b"1" * 16), work=MERGE
    ),
    "ARITHMETIC: the saved model of learner-0.1": result(ModelSaved(1, b"a"), ModelSaved(1, b"b")),
    "DECISION: the saved model of learner-0.1": result(ModelSaved(1, b"a"), NOT_ASKED),
    "DECISION: what learner-0.1 does on the timer": differs(
        TimerFired(Redial("syncer")), 0, [SetTimer(Redial("syncer"), 1.0)], "effects"
    ),
    "DECISION: how learner-0.1 handles Pull": differs(
        PULL, "KeyError: 'x'", "no exception", "exception"
    ),
    "MESSAGE: the Pull message of syncer.1 to learner-0.1": differs(
        PULL, PULL.body, Pull(8, 2), "message"
    ),
    "MESSAGE: the Pull message of syncer.1 to": differs(  # Another kind of message came.
        PULL, PULL.body, ModelSaved(1, b"a"), "message"
    ),
    "MESSAGE: the Pull message of syncer.1": differs(PULL, PULL, NEVER_SAID, "message"),
    "MESSAGE: the clock of the Pull message": differs(PULL, {"a.1": 1}, {"a.1": 2}, "message"),
    "MESSAGE: the payload of the Pull message": differs(
        PULL, "payload ab", "payload cd", "message"
    ),
    "SETUP: what learner-0.1 begins with": differs(
        Started("learner-0.1", ()), {"tensors": ("a",)}, {"tensors": ("b",)}
    ),
}


@pytest.mark.parametrize("sentence", CASES)
def test_each_kind_has_its_sentence(sentence):
    """With the values that differ, and no line that is too long."""
    report = Report(divergences=[CASES[sentence]], dependent=["syncer.1"])
    lines = screen(report, "runs/first")
    said = " ".join(" ".join(lines).split())
    assert said.startswith(f"DIFFERENT {sentence}")
    assert "recorded replayed" in said
    kind = sentence.partition(":")[0]
    assert f"cause: {CAUSES[kind]}" in said
    assert "(event learner-0.1:12)" in said
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 15


def test_a_merge_is_asked_about_and_a_step_is_gone_to():
    """The last line is a command with the run's own folder, quoted, and the options given."""
    report = Report(divergences=[CASES["ARITHMETIC: the merge of global step 40 (fragment 2)"]])
    options = ["--trust", "--task", "a:b"]  # Only a replay calls a task.
    assert screen(report, "my run", options=options)[-1] == "  ddloco why 'my run' merge 40 --trust"
    report = Report(divergences=[result(STEP, replace(STEP, loss=0.26))])
    asked = screen(report, "run", options=["--trust"])[-1]
    assert asked == "  ddloco replay run --until learner-0.1:12 --shell --trust"


def test_what_is_equal_is_said():
    """Of the same event, and before it, in numbers; one of something is one."""
    found = result(STEP, replace(STEP, loss=0.26))
    counts = {"learner-0.1": {"events": 11, "steps": 1, "merges": 0}}
    said = explained(found, Report(divergences=[found], equal=counts))
    assert said.equal == ("its batch (00000000)", "11 events of learner-0.1 before it, with 1 step")


def test_only_the_characters_that_differ_are_marked():
    """Of one value; a long text is shown where it differs."""
    report = Report(divergences=[result(STEP, replace(STEP, loss=0.26))])
    lines = screen(report, "run")
    marks = next(line for line in lines if "^" in line)
    assert marks.split() == ["^", "^"]
    values = lines[lines.index(marks) - 1]
    assert [values[n] for n, mark in enumerate(marks) if mark == "^"] == ["5", "6"]
    one, two = (Progress(1, 0.0, (), (), (), busy="x" * 90 + each) for each in "ab")
    arrived = MessageArrived("learner-1", CONTROL, "learner-1.1", 1, 3, {}, one)
    shown = "\n".join(screen(Report(divergences=[differs(arrived, one, two, "message")]), "run"))
    assert "xxxa " in shown
    assert "xxxb" in shown


def test_further_differences_are_counted_and_the_next_is_named():
    """Those that do not follow from each other; where settings differ the cause is there."""
    report = Report(divergences=list(CASES.values()))
    sources = {"acts.py": "import time\nx = time.time()"}
    assert "time.time(), a clock" in "\n".join(screen(report, "run", sources=sources))
    lines = screen(report, "run", changed=True, sources=sources)
    assert "time.time()" not in "\n".join(lines)
    assert f"The first of {len(CASES)} that do not follow from each other; the next:" in lines
    assert "  DIFFERENT DATA: the batch of inner step 8 of learner-0.1" in lines
    assert "cause: look first at what differs from the recording, named above." in lines


def test_a_step_that_the_machine_got_wrong_is_said():
    """The run itself had found it."""
    then = replace(STEP, corrupt="loss on cpu 0 of host")
    found = result(then, replace(then, loss=0.26), hint="the run itself found that step 9 had two")
    assert "cause: the run itself found" in "\n".join(screen(Report(divergences=[found]), "run"))


WHOLES = [case for case in CASES.values() if isinstance(case.values[0], Struct)]


@pytest.mark.parametrize("other", [case.values[0] for case in WHOLES], ids=repr)
def test_whatever_came_in_its_place_is_told(other):
    """A result, a message or a body of any kind in place of any other one."""
    for case in WHOLES:
        instead = differs(case.happened, case.values[0], other, case.aspect)
        lines = screen(Report(divergences=[instead], dependent=[]), "runs/first")
        assert lines[0].startswith("DIFFERENT ")
        assert max(map(len, lines)) <= 80
