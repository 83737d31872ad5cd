"""What recording costs at the door, for a syncer and for one learner of eight.

A whole job is played in virtual time with the real drivers, machines, links and codec, over a
fabric and workers that cost nothing; everything that came to the door of the syncer and of one
learner is kept. Then the same arrivals, in the same order and at the same times, go through fresh
drivers of that actor, in turns with a ``Recorder`` whose tape is a file on disk, and with recording
off. An event's time is that of ``Driver``'s admittance: clock, tape, the machine, tape, and every
effect as far as the endpoint, the encoding of messages included; the endpoint, the worker and the
putting together of arrivals are not in it.

Printed are microseconds per event with recording on and off (for each event the median over the
turns, then the mean over events) and their difference, against the aim of 10: that difference is
what recording alone costs, since everything else is done twice alike. The ratio is on by off; off
is the fair floor, as it is the same code without a tape.
"""

import heapq
import tempfile
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
from tools import ROOT, say

from clocks import actor_of
from ddloco.job.config import Job, load_job
from ddloco.job.protocol.events import Started
from ddloco.job.protocol.fragment_plan import Leaf, wire_layout
from ddloco.job.protocol.messages import JobBody
from ddloco.job.protocol.validation import admission
from ddloco.job.protocol.work import (
    EncodeFragment,
    Evaluate,
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
    SaveModel,
    StepFinished,
)
from ddloco.machines.registry import machine_for
from ddloco.stage.actors.actor import new_actor
from ddloco.stage.arrays.array_table import ArrayTable
from ddloco.stage.driver.driver import Arrived, Driver
from ddloco.stage.process.log import ActorLog
from replay import Recorder, TapeHeader, TapeWriter
from transport import Arrival, Assembler, Codec, Payload, TimerFired, describe

LEARNERS = 8
JOB = ROOT / "examples" / "quickstart.toml"
LEAVES = tuple(
    Leaf(f"blocks/{i}/{name}", (16,), "float32")
    for i in range(6)
    for name in ("attn/qkv", "attn/out", "mlp/up", "mlp/down")
)
STEP_S, DELAY_S, WORK_S = 0.1, 0.001, 0.005
SYNCER, LEARNER = "syncer.1", "learner-3.1"


def measure(quick: bool) -> dict[str, Any]:
    """Microseconds and bytes per event, for both kinds of actor."""
    steps, turns = (24, 2) if quick else (360, 7)
    settings = [f"job.learners={LEARNERS}", f"job.steps={steps}"]
    job = load_job(JOB, settings)
    world = World(job)
    world.run()
    figures: dict[str, Any] = {"learners": LEARNERS}
    # Where runs leave their tapes, so on the same disk.
    (ROOT / "runs").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "runs", prefix="bench-") as scratch:
        for incarnation in (SYNCER, LEARNER):
            arrivals = world.nodes[incarnation].arrivals
            say(f"{incarnation}: {len(arrivals)} events")
            figures[actor_of(incarnation).partition("-")[0]] = _compare(
                job, incarnation, arrivals, turns, Path(scratch)
            )
    return figures


def lines(figures: dict[str, Any]) -> list[str]:
    """The figures in words."""
    return [
        f"{one['difference_us']:+.1f} us per event for recording (aim 10), "
        f"{one['on_us'] / one['off_us']:.2f} times without: {kind} with M = {figures['learners']}, "
        f"{one['on_us']:.1f} us on, {one['off_us']:.1f} off, {one['bytes']:.0f} bytes per event "
        f"on tape, {one['events']} events"
        for kind, one in figures.items()
        if isinstance(one, dict)
    ]


@dataclass
class Came:
    """Something at a door: a whole message or an event, and arrays that came to stand with it."""

    at: float
    what: Any
    arrays: dict[str, Any] = field(default_factory=dict)


class FixedTime:
    """Whatever time it is told to be."""

    at = 0.0

    began = None

    def now(self) -> float:
        return self.at


