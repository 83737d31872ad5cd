"""The global parameters of a job: from its run folder, a snapshot or a model file."""

import importlib
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from ddloco.job.config import Job, load_job
from ddloco.job.job_folder import place_of, run_of_place
from ddloco.stage.driver.resume import place_and_id
from ddloco.stage.files.run_folder import JOB_FILE, SNAPSHOTS
from ddloco.stage.files.toml import ConfigError, read_toml
from ddloco.stage.process.entry_point import KeptFinder, NamedError, called
from ddloco.workers.executor import MODEL_FILE
from ddloco.workers.task import TaskError
from ddloco.workers.task_sources import kept_modules
from snapshot import Manifest, SnapshotError, Store, load_tensors

GLOBAL = re.compile(r"theta/([0-9]+)/([0-9]+)")
"""The name of a fragment's entry in a syncer's part: its number, and the parameters' version."""


class PlaceError(ValueError):
    """The user named a place, snapshot or file that cannot be used."""


def load(
    path: Path | str,
    task: Callable[..., Any] | str | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    with_state: bool = False,
) -> Any:
    """Load the global parameters of a job.

    Args:
        path: a run folder, a model file (safetensors), or a snapshot: ``RUN/snapshots/ID``,
            ``RUN/snapshots/latest`` or a URL.
        task: the task, whose pytree the parameters get: the function that makes it, or its name
            as ``module:function``.
        options: the function's keyword arguments; by default those of the run's job file.
        with_state: whether to return a pair: the parameters, and the task's state beside them.

    Returns:
        The task's own pytree of JAX arrays; without a task, numpy arrays by name, those of a state
        included.

    Raises:
        ConfigError: there are no parameters at this path, or they are not this task's.
        TaskError: the task cannot be used.
        SnapshotError: the snapshot is damaged or incomplete.
    """
    tensors = tensors_at(path)
    if task is None:
        return tensors
    job = job_near(path)[0]
    if options is None:
        options = job.task if job is not None else {}
    model = model_of(tensors, task, options, job.job.seed if job is not None else 0, str(path))
    return (model.params, model.state) if with_state else model.params


def tensors_at(path: Path | str) -> dict[str, NDArray[Any]]:
    """The parameters at a path by name; see ``load``."""
    said = str(path)
    file = Path(path) / MODEL_FILE if (Path(path) / JOB_FILE).is_file() else Path(path)
    try:
        if "://" not in said and file.is_file():
            return load_tensors(file)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from None
    if file != Path(path):
        raise ConfigError(f"{path}: the run has no model yet; name a snapshot of it")
    if "://" not in said and not Path(path).parent.is_dir():
        raise ConfigError(f"{path}: there is no such run, model file or snapshot")
    place, name = place_and_id(said)
    try:
        store = Store(place)
        if not store.exists():
            raise ConfigError(f"{path}: no run folder, no model file and no snapshot")
        return parameters(store, store.manifest(store.find(name)))[0]
    except SnapshotError as error:
        raise SnapshotError(f"{path}: {error}") from None


def job_near(path: Path | str) -> tuple[Job | None, Path]:
    """The job of the run that a path belongs to, and its run folder, if that is there: the path
    itself, or the folder in which a run has its model file or its snapshots. A job file elsewhere
    above the path may be of anybody."""
    here = Path(path).absolute()
    folder = here
    if here.parts[-2:] == MODEL_FILE.parts or here.parent.name == SNAPSHOTS:
        folder = here.parent.parent
    if "://" in str(path) or not (folder / JOB_FILE).is_file():
        return None, Path()
    return load_job(folder / JOB_FILE), folder


class Model(NamedTuple):
    params: Any
    state: Any


def model_of(
    tensors: Mapping[str, NDArray[Any]],
    task: Callable[..., Any] | str,
    options: Mapping[str, Any],
    seed: int,
    source: str,
) -> Model:
    """Arrange named tensors as the pytrees that a task's ``init`` and ``init_state`` return.

    Leaves of the state that each learner has for itself are as ``init_state`` makes them.
    """
    return arranged(tensors, task_made(task, options), seed, source)


