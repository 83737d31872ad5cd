"""How far the tapes of a replay may go."""

import pytest

from ddloco.replayer.replay_state import ReplayGate


@pytest.mark.parametrize("limits", [None, {"a.1": 5, "b.1": 3}])
def test_a_message_from_beyond_the_cut_is_not_waited_for(limits):
    """It came too late to be accepted, so the clock of the cut does not know it, and the tape of
    its sender is held before it was sent."""
    gate = ReplayGate({"a.1", "b.1"}, limits)
    assert [gate.beyond("b.1", number) for number in (3, 4)] == [False, limits is not None]
    assert gate.beyond("c.1", 1) == (limits is not None)
