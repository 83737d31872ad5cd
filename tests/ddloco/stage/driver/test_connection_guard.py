"""The guard: no peer sends for another actor, or names one that is not in the job."""

import pytest

from ddloco.job.protocol.messages import Progress, Pull
from ddloco.stage.driver.connection_guard import ConnectionGuard
from transport import PROTOCOL_VERSION, Header, RemoteProtocolError

COMPANY = ("syncer", "learner-0", "learner-1")


def header(sender="learner-0.1", clock=None, body=None):
    """What a message says about itself."""
    return Header(PROTOCOL_VERSION, "job", sender, 1, 1, clock or {sender: 1}, body or Pull(1, 0))


@pytest.fixture
def keeper():
    """Of a syncer's door."""
    return ConnectionGuard("syncer.1", COMPANY, lambda header: None)


@pytest.mark.parametrize("peer", ["learner-0.1", "learner-0"])
def test_who_speaks_under_its_own_name_comes_in(keeper, peer):
    """A listening side knows a peer by incarnation, one that dialled by the actor's name."""
    keeper.check(peer, header(clock={"learner-0.1": 5, "syncer.1": 2, "learner-1.17": 3}))


@pytest.mark.parametrize(
    ("peer", "said", "field"),
    [
        ("learner-1.1", header(), "$.sender"),
        ("learner-9.1", header("learner-9.1"), "$.sender"),
        ("syncer.2", header("syncer.2"), "$.sender"),
        ("learner-0", header("learner-0"), "$.sender"),
        ("learner-0.01", header("learner-0.01"), "$.sender"),
        ("learner-0.\u0661", header("learner-0.\u0661"), "$.sender"),
        ("learner-0.1", header(clock={"learner-0.1": 1, "somebody.1": 1}), "$.clock"),
        ("learner-0.1", header(clock={"learner-0.1": 1, "learner-1": 1}), "$.clock"),
        ("learner-0.1", header(clock={"learner-0.1": 1, "learner-1.0": 1}), "$.clock"),
    ],
)
def test_who_speaks_for_others_stays_outside(keeper, peer, said, field):
    """The field is named; nothing was allocated for it, and nothing becomes an event."""
    with pytest.raises(RemoteProtocolError) as refused:
        keeper.check(peer, said)
    assert str(refused.value).startswith(field)


def test_what_a_body_must_carry_is_asked_last():
    """Of those who may speak at all."""
    asked = []
    keeper = ConnectionGuard("syncer.1", COMPANY, asked.append)
    said = header(body=Progress(1, 1.0, (0,), (1,), (1,)))
    keeper.check("learner-0.1", said)
    assert [said] == asked
