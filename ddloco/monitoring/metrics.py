"""Metrics of a running job: numbers from an observer's notices, sent to metrics systems."""

import importlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec.structs import asdict

from ddloco.job.protocol.status import Numbers, Status
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.observers.observer_protocol import News
from ddloco.stage.process.entry_point import in_one_line

EVENTS_NAMED_MAX = 64
"""Kinds of news that are counted separately: the syncer chooses their names, and each name is a
time series."""

NUMBERS = Numbers.__struct_fields__
"""The job's numbers, which are the same in a status and in news."""

NOT_IN_WORDS = frozenset(NUMBERS) - {"goodput", "live"}
"""Numbers of the job that a line of text leaves out; ``--json`` has them."""

MERGE_FIELDS = ("taking_part", "averaged", "grace_s", "sync_s")
STATUS_FIELDS = (
    *("merges", "quorum", "uptime_s"),
    *NUMBERS,
    *("tape_bytes", "sent_bytes", "received_bytes"),
)
MEMBER_FIELDS = (
    *("step", "step_s", "heard_s", "silent", "versions_behind", "refused"),
    *("loss", "tokens", "tokens_per_s", "computing_s", "data_s", "stopped_s"),
)

LEARNER_LINE = ("learner", "step", "loss", "tokens", "tokens_per_s", "metrics")

METRICS_NAMED_MAX = 64
"""Names of the task's own metrics: each is a time series for every learner."""


class Sink(Protocol):
    """A destination for metrics."""

    def gauge(self, name: str, value: float, t: int, **labels: str) -> None: ...

    def close(self) -> None: ...


class TrackerError(OSError):
    """A tracker's package has failed; the text says how."""


