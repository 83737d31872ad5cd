"""The observer's end: it asks, takes in, says what it has, and gives up in one line."""

import os
import signal

import numpy as np
import pytest
import trio
import trio.testing

from ddloco.job.keys import names_for
from ddloco.monitoring import client
from ddloco.monitoring.client import ROUTE, Observer, UnansweredError, open_observer
from ddloco.stage.arrays.array_table import ArrayTable
from ddloco.stage.files.addresses import write_address, write_end
from ddloco.stage.files.keys import make_keys
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.observers.observer_protocol import News, Told
from ddloco.stage.observers.observer_server import NEWS_AWAY_MAX, ObserverServer
from tests.transport.memory import MemoryFabric
from transport import Payload, describe
from transport.endpoint import LINGER_S


class Time:
    """Trio's clock."""

    def now(self):
        """Seconds."""
        return trio.current_time()


class Syncer:
    """A window at an address, and nothing behind it."""

    def __init__(self):
        self.fabric = MemoryFabric(1)
        self.endpoint = self.fabric.endpoint("syncer")
        self.arrays, self.refused, self.requests, self.stops = ArrayTable(), [], 0, 0
        ways = Time().now, lambda: {"t": 3}, self.refused.append
        self.window = ObserverServer(self.endpoint, self.arrays, *ways, request=self.request)

    def request(self, what, who):
        """An observer requests a snapshot, or the end."""
        self.requests += what == "snapshot"
        self.stops += what == "stop"

    async def run(self):
        """Listen and answer."""
        await self.endpoint.listen("s")
        await self.endpoint.run(self.take)

    async def take(self, arrival):
        """As the driver does it."""
        self.window.take(arrival)

    async def observer(self, address="s"):
        """An observer that has dialled."""
        endpoint = self.fabric.endpoint("observer")
        await endpoint.dial(address, route=ROUTE, identity="owner-x/control")
        return Observer(endpoint, address, 5.0)


@pytest.fixture
async def syncer(nursery):
    """A window that answers."""
    opened = Syncer()
    nursery.start_soon(opened.run)
    return opened


async def test_status(autojump_clock, syncer):
    """What the syncer says, and where it was asked; any number of times."""
    observer = await syncer.observer()
    for _ in range(3):
        told = await observer.status()
        assert ("s", 3) == (told["address"], told["t"])


async def test_no_syncer_answers(autojump_clock, syncer):
    """After the timeout one line says who does not answer, and what to look at."""
    observer = await syncer.observer("elsewhere")
    begun = trio.current_time()
    with pytest.raises(UnansweredError, match="no answer from elsewhere: is a syncer"):
        await observer.status()
    assert 5.0 == trio.current_time() - begun
    with pytest.raises(UnansweredError, match="a job with keys needs --keys"):
        await observer.follow(None, payloads=False)
    observer._keyed = True
    with pytest.raises(UnansweredError, match="listening there, with these keys"):
        await observer.status()


async def test_who_declines_is_believed(autojump_clock, syncer, monkeypatch):
    """A syncer's reason for telling nothing is what people read."""
    monkeypatch.setattr("ddloco.stage.observers.observer_server.VERSION", 2)
    observer = await syncer.observer()
    with pytest.raises(UnansweredError, match="s: observers here speak version 2, not 1"):
        await observer.status()
    with pytest.raises(UnansweredError, match="s: observers here speak version 2, not 1"):
        await observer.follow(None, payloads=False)


async def test_frames_that_are_no_notices_are_counted(autojump_clock, syncer):
    """Rubbish from a syncer, pieces of nothing and broken bytes change nothing."""
    observer = await syncer.observer()
    await observer.status()
    for frames in ([b"\xc1"], [b""], [b"x", b"y"], [b"\x81\xa4type\xa5Piece"]):
        syncer.endpoint.send_nowait("owner-x/control", frames)
    assert 3 == (await observer.status())["t"]
    assert 4 == observer.refused


