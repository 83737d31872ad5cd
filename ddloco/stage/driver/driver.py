"""The driver: one trio task per actor, and the only door to the world. Every door through which
nondeterminism enters is in this file: the time, the order of arrivals, the completion of work, and
requests from outside."""

import contextlib
import errno
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import msgspec
import trio

from clocks import TimeSource, actor_of
from ddloco.stage.actors.actor import Actor
from ddloco.stage.actors.effects import Finish, Observe, Work
from ddloco.stage.actors.events import (
    DismissRequested,
    LeaveRequested,
    Restored,
    SnapshotRequested,
    StopRequested,
    WorkResult,
)
from ddloco.stage.actors.observations import BLOCKED
from ddloco.stage.actors.status import actor_status, error_in
from ddloco.stage.actors.timers import Timers
from ddloco.stage.arrays.array_table import ArrayTable
from ddloco.stage.arrays.reassembly import Reassembly
from ddloco.stage.driver.connection_guard import ConnectionGuard
from ddloco.stage.driver.door import admit
from ddloco.stage.observers.observer_protocol import OBSERVER, OWNER, Request
from ddloco.stage.observers.observer_server import ObserverServer
from ddloco.stage.process.best_effort import FAILED_ASIDE, BestEffort
from ddloco.stage.process.log import ActorLog
from ddloco.stage.process.side_protocol import REFUSALS_LOGGED_MAX
from replay import Recorder, TapeError
from transport import (
    LANES,
    PROTOCOL_VERSION,
    Arrival,
    Assembler,
    Bytes,
    BytesArrived,
    CancelTimer,
    Codec,
    Effect,
    Endpoint,
    Event,
    Free,
    Header,
    Hello,
    Lane,
    LaneBroken,
    LaneFull,
    LocalProtocolError,
    Message,
    MessageArrived,
    Payload,
    PeerGone,
    RemoteProtocolError,
    SetTimer,
    TimerFired,
    Transmit,
)

INBOX_MAX = 1024
"""The most events in the inbox; beyond that, arrivals stay in the queues of the sockets."""

CONNECT_S = 20.0
"""Seconds that a resumed actor waits for its peers, which resume at other times."""

REFUSED_NAMES_MAX = 1024
"""Peers whose refusals are counted separately. A sender can invent names, and the status lists
all of them."""

LANE_NAMES: dict[str, Lane] = {lane: lane for lane in LANES}


class Executor(Protocol):
    def do(self, work: Work) -> Awaitable[WorkResult]:
        """Perform one work effect, possibly starting at once; a failure is a result as well."""
        ...


class Fence(Protocol):
    """Keeps two processes from acting as one actor; see ``ddloco.stage.nodes.lease``."""

    def holds(self) -> bool:
        """Return whether the actor may act."""
        ...

    def confirm(self) -> None:
        """Return if it may act, or may again; blocks. Raises OSError if it may not."""
        ...


FENCE_LOOK_S = 1.0
"""Interval, in seconds, at which an actor asks again whether another process acts as it."""

BLOCKED_S = 5.0
"""An actor that was in one event for more than so many seconds is ``BLOCKED``."""

UNKNOWN = "lease unknown"
"""Log event of an actor that does nothing, because nobody knows whether another one acts."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A complete message in the inbox, before it becomes an event."""

    peer: str
    lane: Lane
    message: Message[Any]


