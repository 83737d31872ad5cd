"""Observers are answered; slow ones lose news, invalid requests are counted, and no actor is
affected."""

from contextlib import asynccontextmanager

import msgspec
import numpy as np
import pytest
import trio

from ddloco.job.protocol.events import Started
from ddloco.job.protocol.messages import JobBody
from ddloco.stage.actors.actor import new_actor
from ddloco.stage.actors.effects import Finish, Observe
from ddloco.stage.actors.events import StopRequested
from ddloco.stage.arrays.array_table import ArrayTable
from ddloco.stage.driver.driver import Driver
from ddloco.stage.observers import observer_server as windows
from ddloco.stage.observers.observer_protocol import (
    PIECE_BYTES,
    Ask,
    Fragment,
    News,
    Reader,
    Sorry,
    Told,
)
from ddloco.stage.observers.observer_server import (
    ATTENTIVE_S,
    NEWS_AWAY_MAX,
    OBSERVERS_MAX,
    SILENCE_S_MAX,
    SNAPSHOT_ASKS_S_MIN,
    ObserverServer,
)
from ddloco.stage.process.log import ActorLog
from ddloco.stage.process.side_protocol import encode
from replay import Recorder, Tape, TapeHeader, TapeWriter
from tests.manual_time import ManualTime
from tests.transport.memory import MemoryFabric
from transport import Payload, describe


def payload(value, count=16):
    """A fragment of one tensor, full of one value."""
    data = np.full(count, value, np.float32).view(np.uint8)
    return Payload(describe(data, [("w", (count,), "float32")]), data)


class Stand:
    """A window on a listening endpoint, and observers who come to it."""

    def __init__(self):
        self.fabric = MemoryFabric(1)
        self.endpoint = self.fabric.endpoint("syncer")
        self.arrays = ArrayTable()
        self.time = ManualTime()
        self.facts = {"t": 3}
        self.refused = []
        self.requests = self.stops = 0
        self.dismissed = []
        ways = self.time.now, lambda: self.facts, self.refused.append
        self.window = ObserverServer(self.endpoint, self.arrays, *ways, request=self.request)

    def request(self, what, who):
        """An observer requests a snapshot, the end, or that somebody leaves."""
        self.dismissed += [who] if what == "leave" else []
        self.requests += what == "snapshot"
        self.stops += what == "stop"
        return True

    async def observer(self, name="a", kind="observer"):
        """The end of one observer."""
        endpoint = self.fabric.endpoint(name)
        await endpoint.dial("s", route="syncer/control", identity=f"{kind}-{name}/control")
        return Guest(endpoint)

    async def take(self, arrival):
        """What the driver does with an arrival of an observer."""
        self.window.take(arrival)

    def merge(self, fragment, t, count=16):
        """A merge, as the driver performs it."""
        self.arrays.put(f"wire/{fragment}/{t}", payload(t, count))
        self.window.news("merge", 1.0, "syncer.1:9", {"fragment": fragment, "t": t})

    def watcher(self, name="a", kind="observer"):
        """What the window knows of an observer."""
        return self.window._watchers[f"{kind}-{name}/control"]


class Guest:
    """An observer by hand: says what it is told to say, keeps what it hears."""

    def __init__(self, endpoint):
        self.endpoint, self.heard, self._reader = endpoint, [], Reader()

    async def say(self, ask):
        """Ask, and let everything arrive."""
        self.endpoint.send_nowait("syncer/control", [encode(ask)])
        await trio.testing.wait_all_tasks_blocked()

    async def take(self, arrival):
        """One arrival."""
        whole = self._reader.feed(arrival.frames)
        if whole is not None:
            self.heard.append(whole)

    def said(self, kind):
        """What it heard of one kind."""
        return [said for said, _ in self.heard if isinstance(said, kind)]

    def fragments(self):
        """(fragment, t, first value) of what it was sent."""
        return [
            (said.fragment, said.t, float(body.data.view(np.float32)[0]))
            for said, body in self.heard
            if isinstance(said, Fragment)
        ]


@asynccontextmanager
async def opened(*names, kind="observer"):
    """A stand, and guests who listen."""
    stand = Stand()
    await stand.endpoint.listen("s")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stand.endpoint.run, stand.take)
        guests = [await stand.observer(name, kind) for name in names]
        for guest in guests:
            nursery.start_soon(guest.endpoint.run, guest.take)
        yield stand, *guests
        nursery.cancel_scope.cancel()


async def test_a_status_is_answered():
    """An observer gets the actor's status, and the number of observers."""
    async with opened("a") as (_, guest):
        await guest.say(Ask("status"))

        (told,) = guest.said(Told)
        assert 3 == told.status["t"]
        assert ["observer-a/control"] == [each["observer"] for each in told.status["observers"]]


