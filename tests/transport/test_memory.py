"""The memory fabric: faults that come from a seed, in virtual time."""

import itertools

import pytest
import trio

from tests.transport.memory import FabricStatistics, Faults, MemoryFabric
from transport.endpoint import LaneFull, PeerGone

MANY_FAULTS = Faults((0.01, 0.05), loss=0.2, duplication=0.2, reorder=0.2)


async def linked(fabric):
    """Give a listener named syncer and a dialler named learner, connected on one route."""
    syncer, learner = fabric.endpoint("syncer"), fabric.endpoint("learner")
    await syncer.listen("hub")
    await learner.dial("hub", route="to-syncer", identity="from-learner")
    return syncer, learner


async def arrivals(endpoint, wait_s=10.0):
    """Run the endpoint for a while and return (seconds since, message) of what came."""
    start_s, seen = trio.current_time(), []

    async def deliver(arrival):
        seen.append((trio.current_time() - start_s, bytes(arrival.frames[0])))

    with trio.move_on_after(wait_s):
        await endpoint.run(deliver)
    return seen


async def exchange(seed, faults=MANY_FAULTS):
    """Send 200 numbered messages through faults; return what arrives when, and the counts."""
    fabric = MemoryFabric(seed, faults)
    syncer, learner = await linked(fabric)
    for number in range(200):
        learner.send_nowait("to-syncer", [b"%d" % number])
    return await arrivals(syncer), fabric.statistics()


async def test_a_seed_is_a_fate(autojump_clock):
    """The same seed gives the same arrivals at the same times; another seed gives others."""
    first, again, other = [await exchange(seed) for seed in (7, 7, 8)]

    assert [m for _, m in first[0]] == [m for _, m in again[0]]
    assert [t for t, _ in first[0]] == pytest.approx([t for t, _ in again[0]])
    assert first[1] == again[1]
    assert first != other


async def test_no_faults_is_lossless_immediate_and_in_order(autojump_clock):
    """Without faults every message arrives once, in order, in no time."""
    seen, counts = await exchange(1, Faults())

    assert [b"%d" % number for number in range(200)] == [message for _, message in seen]
    assert {0.0} == {when_s for when_s, _ in seen}
    assert FabricStatistics() == counts


async def test_loss_loses_and_nothing_else(autojump_clock):
    """What loss leaves over arrives once and in order; the fabric counts the rest."""
    seen, counts = await exchange(1, Faults(loss=0.3))
    numbers = [int(message) for _, message in seen]

    assert sorted(set(numbers)) == numbers
    assert 200 - counts.lost == len(numbers)
    assert 30 <= counts.lost <= 90


async def test_duplication_doubles_and_loses_nothing(autojump_clock):
    """Every message arrives, some of them twice, the originals in order."""
    seen, counts = await exchange(1, Faults(duplication=0.3))
    numbers = [int(message) for _, message in seen]

    assert list(range(200)) == list(dict.fromkeys(sorted(numbers)))
    assert 200 + counts.duplicated == len(numbers)
    assert 30 <= counts.duplicated <= 90


async def test_reordering_reorders_and_loses_nothing(autojump_clock):
    """Every message arrives once, some overtaken; those not held back keep their order."""
    seen, counts = await exchange(1, Faults(reorder=0.3))
    numbers = [int(message) for _, message in seen]

    assert list(range(200)) == sorted(numbers) != numbers
    overtaken = sum(b < a for a, b in itertools.pairwise(numbers))
    assert 0 < overtaken <= counts.reordered


async def test_one_fault_does_not_reshuffle_another(autojump_clock):
    """Turning duplication and delay on leaves the choice of lost messages as it was."""
    lossy, _ = await exchange(3, Faults(loss=0.3))
    both, _ = await exchange(3, Faults((0.0, 0.1), loss=0.3, duplication=0.3))

    assert {message for _, message in lossy} == {message for _, message in both}


async def test_delay_is_between_its_bounds_and_keeps_order(autojump_clock):
    """A delayed message arrives within its bounds, and none overtakes another."""
    seen, _ = await exchange(1, Faults((0.5, 2.0)))

    assert [b"%d" % number for number in range(200)] == [message for _, message in seen]
    assert all(0.5 <= when_s <= 2.0 for when_s, _ in seen)
    assert seen[0][0] < seen[-1][0]


async def test_bandwidth_passes_bytes_one_by_one(autojump_clock):
    """At 1000 B/s, messages of 500 B sent together arrive half a second apart."""
    syncer, learner = await linked(MemoryFabric(1, Faults(bandwidth_bytes_s=1000)))
    for _ in range(4):
        learner.send_nowait("to-syncer", [bytes(400), bytes(100)])
    seen = await arrivals(syncer)

    assert pytest.approx([when_s for when_s, _ in seen]) == [0.5, 1.0, 1.5, 2.0]


@pytest.mark.parametrize("one_way", [False, True])
async def test_partition_drops_and_heals(autojump_clock, one_way):
    """A partition drops what is sent across it, in one direction or both, until healed."""
    fabric = MemoryFabric(1)
    syncer, learner = await linked(fabric)

    async def exchange():
        learner.send_nowait("to-syncer", [b"up"])
        syncer.send_nowait("from-learner", [b"down"])
        return len(await arrivals(syncer)), len(await arrivals(learner))

    assert await exchange() == (1, 1)
    fabric.partition("learner", "syncer", one_way=one_way)
    assert await exchange() == (0, int(one_way))
    fabric.heal()
    assert await exchange() == (1, 1)
    assert fabric.statistics().partitioned == (1 if one_way else 2)