class Points:
    """Gives the points of a job to sinks, each at the global step ``t`` that is reached."""

    def __init__(self, sinks: list[Sink]) -> None:
        self.t = 0
        self._sinks = sinks
        self._named: dict[str, None] = {}

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()

    def score(self, t: int, loss: float, metrics: Mapping[str, Any] | None = None) -> None:
        self._give("held_out_loss", loss, t)
        for name, value in self._known(metrics or {}).items():
            self._give("held_out_metric", value, t, metric=name)

    def _reach(self, t: Any) -> None:
        if isinstance(t, int):
            self.t = max(self.t, t)

    def _of_task(self, metrics: Mapping[str, Any], **labels: str) -> None:
        for name, value in self._known(metrics).items():
            self._gauge("learner_metric", value, **labels, metric=name)

    def _known(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        """The numbers among the task's metrics, without names beyond ``METRICS_NAMED_MAX``."""
        room = METRICS_NAMED_MAX - len(self._named)
        new = [name for name in metrics if name not in self._named]
        self._named |= dict.fromkeys(new[:room])
        known = numbers_of(metrics).items()
        return {name: value for name, value in known if name in self._named}

    def _several(
        self, names: Iterable[str], fields: Mapping[str, Any], prefix: str = "", **labels: str
    ) -> None:
        for name, value in numbers_of({name: fields.get(name) for name in names}).items():
            self._gauge(f"{prefix}{name}", value, **labels)

    def _gauge(self, name: str, value: float, **labels: str) -> None:
        self._give(name, float(value), self.t, **labels)

    def _give(self, name: str, value: float, t: int, **labels: str) -> None:
        for sink in self._sinks:
            try:
                sink.gauge(name, value, t, **labels)
            except OSError:
                raise
            except Exception as error:  # Of the tracker, and not of what was told.
                raise TrackerError(in_one_line(error)) from error


class Metrics(Points):
    """Makes points of what a syncer tells an observer."""

    def __init__(self, sinks: list[Sink]) -> None:
        super().__init__(sinks)
        self._seen: dict[str, int] = {}

    def news(self, news: News) -> None:
        """Process one observation; a merge contains numbers of its own."""
        name = news.event
        if name not in self._seen and len(self._seen) >= EVENTS_NAMED_MAX:
            name = "others"
        self._seen[name] = self._seen.get(name, 0) + 1
        if news.event == "merge":
            self._reach(news.fields.get("t"))
            self._several((*MERGE_FIELDS, *NUMBERS), news.fields)
        if news.event == "result":
            self._reach(news.fields.get("t"))
            self._several(NUMBERS, news.fields)
            loss, more = news.fields.get("held_out_loss"), news.fields.get("metrics") or {}
            if isinstance(loss, int | float):
                self.score(self.t, loss, more)
        self._gauge("news", self._seen[name], event=name)

    def status(self, status: Status) -> None:
        self._reach(status.t)
        self._gauge("global_step", self.t)
        self._several(STATUS_FIELDS, asdict(status))
        for member in status.members:
            who = member.learner
            self._several(MEMBER_FIELDS, asdict(member), "learner_", learner=who)
            self._of_task(member.metrics, learner=who)


class Prometheus:
    """``ddloco_NAME`` gauges, served over HTTP; by default only this machine can reach them.

    Port 0 is any free one; the attribute ``port`` is the actual one. Raises ConfigError.
    """

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        client = extra_package("prometheus_client", "prometheus", "--prometheus")
        self._client = client
        self._registry = client.CollectorRegistry()
        self._gauges: dict[str, Any] = {}
        try:
            self._server, self._thread = client.start_http_server(
                port, addr=host, registry=self._registry
            )
        except OSError as error:
            raise ConfigError(f"--prometheus {port}: {error.strerror}") from None
        self.port: int = self._server.server_port

    def gauge(self, name: str, value: float, t: int, **labels: str) -> None:
        """Set a gauge; ``t`` is a metric of its own."""
        del t
        if name not in self._gauges:
            help_text = name.replace("_", " ")
            self._gauges[name] = self._client.Gauge(
                f"ddloco_{name}", help_text, tuple(labels), registry=self._registry
            )
        gauge = self._gauges[name]
        (gauge.labels(**labels) if labels else gauge).set(value)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class TensorBoard:
    """Event files for TensorBoard, by global step; raises ConfigError."""

    def __init__(self, folder: Path) -> None:
        package = extra_package("tensorboardX", "tensorboard", "--tensorboard")
        try:
            self._writer = package.SummaryWriter(str(folder))
        except OSError as error:
            raise ConfigError(f"--tensorboard {folder}: {error.strerror}") from None

    def gauge(self, name: str, value: float, t: int, **labels: str) -> None:
        """Write one point; label values become parts of the tag."""
        self._writer.add_scalar("/".join((name, *labels.values())), value, t)

    def close(self) -> None:
        self._writer.close()


def metrics_in_words(metrics: Mapping[str, float | None]) -> str:
    known = {name: value for name, value in metrics.items() if value is not None}
    return "".join(f", {name} {value:.4g}" for name, value in known.items())


class PrintedNotices:
    def __init__(self, write: Callable[[str], None], *, as_json: bool) -> None:
        self._write = write
        self._as_json = as_json

    def news(self, news: News) -> None:
        if self._as_json:
            plain = {"event": news.event, "at": news.at, "ref": news.ref, **news.fields}
            self._write(msgspec.json.encode(plain).decode())
            return
        fields = {key: said for key, said in news.fields.items() if key not in NOT_IN_WORDS}
        said = "  ".join(f"{key} {value}" for key, value in fields.items())
        self._write(f"{news.at:8.1f} s  {news.event}  {said}".rstrip())

    def status(self, status: Status) -> None:
        """Print what the learners' last steps brought, as JSON only: a line every second."""
        members = [each for each in status.members if each.loss is not None]
        if self._as_json and members:
            shown = [{name: getattr(each, name) for name in LEARNER_LINE} for each in members]
            plain = {"event": "learners", "t": status.t, "learners": shown}
            self._write(msgspec.json.encode(plain).decode())

    def score(self, t: int, loss: float, metrics: dict[str, float] | None = None) -> None:
        if self._as_json:
            plain = {"event": "held out", "t": t, "held_out_loss": loss}
            plain |= {"metrics": metrics} if metrics else {}
            self._write(msgspec.json.encode(plain).decode())
        else:
            self._write(
                f"held-out loss {loss:.4f}{metrics_in_words(metrics or {})} at global step {t}"
            )


def numbers_of(fields: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in fields.items() if isinstance(value, int | float)}


def extra_package(package: str, extra: str, option: str) -> Any:
    """Import a package that only one option needs; raises ConfigError if it is not installed."""
    try:
        return importlib.import_module(package)
    except ImportError:
        raise ConfigError(f"{option} needs more: pip install 'ddloco[{extra}]'") from None
