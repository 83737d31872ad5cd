"""A status as plain data."""

import pytest

from ddloco.job.protocol.status import MemberStatus, Status, StatusError, WaitingSync, status_from


def test_unknown_fields_are_ignored():
    """A syncer of a newer version may report more."""
    plain = {"t": 4, "waiting": {"t": 5, "fragment": 1, "for": "a quorum", "x": 1}, "y": 2}

    assert Status(t=4, waiting=WaitingSync(5, 1, "a quorum")) == status_from(plain)


@pytest.mark.parametrize(("address", "said"), [("tcp://a:1", "tcp://a:1: not"), (None, "not")])
def test_what_is_not_a_status_is_refused(address, said):
    """The error names the address, if it is known, and the field of a wrong type."""
    known = {"address": address} if address is not None else {}
    with pytest.raises(StatusError, match=rf"^{said} a status: .*\$.waiting.t"):
        status_from({**known, "waiting": {"t": "x", "fragment": 0, "for": ""}})


def test_a_machine_that_computes_wrongly_is_in_the_state_of_its_learner():
    """Beside what else there is to say."""
    assert MemberStatus("learner-1.1").state == "reported"
    found = MemberStatus("learner-1.1", fresh=True, versions_behind=2, corrupt=3).state
    assert found == "fresh, 2 behind, 3 steps corrupt"
