"""The commands ``ddloco status``, ``observe``, ``stop`` and ``leave``."""

import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import trio

from clocks import actor_of
from ddloco.job.protocol.status import Status, StatusError, status_from
from ddloco.monitoring.client import Notified, Observer, UnansweredError, open_observer
from ddloco.stage.actors.observations import DISMISSED
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.observers.observer_protocol import News, Told
from ddloco.stage.process.signals import stop_on_signal
from ddloco.stage.process.terminal import one_line

if TYPE_CHECKING:
    from ddloco.job.config import Job
    from ddloco.monitoring.evaluator import Evaluator, Scored
    from ddloco.monitoring.metrics import Metrics, PrintedNotices

REDRAW_S = 1.0

Evaluate: TypeAlias = "tuple[Job, Path, Path | None]"
"""A job whose task evaluates global models, its file, and where the best of them is kept."""


def say(line: str) -> None:
    """Write one line to standard output and flush it, so that readers of a pipe get it at once."""
    sys.stdout.write(f"{one_line(line)}\n")
    sys.stdout.flush()


class Look:
    """One query of several syncers: the status of each, or why there is none."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers
        self.told: dict[int, dict[str, Any]] = {}
        self.problems: dict[int, str] = {}

    async def take(self) -> None:
        async with trio.open_nursery() as nursery:
            for index, observer in enumerate(self._observers):
                nursery.start_soon(self._ask, index, observer)

    async def _ask(self, index: int, observer: Observer) -> None:
        try:
            self.told[index] = await observer.status()
        except UnansweredError as error:
            self.problems[index] = str(error)

    def check(self) -> None:
        """Raise UnansweredError if any syncer did not answer, with all problems on one line."""
        if self.problems:
            raise UnansweredError("; ".join(said for _, said in sorted(self.problems.items())))


Show = Callable[[Look], None]


async def show_status(
    addresses: Sequence[str], *, timeout_s: float, keys: Path | None, as_json: bool, watch: bool
) -> None:
    """Show the status of syncers, once, or every second until a signal arrives. If one does not
    answer, UnansweredError is raised after the others were shown."""
    async with AsyncExitStack() as stack:
        observers = [
            await stack.enter_async_context(open_observer(address, timeout_s, keys))
            for address in addresses
        ]
        show = stack.enter_context(_display(as_json=as_json, again=watch))
        if watch:
            await until_signal(partial(_watch, observers, show))
        else:
            await _look(observers, show)


async def _watch(observers: Sequence[Observer], show: Show) -> None:
    while True:
        await _look(observers, show)
        await trio.sleep(REDRAW_S)


async def _look(observers: Sequence[Observer], show: Show) -> None:
    look = Look(observers)
    await look.take()
    show(look)
    look.check()


@contextmanager
def _display(*, as_json: bool, again: bool) -> Iterator[Show]:
    if as_json:
        yield _print_json
        return
    from ddloco.monitoring.status_screen import open_screen  # noqa: PLC0415, JSON needs no rich

    with open_screen(again=again) as draw:
        yield lambda look: look.problems.update(draw(look.told))


def _print_json(look: Look) -> None:
    for _, plain in sorted(look.told.items()):
        say(msgspec.json.encode(plain).decode())


async def follow_job(
    address: str,
    *,
    timeout_s: float,
    keys: Path | None,
    metrics: "Metrics",
    lines: "PrintedNotices | None",
    evaluate: "Evaluate | None",
) -> None:
    """Follow a job until it ends or a signal arrives."""
    async with open_observer(address, timeout_s, keys) as observer:
        # Check first that the syncer answers; preparing the evaluation takes seconds.
        metrics.status(observed_status(await observer.status()))
        await until_signal(partial(_follow, observer, metrics, lines, evaluate))


async def stop_job(address: str, *, timeout_s: float, keys: Path | None, as_json: bool) -> None:
    """Stop a job, wait until it has ended, and print its status; raises ConfigError for a shard
    that does not lead, UnansweredError if there is no answer or the job failed."""
    async with _asking_lead(address, timeout_s, keys) as observer:

        async def pass_over(_: Notified) -> None:
            await trio.lowlevel.checkpoint()

        ended = await observer.follow(pass_over, payloads=False, stop=True)
        if ended.fields["status"] == "failed":
            raise UnansweredError(f"{address}: the job failed: {ended.fields['reason']}")
        said = {"address": address, **ended.fields}
        line = f"{address}: {said['status']}: {said['reason']}"
        say(msgspec.json.encode(said).decode() if as_json else line)


async def dismiss(
    address: str, who: str, *, timeout_s: float, keys: Path | None, as_json: bool
) -> None:
    """Have a learner leave for good, and print what the syncer says; raises ConfigError for a shard
    that does not lead, UnansweredError if the job has no such learner."""
    async with _asking_lead(address, timeout_s, keys) as observer:
        told = await observer.dismiss(who)
    if told.event != DISMISSED:
        raise UnansweredError(f"{address}: {told.fields['reason']}")
    said = {"address": address, **told.fields}
    line = f"{address}: {who} leaves for good"
    if not told.fields["linked"]:
        line = f"{address}: {who} is not there, and counts as gone for good"
    say(msgspec.json.encode(said).decode() if as_json else line)


@asynccontextmanager
async def _asking_lead(
    address: str, timeout_s: float, keys: Path | None
) -> AsyncIterator[Observer]:
    """An observer with the owner's key, of the syncer that leads."""
    async with open_observer(address, timeout_s, keys, owner=True) as observer:
        told = observed_status(await observer.status())
        name = actor_of(told.incarnation)
        if told.lead not in ("", name):
            raise ConfigError(f"{address}: {name} does not lead this job; ask {told.lead}")
        yield observer