class Null:
    """An endpoint and a nursery that do nothing, and a worker who hands its work back."""

    def send_nowait(self, route: str, frames: Any) -> None:
        pass

    def start_soon(self, function: Any, *arguments: Any) -> None:
        pass

    def do(self, work: Any) -> Any:
        return work


def _compare(
    job: Job, incarnation: str, arrivals: list[Came], turns: int, folder: Path
) -> dict[str, float]:
    took: dict[bool, list[list[int]]] = {True: [], False: []}
    nbytes = 0
    for turn in range(turns + 1):
        for recording in (True, False) if turn % 2 else (False, True):
            writer = None
            if recording:
                header = TapeHeader(incarnation, job.id, job.as_plain(), "bench", {})
                writer = TapeWriter(folder / f"{incarnation}-{turn}.tape", header)
                begun = writer.bytes_written
            each = _push(job, incarnation, arrivals, Recorder(writer))
            if writer is not None:
                nbytes = writer.bytes_written - begun
                writer.close()
            if turn:  # The first one warms.
                took[recording].append(each)
    on, off = (float(np.median(took[kind], axis=0).mean()) / 1e3 for kind in (True, False))
    return {
        "on_us": on,
        "off_us": off,
        "difference_us": on - off,
        "bytes": nbytes / len(arrivals),
        "events": len(arrivals),
    }


def _push(job: Job, incarnation: str, arrivals: list[Came], recorder: Recorder) -> list[int]:
    """Nanoseconds that each arrival took."""
    time, arrays, null = FixedTime(), ArrayTable(), Null()
    driver = make_driver(job, incarnation, null, arrays, recorder, time)
    driver._nursery = null
    took: list[int] = []
    for came in arrivals:
        for handle, array in came.arrays.items():
            arrays.put(handle, array)
        time.at = came.at
        begun = perf_counter_ns()
        if isinstance(came.what, Arrived):
            driver._admit_message(came.what)
        else:
            driver._admit(came.what, None)
        took.append(perf_counter_ns() - begun)
    return took


def make_driver(
    job: Job, incarnation: str, endpoint: Any, arrays: ArrayTable, recorder: Recorder, time: Any
) -> Driver:
    """A driver as ``host`` makes it, but for its endpoint, its executor and its log."""
    executor: Any = Null()
    return Driver(
        new_actor(incarnation, machine_for(job, incarnation)),
        said=JobBody,
        job_id=job.id,
        actors=job.names(),
        endpoint=endpoint,
        executor=executor,
        arrays=arrays,
        recorder=recorder,
        time=time,
        log=ActorLog(None, incarnation),
        admits=admission(job.plan(LEAVES), 0),
    )


# The job whose arrivals are kept.


class Node:
    """One actor: its driver in virtual time, and what came to its door."""

    def __init__(self, world: "World", incarnation: str) -> None:
        self.world, self.incarnation = world, incarnation
        self.time, self.arrays = FixedTime(), ArrayTable()
        self.arrivals: list[Came] = []
        self.driver = make_driver(
            world.job, incarnation, self, self.arrays, Recorder(None), self.time
        )
        self.driver._nursery = self
        self.assemblers: dict[str, Assembler[Any]] = {}

    def admit(self, at: float, what: Any, arrays: dict[str, Any] | None = None) -> None:
        """Let something in, and keep it."""
        if self.driver._finish is not None:
            return
        came = Came(at, what, arrays or {})
        self.arrivals.append(came)
        for handle, array in came.arrays.items():
            self.arrays.put(handle, array)
        self.time.at = at
        if isinstance(what, Arrived):
            self.driver._admit_message(what)
        else:
            self.driver._admit(what, None)
        due = self.driver._timers.next_at()
        if due is not None:
            self.world.post(max(due, at), self.fire)

    def fire(self, at: float) -> None:
        """Let due timers in."""
        timer = self.driver._timers.pop_due(at)
        if timer is not None:
            self.admit(at, TimerFired(timer))

    # As an endpoint.

    def send_nowait(self, route: str, frames: Any) -> None:
        """Deliver a little later; a learner's route is the syncer, the syncer's a learner."""
        peer, _, lane = route.rpartition("/")
        to = peer if peer in self.world.nodes else SYNCER
        there = f"{self.incarnation}/{lane}" if to == SYNCER else f"syncer/{lane}"
        kept = tuple(bytes(frame) for frame in frames)
        arrival = Arrival(there, kept)
        self.world.post(
            self.world.now + DELAY_S, lambda at: self.world.nodes[to].arrive(at, arrival)
        )

    def arrive(self, at: float, arrival: Arrival) -> None:
        """Put together, let in."""
        if arrival.route not in self.assemblers:
            self.assemblers[arrival.route] = Assembler(self.world.codec)
        message = self.assemblers[arrival.route].feed(arrival.frames)
        if message is not None:
            peer, _, lane = arrival.route.rpartition("/")
            self.admit(at, Arrived(peer, "bulk" if lane == "bulk" else "control", message))

    # As a nursery: the driver asks for work.

    def start_soon(self, _function: Any, work: Any) -> None:
        """Answer a little later."""
        result, arrays = self.world.do(work)
        seconds = WORK_S
        if isinstance(work, RunStep):
            number = int(actor_of(self.incarnation).rpartition("-")[2])
            seconds = STEP_S * (1 + 0.01 * number)  # So that they don't march in step.
        self.world.post(self.world.now + seconds, lambda at: self.admit(at, result, arrays))


