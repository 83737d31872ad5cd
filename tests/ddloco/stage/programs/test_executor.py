"""A user's function does the work, and whatever it does wrong is a result."""

import numpy as np
import pytest

from ddloco.stage.actors.effects import Calculation
from ddloco.stage.actors.events import Computed, WorkFailed
from ddloco.stage.arrays.array_table import ArrayTable
from ddloco.stage.driver.snapshot_sink import DigestSink
from ddloco.stage.programs.executor import ComputationExecutor
from ddloco.stage.programs.user_actor import Call
from transport import payload_of, tensors_of

ONES = payload_of({"x": np.ones(3), "y": np.zeros((2, 2), np.float32)})
WORK = Calculation(7, ("in/1",), ("sum",))


def computing(compute):
    """With one array."""
    arrays = ArrayTable()
    arrays.put("in/1", ONES)
    return ComputationExecutor(compute, Calculation, arrays, DigestSink()), arrays


async def test_arrays_come_out_of_arrays():
    """Under the handles that the effect names; the result tells their digests."""
    stage, arrays = computing(lambda work, given: (Computed(work.work), [{"s": given[0]["x"] * 2}]))
    result = await stage.do(WORK)
    made = arrays.get("sum")
    assert result == Computed(7, (made.digest,))
    assert tensors_of(made)["s"].tolist() == [2.0, 2.0, 2.0]


def writes(work, given):
    """Changes what a handle points to."""
    given[0]["x"][:] = 5
    return Computed(work.work), [given[0]]


@pytest.mark.parametrize(
    ("compute", "said"),
    [
        (lambda work, given: 1 // 0, "Calculation: ZeroDivisionError: "),
        (lambda work, given: (Computed(8), [{}]), "the result is of work 8, want 7"),
        (lambda work, given: (Computed(7), []), "0 arrays were returned, want 1"),
        (lambda work, given: (Computed(7), [{"n": np.arange(3)}]), "'n' is of int64; sent are "),
        (writes, "read-only"),
    ],
)
async def test_what_goes_wrong_is_a_result(compute, said):
    """One line, and no array is named."""
    stage, arrays = computing(compute)
    result = await stage.do(WORK)
    assert isinstance(result, WorkFailed)
    assert (result.work, result.kind) == (7, "task")
    assert said in result.reason
    assert not arrays.known("sum")
    assert tensors_of(ONES)["x"].tolist() == [1.0, 1.0, 1.0]


class Odd(Calculation, frozen=True):
    """Work that the program does not name."""


async def test_work_that_a_program_does_not_name_fails():
    """At once, and not when a snapshot with it is read."""
    arrays = ArrayTable()
    stage = ComputationExecutor(None, Call, arrays, DigestSink())
    failed = await stage.do(Odd(7, (), ()))
    assert isinstance(failed, WorkFailed)
    assert (
        "Odd: TypeError: the program does not name it; want it in Program(asked=" in failed.reason
    )
