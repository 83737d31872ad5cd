"""The driver in virtual time: the real machines over a memory fabric, with fake work.

Nothing sleeps for real and nothing opens a socket; the tapes are real files.
"""

import errno
import json
import os
from contextlib import closing

import msgspec
import numpy as np
import pytest
import trio
import trio.testing

from ddloco.job.protocol.events import Happened, Started
from ddloco.job.protocol.fragment_plan import wire_layout
from ddloco.job.protocol.messages import GlobalFragment, JobBody, Progress
from ddloco.job.protocol.validation import admission
from ddloco.job.protocol.work import (
    EncodeFragment,
    Evaluated,
    FragmentEncoded,
    FragmentMerged,
    MakeParameters,
    MergeFragment,
    ModelSaved,
    ParametersMade,
    Recover,
    Recovered,
    RunStep,
    StepFinished,
)
from ddloco.machines.registry import machine_for
from ddloco.stage.actors.actor import new_actor
from ddloco.stage.actors.effects import Finish, Observe
from ddloco.stage.actors.events import Restored, StopRequested
from ddloco.stage.actors.observations import BLOCKED
from ddloco.stage.actors.timers import Named
from ddloco.stage.arrays.array_table import ArrayTable
from ddloco.stage.driver.driver import BLOCKED_S, REFUSALS_LOGGED_MAX, Driver
from ddloco.stage.process.log import ActorLog
from replay import Player, Recorder, Tape, TapeError, TapeHeader, TapeWriter, tape
from tests.transport.memory import Faults, MemoryFabric
from transport import (
    LANES,
    PROTOCOL_VERSION,
    Codec,
    Header,
    Hello,
    LaneBroken,
    MessageArrived,
    SetTimer,
    TimerFired,
    describe,
)
from transport.codec import DIGEST_BYTES, sealed
from transport.payload import Payload

SYNCER = "syncer.1"
TOKENS = 8


class TrioTime:
    """Seconds since an actor's start on trio's clock, which is virtual here."""

    began = None

    def __init__(self):
        self._start = trio.current_time()

    def now(self):
        """Seconds since this source was made."""
        return trio.current_time() - self._start


