"""Finding the user's task, and saying in one line why it cannot be used."""

import hashlib
import sys

import pytest

from ddloco.workers.task import Task, TaskError, load_task, task_digests

SOURCE = """
class Good:
    def __init__(self, width):
        self.width = width
    def init(self, key): ...
    def loss(self, params, batch): ...
    def batches(self, *, shard, shards, seed): ...
    def tokens(self, batch): ...

class Lossless(Good):
    loss = None

class Odd(Good):
    evaluate = 3

def good(width=1): return Good(width)
def lossless(): return Lossless(1)
def odd(): return Odd(1)
class Icy(Good):
    def frozen(self): ...
def icy(): return Icy(1)
def broken(): raise RuntimeError("two\\nlines")
number = 3
"""


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A module `user_task` that can be imported, and one that cannot."""
    path = tmp_path / "user_task.py"
    path.write_text(SOURCE)
    (tmp_path / "user_wrong.py").write_text("import nothing_of_this_name")
    monkeypatch.syspath_prepend(tmp_path)
    yield path
    for name in ("user_task", "user_wrong"):
        sys.modules.pop(name, None)


def test_a_task_is_made_with_its_options(source):
    """`module:function` is imported and called with the options."""
    task = load_task("user_task:good", {"width": 7})

    assert isinstance(task, Task)
    assert task.width == 7


@pytest.mark.parametrize(
    ("spec", "options", "said"),
    [
        ("user_task", {}, "'user_task' is not of the form module:function"),
        (":good", {}, "':good' is not of the form module:function"),
        ("user_absent:good", {}, "cannot import user_absent: ModuleNotFoundError"),
        ("user_wrong:good", {}, "cannot import user_wrong: .*'nothing_of_this_name'"),
        ("user_task:absent", {}, "user_task has no function absent"),
        ("user_task:number", {}, "user_task has no function number"),
        ("user_task:good", {"depth": 1}, r"^task\.depth: .* no depth; it takes task\.width$"),
        ("user_task:broken", {}, "broken failed: RuntimeError: two lines"),
        ("user_task:lossless", {}, "Lossless has no method loss"),
        ("user_task:odd", {}, "Odd.evaluate is not a method"),
        ("user_task:icy", {}, "frozen arrays need both frozen\\(\\) and loss"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(source, spec, options, said):
    """Each mistake names the module, the function or the missing method."""
    with pytest.raises(TaskError, match=said) as caught:
        load_task(spec, options)

    assert "\n" not in str(caught.value)
    assert repr(spec) in str(caught.value)


def test_the_digest_is_that_of_the_source_file(source):
    """The digest follows the file's bytes and nothing else."""
    first = task_digests("user_task:good")
    assert {"user_task.py": hashlib.sha256(source.read_bytes()).hexdigest()} == first

    source.write_text(SOURCE + "\n")

    assert task_digests("user_task:good") != first


def test_a_module_in_folders_of_folders_has_a_digest(source):
    """None of the folders is a package, and none was imported."""
    deep = source.parent / "user_folder" / "within"
    deep.mkdir(parents=True)
    (deep / "user_deep.py").write_text(SOURCE)
    [(name, digest)] = task_digests("user_folder.within.user_deep:good").items()
    assert name == "user_folder/within/user_deep.py"
    assert [digest] == [*task_digests("user_task:good").values()]


@pytest.mark.parametrize("name", ["user_absent", "user_absent.child", "sys"])
def test_a_module_without_source_has_no_digest(name):
    """What cannot be read cannot be digested."""
    with pytest.raises(TaskError, match=name):
        task_digests(f"{name}:task")