class Life:
    """A job that merges now and then until it ends."""

    def __init__(self, syncer, merges=5, every_s=0.7):
        self.syncer, self.merges, self.every_s = syncer, merges, every_s

    def put(self, t):
        """A fragment's version."""
        data = np.full(16, t, np.float32).view(np.uint8)
        payload = Payload(describe(data, [("w", (16,), "float32")]), data)
        self.syncer.arrays.put(f"wire/0/{t}", payload)

    async def run(self):
        """Live, and end."""
        window = self.syncer.window
        self.put(0)
        window.news("listening", 0.0, "r", {"fragments": 1})
        for t in range(1, self.merges + 1):
            await trio.sleep(self.every_s)
            self.put(t)
            window.news("merge", 0.0, "r", {"fragment": 0, "t": t})
        await trio.sleep(1.0)
        window.news("ended", 0.0, "r", {"status": "done", "reason": "enough"})


async def test_follow_until_the_end(autojump_clock, syncer, nursery):
    """Every news, a status a second, every version of every fragment, then the end."""
    observer, heard = await syncer.observer(), []
    nursery.start_soon(Life(syncer).run)
    await trio.sleep(0.1)
    ended = await observer.follow(noted(heard), payloads=True)

    news = [each for each in heard if isinstance(each, News)]
    fragments = [each for each in heard if isinstance(each, tuple)]
    assert {"status": "done", "reason": "enough"} == ended.fields
    assert [*range(1, 6), None] == [each.fields.get("t") for each in news]
    assert [0, 1, 2, 3, 4, 5] == [said.t for said, _ in fragments]
    assert all(float(body.data.view(np.float32)[0]) == said.t for said, body in fragments)
    assert 4 <= sum(isinstance(each, Told) for each in heard) <= 6
    assert all(each.status["address"] == "s" for each in heard if isinstance(each, Told))
    assert (0, 0) == (observer.lost, observer.refused)


async def test_a_stop_is_asked_for_until_the_end_is_heard_of(autojump_clock, syncer, nursery):
    """Whatever is said before an address is admitted again is lost; the job ends all the same."""
    observer, take = await syncer.observer(), syncer.window.take
    syncer.window.take = lambda arrival: None
    asked_at = []

    def request(what, who):
        asked_at.append(trio.current_time())
        if len(asked_at) == 2:
            syncer.window.news("ended", 0.0, "r", {"status": "stopped", "reason": "asked"})

    async def admit():
        await trio.sleep(3.5)
        syncer.window._request, syncer.window.take = request, take

    nursery.start_soon(admit)
    begun = trio.current_time()
    with trio.fail_after(20):
        ended = await observer.follow(noted([]), payloads=False, stop=True)
    assert ended.fields["status"] == "stopped"
    assert len(asked_at) == 2
    assert asked_at[0] - begun > 3.0


async def test_more_news_than_may_be_away_between_two_beats(autojump_clock, syncer, nursery):
    """An observer that keeps up loses nothing however fast the news come."""
    observer, heard = await syncer.observer(), []
    nursery.start_soon(Life(syncer, merges=3 * NEWS_AWAY_MAX, every_s=0.001).run)
    await trio.lowlevel.checkpoint()
    await observer.follow(noted(heard), payloads=False)
    assert 0 == observer.lost


async def test_one_who_is_slow_hears_how_much_it_lost(autojump_clock, syncer, nursery):
    """It holds nothing up: it hears of the end, and counts what it has not heard."""
    observer, heard = await syncer.observer(), []

    async def take(said):
        heard.append(said)
        await trio.sleep(0.05)

    nursery.start_soon(Life(syncer, merges=1000, every_s=0.001).run)
    with trio.move_on_after(60):
        await observer.follow(take, payloads=False)
    assert observer.lost > 500
    assert len(heard) < 500
    assert len(syncer.window._watchers["owner-x/control"].away) <= NEWS_AWAY_MAX


async def test_a_syncer_that_falls_silent_is_taken_for_dead(autojump_clock, syncer, nursery):
    """One that has spoken is waited for much longer than one that never did."""
    observer, heard = await syncer.observer(), []
    begun = trio.current_time()
    nursery.start_soon(mute_after, syncer, 3.0)
    with pytest.raises(UnansweredError, match="s: no answer for 30 s"):
        await observer.follow(noted(heard), payloads=False)

    assert 33 <= trio.current_time() - begun + client.BEAT_S
    assert 2 <= len(heard) <= 4