class FakeExecutor:
    """Work that takes its time and leaves small arrays; deterministic, and fails where told."""

    make_s = 0.0
    """Seconds that the initial parameters take."""

    def __init__(self, plan, arrays, step_s):
        self._plan, self._arrays, self._step_s = plan, arrays, step_s

    def payload(self, fragment, value):
        """A fragment full of one value, as it is sent."""
        start, stop = self._plan.fragment_slice(fragment)
        data = np.full((stop - start) // 4, value, np.float32).view(np.uint8)
        return Payload(describe(data, wire_layout(self._plan, fragment)), data)

    async def do(self, work):
        """Do one piece of work."""
        match work:
            case Recover():
                return Recovered(work.work, ())
            case MakeParameters():
                await trio.sleep(self.make_s)
                for p in work.fragments:
                    self._arrays.put(f"theta/{p}/0", np.zeros(1, np.float32))
                    self._arrays.put(f"wire/{p}/0", self.payload(p, 0.0))
                return ParametersMade(work.work, b"digest")
            case RunStep():
                for each in work.overwrites:
                    assert self._arrays.get(each.handle).data.size
                await trio.sleep(self._step_s)
                self._arrays.put(work.out, np.full(1, work.step, np.float32))
                return StepFinished(work.work, work.step, 1.0 / work.step, TOKENS, b"batch")
            case EncodeFragment():
                await trio.sleep(0.01)
                value = float(self._arrays.get(work.source)[0])
                self._arrays.put(work.out, self.payload(work.fragment, value))
                return FragmentEncoded(work.work, b"digest")
            case MergeFragment():
                return await self._merge(work)
            case _:
                await trio.sleep(0.1)
                kind = type(work).__name__
                return {
                    "Evaluate": Evaluated(work.work, 2.5),
                    "SaveModel": ModelSaved(work.work, b""),
                }[kind]

    async def _merge(self, work):
        await trio.sleep(0.05)
        theta, state, wire = work.out
        assert all(self._arrays.known(share.handle) for share in work.shares)
        self._arrays.put(theta, np.full(1, work.t, np.float32))
        self._arrays.put(state, {"steps": np.array([work.t])})
        self._arrays.put(wire, self.payload(work.fragment, float(work.t)))
        names = tuple(share.name for share in work.shares)
        weights = tuple(1 / len(names) for _ in names)
        return FragmentMerged(work.work, names, weights, (), b"t", b"m", b"w")


class Cluster:
    """A job whose actors are drivers over one memory fabric."""

    def __init__(self, job, leaves, folder, fabric, recorded=True, on_error="stop"):
        self.job, self.leaves, self.folder, self.fabric = job, leaves, folder, fabric
        self.plan = job.plan(leaves)
        self.recorded, self.on_error = recorded, on_error
        self.drivers, self.endpoints, self.finishes, self.logs = {}, {}, {}, {}
        self.decisions = {}
        self.machine_for = machine_for

    def tape(self, incarnation):
        """Where an actor's tape is."""
        return self.folder / "tapes" / f"{incarnation}.tape"

    def recorder(self, incarnation):
        """An actor's recorder."""
        if not self.recorded:
            return Recorder(None)
        header = TapeHeader(incarnation, self.job.id, self.job.as_plain(), "test", {})
        return Recorder(TapeWriter(self.tape(incarnation), header), self.on_error)

    async def open(self, incarnation, step_s=1.0):
        """Make an actor's driver, linked to the fabric."""
        endpoint = self.endpoints[incarnation] = self.fabric.endpoint(incarnation)
        if incarnation == SYNCER:
            await endpoint.listen("syncer")
        else:
            for lane in LANES:
                await endpoint.dial(
                    "syncer", route=f"syncer/{lane}", identity=f"{incarnation}/{lane}"
                )
        actor = new_actor(incarnation, self.machine_for(self.job, incarnation))
        decisions = self.decisions[incarnation] = []
        actor = Noting(actor, decisions)
        arrays = ArrayTable()
        log = self.logs[incarnation] = ActorLog(self.folder / f"{incarnation}.jsonl", incarnation)
        driver = self.drivers[incarnation] = Driver(
            actor,
            said=JobBody,
            job_id=self.job.id,
            actors=self.job.names(),
            endpoint=endpoint,
            executor=FakeExecutor(self.plan, arrays, step_s),
            arrays=arrays,
            recorder=self.recorder(incarnation),
            time=TrioTime(),
            log=log,
            admits=admission(self.plan, 0),
        )
        return driver

    async def host(self, incarnation, step_s=1.0):
        """Run an actor to its end."""
        driver = await self.open(incarnation, step_s)
        try:
            self.finishes[incarnation] = await driver.run(Started(incarnation, self.leaves))
        finally:
            self.logs[incarnation].close()
            await self.endpoints[incarnation].aclose()

    async def run(self, meanwhile=None, limit_s=900.0):
        """Run the whole job, and something else beside it."""
        with trio.fail_after(limit_s):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.host, SYNCER)
                for index, name in enumerate(self.job.learner_names()):
                    nursery.start_soon(self.host, f"{name}.1", 1.0 + index / 10)
                if meanwhile is not None:
                    nursery.start_soon(meanwhile)

    def log(self, incarnation):
        """The lines of an actor's log."""
        path = self.folder / f"{incarnation}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def says(self, event, incarnation=SYNCER):
        """The log lines of one kind."""
        return [line for line in self.log(incarnation) if line["event"] == event]


