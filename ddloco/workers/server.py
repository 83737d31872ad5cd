"""Serves an actor's requests in the worker process, which has imported JAX. It needs jax. It ends
when the socket closes, so it never outlives its actor. A learner may have several such processes;
see ``group``."""

import contextlib
import os
import signal
import socket
import threading
import traceback
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from msgspec.structs import replace

from ddloco.stage.arrays.shared_memory import ArenaView
from ddloco.stage.nodes.exit_codes import AGAIN, FOUND, HELD
from ddloco.stage.process.entry_point import KeptFinder, look_here_first
from ddloco.workers import breakpoints, rpc
from ddloco.workers.fork_protocol import FOR_ACTOR, MEETING, Fork, Rank
from ddloco.workers.group import Group, OtherArena, open_group
from ddloco.workers.task import TaskError
from ddloco.workers.task_environment import watch_environment
from ddloco.workers.task_sources import is_user_code
from ddloco.workers.trainer import CorruptionError, Trainer

TRACE_CHARS_MAX = 8000
"""The length of the traceback of user code that is kept: about its last eighty lines."""


FULL_CHARS_MAX = 200_000
"""The same with the frames of libraries: deeper recursions than Python allows are cut off."""


def failure(error: Exception) -> rpc.Failed:
    """Describe an exception in one line, with the traceback if user code raised it."""
    root: BaseException = error
    while root.__cause__ is not None:
        root = root.__cause__
    frames = traceback.extract_tb(root.__traceback__)
    theirs = [frame for frame in frames if is_user_code(frame.filename)]
    trace = full = ""
    if theirs:
        # Starts at the first line of user code, without our frames above it.
        said = traceback.format_list(theirs) + traceback.format_exception_only(root)
        trace = "".join(["Traceback of your code (most recent call last):\n", *said])
        trace = trace[-TRACE_CHARS_MAX:]
        full = "".join(traceback.format_exception(error))[-FULL_CHARS_MAX:]
    if isinstance(error, TaskError) or (isinstance(error, ValueError) and not theirs):
        return rpc.Failed("task", str(error), trace, full)
    where = (theirs or traceback.extract_tb(error.__traceback__))[-1]
    place = f"{Path(where.filename).name}:{where.lineno}"
    reason = f"{type(error).__name__}: {error} ({place})"
    return rpc.Failed("task", " ".join(reason.split())[:900], trace, full)


def fulfilled(trainer: Trainer, request: rpc.Request) -> rpc.Answer:
    """The answer to a request; what a task raises is an answer, too."""
    try:
        return trainer.answer(request)
    except CorruptionError as error:
        return rpc.Failed("worker", str(error))
    except Exception as error:  # noqa: BLE001, reported to the actor, whatever a task raises
        failed = failure(error)
        return replace(failed, kind="later") if trainer.was_sound(request) else failed


def serve(own: "OwnProcess", trainer: Trainer) -> None:
    requests = rpc.RequestReader(own.link)
    while (request := requests.next()) is not None:
        own.send(fulfilled(trainer, request))


def serve_as_first(own: "OwnProcess", trainer: Trainer, group: Group) -> None:
    requests = rpc.RequestReader(own.link)
    while (request := requests.next()) is not None:
        group.tell(request)
        if isinstance(request, rpc.Dismiss):
            group.dismiss()
            own.send(rpc.Ready())
            return
        answer = fulfilled(trainer, request)
        group.done(answer)
        if isinstance(answer, rpc.Failed):
            group.settle()
        own.send(answer)


def serve_as_other(trainer: Trainer, group: Group) -> int:
    """Fulfil the requests that rank 0 fulfils, until it says to end; returns the exit status."""
    while True:
        request = group.next()
        if isinstance(request, rpc.Dismiss):
            return HELD if request.final else AGAIN
        # Memory that only rank 0 sees is not touched here.
        touches = isinstance(request, rpc.Touch)
        group.done(rpc.Ready() if touches else fulfilled(trainer, request))


