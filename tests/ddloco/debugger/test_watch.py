"""Conditions that a replay stops at: how they are read, and when they begin to hold."""

import pytest

from ddloco.debugger.watch import Condition, _Watcher, condition_of, tensor_lines
from ddloco.job.protocol.work import StepFinished
from ddloco.stage.files.toml import ConfigError
from ddloco.workers.rpc import Looked, TensorMeasure

WHO = "learner-1.1"


def tensor(norm, name="w", not_finite=0):
    """A measured tensor."""
    return TensorMeasure(name, "float32", (2, 3), norm, norm / 2, not_finite)


def seen(text, norms, *, last=False):
    """What is found where a tensor had these norms, step after step."""
    watcher = _Watcher(condition_of(text), last=last)
    for number, norm in enumerate(norms, 1):
        if watcher(WHO, StepFinished(0, number, 0.5 * norm, 1, b""), Looked((tensor(norm),))):
            break
    return watcher.found[1] if watcher.found is not None else None


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("learner-1 w norm > 1", Condition("learner-1", "w", "norm", ">", 1.0)),
        (" a.1  params x/y largest<=1e-3 ", Condition("a.1", "x/y", "largest", "<=", 1e-3)),
        ("a update * not-finite != 0", Condition("a", "update:/*", "not-finite", "!=", 0.0)),
        ("a optimizer 0/mu/w norm == 2", Condition("a", "optimizer:/0/mu/w", "norm", "==", 2.0)),
        ("a loss >= 3.5", Condition("a", "", "", ">=", 3.5)),
    ],
)
def test_conditions_are_read(text, condition):
    """Of parameters, the optimizer's state, updates and losses."""
    assert condition == condition_of(text)


@pytest.mark.parametrize(
    "text", ["", "a", "a w > 1", "a w norm 1", "a w norm > x", "a w mean > 1", "a loss norm > 1 2"]
)
def test_what_is_no_condition_is_refused(text):
    """With what would be one."""
    with pytest.raises(ConfigError, match="want ACTOR"):
        condition_of(text)


def test_the_first_step_ends_it():
    """With the value before, if there was one."""
    found = seen("a w norm > 2", [1.0, 2.0, 3.0, 1.0, 4.0])
    assert (found.step, found.what, found.value, found.before) == (3, "w norm", 3.0, 2.0)
    assert found.line() == ": w norm is 3 after inner step 3 (); before, it was 2"
    found = seen("a loss > 0", [1.0])
    assert (found.step, found.what, found.before) == (1, "loss", None)
    assert seen("a w norm > 5", [1.0, 2.0]) is None


def test_the_last_time_is_when_it_began_to_hold():
    """Not the last step at which it held."""
    assert seen("a w norm > 2", [3.0, 1.0, 3.0, 4.0, 5.0], last=True).step == 3
    assert seen("a w norm > 2", [3.0, 1.0], last=True).step == 1


def test_of_several_tensors_the_one_for_which_it_holds_is_named():
    """The first by name, with its own value before, and not another one's; what another incarnation
    had says nothing of this one."""
    step = StepFinished(0, 1, 1.0, 1, b"")
    watcher = _Watcher(condition_of("x * norm > 2"), last=True)
    assert not watcher("x.1", step, Looked((tensor(1.0, "a"), tensor(1.5, "b"))))
    assert not watcher("x.1", step, Looked((tensor(1.0, "a"), tensor(3.0, "b"), tensor(4.0, "c"))))
    _, found = watcher.found
    assert (found.what, found.value, found.before) == ("b norm", 3.0, 1.5)
    watcher("x.2", step, Looked((tensor(5.0, "a"),)))
    who, found = watcher.found
    assert (who, found.what, found.before) == ("x.2", "a norm", None)


@pytest.mark.parametrize(
    ("names", "text", "said"),
    [
        (
            ("first/w", "second/w"),
            "a second/x norm > 0",
            r"no tensor second/x; did you mean second/w\?",
        ),
        (("first/w", "second/w"), "a update second/w norm > 0", "no step of a could be looked at"),
        (("first/w", "second/w"), "a update * norm > 0", "no step of a could be looked at"),
        ((), "a w norm > 0", "it is simulated; or its worker has several processes"),
    ],
)
def test_what_was_never_measured_is_refused(names, text, said):
    """With the name of a tensor that is like it, or why there was none."""
    watcher = _Watcher(condition_of(text), last=False)
    assert not watcher(WHO, StepFinished(0, 1, 1.0, 1, b""), Looked((), names))
    with pytest.raises(ConfigError, match=said):
        watcher.check()


def test_tensors_in_lines():
    """What is not finite comes first; no more than can be read."""
    lines = tensor_lines([tensor(1.0, "longer/name"), tensor(2.0, "w", not_finite=3)])
    assert lines == [
        "w            float32[2,3]  norm 2  largest 1    3 not finite",
        "longer/name  float32[2,3]  norm 1  largest 0.5",
    ]
    assert tensor_lines([tensor(1.0)] * 30)[-1] == "and 6 more tensors"
    assert tensor_lines([]) == []