async def test_a_status_is_made_at_most_so_often():
    """A flood of asks costs the actor one status per tenth of a second."""
    async with opened("a") as (stand, guest):
        made = []
        stand.window._status = lambda: made.append(1) or {"t": len(made)}
        for _ in range(5):
            await guest.say(Ask("status"))
        stand.time.advance_to(windows.STATUS_S_MIN)
        await guest.say(Ask("status"))

        assert [1, 1, 1, 1, 1, 2] == [told.status["t"] for told in guest.said(Told)]


@pytest.mark.parametrize("broken", [lambda: 1 / 0, lambda: {"x": object()}])
async def test_a_status_that_fails_ends_no_actor(broken):
    """A machine that cannot describe itself is reported as the bug that it is, and continues."""
    async with opened("a") as (stand, guest):
        stand.window._status = broken
        await guest.say(Ask("status"))

        assert "this is a bug" in guest.said(Told)[0].status["problem"]


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([b"\xc1"], "malformed"),
        ([b""], "truncated"),
        ([encode(Ask("status")), b"more"], "2 parts"),
        ([b"x" * 1025], "1025 bytes"),
        ([msgspec.msgpack.encode({"type": "Ask", "what": "end"})], "$.what"),
        ([msgspec.msgpack.encode({"type": "Ask", "what": "status", "taken": -1})], "$.taken"),
        ([msgspec.msgpack.encode({"type": "Told", "what": "status"})], "Told"),
    ],
)
async def test_bad_frames_are_refused_and_counted(frames, reason):
    """What is no ask is counted with its reason, is not answered, and keeps nothing."""
    async with opened("a") as (stand, guest):
        guest.endpoint.send_nowait("syncer/control", frames)
        await trio.testing.wait_all_tasks_blocked()

        assert reason in stand.refused[0]
        assert [] == guest.heard
        assert {} == stand.window._watchers


async def test_a_request_for_a_snapshot_goes_on_once():
    """Each valid ask is one request; asking does not subscribe to the news."""
    async with opened("a", "b", kind="owner") as (stand, guest, other):
        await other.say(Ask("follow"))
        assert 0 == stand.requests
        await guest.say(Ask("snapshot"))
        assert 1 == stand.requests
        await guest.say(Ask("snapshot", version=7))
        assert 1 == stand.requests
        stand.time.advance_to(SNAPSHOT_ASKS_S_MIN)
        await guest.say(Ask("snapshot"))
        assert 2 == stand.requests
        stand.window.news("snapshot begun", 0.0, "syncer.1:7", {"snapshot": "syncer.1:7"})
        await trio.testing.wait_all_tasks_blocked()

        assert ["snapshot begun"] == [said.event for said in other.said(News)]
        assert [] == guest.said(News)


async def test_another_version_is_told_so():
    """An observer of another version hears which one is spoken here."""
    async with opened("a") as (_, guest):
        await guest.say(Ask("status", version=7))

        assert "version 1, not 7" in guest.said(Sorry)[0].reason


async def test_news_go_to_those_who_follow():
    """Each observation reaches each follower, numbered; who only asked hears nothing more."""
    async with opened("a", "b") as (stand, guest, other):
        await guest.say(Ask("follow"))
        await other.say(Ask("status"))
        stand.window.news("joined", 1.5, "syncer.1:4", {"learner": "learner-0.1"})
        stand.window.news("lost", 2.5, "syncer.1:5", {})
        await trio.testing.wait_all_tasks_blocked()

        joined, lost = guest.said(News)
        assert (1, "joined", 1.5, "syncer.1:4") == (joined.seq, joined.event, joined.at, joined.ref)
        assert {"learner": "learner-0.1"} == joined.fields
        assert (2, 0) == (lost.seq, lost.lost)
        assert [] == other.said(News)


async def test_followers_with_payloads_get_the_newest_first():
    """First the newest version of every fragment, then that of every merge, whole and unchanged."""
    async with opened("a") as (stand, guest):
        for p in range(2):
            stand.arrays.put(f"wire/{p}/0", payload(0))
        stand.window.news("listening", 0.0, "syncer.1:2", {"fragments": 2})
        stand.merge(1, 4)
        await guest.say(Ask("follow", payloads=True))
        stand.merge(0, 6, count=PIECE_BYTES)
        await trio.testing.wait_all_tasks_blocked()

        assert [(0, 0, 0.0), (1, 4, 4.0), (0, 6, 6.0)] == guest.fragments()
        assert PIECE_BYTES * 4 == len(guest.heard[-1][1].data)