async def test_partition_that_holds_loses_nothing(autojump_clock):
    """With `hold` what is sent across arrives after the healing, in order; the lane may fill."""
    fabric = MemoryFabric(1, queue_messages_max=3)
    syncer, learner = await linked(fabric)
    fabric.partition("learner", "syncer", hold=True)
    for message in (b"a", b"b", b"c"):
        learner.send_nowait("to-syncer", [message])
    with pytest.raises(LaneFull):
        learner.send_nowait("to-syncer", [b"d"])

    assert await arrivals(syncer) == []
    fabric.heal()
    assert [message for _, message in await arrivals(syncer)] == [b"a", b"b", b"c"]


async def test_the_latest_rule_that_fits_decides(autojump_clock):
    """Faults are set for all, for a direction, or for a route, and the last word counts."""
    fabric = MemoryFabric(1, Faults(loss=1))
    fabric.set_faults(Faults((1.0, 1.0)), source="learner", target="syncer")
    syncer, learner = await linked(fabric)
    await learner.dial("hub", route="second", identity="from-second")

    async def exchange():
        for route in ("to-syncer", "second"):
            learner.send_nowait(route, [route.encode()])
        syncer.send_nowait("from-learner", [b"down"])
        up = await arrivals(syncer)
        return [(round(when_s, 3), message) for when_s, message in up], await arrivals(learner)

    assert await exchange() == ([(1.0, b"to-syncer"), (1.0, b"second")], [])
    fabric.set_faults(Faults((2.0, 2.0)), route="from-second")
    assert await exchange() == ([(1.0, b"to-syncer"), (2.0, b"second")], [])
    fabric.set_faults(Faults())
    assert [message for _, message in (await exchange())[0]] == [b"to-syncer", b"second"]


async def test_a_crashed_listener_comes_back(autojump_clock):
    """A dial outlives its listener: what is sent meanwhile reaches the next one there."""
    fabric = MemoryFabric(1)
    syncer, learner = await linked(fabric)
    await syncer.aclose()
    learner.send_nowait("to-syncer", [b"meanwhile"])
    again = fabric.endpoint("syncer")
    await again.listen("hub")

    assert [message for _, message in await arrivals(again)] == [b"meanwhile"]
    again.send_nowait("from-learner", [b"back"])
    assert [message for _, message in await arrivals(learner)] == [b"back"]


async def test_a_crashed_dialler_is_gone_and_may_come_back(autojump_clock):
    """PeerGone after a dialler closed, until another one dials under the same identity."""
    fabric = MemoryFabric(1)
    syncer, learner = await linked(fabric)
    learner.send_nowait("to-syncer", [b"last words"])
    await learner.aclose()
    with pytest.raises(PeerGone):
        syncer.send_nowait("from-learner", [b"x"])
    again = fabric.endpoint("learner")
    await again.dial("hub", route="to-syncer", identity="from-learner")
    again.send_nowait("to-syncer", [b"back"])

    assert [message for _, message in await arrivals(syncer)] == [b"last words", b"back"]
    syncer.send_nowait("from-learner", [b"welcome"])


async def test_a_second_dialler_of_that_name_waits_for_the_first_to_leave(autojump_clock):
    """One identity, one connection: the second is heard only once the first has closed."""
    fabric = MemoryFabric(1)
    syncer, learner = await linked(fabric)
    second = fabric.endpoint()
    await second.dial("hub", route="to-syncer", identity="from-learner")
    second.send_nowait("to-syncer", [b"second"])

    assert await arrivals(syncer) == []
    await learner.aclose()
    assert [message for _, message in await arrivals(syncer)] == [b"second"]


async def test_an_address_is_listened_on_once(autojump_clock):
    """A second listener on an address is refused, until the first has closed."""
    fabric = MemoryFabric(1)
    syncer, _ = await linked(fabric)
    with pytest.raises(OSError, match="in use"):
        await fabric.endpoint().listen("hub")
    await syncer.aclose()
    assert await fabric.endpoint().listen("hub") == "hub"


async def test_virtual_days_are_quick(autojump_clock):
    """A message delayed by a day arrives a virtual day later."""
    day_s = 86_400.0
    syncer, learner = await linked(MemoryFabric(1, Faults((day_s, day_s))))
    learner.send_nowait("to-syncer", [b"x"])

    assert [(day_s, b"x")] == await arrivals(syncer, wait_s=2 * day_s)


@pytest.mark.parametrize(
    "wrong",
    [
        {"delay_s": (2.0, 1.0)},
        {"delay_s": (-1.0, 1.0)},
        {"loss": 1.1},
        {"duplication": -0.1},
        {"reorder": 2.0},
        {"reorder_s": -1.0},
        {"bandwidth_bytes_s": 0.0},
    ],
)
def test_impossible_faults_are_refused(wrong):
    """Numbers that mean nothing raise ValueError where they are written."""
    with pytest.raises(ValueError, match=r"delays|probability|bandwidth"):
        Faults(**wrong)
