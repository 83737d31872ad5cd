"""What a program's actors say of peers that are not there."""

from types import SimpleNamespace

import trio

from ddloco.stage.nodes.waiting import WAIT_TOLD_S, peers_of, tell_waiting
from ddloco.stage.programs.program import load_program

ADDRESS = "tcp://10.0.0.1:5555"


class Waiting:
    """An actor whose links and notes are at hand."""

    def __init__(self):
        self.met, self.told, self.finish = [], [], None
        links = SimpleNamespace(peers=lambda: self.met)
        self.driver = SimpleNamespace(actor=SimpleNamespace(links=links))

    def note(self, event, fields):
        """Keep what is logged, and when."""
        self.told.append((trio.current_time(), event, fields["for"]))


async def test_peers_that_are_not_there_are_named_ever_more_rarely(autojump_clock):
    """After some seconds, then after twice as many; a peer that was met is named no more."""
    actor = Waiting()
    began = trio.current_time()
    with trio.move_on_after(20):
        await tell_waiting(actor, {"a": f"a at {ADDRESS}", "b": f"b, which dials {ADDRESS}"})
    first, second = actor.told
    said = f"a at {ADDRESS}; b, which dials {ADDRESS}"
    assert first == (began + WAIT_TOLD_S, "waiting", said)
    assert second == (first[0] + 2 * WAIT_TOLD_S, "waiting", said)

    actor = Waiting()
    with trio.move_on_after(3):
        await tell_waiting(actor, {"a": "a", "b": "b"})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tell_waiting, actor, {"a": "a", "b": "b"})
        actor.met = ["a.2"]
        await trio.sleep(WAIT_TOLD_S + 1)
        actor.met = ["b.1"]  # The other has ended: there is no one to wait for.
    assert [each[2] for each in actor.told] == ["b"]
    assert trio.current_time() - began < 60


def test_peers_are_named_with_addresses():
    """Those that an actor dials, and those that dial it."""
    loaded = load_program("examples.parameter_server:program", {"trainers": 2})
    at = {"server": ADDRESS}
    assert peers_of(loaded, "trainer-1", at) == {"server": f"server at {ADDRESS}"}
    assert peers_of(loaded, "server", at) == {
        f"trainer-{n}": f"trainer-{n}, which dials {ADDRESS}" for n in (0, 1)
    }
