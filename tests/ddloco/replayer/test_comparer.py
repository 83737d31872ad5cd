"""When a replay takes two values for the same."""

import struct

import pytest

from ddloco.job.protocol.work import StepFinished
from ddloco.replayer.comparer import difference_of, same

NAN = float("nan")
(OTHER_NAN,) = struct.unpack("<d", bytes.fromhex("000000000000f8ff"))


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (1.5, 1.5, True),
        (1.5, 2.5, False),
        (NAN, float("nan"), True),
        (NAN, OTHER_NAN, False),
        (0.0, -0.0, False),
        (1, 1.0, False),
        ({"accuracy": NAN}, {"accuracy": float("nan")}, True),
    ],
)
def test_values_are_the_same_if_their_bits_are(one, other, expected):
    """A number that is not one equals itself here, which Python denies."""
    assert expected is same(one, other)


@pytest.mark.parametrize(
    ("loss", "expected"), [(NAN, None), (OTHER_NAN, "differs in loss"), (2.0, "differs in loss")]
)
def test_a_step_whose_loss_is_nan_can_be_replayed(loss, expected):
    """Its result has no difference if the loss has the same bits."""
    recorded, found = (StepFinished(1, 1, each, 8, b"batch", b"") for each in (NAN, loss))
    difference = difference_of(recorded, found)
    assert expected == (difference.said if difference is not None else None)