async def test_a_recovered_syncer_hands_out_what_it_recovered():
    """The first versions are those that the status names, where it does, as of this moment."""
    async with opened("a") as (stand, guest):
        await guest.say(Ask("status"))
        stand.facts = {"versions": [8, 3]}
        for p, t in ((0, 8), (1, 3)):
            stand.arrays.put(f"wire/{p}/{t}", payload(t))
        stand.window.news("listening", 0.0, "syncer.2:2", {"fragments": 2})
        await guest.say(Ask("follow", payloads=True))

        assert [(0, 8, 8.0), (1, 3, 3.0)] == guest.fragments()


async def test_a_slow_observer_loses_news_and_nothing_grows():
    """Beyond what may be away nothing is sent or kept; when it wakes it hears how much it lost."""
    async with opened("a", "b") as (stand, slow, quick):
        await slow.say(Ask("follow", payloads=True))
        await quick.say(Ask("follow"))
        for n in range(NEWS_AWAY_MAX + 50):
            stand.window.news("joined", 0.0, "r", {"n": n})
            await quick.say(Ask("follow", taken=n + 1))

        watcher = stand.watcher()
        assert (50, NEWS_AWAY_MAX) == (watcher.lost, len(watcher.away))
        assert NEWS_AWAY_MAX == len(slow.said(News))
        assert NEWS_AWAY_MAX + 50 == len(quick.said(News))
        await slow.say(Ask("follow", payloads=True, taken=NEWS_AWAY_MAX))
        stand.window.news("lost", 0.0, "r", {})
        await trio.testing.wait_all_tasks_blocked()
        assert (50, "lost") == (slow.said(News)[-1].lost, slow.said(News)[-1].event)
        assert 0 == watcher.away_bytes - len(encode(slow.said(News)[-1]))


async def test_a_slow_observer_skips_versions(monkeypatch):
    """Bytes on their way are bounded, whatever is merged; then the newest comes, and only that."""
    monkeypatch.setattr(windows, "BYTES_AWAY_MAX", 4000)
    async with opened("a") as (stand, guest):
        await guest.say(Ask("follow", payloads=True))
        for t in range(1, 20):
            stand.merge(0, t, count=512)
        await trio.testing.wait_all_tasks_blocked()

        assert [(0, 1, 1.0)] == guest.fragments()
        assert stand.watcher().away_bytes <= 4000
        assert {0: 19} == stand.watcher().pending
        await guest.say(Ask("follow", payloads=True, taken=stand.watcher().seq))
        assert [(0, 1, 1.0), (0, 19, 19.0)] == guest.fragments()


async def test_a_fragment_larger_than_the_limit_is_sent_alone(monkeypatch):
    """A limit on bytes never keeps a large fragment back for ever."""
    monkeypatch.setattr(windows, "BYTES_AWAY_MAX", 1000)
    async with opened("a") as (stand, guest):
        stand.arrays.put("wire/0/0", payload(0, 5120))
        stand.window.news("listening", 0.0, "r", {"fragments": 1})
        await guest.say(Ask("follow", payloads=True))

        assert [(0, 0, 0.0)] == guest.fragments()


async def test_who_is_gone_is_forgotten():
    """An observer that has hung up costs nothing from the next news on."""
    async with opened("a") as (stand, guest):
        await guest.say(Ask("follow"))
        stand.fabric.remove(guest.endpoint)
        stand.window.news("joined", 0.0, "r", {})

        assert {} == stand.window._watchers


async def test_who_is_silent_is_forgotten_and_may_come_back():
    """After a long silence it is no longer sent anything; its next ask begins where it stopped."""
    async with opened("a") as (stand, guest):
        await guest.say(Ask("follow"))
        stand.window.news("joined", 0.0, "r", {})
        stand.time.advance_to(SILENCE_S_MAX + 1)
        stand.window.news("joined", 0.0, "r", {})
        assert {} == stand.window._watchers
        await guest.say(Ask("follow", taken=1))
        stand.window.news("lost", 0.0, "r", {})
        await trio.testing.wait_all_tasks_blocked()

        assert [(1, "joined"), (2, "lost")] == [(n.seq, n.event) for n in guest.said(News)]


async def test_a_full_queue_loses_news_too():
    """Where the socket takes no more, the news is dropped and counted; the actor continues."""
    async with opened("a") as (stand, guest):
        await guest.say(Ask("follow"))
        stand.fabric.queue_messages_max = 0
        stand.window.news("joined", 0.0, "r", {})

        assert 1 == stand.watcher().lost


async def test_so_many_at_once():
    """Who only asks makes room; when all places are taken by followers the next is declined."""
    names = [str(n) for n in range(OBSERVERS_MAX + 1)]
    async with opened(*names) as (stand, *guests):
        for guest in guests:
            await guest.say(Ask("status"))
        assert OBSERVERS_MAX == len(stand.window._watchers)
        for guest in guests:
            await guest.say(Ask("follow"))

        assert OBSERVERS_MAX == len(stand.window._watchers)
        assert [1] == [len(each.said(Sorry)) for each in guests if each.said(Sorry)]
        assert "64 observers" in guests[-1].said(Sorry)[0].reason