class Driver:
    """Runs one actor until it is finished. Messages of another job, or that name other actors, are
    refused. ``admits`` raises ``RemoteProtocolError`` if a message's tensors do not fit its body,
    which machines cannot check, because they see only digests. ``fence`` is asked before each event
    whether the actor may still act; if not, it ends, and writes nothing more."""

    def __init__(
        self,
        actor: Actor,
        *,
        said: Any,
        job_id: str,
        actors: Collection[str],
        endpoint: Endpoint,
        executor: Executor,
        arrays: ArrayTable,
        recorder: Recorder,
        time: TimeSource,
        log: ActorLog,
        admits: Callable[[Header[Any]], None],
        allocate: Callable[[int], Bytes] | None = None,
        facts: Callable[[], dict[str, Any]] = dict,
        fence: Fence | None = None,
    ) -> None:
        self.actor = actor
        self.refused: dict[str, int] = {}
        self.seen: dict[str, dict[str, Any]] = {}
        """The fields of the newest observation of each kind, whatever became of the log."""
        self.sent_bytes = self.received_bytes = 0
        """The bytes of all messages, headers included, as they are on the wire."""
        self._job_id = job_id
        self._guard = ConnectionGuard(actor.incarnation, actors, admits)
        self._endpoint = endpoint
        self._executor = executor
        self._arrays = arrays
        self._recorder = recorder
        self._time = time
        self._log = log
        log.began = time.began
        self._codec: Codec[Any] = Codec(said, job_id)
        self._allocate = allocate
        self._facts = facts
        self._fence = fence
        refuse = partial(self._count_refusal, "observers")
        self._observers = ObserverServer(
            endpoint, arrays, time.now, self.status, refuse, request=self._requested
        )
        self._best = BestEffort(self._failed_aside)
        self._arrivals = Reassembly(self._assembler)
        self._timers = Timers()
        self._urgent: deque[Arrived | Event] = deque()
        self._error = ""
        self._asked_to_leave = False
        self._asked_to_stop = False
        self._early: dict[tuple[str, Lane], Arrived] = {}
        """For each actor of the job and lane, the newest Hello that came before this actor listens.
        Admitted at once, it would have no effect, and its sender would repeat it up to a second
        later."""
        self._finish: Finish | None = None
        self._inbox, self._waiting = trio.open_memory_channel[Arrived | Event](INBOX_MAX)

    async def run(self, first: Event, pending: Sequence[Arrived | Event] = ()) -> Finish:
        """Handle ``first``, then ``pending`` (in-flight messages and results of the snapshot), and
        all later events until the actor finishes; returns that effect. After ``Restored``, the
        timers of the snapshot are set and its unfinished work is started again, but for what has a
        result in ``pending``. ``TapeError`` if the tape cannot be written, and that ends the
        actor."""
        try:
            return await self._run(first, pending)
        finally:
            self._recorder.close(self.actor.number, None)  # Cancelled or failed: no reason.

    async def _run(self, first: Event, pending: Sequence[Arrived | Event]) -> Finish:
        unwritten: TapeError | None = None
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._endpoint.run, self._deliver)
            try:
                if isinstance(first, Restored):
                    await self._connected(first.missing)
                before = list(self.actor.under_way)
                if await self._may_act():
                    self._admit(first, None)
                    if isinstance(first, Restored):
                        self._go_on(before, pending)
                while self._finish is None:
                    await self._next()
            except TapeError as error:
                unwritten = error  # Raised below: the nursery would wrap it in a group.
            nursery.cancel_scope.cancel()
        if unwritten is not None:
            raise unwritten
        assert self._finish is not None, "the loop above ends with it"
        in_place = self._endpoint.statistics().sent_by_reference
        counts = {"sent_bytes": self.sent_bytes, "received_bytes": self.received_bytes}
        self.note("traffic", {**counts, "sent_in_place_bytes": in_place})
        self._recorder.close(self.actor.number, self._finish.reason)
        return self._finish

    async def _connected(self, missing: Sequence[str]) -> None:
        """Wait until the peers of all restored links are connected, at most ``CONNECT_S`` seconds.
        A message to a peer that is not yet connected would break the link, and a restored link has
        no handshake that could establish it again."""
        peers = [peer for peer in self.actor.links.peers() if peer not in missing]
        routes = [f"{peer}/{lane}" for peer in peers for lane in LANES]
        with trio.move_on_after(CONNECT_S):
            while not all(map(self._endpoint.reaches, routes)):  # noqa: ASYNC110, there is no event
                await trio.sleep(CONNECT_S / 1000)

    def _go_on(self, before: Sequence[int], pending: Sequence[Arrived | Event]) -> None:
        """Set the timers and start the work that was unfinished before the first event; what that
        event itself requested has been started already."""
        self._urgent.extend(pending)
        done = {each.work for each in pending if isinstance(each, WorkResult)}
        for timer, due in self.actor.timers:
            self._timers.set(timer, due)
        for number in before:
            work = self.actor.under_way.get(number)
            if work is not None and number not in done:
                self._nursery.start_soon(self._work, self._executor.do(work))

    def request_stop(self, reason: str) -> None:
        self.tell(StopRequested(reason))

    def request_leave(self, reason: str) -> None:
        """Request that the actor leaves, because its process exits and will be restarted."""
        self._asked_to_leave = True
        self.tell(LeaveRequested(reason))

    def request_snapshot(self) -> None:
        self._requested("snapshot", "")

    def tell(self, event: Event) -> None:
        try:
            self._inbox.send_nowait(event)
        except (trio.BrokenResourceError, trio.WouldBlock):
            self._urgent.append(event)

    def _requested(self, what: Request, who: str) -> bool:
        if what == "stop":
            if not self._asked_to_stop:  # Observers repeat it until they hear of the end.
                self._asked_to_stop = True
                self.request_stop("asked to stop with ddloco stop")
            return True
        try:
            asked = DismissRequested(who) if what == "leave" else SnapshotRequested()
            self._inbox.send_nowait(asked)
        except trio.WouldBlock:
            return False  # The observer repeats its request.
        return True

    def note(self, event: str, fields: dict[str, Any]) -> None:
        """Log an event that is not on the tape and does not reach the actor."""
        at, number = self._time.now(), self.actor.number
        self._best.do("log", partial(self._log.observe, event, at, number, fields), None)

    def _failed_aside(self, name: str, reason: str) -> None:
        self.note(FAILED_ASIDE, {"what": name, "reason": reason})

    def status(self) -> dict[str, Any]:
        """Return the status for observers as plain data; it is not recorded on the tape."""
        at, actor = self._time.now(), self.actor
        told = getattr(actor.machine, "status", None)
        of_machine: dict[str, Any] = (
            msgspec.to_builtins(told(at)) if told is not None else self._seen_from_outside(at)
        )
        own = {"incarnation": actor.incarnation, "job": self._job_id, "uptime_s": at}
        counts = {
            "events": actor.number,
            "refused_frames": dict(self.refused),
            "sent_bytes": self.sent_bytes,
            "received_bytes": self.received_bytes,
        }
        return {**of_machine, **self._facts(), **own, **counts}

    def _seen_from_outside(self, at: float) -> dict[str, Any]:
        queue = len(self._urgent) + self._waiting.statistics().current_buffer_used
        return msgspec.to_builtins(
            msgspec.structs.replace(actor_status(self.actor, at), queue=queue, error=self._error)
        )

    # The door.

    async def _next(self) -> None:
        came = await self._coming()
        if came is not None and await self._may_act():
            self._take(came)

    async def _coming(self) -> Arrived | Event | None:
        """The next event: urgent ones first, then due timers, then the inbox in order."""
        if self._urgent:
            return self._urgent.popleft()
        timer = self._timers.pop_due(self._time.now())
        if timer is not None:
            return TimerFired(timer)
        try:
            return self._waiting.receive_nowait()
        except trio.WouldBlock:
            return await self._wait()

    async def _may_act(self) -> bool:
        """Whether no other process acts as this actor; if one does, this one is finished. Waits
        while nobody knows."""
        if self._fence is None or self._fence.holds():
            return True
        told = False
        while True:
            try:
                await trio.to_thread.run_sync(self._fence.confirm)
            except OSError as error:
                if error.errno == errno.ESTALE or self._asked_to_leave:
                    self._finish = Finish("left", str(error))
                    self._recorder.close(self.actor.number, None)
                    self.note("fenced", {"reason": str(error)})
                    return False
                if not told:  # Nobody knows whether another one acts, so nobody does.
                    told = True
                    self.note(UNKNOWN, {"level": "warning", "reason": str(error)})
            else:
                return True
            await trio.sleep(FENCE_LOOK_S)

    def _take(self, came: Arrived | Event) -> None:
        if isinstance(came, Arrived):
            self._admit_message(came)
        else:
            self._error = error_in(came) or self._error
            self._admit(came, None)

    async def _wait(self) -> Arrived | Event | None:
        due = self._timers.next_at()
        patience = max(due - self._time.now(), 0.0) if due is not None else float("inf")
        with trio.move_on_after(patience):
            return await self._waiting.receive()
        return None

    def _admit_message(self, came: Arrived) -> None:
        header, payload = came.message.header, came.message.payload
        handle = f"in/{self.actor.number + 1}" if payload is not None else ""
        event = MessageArrived(
            peer=came.peer,
            lane=came.lane,
            sender=header.sender,
            session=header.session,
            seq=header.seq,
            clock=header.clock,
            body=header.body,
            payload=payload.digest if payload is not None else b"",
            handle=handle,
        )
        self._admit(event, payload)

    def _admit(self, event: Event, payload: Payload | None) -> None:
        if payload is not None and isinstance(event, MessageArrived):
            self._arrays.put(event.handle, payload)
        at = self._time.now()
        try:
            effects = admit(self.actor, self._recorder, at, event)
        except TapeError:
            raise
        except Exception as error:
            trace = "".join(traceback.format_exception(error))
            fields = {"what": type(event).__name__, "traceback": trace}
            self._log.observe("machine raised", at, self.actor.number, fields)
            raise
        took_s = self._time.now() - at
        if took_s > BLOCKED_S:
            what = type(event).__name__
            if isinstance(event, MessageArrived):
                what = f"{type(event.body).__name__} from {event.peer}"
            self.note(BLOCKED, {"level": "warning", "what": what, "took_s": round(took_s, 1)})
        for effect in effects:
            self._perform(at, effect)
        if self._early and self.actor.links.listening:
            self._urgent.extend(self._early.values())
            self._early.clear()

    # Effects.

    def _perform(self, at: float, effect: Effect) -> None:
        match effect:
            case Transmit():
                self._transmit(effect)
            case SetTimer(timer, due):
                self._timers.set(timer, due)
            case CancelTimer(timer):
                self._timers.cancel(timer)
            case Free(handle):
                self._arrays.free(handle)
            case Observe(event, fields):
                self._observe(at, event, fields)
            case Finish(status, reason):
                self._finish = effect
                told = {"status": status, "reason": reason}
                news = partial(self._observers.news, "ended", at, self._ref, told)
                self._best.do("observers", news, None)
            case _:
                assert isinstance(effect, Work), f"the driver cannot perform {effect}"
                self._nursery.start_soon(self._work, self._executor.do(effect))

    def _observe(self, at: float, event: str, fields: dict[str, Any]) -> None:
        self.seen[event] = fields
        number, ref = self.actor.number, self._ref
        self._best.do("log", partial(self._log.observe, event, at, number, fields), None)
        self._best.do("observers", partial(self._observers.news, event, at, ref, fields), None)

    @property
    def _ref(self) -> str:
        return f"{self.actor.incarnation}:{self.actor.number}"

    def _transmit(self, said: Transmit[Any]) -> None:
        payload: Payload | None = self._arrays.get(said.payload) if said.payload else None
        header = Header(
            version=PROTOCOL_VERSION,
            job=self._job_id,
            sender=self.actor.incarnation,
            session=said.session,
            seq=said.seq,
            clock=said.clock,
            body=said.body,
            tensors=payload.tensors if payload is not None else (),
        )
        try:
            for frames in self._codec.encode(header, payload):
                self._endpoint.send_nowait(f"{said.peer}/{said.lane}", frames)
                self.sent_bytes += sum(map(len, frames))
        except PeerGone:
            self._urgent.append(LaneBroken(said.peer, said.lane, "the peer cannot be reached"))
        except LaneFull:
            self._urgent.append(LaneBroken(said.peer, said.lane, "its queue is full"))
        except LocalProtocolError as error:
            self._urgent.append(LaneBroken(said.peer, said.lane, str(error)))

    async def _work(self, coming: Awaitable[WorkResult]) -> None:
        result = await coming
        try:
            self._inbox.send_nowait(result)
        except trio.WouldBlock:
            await self._inbox.send(result)

    # Arrivals.

    async def _deliver(self, arrival: Arrival) -> None:
        if arrival.route.startswith((OBSERVER, OWNER)):
            self._best.do("observers", partial(self._observers.take, arrival), None)
            return
        peer, _, lane_name = arrival.route.rpartition("/")
        lane = LANE_NAMES.get(lane_name)
        if lane is None:
            self._count_refusal(arrival.route, "its route names no lane")
            return
        if not arrival.frames:
            if self.actor.links.knows(peer):
                await self._inbox.send(LaneBroken(peer, lane, "its address has changed"))
            return
        try:
            self.received_bytes += sum(map(len, arrival.frames))
            message = self._arrivals.feed(peer, lane, arrival.frames)
        except RemoteProtocolError as error:
            self._count_refusal(peer, str(error))
            if self.actor.links.knows(peer):
                await self._inbox.send(LaneBroken(peer, lane, f"refused: {error}"))
            return
        if message is not None:
            arrived = Arrived(peer, lane, message)
            if type(message.header.body) is Hello and not self._admits_hello(arrived):
                return
            await self._inbox.send(arrived)
        nbytes = self._arrivals.progress(self._time.now(), peer, lane)
        if nbytes is not None and self.actor.links.knows(peer):
            with contextlib.suppress(trio.WouldBlock):  # The inbox is full; more bytes follow.
                self._inbox.send_nowait(BytesArrived(peer, lane, nbytes))

    def _admits_hello(self, arrived: Arrived) -> bool:
        """Whether a Hello may be admitted now; one that is too early is kept for later."""
        sender = arrived.message.header.sender
        if not self._guard.may_greet(self._time.now(), sender):
            self._count_refusal(arrived.peer, "it sends Hello too often")
            return False
        if self.actor.links.listening:
            return True
        self._early[actor_of(sender), arrived.lane] = arrived
        return False

    def _assembler(self, peer: str) -> Assembler[Any]:
        check = partial(self._guard.check, peer)
        if self._allocate is None:
            return Assembler(self._codec, check)
        return Assembler(self._codec, check, self._allocate, self._arrays.discard)

    def _count_refusal(self, peer: str, reason: str) -> None:
        """Count and log a refused message, which is not on the tape and not seen by the actor."""
        if peer not in self.refused and len(self.refused) >= REFUSED_NAMES_MAX:
            peer = "others"
        count = self.refused[peer] = self.refused.get(peer, 0) + 1
        if count <= REFUSALS_LOGGED_MAX:
            self.note("message refused", {"peer": peer, "reason": reason, "count": count})
