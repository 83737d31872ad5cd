"""What the benchmarks share: processes that do as they are told, medians, intervals, progress."""

import multiprocessing
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

PEERS = ROOT / ".venv-peers"
"""The environments of the peers, installed by `make bench-peers`: one for each requirements file
``peers_NAME.txt``."""

ANSWER_S_MAX = 300.0
EXIT_S_MAX = 5.0
RESAMPLES = 4000


def say(text: str) -> None:
    """Print progress to standard error; results go to standard output."""
    print(f"  {text}", file=sys.stderr, flush=True)


def peers_python(environment: str) -> str | None:
    """The Python of an environment of peers; None if it is not installed."""
    python = PEERS / environment / "bin" / "python"
    return str(python) if python.exists() else None


class Servant:
    """A process that answers what it is asked, over a pipe."""

    def __init__(self, process: Any, connection: Connection) -> None:
        self.process = process
        self._connection = connection

    def ask(self, what: Any) -> None:
        """Ask without waiting."""
        self._connection.send(what)

    def answer(self) -> Any:
        """The next answer.

        Raises:
            RuntimeError: it is dead or takes too long.
        """
        if not self._connection.poll(ANSWER_S_MAX):
            raise RuntimeError(f"{self.process.name}: no answer in {ANSWER_S_MAX:.0f} s")
        try:
            return self._connection.recv()
        except EOFError:
            raise RuntimeError(f"{self.process.name} ended, see above") from None

    def request(self, what: Any) -> Any:
        """Ask, and wait for the answer."""
        self.ask(what)
        return self.answer()


@contextmanager
def servant(
    target: Callable[..., None], *arguments: Any, env: dict[str, str | None] | None = None
) -> Iterator[Servant]:
    """Run ``target(connection, *arguments)`` in a process of its own, ended on leaving.

    It should return when it receives None or when the connection closes.

    Args:
        target: a function at the top of a module.
        arguments: for it.
        env: variables to set, or with None to unset, for that process.
    """
    context: Any = multiprocessing.get_context("spawn")
    if not env:  # Dozens of processes import the same modules; here one does it for all of them.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([target.__module__])
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_serve, args=(target, theirs, *arguments), name=target.__name__, daemon=True
    )
    with _environment(env or {}):
        process.start()
    theirs.close()
    try:
        yield Servant(process, ours)
    finally:
        with suppress(OSError):  # It may have ended already.
            ours.send(None)
        ours.close()
        process.join(EXIT_S_MAX)
        if process.is_alive():
            process.kill()
            process.join()


def _serve(target: Callable[..., None], connection: Connection, *arguments: Any) -> None:
    with suppress(EOFError, BrokenPipeError, KeyboardInterrupt):  # No request will come.
        target(connection, *arguments)


@contextmanager
def _environment(env: dict[str, str | None]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in env}
    _set(env)
    try:
        yield
    finally:
        _set(before)


def _set(env: dict[str, str | None]) -> None:
    for name, value in env.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def median(values: Sequence[float]) -> float:
    """The median."""
    return statistics.median(values)


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """A 95 % interval of the median, by bootstrap with a fixed seed."""
    rng = np.random.default_rng(0)
    array = np.asarray(values)
    drawn = np.median(rng.choice(array, (RESAMPLES, len(array))), axis=1)
    low, high = np.quantile(drawn, (0.025, 0.975))
    return float(low), float(high)
