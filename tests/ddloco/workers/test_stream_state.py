"""A stream's state comes back as it was given."""

import random
from collections import OrderedDict

import msgpack
import numpy as np
import pytest
from hypothesis import given as each
from hypothesis import strategies as st

from ddloco.workers.stream_state import ARRAY, packed_position, unpacked_position

ATOMS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
KEYS = st.text() | st.integers()
STATES = st.recursive(
    ATOMS | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(KEYS, inner),
    max_leaves=20,
)


@each(state=STATES)
def test_what_is_plain_comes_back_with_its_types(state):
    """Whole numbers of any size; a tuple is no list."""
    again = unpacked_position(packed_position(state))
    assert repr(again) == repr(state)


@pytest.mark.parametrize("kind", ["PCG64", "MT19937", "Philox", "SFC64"])
def test_numpy_generators_go_on(kind):
    """Their states have numbers of 128 bits, or arrays."""
    one, other = (np.random.Generator(getattr(np.random, kind)(seed)) for seed in (1, 2))
    one.normal(size=3)
    other.bit_generator.state = unpacked_position(packed_position(one.bit_generator.state))
    np.testing.assert_array_equal(one.normal(size=5), other.normal(size=5))


def test_the_generator_of_python_goes_on():
    """Its state is a tuple in a tuple."""
    one, other = random.Random(1), random.Random(2)
    other.setstate(unpacked_position(packed_position(one.getstate())))
    assert one.random() == other.random()


def test_what_numpy_returns_for_a_number_is_one():
    """Such as a sum that counts what was drawn."""
    given = {"n": np.int64(3), "x": np.float32(0.5), "on": np.bool_(True), "all": OrderedDict(a=1)}
    plain = {"n": 3, "x": 0.5, "on": True, "all": {"a": 1}}
    assert unpacked_position(packed_position(given)) == plain


@pytest.mark.parametrize("state", [{1, 2}, object(), 1j, np.array(["a", None], object)])
def test_what_is_not_plain_is_named(state):
    """By its type."""
    with pytest.raises(TypeError, match=f"it has a {type(state).__name__}"):
        packed_position({"a": [state]})


def test_an_array_of_objects_is_not_read():
    """Bytes from elsewhere choose no other types than numbers."""
    forged = msgpack.packb(msgpack.ExtType(ARRAY, packed_position(["|O", [1], bytes(8)])))
    with pytest.raises(ValueError, match="an array of"):
        unpacked_position(forged)
