"""What ``breakpoint()`` does in a task: a debugger in ``ddloco replay --pdb``, where one worker at
a time is at its prompt. A live run does not wait at a prompt: it says once for each place where it
would have stopped."""

import fcntl
import inspect
import pdb  # noqa: T100, it is what --pdb asks for
import sys
from contextlib import suppress
from io import FileIO
from pathlib import Path
from types import FrameType
from typing import Any


def install(name: str, turns: str) -> None:
    """Set what ``breakpoint()`` does in this worker process. ``turns`` is the file by which workers
    take turns at the prompt; a byte in it says that no worker stops any more. Empty where none
    stops."""
    sys.breakpointhook = _Stopping(name, Path(turns)) if turns else _PassingOver(name)


class _PassingOver:
    """Says once for each place that nothing stops there."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._said: set[str] = set()

    def __call__(self, *_: Any, **__: Any) -> None:
        frame = _caller()
        place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        if place not in self._said:
            self._said.add(place)
            said = "breakpoint() stops only in: ddloco replay RUN --pdb"
            sys.stderr.write(f"{self._name}: {place}: {said}\n")
            sys.stderr.flush()


class _Stopping:
    """Opens a debugger at each ``breakpoint()``, until the user has left one."""

    def __init__(self, name: str, path: Path) -> None:
        self._turn = Turn(path)
        self._name = name

    def __call__(self, *_: Any, **__: Any) -> None:
        self._turn.take()
        if self._turn.left:
            self._turn.give()
            return
        _Debugger(self._name, self._turn).set_trace(_caller())


def _caller() -> FrameType:
    frame = inspect.currentframe()
    for _ in range(2):  # This function, and the hook that asks.
        assert frame is not None, "CPython has frames"
        frame = frame.f_back
    assert frame is not None, "a hook has a caller"
    return frame


class Turn:
    """The turn of one process at the terminal's prompt: it has locked a file, the same for all."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: FileIO | None = None

    def __enter__(self) -> None:
        self.take()

    def __exit__(self, *_: object) -> None:
        self.give()

    def take(self) -> None:
        """Wait until no other worker is at the prompt."""
        if self._file is None:
            self._file = FileIO(self._path, "r+")
            fcntl.flock(self._file, fcntl.LOCK_EX)

    def give(self) -> None:
        """Let another worker come to the prompt."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    @property
    def left(self) -> bool:
        """Whether no worker should stop any more."""
        return self._path.stat().st_size > 0

    def leave(self) -> None:
        """Let no worker stop any more."""
        self._path.write_bytes(b"x")


class _Debugger(pdb.Pdb):
    """The standard debugger, which takes turns with those of other workers."""

    def __init__(self, name: str, turn: Turn) -> None:
        super().__init__(nosigint=True)  # Ctrl-C ends the replay.
        self.prompt = f"({name}) "
        self._turn = turn

    def interaction(self, *given: Any, **more: Any) -> None:
        self._turn.take()
        super().interaction(*given, **more)

    def set_continue(self) -> None:
        """Go on to the next breakpoint, which may be another worker's."""
        super().set_continue()
        self._turn.give()

    def do_quit(self, arg: str) -> bool:
        """Go on without stopping again, in any worker."""
        del arg
        self._turn.leave()
        self.clear_all_breaks()
        with suppress(OSError):
            self.message("the replay continues without stopping; Ctrl-C ends it")
        self.set_continue()
        return True

    def do_EOF(self, arg: str) -> bool:  # noqa: N802, as the debugger names it
        """As ``quit``: there is no terminal that could answer."""
        return self.do_quit(arg)

    do_q = do_quit
    do_exit = do_quit