def arranged(tensors: Mapping[str, NDArray[Any]], made: Any, seed: int, source: str) -> Model:
    """As ``model_of``, for a task object."""
    jax = importlib.import_module("jax")  # A task needs it anyway; importing ddloco does not.
    described = importlib.import_module("ddloco.workers.parameters").shapes_and_names
    shapes, names = described(made.init, seed)
    begin = getattr(made, "init_state", None)
    kept = described(begin, seed)[0] if begin is not None else None
    layout = importlib.import_module("ddloco.workers.task_state").StateLayout(kept)
    leaves = {
        **dict(zip(names, jax.tree.leaves(shapes), strict=True)),
        **dict(zip(layout.names, layout.merged, strict=True)),
    }
    _check_same(tensors, leaves, source)
    arrays = {name: jax.numpy.asarray(tensors[name]) for name in leaves}
    params = jax.tree.unflatten(jax.tree.structure(shapes), [arrays[name] for name in names])
    if begin is None:
        return Model(params, None)
    local = layout.local_of(begin(jax.random.key(seed)))
    return Model(params, layout.joined([arrays[name] for name in layout.names], local))


def _check_same(
    tensors: Mapping[str, NDArray[Any]], leaves: Mapping[str, Any], source: str
) -> None:
    missing = [name for name in leaves if name not in tensors]
    more = [name for name in tensors if name not in leaves]
    if missing or more:
        what = f"lacks {missing[0]}" if missing else f"has {more[0]}, which the task does not have"
        raise ConfigError(f"{source}: {what}; the parameters are of another task or size")
    for name, leaf in leaves.items():
        found = tensors[name].shape
        if found != tuple(leaf.shape):
            raise ConfigError(f"{source}: {name} has shape {found}, the task's has {leaf.shape}")


def task_made(
    task: Callable[..., Any] | str, options: Mapping[str, Any], folder: Path | None = None
) -> Any:
    if not isinstance(task, str):
        return task(**options)
    here = str(Path.cwd())
    kept = kept_modules(folder, task) if folder is not None else None
    finders = [KeptFinder(kept)] if kept is not None else []
    added = here not in sys.path
    try:
        for finder in finders:
            finder.install()
        if added:
            sys.path.append(here)
        return called("task", task, options)
    except NamedError as error:
        raise TaskError(str(error)) from error
    finally:
        sys.meta_path[:] = [each for each in sys.meta_path if each not in finders]
        if added:
            sys.path.remove(here)


def open_store(place: str) -> Store:
    """Open the store at a place, or that of a run folder; raises PlaceError if there is none."""
    path = Path(place)
    # A store also has a subfolder of that name, for its manifests, but without blobs in it.
    inner = path / SNAPSHOTS
    is_run = "://" not in place and (
        (inner / "blobs").is_dir() or (inner / SNAPSHOTS).is_dir() or (path / JOB_FILE).exists()
    )
    try:
        store = _store_of_run(path) if is_run else Store(place)
        if not store.exists():
            raise PlaceError(f"{store.name}: there are no snapshots")
    except (SnapshotError, ConfigError) as error:
        raise PlaceError(str(error)) from None
    return store


def _store_of_run(folder: Path) -> Store:
    """The store named in a run's job file, limited to that run's snapshots."""
    file = folder / JOB_FILE
    if not file.exists() or "job" not in read_toml(file):  # The run of a program.
        return Store(folder / SNAPSHOTS)
    job = load_job(file)
    return Store(place_of(job, folder), run_of_place(job, folder))


def parameters(store: Store, manifest: Manifest) -> tuple[dict[str, NDArray[Any]], dict[int, int]]:
    """The newest version of the global parameters by name, and the version of each fragment.

    Raises SnapshotError if the snapshot does not have all of them.
    """
    newest: dict[int, tuple[int, str]] = {}
    for part in manifest.parts:
        if _is_syncer(part.who):
            for digest in part.contents:
                for entry in store.read_piece(digest):
                    named = GLOBAL.fullmatch(entry.name)
                    if entry.kind == "array" and named is not None:
                        p, version = int(named[1]), int(named[2])
                        newest[p] = max(newest.get(p, (-1, "")), (version, entry.digest))
    absent = [f"{who} ({why})" for who, why in manifest.absent.items() if _is_syncer(who)]
    missing = [str(p) for p in range(max(newest, default=0) + 1) if p not in newest]
    if absent or missing:
        lacks = f"the syncer {absent[0]}" if absent else f"fragment {missing[0]}"
        raise SnapshotError(
            f"{store.name}: {manifest.id} lacks {lacks}, so the model is incomplete"
        )
    tensors: dict[str, NDArray[Any]] = {}
    for p in sorted(newest):
        for name, tensor in store.read_tensors(newest[p][1]).items():
            if name in tensors:
                raise SnapshotError(f"{store.name}: {manifest.id} has {name} in two fragments")
            tensors[name] = tensor
    return tensors, {p: version for p, (version, _) in newest.items()}


def _is_syncer(who: str) -> bool:
    """Whether a name is ``syncer.1``, or with shards ``syncer-0.1``."""
    return re.fullmatch(r"syncer(-[0-9]+)?\.[0-9]+", who) is not None
