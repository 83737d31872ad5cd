"""Holders of arrays: the last one that lets go frees, once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport import Free, Handles


def test_the_last_holder_frees():
    """An array is freed when, and only when, its last reference is released."""
    handles = Handles()

    assert handles.hold("x") == "x"
    handles.hold("x")

    assert handles.release("x") == []
    assert len(handles) == 1
    assert handles.release("x") == [Free("x")]
    assert len(handles) == 0


def test_releasing_what_is_not_held_is_a_programming_error():
    """A double free is never silent."""
    handles = Handles()

    with pytest.raises(KeyError):
        handles.release("x")
    handles.hold("x")
    handles.release("x")
    with pytest.raises(KeyError):
        handles.release("x")


@given(st.lists(st.sampled_from("abc"), max_size=20), st.randoms(use_true_random=False))
def test_every_array_is_freed_exactly_once(holds, random):
    """However holds and releases are mixed, each handle's last release frees it."""
    handles = Handles()
    for handle in holds:
        handles.hold(handle)
    random.shuffle(holds)

    freed = [free.handle for handle in holds for free in handles.release(handle)]

    assert sorted(freed) == sorted(set(holds))
    assert len(handles) == 0