class Noting:
    """An actor, or a machine, that remembers what it decided."""

    def __init__(self, of, decisions):
        self.of, self.decisions = of, decisions

    def __getattr__(self, name):
        return getattr(self.of, name)

    def handle(self, at, event):
        effects = self.of.handle(at, event)
        self.decisions.append((at, event, list(effects)))
        return effects


@pytest.fixture
def open_cluster(make_job, leaves, tmp_path):
    """Makes a job over a fabric."""
    number = iter(range(99))

    def opened(learners=2, steps=8, seed=1, faults=None, **more):
        folder = tmp_path / str(next(number))
        folder.mkdir()
        fabric = MemoryFabric(seed, faults or Faults())
        return Cluster(make_job(learners, steps=steps), leaves, folder, fabric, **more)

    return opened


@pytest.mark.parametrize(
    ("learners", "faults"),
    [(2, Faults()), (3, Faults(delay_s=(0.05, 0.4))), (2, Faults(bandwidth_bytes_s=20_000.0))],
)
async def test_a_job_runs_to_its_end(open_cluster, autojump_clock, learners, faults):
    """Whatever the delays, every global step is merged, and all actors finish in good order."""
    job = open_cluster(learners, faults=faults)
    await job.run()
    assert {"done"} == {finish.status for finish in job.finishes.values()}
    assert learners + 1 == len(job.finishes)
    assert list(range(1, 9)) == sorted(line["t"] for line in job.says("merge"))


async def test_nothing_is_left_in_memory(open_cluster, autojump_clock):
    """At the end a syncer stores its fragments, a learner two copies and what came last."""
    job = open_cluster()
    await job.run()
    parts = len(job.plan.fragments)
    assert 3 * parts == len(job.drivers[SYNCER]._arrays)
    assert all(len(job.drivers[f"{n}.1"]._arrays) <= 2 + parts for n in job.job.learner_names())


@pytest.mark.parametrize("jump_s", [60.0, 3600.0, 86400.0])
async def test_a_suspended_machine_goes_on(open_cluster, autojump_clock, jump_s):
    """All actors' time leaps ahead in the middle of a step: what was measured across that is no
    step time, and the job ends about as soon as without."""
    job = open_cluster(steps=40)
    ends = []

    async def suspended():
        await trio.sleep(8.3)
        autojump_clock.jump(jump_s)
        ends.append(trio.current_time())

    await job.run(suspended, limit_s=jump_s + 1000.0)
    assert {"done"} == {finish.status for finish in job.finishes.values()}
    assert trio.current_time() - ends[0] < 200.0


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_links_recover_from_faults(open_cluster, autojump_clock, seed):
    """Loss, duplication and reordering for a while: links shake hands again, the job ends."""
    job = open_cluster(3, steps=40, seed=seed)

    async def disturb():
        await trio.sleep(5.0)
        job.fabric.set_faults(Faults((0.0, 0.05), loss=0.1, duplication=0.1, reorder=0.1))
        await trio.sleep(15.0)
        job.fabric.set_faults(Faults())

    await job.run(disturb)
    assert {"done"} == {finish.status for finish in job.finishes.values()}
    assert list(range(1, 41)) == sorted(line["t"] for line in job.says("merge"))
    assert len(job.says("joined")) > 3


async def test_tapes_replay(open_cluster, autojump_clock):
    """Fed with its tape, a fresh machine decides the same, event for event; the tape is closed."""
    job = open_cluster()
    await job.run()
    for incarnation in job.finishes:
        recording = Tape(job.tape(incarnation)).scan()
        player = Player(
            recording, Happened, new_actor(incarnation, machine_for(job.job, incarnation))
        )
        for record, event, outcome in player.moments():
            player.play(record, event, outcome)
        assert len(job.decisions[incarnation]) == player.played > 30
        assert job.finishes[incarnation].reason == recording.closed


