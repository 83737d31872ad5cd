"""Experiment trackers as destinations of metrics: TensorBoard, Prometheus, Weights & Biases,
MLflow and trackio. Each needs its own package."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ddloco.job.config import Job
from ddloco.monitoring.metrics import Prometheus, Sink, TensorBoard, extra_package
from ddloco.stage.files.addresses import PORT_MAX
from ddloco.stage.files.toml import ConfigError

HELP = "tensorboard:DIR, prometheus:[HOST:]PORT, wandb:PROJECT, mlflow:URI or trackio:PROJECT"


class Rows:
    """Collects the points of a global step, and passes them on as one row when the next begins."""

    def __init__(
        self, write: Callable[[int, dict[str, float]], None], end: Callable[[], None]
    ) -> None:
        self._write = write
        self._end = end
        self._t = 0
        self._row: dict[str, float] = {}

    def gauge(self, name: str, value: float, t: int, **labels: str) -> None:
        """Add a point; label values become parts of the tag."""
        if t != self._t:
            self._flush()
        self._t = t
        self._row["/".join((name, *labels.values()))] = value

    def close(self) -> None:
        self._flush()
        self._end()

    def _flush(self) -> None:
        if self._row:
            self._write(self._t, self._row)
        self._row = {}


def wandb(project: str, name: str, settings: Mapping[str, Any]) -> Rows:
    """A run of Weights & Biases; offline unless ``WANDB_MODE`` says otherwise."""
    package = extra_package("wandb", "wandb", "--track wandb")
    mode = os.environ.get("WANDB_MODE", "offline")
    run = package.init(project=project, name=name, config=dict(settings), mode=mode)
    run.define_metric("*", step_metric="global_step")
    # Without a step of its own: theirs must grow, and ours may stand still or come late.
    return Rows(lambda t, row: run.log({**row, "global_step": t}), run.finish)


def mlflow(uri: str, name: str, settings: Mapping[str, Any]) -> Rows:
    """A run of MLflow at a tracking URI, in the experiment ``ddloco``; raises ConfigError."""
    package = extra_package("mlflow", "mlflow", "--track mlflow")
    try:
        client = package.MlflowClient(tracking_uri=uri)
        found = client.get_experiment_by_name("ddloco")
        experiment = found.experiment_id if found else client.create_experiment("ddloco")
        run = client.create_run(experiment, run_name=name).info.run_id
        for key, value in settings.items():
            client.log_param(run, key, value)
    except package.exceptions.MlflowException as error:
        raise ConfigError(f"--track mlflow:{uri}: {' '.join(str(error).split())[:300]}") from None

    def write(t: int, row: dict[str, float]) -> None:
        for tag, value in row.items():
            client.log_metric(run, tag, value, step=t)

    return Rows(write, lambda: client.set_terminated(run))


def trackio(project: str, name: str, settings: Mapping[str, Any]) -> Rows:
    """A run of trackio, in its local database."""
    package = extra_package("trackio", "trackio", "--track trackio")
    package.init(project=project, name=name, config=dict(settings))
    return Rows(lambda t, row: package.log(dict(row), step=t), package.finish)


def tracker(said: str, name: str, settings: Mapping[str, Any]) -> Sink:
    """Open the tracker that ``said`` names, such as ``wandb:my-project``; raises ConfigError."""
    kind, colon, where = said.partition(":")
    named = {"wandb": wandb, "mlflow": mlflow, "trackio": trackio}
    if not colon or not where or kind not in {*named, "tensorboard", "prometheus"}:
        raise ConfigError(f"{said!a} is not a tracker; want {HELP}")
    if kind == "tensorboard":
        return TensorBoard(Path(where))
    if kind == "prometheus":
        host, _, port = where.rpartition(":")
        if not (port.isascii() and port.isdigit() and int(port) <= PORT_MAX):
            raise ConfigError(f"{said!a}: want prometheus:PORT or prometheus:HOST:PORT")
        return Prometheus(int(port), host or "127.0.0.1")
    return named[kind](where, name, settings)


def open_trackers(said: Sequence[str], name: str, job: Job) -> list[Sink]:
    """Open every tracker that is named; if one cannot be used, those before it are closed again."""
    settings = {"job": job.id, "task": job.job.task, "learners": job.job.learners}
    opened: list[Sink] = []
    try:
        opened.extend(tracker(each, name, settings) for each in said)
    except BaseException:
        close_all(opened)
        raise
    return opened


def close_all(sinks: list[Sink]) -> None:
    for sink in sinks:
        sink.close()