def observed_status(plain: dict[str, Any]) -> Status:
    """A status as an observer received it; ``UnansweredError`` if it is none."""
    try:
        return status_from(plain)
    except StatusError as error:
        raise UnansweredError(str(error)) from None


async def _follow(
    observer: Observer,
    metrics: "Metrics",
    lines: "PrintedNotices | None",
    evaluate: "Evaluate | None",
) -> None:
    def scored(t: int, loss: float, more: dict[str, float]) -> None:
        metrics.score(t, loss, more)
        if lines is not None:
            lines.score(t, loss, more)

    async with _scoring(evaluate, scored) as scorer:

        async def take(said: Notified) -> None:
            match said:
                case Told():
                    status = observed_status(said.status)
                    metrics.status(status)
                    if lines is not None:
                        lines.status(status)
                case News():
                    metrics.news(said)
                    if lines is not None:
                        lines.news(said)
                case fragment, payload:
                    assert scorer is not None, "payloads come only where they were asked for"
                    scorer.take(fragment.fragment, fragment.t, payload)
            await trio.lowlevel.checkpoint()

        await observer.follow(take, payloads=scorer is not None)


@asynccontextmanager
async def _scoring(
    evaluate: "Evaluate | None", scored: "Scored"
) -> "AsyncIterator[Evaluator | None]":
    """A running scorer, if wanted; on exit it finishes the newest model."""
    if evaluate is None:
        yield None
        return
    # Only this needs workers, whose modules take longer to import than a syncer to answer.
    from ddloco.monitoring.evaluator import open_scorer  # noqa: PLC0415

    job, source, best = evaluate
    async with open_scorer(job, source, scored, best) as scorer, trio.open_nursery() as nursery:
        nursery.start_soon(scorer.run)
        yield scorer
        scorer.finish()


async def until_signal(act: Callable[[], Any]) -> None:
    """Run ``act`` until it is done or a signal arrives, which is not an error."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop_on_signal, lambda _reason: nursery.cancel_scope.cancel())
        await act()
        nursery.cancel_scope.cancel()
