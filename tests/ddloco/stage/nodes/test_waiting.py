"""What is said of those who wait for others."""

import json
from types import SimpleNamespace

import pytest
import trio

from clocks import ActorClock
from ddloco.stage.nodes.runnable import SILENT_S
from ddloco.stage.nodes.waiting import (
    NAMED_MAX,
    WAIT_AGAIN_S,
    WAIT_TOLD_S,
    Wait,
    peers_of,
    tell_what_is_missing,
)
from ddloco.stage.programs.program import load_program

ADDRESS = "tcp://10.0.0.1:5555"


class Waiting:
    """An actor whose links and notes are at hand."""

    def __init__(self, name, trainers=2):
        self.program = load_program("examples.parameter_server:program", {"trainers": trainers})
        self.name, self.awaits, self.finish, self.told = name, "", None, []
        self.met, self.log = [], SimpleNamespace(observe=lambda e, _at, _n, f: self.note(e, f))
        links, self.clock = SimpleNamespace(peers=lambda: self.met), ActorClock(f"{name}.1")
        actor = SimpleNamespace(links=links, machine=None, clock=self.clock)
        self.driver = SimpleNamespace(actor=actor)

    def note(self, event, fields):
        """Keep what is logged, and when."""
        assert event == "waiting"
        self.told.append((trio.current_time(), fields["for"], fields["since_s"]))

    async def tell(self, for_s, *then):
        """Tell for so many seconds, and again with other links."""
        with trio.move_on_after(for_s * (1 + len(then))):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(tell_what_is_missing, {"server": ADDRESS}, self)
                for links in then:
                    await trio.sleep(for_s)
                    self.met = links


async def test_whoever_waits_says_so_after_seconds_and_every_half_minute(autojump_clock):
    """With the address of the peer, and since when."""
    actor, began = Waiting("trainer-1"), trio.current_time()
    await actor.tell(2 * WAIT_AGAIN_S)
    said = f"server at {ADDRESS}"
    assert actor.told == [
        (began + WAIT_TOLD_S, said, WAIT_TOLD_S),
        (began + WAIT_TOLD_S + WAIT_AGAIN_S, said, WAIT_TOLD_S + WAIT_AGAIN_S),
    ]


async def test_peers_that_come_in_time_or_have_ended_are_not_named(autojump_clock):
    """An actor of a user's program waits for whom it has not met yet."""
    actor = Waiting("server")
    await actor.tell(3, ["trainer-0.2", "trainer-1.1"], [])
    assert actor.told == []
    actor = Waiting("server")
    await actor.tell(10, ["trainer-0.2"], ["trainer-1.1"])
    named = [f"trainer-{n}, which dials {ADDRESS}" for n in (0, 1)]
    assert [each[1] for each in actor.told] == ["; ".join(named)]


async def test_an_actor_that_hears_nothing_for_a_minute_says_so(autojump_clock):
    """It has all peers, and none of them says anything; not while it hears something."""
    actor = Waiting("server")
    actor.met = ["trainer-0.1", "trainer-1.1"]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tell_what_is_missing, {"server": ADDRESS}, actor)
        for number in range(1, 5):
            await trio.sleep(SILENT_S / 2)
            actor.clock.tick({"trainer-0.1": number}, "trainer-0.1")
        assert actor.told == []
        last = trio.current_time()
        await trio.sleep(SILENT_S + 2 * WAIT_TOLD_S)
        nursery.cancel_scope.cancel()
    [(at, said, _)] = actor.told
    assert said == "a message"
    assert SILENT_S <= at - last <= SILENT_S + WAIT_TOLD_S + 2


async def test_many_peers_are_counted(autojump_clock):
    """A few are named."""
    actor = Waiting("server", trainers=50)
    await actor.tell(10)
    [(_, said, _)] = actor.told
    assert said.count("which dials") == NAMED_MAX
    assert said.endswith(f"; {50 - NAMED_MAX} more")


async def test_what_an_actor_waits_for_before_it_can_begin_is_said_too(autojump_clock):
    """Its worker meets its other ranks."""
    actor = Waiting("trainer-0")
    actor.driver = None
    await actor.tell(10)
    assert actor.told == []
    actor.awaits = "the other ranks"
    await actor.tell(10)
    assert [each[1] for each in actor.told] == ["the other ranks"]


def test_peers_are_named_with_addresses():
    """Those that an actor dials, and those that dial it."""
    loaded = load_program("examples.parameter_server:program", {"trainers": 2})
    at = {"server": ADDRESS}
    assert peers_of(loaded, "trainer-1", at) == {"server": f"server at {ADDRESS}"}
    assert peers_of(loaded, "server", at) == {
        f"trainer-{n}": f"trainer-{n}, which dials {ADDRESS}" for n in (0, 1)
    }


@pytest.mark.parametrize("on_screen", [True, False])
async def test_a_process_without_an_actor_says_it_on_screen_and_in_the_log(
    tmp_path, capsys, autojump_clock, on_screen
):
    """A process whose parent has a screen writes to the log only."""
    with trio.move_on_after(WAIT_TOLD_S + 1):
        await Wait("learner-0", lambda: f"syncer at {ADDRESS}", tmp_path).tell(on_screen=on_screen)
    said = f"learner-0 waits for syncer at {ADDRESS}, since {WAIT_TOLD_S:.0f} s\n"
    assert capsys.readouterr().err == said * on_screen
    [line] = map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
    assert (line["event"], line["for"]) == ("waiting", f"syncer at {ADDRESS}")