class Photographer:
    """What a syncer says when it is asked for a snapshot: news, each with its event and name."""

    def __init__(self, syncer, *news):
        self.syncer, self.news = syncer, news
        syncer.request = self.request
        syncer.window._request = self.request

    def request(self, what, who):
        """An observer asks."""
        self.syncer.requests += 1
        for event, ref, snapshot, more in self.news:
            self.say(event, ref, snapshot, **more)

    def say(self, event, ref, snapshot, **more):
        """One of the news."""
        self.syncer.window.news(event, 0.0, ref, {"snapshot": snapshot, **more})


TAKEN = ("snapshot taken", "syncer.1:9", "syncer.1:7", {"parts": ["syncer.1"]})
BEGUN = ("snapshot begun", "syncer.1:7", "syncer.1:7", {})


async def test_a_snapshot_is_asked_for_once(autojump_clock, syncer, nursery):
    """However long it takes, one ask; what comes back is the news that it is there."""
    slow = Photographer(syncer, BEGUN)
    observer = await syncer.observer()

    async def finish():
        await trio.sleep(70)
        slow.say(*TAKEN[:3], **TAKEN[3])

    nursery.start_soon(finish)
    said = await observer.snapshot()
    assert ("snapshot taken", ["syncer.1"]) == (said.event, said.fields["parts"])
    assert 1 == syncer.requests


async def test_a_snapshot_is_asked_for_again_until_it_is_begun(autojump_clock, syncer, nursery):
    """A driver whose inbox is full drops the request, as does an address that is cut."""
    busy, begun = Photographer(syncer), trio.current_time()

    async def be_free():
        await trio.sleep(2.5)
        busy.news = (BEGUN, TAKEN)

    nursery.start_soon(be_free)
    said = await (await syncer.observer()).snapshot()
    assert (said.event, syncer.requests) == ("snapshot taken", 4)
    assert trio.current_time() - begun < 4.0


async def test_snapshots_of_others_settle_first(autojump_clock, syncer):
    """What becomes of one that was begun before is not what became of ours."""
    Photographer(
        syncer,
        ("snapshot discarded", "syncer.1:6", "syncer.1:2", {"reason": "the disk is full"}),
        BEGUN,
        ("snapshot taken", "syncer.1:8", "syncer.1:3", {"parts": []}),
        ("snapshot discarded", "syncer.1:8", "syncer.1:4", {"reason": "the disk is full"}),
        TAKEN,
    )
    said = await (await syncer.observer()).snapshot()

    assert ("snapshot taken", "syncer.1:7") == (said.event, said.fields["snapshot"])


async def test_a_snapshot_that_is_refused(autojump_clock, syncer):
    """It is discarded with the event that asked for it, and was never begun."""
    Photographer(syncer, ("snapshot discarded", "syncer.1:7", "syncer.1:7", {"reason": "enough"}))
    said = await (await syncer.observer()).snapshot()

    assert ("snapshot discarded", "enough") == (said.event, said.fields["reason"])


async def test_a_job_that_ends_before_its_snapshot(autojump_clock, syncer):
    """The client does not wait for an answer that cannot come."""
    Photographer(syncer, BEGUN, ("ended", "syncer.1:8", "", {"status": "done", "reason": "enough"}))
    said = await (await syncer.observer()).snapshot()

    assert ("ended", "enough") == (said.event, said.fields["reason"])


async def test_a_snapshot_that_no_actor_begins(autojump_clock, syncer):
    """A syncer that answers and begins none is given up after the timeout: the door was busy."""
    begun = trio.current_time()
    with pytest.raises(UnansweredError, match="s: no snapshot was begun within 5 s"):
        await (await syncer.observer()).snapshot()
    assert pytest.approx(5.0) == trio.current_time() - begun


async def test_no_syncer_to_take_a_snapshot(autojump_clock, syncer):
    """Where no syncer is, it is said so, and what to look at."""
    with pytest.raises(UnansweredError, match="no answer from elsewhere: is a syncer"):
        await (await syncer.observer("elsewhere")).snapshot()


