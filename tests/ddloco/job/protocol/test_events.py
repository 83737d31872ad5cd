"""What events say about single tensors."""

import pytest

from ddloco.job.protocol.fragment_plan import Leaf
from ddloco.job.protocol.work import TENSOR_DIGEST_BYTES, first_tensor

LEAVES = tuple(Leaf(name, (2,), "float32") for name in ("a/w", "b/w", "c/w"))


def digests(*numbers):
    """The digests of three tensors."""
    return b"".join(bytes([each] * TENSOR_DIGEST_BYTES) for each in numbers)


@pytest.mark.parametrize(
    ("other", "name"),
    [
        (digests(1, 2, 3), ""),
        (digests(1, 9, 8), "b/w"),
        (digests(9, 2, 3), "a/w"),
        (digests(1, 2, 8), "c/w"),
        (b"", ""),
        (digests(1), ""),
    ],
)
def test_the_first_tensor_that_differs(other, name):
    """In the order of the plan; tapes of former versions have no digests, and say nothing."""
    assert first_tensor(LEAVES, digests(1, 2, 3), other) == name
    assert first_tensor(LEAVES, other, digests(1, 2, 3)) == name
