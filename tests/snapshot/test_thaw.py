"""States of strangers: what is read of them names nothing that opens, starts or runs anything."""

from pathlib import Path

import pytest

from ddloco.stage.actors.state_types import JOB_STATES
from snapshot import thaw
from snapshot.thaw import _Reader
from tests.snapshot import state_fuzz
from tests.snapshot.state_fuzz import corpus, noted, try_states, watched


def test_states_as_they_were_written_are_read():
    """The detector is quiet: what worlds write is read, and goes on without any note."""
    states = corpus()
    assert len(states) > 50
    with watched():
        for data, events, given in states:
            actor = thaw(data, JOB_STATES, given)
            for at, event in events:
                actor.handle(at, event)
    assert not noted
    assert all(not state_fuzz.called_by(data, given) for data, _, given in states[::9])


def test_absurd_states_call_nothing():
    """A thousand: each is refused with the one error, or its actor does no more than raise."""
    outcomes = try_states("absurd", 1000, profiled=True)
    assert outcomes["refused"] > 300
    assert outcomes["handled"] > 50


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(100))
def test_a_hundred_thousand_absurd_states_call_nothing(shard):
    """As above, a thousand in each shard."""
    assert try_states(f"shard {shard}", 1000, profiled=False)["refused"]


def test_a_reader_that_calls_what_a_state_names_is_noticed(monkeypatch):
    """The bug of a tag for methods, planted."""
    get = _Reader._get

    def calling(self, tag, *rest):
        if tag != "m":
            return get(self, tag, *rest)
        with Path(__file__).open():
            return getattr(self.get(rest[0]), rest[1], None)

    monkeypatch.setattr(_Reader, "_get", calling)
    with pytest.raises(AssertionError):
        try_states("planted", 1000, profiled=False)
