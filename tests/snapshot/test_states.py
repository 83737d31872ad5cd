"""States as bytes: what is read is what was written, and what strangers write names nothing."""

import random

import msgspec
import pytest

from ddloco.machines.registry import states_for
from snapshot import StateError, read_state, write_state
from snapshot import states as module
from snapshot.states import BYTES_MAX, FORMAT, NODES_MAX, WORDS_MAX
from tests.snapshot import state_fuzz
from tests.snapshot.state_fuzz import absurd_flight, corpus, noted, try_states, watched
from transport import Body, MessageArrived


class Leaf(msgspec.Struct, forbid_unknown_fields=True):
    """A part of a state."""

    count: int = 0
    order: dict[str, int] = {}


class Root(msgspec.Struct, forbid_unknown_fields=True):
    """A state."""

    leaves: list[Leaf] = []
    ways: dict[tuple[str, str], float] = {}


def test_a_state_is_read_as_it_was_written():
    """Dicts keep their order, also where it is not that of their names."""
    state = Root([Leaf(1, {"b": 1, "a": 2}), Leaf()], {("b", "x"): 0.5, ("a", "y"): float("inf")})
    again = read_state(write_state(state), Root)
    assert again == state
    assert ["b", "a"] == [*again.leaves[0].order]
    assert write_state(again) == write_state(state)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (object(), "object"),
        (len, "builtin_function_or_method"),
        (2**64, "serialize ints"),
        ("\ud800", "utf-8"),
        (b"x" * (BYTES_MAX + 1), "bytes; want at most"),
        ([[]] * (NODES_MAX + 1), "lists and structs"),
    ],
)
def test_what_is_no_data_is_not_written(value, why):
    """One line says what it is."""
    with pytest.raises(StateError, match=why) as error:
        write_state([value])
    assert "\n" not in str(error.value)


def test_a_ring_is_not_written():
    """A state is a tree."""
    ring = []
    ring.append(ring)
    with pytest.raises(StateError, match="recursion"):
        write_state(ring)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "truncated"),
        (b"\xc1", "malformed"),
        (msgspec.msgpack.encode({}), "array"),
        (msgspec.msgpack.encode([3, [], None]), f"format 3, this version reads {FORMAT}"),
        (msgspec.msgpack.encode([FORMAT + 1, {}]), f"reads {FORMAT}"),
        (msgspec.msgpack.encode([FORMAT]), f"reads {FORMAT}"),
        (msgspec.msgpack.encode(["x", {}]), "int"),
        (msgspec.msgpack.encode([FORMAT, {"leaves": [{"count": "x"}]}]), r"leaves\[0\].count"),
        (msgspec.msgpack.encode([FORMAT, {"other": 1}]), "other"),
        (msgspec.msgpack.encode([FORMAT, {}]) + b"x", "trailing"),
        (b"\x92\x04" + b"\x91" * 10_000, "recursion|truncated|object"),
        (b"\0" * (BYTES_MAX + 1), "bytes; want at most"),
        (b"\x80" * (NODES_MAX + 1), "lists and structs"),
    ],
)
def test_what_is_no_state_is_refused(data, why):
    """With the one error, in one short line that names the place."""
    with pytest.raises(StateError, match=why) as error:
        read_state(data, Root)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 2 * WORDS_MAX


def test_states_as_they_were_written_are_read():
    """The detector is quiet: what worlds write is read, and goes on without any note."""
    states = corpus()
    assert len(states) > 50
    with watched():
        for reader, data, events, job in states:
            actor = reader.read(data)
            assert actor.write() == data
            actor.machine.job = job
            for at, event in events:
                actor.handle(at, event)
    assert not noted
    assert all(not state_fuzz.called_by(reader, data) for reader, data, _, _ in states[::9])


def test_a_state_is_read_as_that_of_its_own_machine():
    """A syncer's is none of a learner, whatever it says."""
    for states, data, _, job in corpus()[::5]:
        for who in ("syncer.1", "learner-0.1"):
            other = states_for(job, who)
            if type(other.machine) is not type(states.machine):
                with pytest.raises(StateError, match=r"Invalid value|unknown field|Expected"):
                    other.read(data)


def test_absurd_states_call_nothing():
    """A thousand: each is refused with the one error, or its actor does no more than raise."""
    outcomes = try_states("absurd", 1000, profiled=True)
    assert outcomes.keys() == {"refused", "raised", "handled"}
    assert outcomes["refused"] > 300
    assert outcomes["handled"] > 50


@pytest.mark.parametrize("seed", range(10))
def test_absurd_messages_in_flight_are_refused_or_messages(seed):
    """Each a message of the job, or the one error for all."""
    rng, refused = random.Random(seed), 0
    for _ in range(50):
        states, data = absurd_flight(rng)
        try:
            found = states.read_flight(data)
        except StateError:
            refused += 1
        else:
            assert all(type(each) is MessageArrived for each in found)
            assert all(isinstance(each.body, Body) for each in found)
    assert 0 < refused < 50


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(100))
def test_a_hundred_thousand_absurd_states_call_nothing(shard):
    """As above, a thousand in each shard."""
    assert try_states(f"shard {shard}", 1000, profiled=False)["refused"]


def test_a_reader_that_opens_what_a_state_names_is_noticed(monkeypatch):
    """A reader that looks for what a state names, planted."""
    decoder = module._decoder

    def opening(kind):
        with open(__file__):  # noqa: PTH123, what the hook must notice
            return decoder(kind)

    monkeypatch.setattr(module, "_decoder", opening)
    with pytest.raises(AssertionError, match="open"):
        try_states("planted", 100, profiled=False)