async def test_every_event_is_on_the_tape_before_it_is_handled(open_cluster, autojump_clock):
    """While an event is handled, the last record of the file is that event."""
    job = open_cluster()
    seen = []

    def watching(of, incarnation):
        class Watched(Noting):
            def handle(self, at, event):
                *_, last = Tape(job.tape(incarnation)).records()
                assert isinstance(last, tape.Event)
                seen.append((last.n, job.drivers[incarnation].actor.number))
                return self.of.handle(at, event)

        return Watched(machine_for(of, incarnation), [])

    job.machine_for = watching
    await job.run()
    assert all(taped == handled for taped, handled in seen)
    assert len(seen) > 100


async def test_effects_are_on_the_tape_before_they_are_done(open_cluster, autojump_clock):
    """When an effect is performed, the digest of its event's effects is the last record."""
    job = open_cluster(steps=4)
    driver = await job.open(SYNCER)
    kinds = []
    perform = driver._perform

    def performed(at, effect):
        *_, last = Tape(job.tape(SYNCER)).records()
        kinds.append(type(last))
        perform(at, effect)

    driver._perform = performed
    driver.request_stop("enough")
    with trio.fail_after(99):
        await driver.run(Started(SYNCER, job.leaves))
    job.logs[SYNCER].close()
    assert {tape.Effects} == set(kinds)


def test_recording_changes_no_decision(open_cluster, monkeypatch):
    """With and without a tape the machines decide the same at the same times."""
    monkeypatch.setattr("trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING", True)
    jobs = [open_cluster(), open_cluster(recorded=False)]
    for job in jobs:
        trio._core._run._r.seed(7)
        trio.run(job.run, clock=trio.testing.MockClock(autojump_threshold=0))
    loud, silent = jobs
    assert loud.decisions == silent.decisions
    assert len(loud.decisions[SYNCER]) > 50
    assert not silent.tape(SYNCER).exists()


async def test_a_machine_that_raises_is_recorded(open_cluster, autojump_clock):
    """An exception ends the actor, and the tape says which at which event."""
    job = open_cluster()

    class Broken:
        def handle(self, at, event):
            raise ZeroDivisionError("planted")

    job.machine_for = lambda of, incarnation: Broken()
    with pytest.RaisesGroup(ZeroDivisionError):
        await job.host(SYNCER)
    *_, last = Tape(job.tape(SYNCER)).records()
    assert (1, "ZeroDivisionError: planted") == (last.n, last.error)


@pytest.mark.parametrize("waits_s", [0.1, 20.0])
async def test_a_machine_that_waits_is_told_of(waits_s, open_cluster, autojump_clock):
    """With the event in which it heard nobody; what takes less than seconds is not."""
    job = open_cluster()

    class Waiting(Noting):
        def handle(self, at, event):
            effects = super().handle(at, event)
            if len(self.decisions) == 30:
                autojump_clock.jump(waits_s)
            return effects

    job.machine_for = lambda of, incarnation: Waiting(machine_for(of, incarnation), [])
    await job.run()
    told = [(line["took_s"], line["level"]) for line in job.says(BLOCKED)]

    assert told == ([(20.0, "warning")] if waits_s > BLOCKED_S else [])
    assert all(line["what"] for line in job.says(BLOCKED))


class FullDisk:
    """A disk that takes so many writes, then no more."""

    def __init__(self, writes):
        self._left, self._write = writes, os.write

    def __call__(self, file, data):
        """One write."""
        self._left -= 1
        if self._left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._write(file, data)


async def test_a_tape_that_cannot_be_written_ends_its_actor(
    open_cluster, autojump_clock, monkeypatch
):
    """With on_error=stop nothing is handled that is not on the tape; the error is a TapeError."""
    job = open_cluster()
    monkeypatch.setattr("replay.tape.os.write", FullDisk(4))
    with pytest.raises(TapeError, match="No space left"):
        await job.host(SYNCER)
    assert 1 == len(job.decisions[SYNCER])


