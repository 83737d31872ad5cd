"""Metrics of a running job: numbers from an observer's notices, sent to metrics systems."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec

from ddloco.config.toml import ConfigError
from ddloco.runtime.observer_protocol import News

EVENTS_NAMED_MAX = 64
"""Kinds of news that are counted separately: the syncer chooses their names, and each name is a
time series."""

MERGE_FIELDS = ("live", "taking_part", "averaged", "grace_s", "sync_s")
STATUS_FIELDS = ("merges", "quorum", "goodput", "live", "uptime_s", "tape_bytes")
MEMBER_FIELDS = ("step", "step_s", "heard_s", "silent", "versions_behind", "refused")


class Sink(Protocol):
    """A destination for metrics."""

    def gauge(self, name: str, value: float, t: int, **labels: str) -> None:
        """Record the newest ``value`` of a metric, as of global step ``t``."""
        ...

    def close(self) -> None:
        """Write buffered values; nothing is recorded after this."""
        ...


class Metrics:
    """Extracts the numbers from an observer's notices and sends them to every sink.

    Args:
        sinks: the destinations; closed with this object.
    """

    def __init__(self, sinks: list[Sink]) -> None:
        self.t = 0
        """The newest global step in any notice."""
        self._sinks = sinks
        self._seen: dict[str, int] = {}

    def news(self, news: News) -> None:
        """Process one observation; a merge contains numbers of its own."""
        name = news.event
        if name not in self._seen and len(self._seen) >= EVENTS_NAMED_MAX:
            name = "others"
        self._seen[name] = self._seen.get(name, 0) + 1
        if news.event == "merge":
            self._reach(news.fields.get("t"))
            self._several(MERGE_FIELDS, news.fields)
        self._gauge("news", self._seen[name], event=name)

    def status(self, status: dict[str, Any]) -> None:
        """Process a status: the job's numbers, and those of every learner."""
        self._reach(status.get("t"))
        self._gauge("global_step", self.t)
        self._several(STATUS_FIELDS, status)
        for member in status.get("members") or ():
            self._several(MEMBER_FIELDS, member, "learner_", learner=member["learner"])

    def score(self, t: int, loss: float) -> None:
        """Record the held-out loss of the global model of step ``t``."""
        for sink in self._sinks:
            sink.gauge("held_out_loss", loss, t)

    def close(self) -> None:
        """Close every sink."""
        for sink in self._sinks:
            sink.close()

    def _reach(self, t: Any) -> None:
        if isinstance(t, int):
            self.t = max(self.t, t)

    def _several(
        self, names: tuple[str, ...], fields: dict[str, Any], prefix: str = "", **labels: str
    ) -> None:
        for name in names:
            value = fields.get(name)
            if isinstance(value, int | float):
                self._gauge(f"{prefix}{name}", value, **labels)

    def _gauge(self, name: str, value: float, **labels: str) -> None:
        for sink in self._sinks:
            sink.gauge(name, float(value), self.t, **labels)


class Prometheus:
    """``ddloco_NAME`` gauges, served over HTTP on the loopback interface.

    Args:
        port: the port, 0 for any free one; the attribute ``port`` is the actual one.

    Raises:
        ConfigError: the package is not installed, or the port cannot be bound.
    """

    def __init__(self, port: int) -> None:
        client = _extra("prometheus_client", "prometheus", "--prometheus")
        self._client = client
        self._registry = client.CollectorRegistry()
        self._gauges: dict[str, Any] = {}
        try:
            self._server, self._thread = client.start_http_server(
                port, addr="127.0.0.1", registry=self._registry
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
        """Close the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class TensorBoard:
    """Event files for TensorBoard, by global step.

    Args:
        folder: where they are written.

    Raises:
        ConfigError: the package is not installed, or the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        package = _extra("tensorboardX", "tensorboard", "--tensorboard")
        try:
            self._writer = package.SummaryWriter(str(folder))
        except OSError as error:
            raise ConfigError(f"--tensorboard {folder}: {error.strerror}") from None

    def gauge(self, name: str, value: float, t: int, **labels: str) -> None:
        """Write one point; label values become parts of the tag."""
        self._writer.add_scalar("/".join((name, *labels.values())), value, t)

    def close(self) -> None:
        """Write buffered points."""
        self._writer.close()


class Lines:
    """Prints all notices, one line each, as readable text or as JSON.

    Args:
        write: called with each line.
        as_json: whether lines are JSON objects.
    """

    def __init__(self, write: Callable[[str], None], *, as_json: bool) -> None:
        self._write = write
        self._as_json = as_json

    def news(self, news: News) -> None:
        """Print one observation."""
        if self._as_json:
            plain = {"event": news.event, "at": news.at, "ref": news.ref, **news.fields}
            self._write(msgspec.json.encode(plain).decode())
            return
        said = "  ".join(f"{key} {value}" for key, value in news.fields.items())
        self._write(f"{news.at:8.1f} s  {news.event}  {said}".rstrip())

    def score(self, t: int, loss: float) -> None:
        """Print the held-out loss of the global model of step ``t``."""
        if self._as_json:
            plain = {"event": "held out", "t": t, "held_out_loss": loss}
            self._write(msgspec.json.encode(plain).decode())
        else:
            self._write(f"held-out loss {loss:.4f} at global step {t}")


def _extra(package: str, extra: str, option: str) -> Any:
    """Import a package that only one option needs.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return importlib.import_module(package)
    except ImportError:
        raise ConfigError(f"{option} needs more: pip install 'ddloco[{extra}]'") from None
