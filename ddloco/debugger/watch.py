"""Watchpoints: the first inner step of an actor after which something holds of its parameters, its
optimizer's state, what they differ by from the step before, or its loss; or the last step at which
it began to hold."""

import fnmatch
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

import trio
from msgspec import Struct

from clocks import actor_of
from ddloco.debugger.recorded_job import RecordedJob
from ddloco.job.protocol.work import StepFinished
from ddloco.replayer.job_executor import StepWatch
from ddloco.replayer.recording import check_task
from ddloco.replayer.replay_of import replay_of
from ddloco.replayer.report import Report
from ddloco.stage.files.near_miss import did_you_mean
from ddloco.stage.files.toml import ConfigError
from ddloco.workers.rpc import Looked, TensorMeasure

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "==": operator.eq, "!=": operator.ne,
}  # fmt: skip

KINDS = {"params": "", "optimizer": "optimizer:/", "update": "update:/", "state": "state:/"}

MEASURES = {"norm": "norm", "largest": "largest", "not-finite": "not_finite"}

CONDITION = re.compile(
    rf"(?P<actor>\S+)\s+(?:loss|(?:(?P<kind>{'|'.join(KINDS)})\s+)?(?P<name>\S+)\s+"
    rf"(?P<measure>{'|'.join(MEASURES)}))\s*(?P<op>[<>]=?|[=!]=)\s*(?P<value>\S+)"
)

TENSORS_SHOWN = 24

WANT = (
    "want ACTOR [params|optimizer|update|state] TENSOR norm|largest|not-finite OP NUMBER, or ACTOR "
    "loss OP NUMBER, such as 'learner-1 update second/w norm > 0.1'; * stands for any letters of a "
    "tensor's or a learner's name"
)


class Condition(Struct, frozen=True):
    """``measure`` of the tensors whose names match ``name`` of an actor; of its loss without a
    name."""

    actor: str
    name: str
    measure: str
    op: str
    value: float

    def measured(self, step: StepFinished, tensors: Sequence[TensorMeasure]) -> dict[str, float]:
        """Return the values that are looked at, by what they are of."""
        if not self.name:
            return {"loss": step.loss}
        told = MEASURES[self.measure]
        return {f"{each.name} {self.measure}": getattr(each, told) for each in tensors}

    def holds(self, value: float) -> bool:
        return OPERATORS[self.op](value, self.value)


class Watched(Struct, frozen=True):
    """A condition began to hold after inner ``step``, at ``event``: ``what`` was ``value``, and
    ``before`` when it was looked at before, if it was."""

    event: str
    step: int
    what: str
    value: float
    before: float | None

    def line(self) -> str:
        learner = self.event.rpartition(":")[0]
        was = f"; before, it was {self.before:.6g}" if self.before is not None else ""
        said = f"{learner}: {self.what} is {self.value:.6g}"
        return f"{said} after inner step {self.step} ({self.event}){was}"


def tensor_lines(tensors: Sequence[TensorMeasure]) -> list[str]:
    """Tensors in lines of equal columns, those first that are not finite."""
    ordered = sorted(tensors, key=lambda each: -each.not_finite)
    rows = [
        (
            each.name,
            each.kind,
            f"norm {each.norm:.5g}",
            f"largest {each.largest:.5g}",
            f"{each.not_finite} not finite" if each.not_finite else "",
        )
        for each in ordered[:TENSORS_SHOWN]
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    more = len(ordered) - TENSORS_SHOWN
    return [*lines, f"and {more} more tensors"] if more > 0 else lines


def condition_of(text: str) -> Condition:
    found = CONDITION.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"--watch {text!r}: {WANT}")
    try:
        value = float(found["value"])
    except ValueError:
        raise ConfigError(f"--watch {text!r}: {found['value']!r} is no number; {WANT}") from None
    name = KINDS.get(found["kind"] or "", "") + (found["name"] or "")
    return Condition(found["actor"], name, found["measure"] or "", found["op"], value)


class _Watcher:
    """Looks at an actor after each step, and keeps when the condition began to hold."""

    def __init__(self, condition: Condition, *, last: bool) -> None:
        self._condition, self._last = condition, last
        self.found: tuple[str, Watched] | None = None
        self.steps = 0
        self._before: dict[str, dict[str, float]] = {}
        """By incarnation, what was measured after the step before."""
        self._names: dict[str, None] = {}

    def __call__(self, incarnation: str, step: StepFinished, looked: Looked) -> bool:
        condition, before = self._condition, self._before.get(incarnation, {})
        self._names |= dict.fromkeys(looked.names)
        measured = condition.measured(step, looked.tensors)
        self._before[incarnation] = measured
        self.steps += step.count if measured else 0
        what = next((name for name, each in measured.items() if condition.holds(each)), None)
        if what is not None and not any(map(condition.holds, before.values())):
            seen = Watched("", step.step, what, measured[what], before.get(what))
            self.found = incarnation, seen
        return what is not None and not self._last

    def check(self) -> None:
        """Refuse a condition on tensors that were never measured."""
        if self.steps:
            return
        name = self._condition.name.removeprefix(KINDS["update"])
        if self._names and not fnmatch.filter(self._names, name):
            near = did_you_mean(name, [*self._names])
            raise ConfigError(f"--watch: the task has no tensor {name}{near}")
        raise ConfigError(
            f"--watch: no step of {self._condition.actor} could be looked at: it took none, no two "
            "of which a difference is wanted; it is simulated; or its worker has several processes"
        )


def watch(
    run: RecordedJob, text: str, *, last: bool = False, trust: bool = False, **options: Any
) -> tuple[Watched | None, int, Report]:
    """Replay a run until a condition holds, or to its end if it is asked when it began to hold for
    the ``last`` time. Returns that, how many steps were looked at, and what the replay found.
    ``options`` are those of ``replay_of``. ``ConfigError`` if the condition cannot be read, or
    names an actor or a tensor that is not there."""
    condition = condition_of(text)
    known = [*run.learners, *{actor_of(each) for each in run.learners}]
    if not fnmatch.filter(known, condition.actor):
        near = did_you_mean(condition.actor, known)
        raise ConfigError(f"--watch: there is no learner {condition.actor}{near}")
    task = options.get("task", "")
    check_task(list(run.tapes.values()), run.path, task, trust=trust)
    watcher = _Watcher(condition, last=last)
    wanted = StepWatch(condition.actor, condition.name, watcher)
    report = trio.run(replay_of(run.path, trust=trust, watch=wanted, **options).run)
    watcher.check()
    if watcher.found is None:
        return None, watcher.steps, report
    incarnation, seen = watcher.found
    number = next(n.n for n, each in run.finished(incarnation) if each.step == seen.step)
    event = f"{incarnation}:{number}"
    return Watched(event, seen.step, seen.what, seen.value, seen.before), watcher.steps, report