async def test_a_syncer_that_dies_over_its_snapshot(autojump_clock, syncer, nursery):
    """One that falls silent after it began is given up like any other."""
    Photographer(syncer, BEGUN)
    nursery.start_soon(mute_after, syncer, 3.0)
    with pytest.raises(UnansweredError, match="s: no answer for 30 s"):
        await (await syncer.observer()).snapshot()


async def test_a_syncer_that_speaks_otherwise_takes_none(autojump_clock, syncer, monkeypatch):
    """Its reason is what people read."""
    monkeypatch.setattr("ddloco.stage.observers.observer_server.VERSION", 2)
    with pytest.raises(UnansweredError, match="s: observers here speak version 2, not 1"):
        await (await syncer.observer()).snapshot()


def noted(heard):
    """Takes everything into a list."""

    async def take(said):
        heard.append(said)

    return take


async def mute_after(syncer, seconds):
    """A syncer that stops to answer."""
    await trio.sleep(seconds)
    syncer.window.take = lambda arrival: None


async def test_until_a_signal():
    """A signal ends what would continue for ever, and is no failure."""
    from ddloco.monitoring.watch import until_signal

    async def act():
        await trio.testing.wait_all_tasks_blocked()
        os.kill(os.getpid(), signal.SIGINT)
        await trio.sleep_forever()

    with trio.fail_after(10):
        await until_signal(act)


async def test_who_is_not_there_is_not_waited_for_longer_than_asked():
    """Over real sockets: what was not sent to a syncer that is not there is not waited for."""
    begun = trio.current_time()
    with pytest.raises(UnansweredError):
        async with client.open_observer("tcp://127.0.0.1:9", 0.1, None) as observer:
            await observer.status()

    assert trio.current_time() - begun < LINGER_S


async def test_the_key_of_dashboards_ends_no_job(tmp_path):
    """Before anything is dialled, one line says which key is missing."""
    keys = tmp_path / "keys"
    make_keys(keys, names_for(1))
    (keys / "owner.key").unlink()
    with pytest.raises(ConfigError, match=r"no owner\.key.*may look, not end a job") as raised:
        async with client.open_observer("tcp://127.0.0.1:9", 0.1, keys, owner=True):
            pass
    assert "\n" not in str(raised.value)
    async with client.open_observer("tcp://127.0.0.1:9", 0.1, keys):
        pass


async def test_who_owns_a_job_may_look(tmp_path):
    """With the owner's key alone; with neither, the missing key is named."""
    keys = tmp_path / "keys"
    make_keys(keys, names_for(1))
    (keys / "observer.key").unlink()
    async with client.open_observer("tcp://127.0.0.1:9", 0.1, keys):
        pass
    (keys / "owner.key").unlink()
    with pytest.raises(ConfigError, match=r"observer\.key"):
        async with client.open_observer("tcp://127.0.0.1:9", 0.1, keys):
            pass


async def test_a_lead_is_found_by_its_place(tmp_path):
    """Its address is there; one line says that it is not, or that the place cannot be used."""
    for name in ("syncer", "syncer-0"):
        place = tmp_path / name
        place.mkdir()
        (place / f"{name}.address").write_text("tcp://127.0.0.1:5555")
        async with open_observer(f"lease:{place}", 1.0, None) as observer:
            assert "tcp://127.0.0.1:5555" in observer._no_answer()
    for place, said in (
        ("empty", "has no address of a syncer"),
        ("nope://x", "Protocol not known"),
    ):
        with pytest.raises(ConfigError, match=said):
            async with open_observer(f"lease:{place}", 1.0, None):
                pass


async def test_a_job_that_has_ended_is_no_silence(tmp_path):
    """Where the address is in a file, the file beside it says how."""
    write_address(tmp_path, "syncer", "tcp://127.0.0.1:5555")
    write_end(tmp_path, "syncer", "job-1", "done: 40 of 40 steps")
    async with open_observer(f"file:{tmp_path}/syncer.address", 0.1, None) as observer:
        with pytest.raises(UnansweredError, match="the job has ended: done: 40 of 40 steps"):
            await observer.status()