async def test_a_tape_may_be_given_up(open_cluster, autojump_clock, monkeypatch):
    """With on_error=drop the job continues without, and the recorder knows why."""
    job = open_cluster(on_error="drop")
    monkeypatch.setattr("replay.tape.os.write", FullDisk(60))
    await job.run()
    assert {"done"} == {finish.status for finish in job.finishes.values()}
    assert "No space left" in job.drivers[SYNCER]._recorder.dropped


def crafted(job, change):
    """The frames of a report or a fragment with something wrong."""
    sender, lane, body = "learner-0.1", "control", Progress(1, 1.0, (0,) * 3, (1,) * 3, (8,) * 3)
    payload = None
    match change:
        case "sender":
            sender = "learner-1.1"
        case "job":
            return [Codec(JobBody, "other").encode(header(sender, "other", body), None)[0]]
        case "layout" | "digest":
            lane, body = "bulk", GlobalFragment(0, 1)
            fragment = 1 if change == "layout" else 0
            data = np.ones(job.plan.fragment_slice(0)[1], np.uint8)
            layout = wire_layout(job.plan, fragment)
            payload = Payload(describe(data, layout), data)
            if change == "digest":
                payload = Payload(payload.tensors, np.zeros_like(data))
        case "tensors":
            data = np.ones(64, np.uint8)
            payload = Payload(describe(data, [("x", (16,), "float32")]), data)
        case "fragment":
            lane, body = "bulk", GlobalFragment(99, 1)
    head = header(sender, job.job.id, body, payload.tensors if payload else ())
    frames = Codec(JobBody, job.job.id).encode(head, payload)
    if change == "tag":
        raw = msgspec.msgpack.decode(bytes(frames[0][0])[:-DIGEST_BYTES])
        frames = [[sealed(msgspec.msgpack.encode({**raw, "body": {"type": "Steal"}}))]]
    if change == "garbage":
        frames = [[b"\xc1\xff"]]
    return [lane, *frames]


def header(sender, job_id, body, tensors=()):
    """A header as a learner would send it."""
    return Header(PROTOCOL_VERSION, job_id, sender, 1, 50, {sender: 3}, body, tensors)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ("sender", "$.sender"),
        ("job", "$.job"),
        ("tag", "$.body"),
        ("garbage", "header"),
        ("layout", "$.tensors"),
        ("digest", "digest"),
        ("tensors", "$.tensors"),
        ("fragment", "$.body.fragment"),
    ],
)
async def test_what_breaks_a_limit_is_refused(open_cluster, autojump_clock, change, field):
    """It is counted and logged with its field, the link begins again, and the job continues."""
    job = open_cluster(steps=20)

    async def flood():
        await trio.sleep(4.5)
        lane, *frames = (
            ["control", *crafted(job, change)] if change == "job" else crafted(job, change)
        )
        for each in frames:
            job.endpoints["learner-0.1"].send_nowait(f"syncer/{lane}", each)

    await job.run(flood)
    (refusal,) = job.says("message refused")
    assert field in refusal["reason"]
    assert ("learner-0.1", 1) == (refusal["peer"], refusal["count"])
    assert {"learner-0.1": 1} == job.drivers[SYNCER].refused
    assert {"done"} == {finish.status for finish in job.finishes.values()}
    assert list(range(1, 21)) == sorted(line["t"] for line in job.says("merge"))
    events = [event for _, event, _ in job.decisions[SYNCER]]
    assert 1 == sum(isinstance(event, LaneBroken) for event in events)


async def test_learners_join_as_soon_as_the_syncer_listens(
    open_cluster, autojump_clock, monkeypatch
):
    """Hellos that arrive while the parameters are made are admitted when the syncer listens, the
    newest of each learner and lane, so no learner waits for its next dial."""
    monkeypatch.setattr(FakeExecutor, "make_s", 0.7)  # Dials follow at 0, 0.5 and 1.5 s.
    job = open_cluster()
    await job.run()
    admitted = [
        (at, event.session)
        for at, event, _ in job.decisions[SYNCER]
        if isinstance(getattr(event, "body", None), Hello)
    ]
    assert [(pytest.approx(0.7, abs=0.01), 2)] * 2 * len(LANES) == admitted
    assert [0.7, 0.7] == [pytest.approx(line["at"], abs=0.01) for line in job.says("joined")]
    assert {"done"} == {finish.status for finish in job.finishes.values()}