class World:
    """A whole job on a heap of what happens next."""

    def __init__(self, job: Job) -> None:
        self.job, self.plan = job, job.plan(LEAVES)
        self.codec: Codec[Any] = Codec(JobBody, job.id)
        self.now = 0.0
        self._heap: list[tuple[float, int, Any]] = []
        self._order = count()
        names = [SYNCER, *(f"{name}.1" for name in job.learner_names())]
        self.nodes = {name: Node(self, name) for name in names}

    def post(self, at: float, call: Any) -> None:
        """Call it at that time."""
        heapq.heappush(self._heap, (at, next(self._order), call))

    def run(self) -> None:
        """Until nothing happens any more."""
        for name, node in self.nodes.items():
            node.admit(0.0, Started(name, LEAVES))
        while self._heap:
            self.now, _, call = heapq.heappop(self._heap)
            call(self.now)
        unfinished = [name for name, node in self.nodes.items() if node.driver._finish is None]
        assert not unfinished, f"{unfinished} did not finish"

    def do(self, work: Any) -> tuple[Any, dict[str, Any]]:
        """The result of a piece of work, and the arrays that it leaves."""
        number = work.work
        match work:
            case Recover():
                return Recovered(number, ()), {}
            case MakeParameters():
                arrays: dict[str, Any] = {}
                for p in work.fragments:
                    arrays[f"theta/{p}/0"] = np.zeros(1, np.float32)
                    arrays[f"wire/{p}/0"] = self._payload(p)
                return ParametersMade(number, bytes(16)), arrays
            case RunStep(_, step, _, out):
                result = StepFinished(number, step, 1 / step, 896, bytes(16))
                return result, {out: np.zeros(1, np.float32)}
            case EncodeFragment(_, fragment, _, out):
                payload = self._payload(fragment)
                return FragmentEncoded(number, payload.digest), {out: payload}
            case MergeFragment():
                payload = self._payload(work.fragment)
                theta, state, wire = work.out
                arrays = {theta: np.zeros(1), state: {"steps": np.ones(1)}, wire: payload}
                names = tuple(share.name for share in work.shares)
                weights = tuple(1 / len(names) for _ in names)
                merged = FragmentMerged(
                    number, names, weights, (), bytes(16), bytes(16), payload.digest
                )
                return merged, arrays
            case Evaluate():
                return Evaluated(number, 1.0), {}
            case SaveModel():
                return ModelSaved(number, bytes(16)), {}
            case _:
                raise AssertionError(f"unexpected work: {work}")

    def _payload(self, p: int) -> Payload:
        start, stop = self.plan.fragment_slice(p)
        data = np.zeros(stop - start, np.uint8)
        return Payload(describe(data, wire_layout(self.plan, p)), data)
