"""Model folders for other libraries: what the task says is in them, and when none is written."""

import json
import sys
import types

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import ddloco
from ddloco.api.job import Job
from ddloco.stage.files.run_folder import open_folder
from ddloco.workers.executor import MODEL_FILE
from snapshot import load_metadata, load_tensors, save_tensors

TENSORS = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "state:/mean": np.float32([7.0])}


class Tall:
    """A task with a state, in whose folder matrices are the other way round."""

    def __init__(self, files=None, factor=1):
        self.files = files
        self.factor = factor

    def init(self, key):
        return {"w": jnp.zeros((2, 3))}

    def init_state(self, key):
        return {"mean": jnp.zeros(1)}

    def hugging_face(self, params, state):
        if self.files is not None:
            return self.files
        tensors = {"weight": self.factor * params["w"].T, "mean": state["mean"]}
        return {"config.json": {"hidden": 3}, "model.safetensors": tensors, "merges.txt": "a b\n"}


def tall(files=None, factor=1):
    """The task's function."""
    return Tall(files, factor)


class Other:
    """A task that says nothing of folders."""

    def init(self, key):
        return {"w": jnp.zeros((2, 3))}


@pytest.fixture
def model(tmp_path):
    """A model file in no run folder."""
    save_tensors(tmp_path / "model.safetensors", TENSORS)
    return tmp_path / "model.safetensors"


def test_the_files_are_those_of_the_task(model, tmp_path):
    """Plain data becomes JSON, text stays text, arrays are written with the layout for PyTorch; a
    method with a parameter `state` gets it."""
    sizes = ddloco.export(model, tmp_path / "hf", tall)

    assert {p.name: p.stat().st_size for p in (tmp_path / "hf").iterdir()} == sizes
    assert json.loads((tmp_path / "hf" / "config.json").read_text()) == {"hidden": 3}
    assert (tmp_path / "hf" / "merges.txt").read_text() == "a b\n"
    tensors = load_tensors(tmp_path / "hf" / "model.safetensors")
    np.testing.assert_array_equal(tensors["weight"], TENSORS["w"].T)
    np.testing.assert_array_equal(tensors["mean"], TENSORS["state:/mean"])
    assert load_metadata(tmp_path / "hf" / "model.safetensors")["format"] == "pt"


def test_half_precision_is_kept(tmp_path):
    """bfloat16 is written as bfloat16."""
    save_tensors(tmp_path / "m", {"w": np.ones((2, 3), ml_dtypes.bfloat16)})

    class Half(Other):
        def init(self, key):
            return {"w": jnp.zeros((2, 3), jnp.bfloat16)}

        def hugging_face(self, params):
            return {"a.safetensors": params}

    ddloco.export(tmp_path / "m", tmp_path / "hf", Half)

    assert load_tensors(tmp_path / "hf" / "a.safetensors")["w"].dtype == ml_dtypes.bfloat16


def test_a_run_knows_its_task(tmp_path, monkeypatch):
    """Of a run that this user recorded, the task and its options are those of the job file; of
    another, a job file must be named, because the task is called."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "mine"))
    settings = {"task.factor": 2}
    monkeypatch.setitem(sys.modules, "tall_task", types.SimpleNamespace(tall=tall))
    job = Job(task="tall_task:tall", settings=settings).config
    folder = open_folder(tmp_path / "run", job)
    save_tensors(folder / MODEL_FILE, TENSORS)
    ddloco.export(folder, tmp_path / "hf")
    written = load_tensors(tmp_path / "hf" / "model.safetensors")["weight"]
    np.testing.assert_array_equal(written, 2 * TENSORS["w"].T)

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "others"))
    with pytest.raises(ddloco.ConfigError, match=r"was not recorded by this user.*--job"):
        ddloco.export(folder, tmp_path / "again")
    ddloco.export(folder, tmp_path / "again", job=folder / "job.toml")
    assert (tmp_path / "again" / "model.safetensors").exists()


def test_an_existing_folder_is_left_alone(model, tmp_path):
    """Only an empty folder is filled."""
    (tmp_path / "hf").mkdir()
    ddloco.export(model, tmp_path / "hf", tall)
    with pytest.raises(ddloco.ConfigError, match="hf: exists; choose a new folder"):
        ddloco.export(model, tmp_path / "hf", tall)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"../x": "a"}, "'../x' is not a file name"),
        ({"config.json": {1, 2}}, "config.json: Object of type set is not JSON serializable"),
        ({"m.safetensors": [1]}, "m.safetensors: list; want a dict of arrays by name"),
        ({"m.safetensors": {"a": object()}}, "m.safetensors: a is no array"),
        (["config.json"], "returns list; want a dict of files by name"),
        ({}, "returns dict; want a dict of files by name"),
    ],
)
def test_what_is_no_folder_is_refused(model, tmp_path, files, said):
    """In one line that names the file; and nothing is left behind."""
    with pytest.raises(ddloco.TaskError, match="hugging_face: ") as refused:
        ddloco.export(model, tmp_path / "hf", lambda: Tall(files))
    assert said in str(refused.value)
    assert {"model.safetensors"} == {path.name for path in tmp_path.iterdir()}


def test_a_task_without_the_method_is_told(model, tmp_path):
    """And a method that raises is, too."""
    save_tensors(tmp_path / "w", {"w": TENSORS["w"]})
    with pytest.raises(ddloco.TaskError, match=r"Other has no method hugging_face\(params\)"):
        ddloco.export(tmp_path / "w", tmp_path / "hf", Other)
    with pytest.raises(ddloco.ConfigError, match="belongs to no run folder here"):
        ddloco.export(model, tmp_path / "hf")

    class Failing(Other):
        def hugging_face(self, params):
            raise KeyError("q_proj")

    with pytest.raises(ddloco.TaskError, match="hugging_face failed: KeyError: 'q_proj'"):
        ddloco.export(tmp_path / "w", tmp_path / "hf", Failing)