async def test_silent_observers_keep_no_other_out():
    """However many follow: a status is told, the end is asked for; and who has not spoken lately
    makes room for who follows now."""
    names = [str(n) for n in range(OBSERVERS_MAX + 1)]
    async with opened(*names, kind="owner") as (stand, *guests):
        operator = guests.pop()
        for guest in guests:
            await guest.say(Ask("follow"))
        await operator.say(Ask("status"))
        await operator.say(Ask("stop"))
        assert (1, 1) == (len(operator.said(Told)), stand.stops)
        assert OBSERVERS_MAX == len(stand.window._watchers)
        stand.time.advance_to(ATTENTIVE_S + 1)
        await operator.say(Ask("follow"))
        assert stand.watcher(names[-1], "owner").follows
        assert [] == operator.said(Sorry)
        assert OBSERVERS_MAX == len(stand.window._watchers)


@pytest.mark.parametrize(
    ("what", "said"),
    [("stop", "end the job"), ("snapshot", "snapshot"), ("leave", "let an actor leave")],
)
async def test_an_observer_may_look_and_no_more(what, said):
    """All dashboards share its key: it is told a status, and declined what changes the job."""
    async with opened("a") as (stand, guest):
        await guest.say(Ask("status"))
        await guest.say(Ask(what))
        assert 1 == len(guest.said(Told))
        (sorry,) = guest.said(Sorry)
        assert said in sorry.reason
        assert "key owner" in sorry.reason
        assert (0, 0) == (stand.requests, stand.stops)


async def test_an_actor_is_asked_to_leave_once_by_each_observer():
    """However often it is repeated; another actor, and another observer's wish, are passed on."""
    async with opened("a", "b", kind="owner") as (stand, guest, other):
        for who in ("learner-1", "learner-1", "learner-2"):
            await guest.say(Ask("leave", who=who))
        await other.say(Ask("leave", who="learner-2"))
        assert stand.dismissed == ["learner-1", "learner-2", "learner-2"]


async def test_snapshots_are_begun_for_observers_now_and_then():
    """Hundreds of asks in a second are one snapshot; the others are told to ask again."""
    async with opened("a", kind="owner") as (stand, guest):
        for _ in range(200):
            await guest.say(Ask("snapshot"))
        assert 1 == stand.requests
        assert 199 == len(guest.said(Sorry))
        stand.time.advance_to(SNAPSHOT_ASKS_S_MIN)
        await guest.say(Ask("snapshot"))
        assert 2 == stand.requests


class Machine:
    """Says what it sees, and ends when it is asked to."""

    def handle(self, at, event):
        """Take one event."""
        if isinstance(event, StopRequested):
            return [Observe("lost", {"learner": "nobody"}), Finish("done", "asked")]
        return []

    def status(self, at):
        """What a syncer says of itself."""
        return {"t": 7, "versions": [7]}


async def test_observers_are_below_the_door(tmp_path, autojump_clock):
    """What they ask is answered, and is neither an event, nor on the tape, nor on any clock."""
    fabric = MemoryFabric(1)
    endpoint = fabric.endpoint("syncer")
    await endpoint.listen("s")
    header = TapeHeader("syncer.1", "small-1", {}, "test", {})
    driver = Driver(
        new_actor("syncer.1", Machine()),
        said=JobBody,
        job_id="small-1",
        actors=("syncer",),
        endpoint=endpoint,
        executor=None,
        arrays=ArrayTable(),
        recorder=Recorder(TapeWriter(tmp_path / "syncer.1.tape", header)),
        time=ManualTime(),
        log=ActorLog(tmp_path / "log.jsonl", "syncer.1"),
        admits=lambda header: None,
        facts=lambda: {"name": "small"},
    )
    guest = Guest(fabric.endpoint("a"))
    await guest.endpoint.dial("s", route="syncer/control", identity="observer-a/control")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(driver.run, Started("syncer.1", ()))
        nursery.start_soon(guest.endpoint.run, guest.take)
        await guest.say(Ask("follow"))
        await guest.say(Ask("status"))
        guest.endpoint.send_nowait("syncer/control", [b"rubbish"])
        await guest.say(Ask("status", taken=1))
        driver.request_stop("enough")
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    driver._log.close()

    told = guest.said(Told)[0].status
    assert ("small", "small-1", "syncer.1", 7) == tuple(
        told[key] for key in ("name", "job", "incarnation", "t")
    )
    assert {"observers": 1} == driver.refused
    assert [("lost", "syncer.1:2"), ("ended", "syncer.1:2")] == [
        (news.event, news.ref) for news in guest.said(News)
    ]
    tape = Tape(tmp_path / "syncer.1.tape")
    tape.scan()
    assert 2 == tape.events
