"""Model folders for other libraries, such as Hugging Face transformers.

What is in such a folder depends on the model, so the task says it: its method ``hugging_face``
returns the files by name. Nothing here knows an architecture.
"""

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddloco.api.model import arranged, job_near, task_made, tensors_at
from ddloco.job.config import Job, load_job
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.files.trust import is_ours
from ddloco.stage.process.entry_point import in_one_line
from ddloco.workers.task import TaskError, takes
from snapshot import save_tensors

METHOD = "hugging_face"
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
TENSORS = ".safetensors"
ABOUT = {"format": "pt"}
"""What transformers wants to read in a safetensors file: the order of dimensions is PyTorch's."""


class NoExportError(TaskError):
    """The task does not say what is in a model folder."""


def export(
    path: Path | str,
    to: Path | str,
    task: Callable[..., Any] | str | None = None,
    *,
    job: Path | str | None = None,
) -> dict[str, int]:
    """Write a model folder that Hugging Face transformers loads.

    Args:
        path: a run folder, a model file, or a snapshot; see ``ddloco.load``.
        to: the new folder.
        task: the task, whose method ``hugging_face`` makes the files: the function that makes the
            task, or its name. By default that of the run.
        job: a job file with the task and its options, if there is no run folder of this user.

    Returns:
        The size of each file in bytes, by name.

    Raises:
        ConfigError: there are no such parameters, or the folder cannot be written.
        TaskError: the task cannot be used, or does not say what is in the folder.
        SnapshotError: the snapshot is damaged or incomplete.
    """
    return write_model_folder(Path(to), tensors_at(path), str(path), task, job)


def write_model_folder(
    to: Path,
    tensors: Mapping[str, NDArray[Any]],
    source: str,
    task: Callable[..., Any] | str | None = None,
    job: Job | Path | str | None = None,
) -> dict[str, int]:
    """Write all files that a task makes of its parameters, or none, to a folder that is new or
    empty; see ``export``. ``source`` is where the parameters are from, and names their run."""
    near, folder = job_near(source)
    if job is not None:
        near = job if isinstance(job, Job) else load_job(Path(job))
    elif task is None:
        _check_ours(near, folder, source)
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise ConfigError(f"{to}: exists; choose a new folder")
    spec = task if task is not None or near is None else near.job.task
    assert spec is not None, "without a task there is a job"
    made = task_made(spec, near.task if near is not None else {}, folder)
    method, named = getattr(made, METHOD, None), f"task {_name_of(spec)!r}"
    if not callable(method):
        raise NoExportError(
            f"{named}: {type(made).__name__} has no method {METHOD}(params), which returns the "
            "files of the folder by name"
        )
    model = arranged(tensors, made, near.job.seed if near is not None else 0, source)
    given = {"state": model.state} if "state" in takes(method) else {}
    try:
        files = method(model.params, **given)
    except Exception as error:
        raise TaskError(f"{named}: {METHOD} failed: {in_one_line(error)}") from error
    return _written(to, _checked(files, f"{named}: {METHOD}"))


def _check_ours(job: Job | None, folder: Path, source: str) -> None:
    """Refuse to call a task that the user has not named."""
    if job is None:
        raise ConfigError(f"{source}: belongs to no run folder here; name its job file with --job")
    if not is_ours(folder, job.as_plain()):
        raise ConfigError(
            f"{folder}: was not recorded by this user on this machine, and its task "
            f"{job.job.task!r} would be called; name your own job file with --job"
        )


def _name_of(task: Callable[..., Any] | str) -> str:
    return task if isinstance(task, str) else getattr(task, "__qualname__", repr(task))


def _checked(files: Any, where: str) -> dict[str, Any]:
    """The content of each file: text, bytes, or numpy arrays by name."""
    if not isinstance(files, Mapping) or not files:
        raise TaskError(f"{where}: returns {type(files).__name__}; want a dict of files by name")
    found: dict[str, Any] = {}
    for name, content in files.items():
        if not isinstance(name, str) or FILE_NAME.fullmatch(name) is None:
            raise TaskError(f"{where}: {name!r} is not a file name")
        if name.endswith(TENSORS):
            found[name] = _arrays(content, f"{where}: {name}")
        elif isinstance(content, str | bytes):
            found[name] = content
        else:
            try:
                found[name] = json.dumps(content, indent=2) + "\n"
            except (TypeError, ValueError) as error:
                raise TaskError(f"{where}: {name}: {error}") from None
    return found


def _arrays(content: Any, where: str) -> dict[str, NDArray[Any]]:
    if not isinstance(content, Mapping) or not content:
        raise TaskError(f"{where}: {type(content).__name__}; want a dict of arrays by name")
    arrays = {str(name): np.asarray(each) for name, each in content.items()}
    for name, each in arrays.items():
        if each.dtype.hasobject:
            raise TaskError(f"{where}: {name} is no array")
    return arrays


def _written(to: Path, files: Mapping[str, Any]) -> dict[str, int]:
    """Write the files, and give the folder its name when all are there."""
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{to.name}.", dir=to.parent))
        try:
            for name, content in files.items():
                if name.endswith(TENSORS):
                    save_tensors(made / name, content, ABOUT)
                elif isinstance(content, bytes):
                    (made / name).write_bytes(content)
                else:
                    (made / name).write_text(content)
                (made / name).chmod(0o644)
            made.chmod(0o755)
            made.rename(to)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
    except OSError as error:
        raise ConfigError(f"{error.filename or to}: {error.strerror or error}") from None
    return {name: (to / name).stat().st_size for name in files}