async def test_hellos_without_end_end_nothing(open_cluster, autojump_clock):
    """Of a thousand Hellos of one actor, each with a later session, a few are admitted; the
    rest is counted, breaks no lane, and the job continues merging."""
    job = open_cluster(steps=40)

    async def flood():
        await trio.sleep(4.5)
        agreement = job.drivers["learner-0.1"].actor.links.links["syncer"].dialled
        for session in range(100, 600):
            for lane in LANES:
                head = Header(
                    PROTOCOL_VERSION, job.job.id, "learner-0.1", session, 0, {"learner-0.1": 3},
                    Hello(agreement),
                )  # fmt: skip
                (frames,) = Codec(JobBody, job.job.id).encode(head, None)
                job.endpoints["learner-0.1"].send_nowait(f"syncer/{lane}", frames)
            await trio.sleep(0.02)

    await job.run(flood)
    events = [event for _, event, _ in job.decisions[SYNCER]]
    heard = [event for event in events if isinstance(getattr(event, "body", None), Hello)]
    assert 2 <= len(heard) <= 120
    assert 900 <= job.drivers[SYNCER].refused["learner-0.1"] <= 1000
    assert not any(isinstance(event, LaneBroken) for event in events)
    assert {"done"} == {finish.status for finish in job.finishes.values()}


async def test_a_route_without_a_lane_is_refused(open_cluster, autojump_clock):
    """A message on a route that names no lane is counted and logged, and reaches no machine."""
    job = open_cluster()

    async def unknown():
        endpoint = job.fabric.endpoint("unknown")
        await endpoint.dial("syncer", route="x", identity="learner-0.1/side")
        for _ in range(REFUSALS_LOGGED_MAX + 5):
            await trio.sleep(0.1)
            endpoint.send_nowait("x", [b"hello"])
        await endpoint.aclose()

    await job.run(unknown)
    assert {"learner-0.1/side": REFUSALS_LOGGED_MAX + 5} == job.drivers[SYNCER].refused
    assert REFUSALS_LOGGED_MAX == len(job.says("message refused"))
    assert {"done"} == {finish.status for finish in job.finishes.values()}


async def test_messages_of_unlinked_peers_break_nothing(open_cluster, autojump_clock):
    """Garbage from a peer without a link is counted; no peer's lane breaks."""
    job = open_cluster()

    async def unknown():
        endpoint = job.fabric.endpoint("unknown")
        await endpoint.dial("syncer", route="x", identity="learner-7.1/control")
        await trio.sleep(3.0)
        endpoint.send_nowait("x", [b"hello"])

    await job.run(unknown)
    assert {"learner-7.1": 1} == job.drivers[SYNCER].refused
    assert not any(isinstance(event, LaneBroken) for _, event, _ in job.decisions[SYNCER])


async def test_a_stop_from_outside_is_an_event(open_cluster, autojump_clock):
    """It goes through the door like everything else, and the job ends as asked."""
    job = open_cluster(steps=500)

    async def asking():
        await trio.sleep(9.3)
        job.drivers[SYNCER].request_stop("enough")

    await job.run(asking)
    assert ("stopped", "enough") == (job.finishes[SYNCER].status, job.finishes[SYNCER].reason)
    assert StopRequested("enough") in [event for _, event, _ in job.decisions[SYNCER]]


