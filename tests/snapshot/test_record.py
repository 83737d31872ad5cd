"""The name of a snapshot, there and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshot.record import name_of, split


@given(st.text(min_size=1), st.integers(0, 2**63 - 1))
def test_a_name_says_who_and_when(initiator, number):
    """Whatever the initiator is called, colons included."""
    assert (initiator, number) == split(name_of(initiator, number))


@pytest.mark.parametrize(
    "name", ["", "syncer.1", "syncer.1:", ":3", "syncer.1:x", "syncer.1:-1", "s:\u0663", "s: 3"]
)
def test_other_names_are_refused(name):
    """The message shows the name, and an example."""
    with pytest.raises(ValueError, match="a snapshot is named after an event, such as"):
        split(name)
