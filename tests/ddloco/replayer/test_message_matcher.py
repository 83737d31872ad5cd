"""The post open_cluster between replays."""

import pytest
import trio

from ddloco.job.protocol.messages import Pull
from ddloco.replayer.message_matcher import Mailbox
from replay import TapeError
from transport import Transmit

KEY = ("a.1", 3, "b", "control", 1, 0)
SAID = Transmit("b", "control", 1, 0, {"a.1": 3}, Pull(1, 2))


async def test_a_message_is_waited_for(autojump_clock):
    """Who asks first waits until the sender's replay has said it."""
    mailbox = Mailbox({"a.1", "b.1"})
    taken = []

    async def take():
        taken.append(await mailbox.take(KEY))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        await trio.sleep(1)
        assert taken == []
        mailbox.post("a.1", 3, SAID, None)
    assert SAID == taken[0].said


async def test_a_sender_that_ended_says_nothing_more(autojump_clock):
    """A message that its sender's tape never says is None, waited for or asked for later."""
    mailbox = Mailbox({"a.1", "b.1"})
    taken = []

    async def take():
        taken.append(await mailbox.take(KEY))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        await trio.sleep(1)
        mailbox.silence("a.1")
    assert taken == [None]
    assert await mailbox.take(KEY) is None


async def test_tapes_that_wait_for_each_other_are_refused(autojump_clock):
    """Tapes of different runs may wait in a circle; that is an error, not a hang."""
    mailbox = Mailbox({"a.1", "b.1"})
    other = ("b.1", 7, "a", "control", 1, 0)

    async def both():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(mailbox.take, KEY)
            nursery.start_soon(mailbox.take, other)

    with pytest.raises(ExceptionGroup) as raised:
        await both()
    assert raised.group_contains(TapeError, match="not of one run")


async def test_a_tape_that_waits_for_its_former_incarnation_is_in_the_circle(autojump_clock):
    """a.2 is played after a.1, which waits for b.1, which waits for a.2."""
    mailbox, ended = Mailbox({"a.1", "a.2", "b.1"}), trio.Event()

    async def later():
        with mailbox.waits_for_end("a.2", "a.1"):
            await ended.wait()

    async def all_three():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(later)
            nursery.start_soon(mailbox.take, ("b.1", 7, "a", "control", 1, 0))
            nursery.start_soon(mailbox.take, ("a.2", 3, "b", "control", 1, 0))

    with pytest.raises(ExceptionGroup) as raised, trio.fail_after(10.0):
        await all_three()
    assert raised.group_contains(TapeError, match="not of one run")


async def test_a_former_incarnation_that_ends_lets_the_next_one_speak(autojump_clock):
    """It is not taken for a circle in the moment in which the later tape has not begun."""
    mailbox, ended, taken = Mailbox({"a.1", "a.2", "b.1"}), trio.Event(), []
    key = ("a.2", 3, "b", "control", 1, 0)

    async def later():
        with mailbox.waits_for_end("a.2", "a.1"):
            await ended.wait()
        mailbox.post("a.2", 3, Transmit("b", "control", 1, 0, {"a.2": 3}, Pull(1, 2)), None)

    async def take():
        taken.append(await mailbox.take(key))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(later)
        nursery.start_soon(take)
        await trio.sleep(1)
        mailbox.silence("a.1")
        await trio.sleep(1)
        ended.set()
    assert taken[0].said.clock == {"a.2": 3}