async def test_a_stop_that_observers_repeat_is_one_event(open_cluster, autojump_clock):
    """They repeat it until they hear of the end."""
    job = open_cluster(steps=500)

    async def asking():
        for _ in range(3):
            await trio.sleep(1.3)
            job.drivers[SYNCER]._requested("stop", "")

    await job.run(asking)
    assert job.finishes[SYNCER].status == "stopped"
    events = [event for _, event, _ in job.decisions[SYNCER]]
    assert 1 == sum(isinstance(event, StopRequested) for event in events)


async def test_a_learner_that_dies_is_a_broken_lane(open_cluster, autojump_clock):
    """A dead learner is noticed when a message is sent to it; the others continue."""
    job = open_cluster(3, steps=20)

    async def dying():
        with trio.move_on_after(6.5):
            await job.host("learner-2.1")

    names = ("learner-0.1", "learner-1.1")
    with trio.fail_after(900):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(job.host, SYNCER)
            for name in names:
                nursery.start_soon(job.host, name)
            nursery.start_soon(dying)
    assert {SYNCER, *names} == set(job.finishes)
    assert ["learner-2.1"] == [line["learner"] for line in job.says("lost")][:1]
    assert list(range(1, 21)) == sorted(line["t"] for line in job.says("merge"))


async def test_log_lines_lead_to_the_tape(open_cluster, autojump_clock):
    """Every observation names the event that it belongs to."""
    job = open_cluster()
    await job.run()
    for incarnation, decisions in job.decisions.items():
        observed = [
            (f"{incarnation}:{number}", effect.event)
            for number, (_, _, effects) in enumerate(decisions, start=1)
            for effect in effects
            if isinstance(effect, Observe)
        ]
        told = [(line["ref"], line["event"]) for line in job.log(incarnation)]
        assert told.pop()[1] == "traffic", "the driver's own last line"
        assert observed == told


async def test_a_message_is_one_event(open_cluster, autojump_clock):
    """Its handle names the event that brought it, its digest the payload that came."""
    job = open_cluster()
    await job.run()
    for decisions in job.decisions.values():
        for number, (_, event, _) in enumerate(decisions, start=1):
            if isinstance(event, MessageArrived) and event.handle:
                assert (f"in/{number}", 16) == (event.handle, len(event.payload))


class GoesOn:
    """A machine that requests more work when it learns that an actor is missing."""

    def __init__(self):
        self.ended = []

    def handle(self, at, event):
        match event:
            case Restored():
                return [EncodeFragment(7, 0, "host/1", "out/7"), SetTimer(Named("soon"), at + 1.0)]
            case FragmentEncoded(work):
                self.ended.append(work)
            case TimerFired(timer):
                return [Finish("done", timer.name)]
        return []


class Counts:
    """A worker that says what it was asked for."""

    def __init__(self):
        self.asked = []

    async def do(self, work):
        self.asked.append(work.work)
        await trio.lowlevel.checkpoint()
        return FragmentEncoded(work.work, b"d" * 16)


async def test_who_goes_on_begins_each_piece_of_work_once(tmp_path, autojump_clock):
    """Unfinished work, except for work whose result is pending; and what the first event
    requests."""
    actor, executor, time = new_actor("syncer.1", GoesOn()), Counts(), TrioTime()
    actor.under_way = {n: EncodeFragment(n, 0, "host/1", f"out/{n}") for n in (3, 4)}
    with closing(ActorLog(tmp_path / "log.jsonl", "syncer.1")) as log:
        driver = Driver(
            actor,
            said=JobBody,
            job_id="small-1",
            actors=("syncer",),
            endpoint=MemoryFabric(1).endpoint("syncer"),
            executor=executor,
            arrays=ArrayTable(),
            recorder=Recorder(None),
            time=time,
            log=log,
            admits=lambda header: None,
        )
        finish = await driver.run(Restored("syncer.1-9"), [FragmentEncoded(4, b"d" * 16)])

    assert Finish("done", "soon") == finish
    assert [3, 7] == sorted(executor.asked)
    assert [3, 4, 7] == sorted(actor.machine.ended)