class OwnProcess:
    """This process, as its actor knows it; why it ends is written to ``saying``; see
    ``open_devices``."""

    def __init__(self, link: socket.socket, saying: int) -> None:
        self.link = link
        self.saying = saying
        self._lock = threading.Lock()

    def tell(self, event: str, fields: dict[str, Any]) -> None:
        self.send(rpc.Told(event, fields))

    def send(self, answer: rpc.Answer) -> None:
        """Send the actor an answer, unless it has ended: then it is not needed."""
        with self._lock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.link.sendall(rpc.framed(answer))

    def alive(self) -> None:
        """Tell the actor that this process works, unless it reads nothing now."""
        if not self._lock.acquire(blocking=False):
            return  # An answer is on its way, which says as much.
        try:
            with contextlib.suppress(OSError):
                self.link.send(rpc.framed(rpc.Alive()), socket.MSG_DONTWAIT)
        finally:
            self._lock.release()

    def die(self, said: str, code: int = AGAIN) -> NoReturn:
        """End at once: JAX would wait for the other processes."""
        os.pwrite(self.saying, said.encode() + b"\n", 0)
        os._exit(code)


def leave_signals_to_parent() -> None:
    """Leave Ctrl-C, and a SIGTERM or SIGHUP to the whole process group, to the actor. The signals
    have been blocked since before the fork server began. They get an empty handler instead of being
    ignored, so that child processes of user code have the usual ones."""
    for number in FOR_ACTOR:
        if signal.getsignal(number) is signal.SIG_IGN:
            continue  # So it is for whatever this process starts, as by ``nohup``.
        signal.signal(number, lambda *_: None)
        os.register_at_fork(after_in_child=partial(signal.signal, number, signal.SIG_DFL))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_ACTOR)


def serve_requests(fork: Fork, link: socket.socket, shared: Sequence[int], saying: int) -> int:
    """Be an actor's worker in this process, until the actor closes the socket; returns the exit
    status. A descriptor of the arena is -1 if its file could not be created."""
    leave_signals_to_parent()
    with contextlib.suppress(OSError):
        os.nice(fork.nice)
    watch_environment()
    breakpoints.install(fork.name, fork.turns)
    look_here_first(Path.cwd())
    if fork.kept is not None:
        KeptFinder(fork.kept).install()
    if fork.rank is not None:
        return _serve_together(fork.rank, OwnProcess(link, saying), shared)
    own = OwnProcess(link, saying)
    view = ArenaView(shared)
    # A debugger is to open in a step, not before there is one.
    trainer = Trainer(view, compiles_ahead=not fork.turns, saying=saying, tell=own.tell)
    serve(own, trainer)
    return HELD


@contextlib.contextmanager
def _waiting_for_others(rank: Rank, own: OwnProcess) -> Iterator[None]:
    """Tell the actor, which is that of rank 0, for whom its worker waits."""
    if rank.number:
        yield
        return
    place = rank.coordinator or "the place that JAX finds"
    own.tell(MEETING, {"for": f"the other ranks, {rank.of - 1} of {rank.of}, to come to {place}"})
    yield
    own.tell(MEETING, {"for": ""})


def _serve_together(rank: Rank, own: OwnProcess, shared: Sequence[int]) -> int:
    try:
        with _waiting_for_others(rank, own):
            group = open_group(rank, own.saying, own)
    except (OSError, RuntimeError) as error:
        said = f"rank {rank.number} of {rank.of}: cannot meet the others at "
        own.die(f"{said}{rank.coordinator or 'the place that JAX finds'}: {error}", FOUND)
    # What is compiled ahead, in a thread, might meet the computations of other ranks.
    if rank.number:
        return serve_as_other(Trainer(OtherArena(), compiles_ahead=False, group=group), group)
    trainer = Trainer(ArenaView(shared), compiles_ahead=False, group=group, tell=own.tell)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        serve_as_first(own, trainer, group)
    return HELD
