"""Calls in a user's source that no event explains: each kind is named, and what is sound is not."""

from pathlib import Path

import pytest

from ddloco.debugger.nondeterminism import sources_of, uses_in

EXAMPLES = Path(__file__).parents[3] / "examples"

USES = [
    ("import time\nnow = time.time()", "time.time(), a clock"),
    ("from time import perf_counter as tick\nnow = tick()", "time.perf_counter(), a clock"),
    ("from datetime import datetime\nx = datetime.now()", "datetime.datetime.now(), a clock"),
    ("import random\nx = random.random()", "random.random(), a random number"),
    ("from random import shuffle\nshuffle([1, 2])", "random.shuffle(), a random number"),
    ("import numpy as np\nx = np.random.normal()", "numpy.random.normal(), a random number"),
    (
        "import numpy as np\nrng = np.random.default_rng()",
        "numpy.random.default_rng() without a seed, a random number",
    ),
    ("import uuid\nx = uuid.uuid4()", "uuid.uuid4(), a random number"),
    ("import os\nx = os.environ['A']", "os.environ, the environment"),
    ("import os\nx = os.environ.get('A')", "os.environ.get(), the environment"),
    ("import os\nx = os.getenv('A')", "os.getenv(), the environment"),
    ("import os\nfor x in os.listdir('.'): pass", "os.listdir(), the order of a folder"),
    ("import os\nx = os.stat('a').st_mtime", "os.stat(), a file"),
    ("x = open('a').read()", "open(), a file"),
    ("x = id(x)", "id(), an address in memory"),
    ("for x in {'a', 'b'}: pass", "the order of a set, which strings have anew in each process"),
    ("x = list(set(y))", "the order of a set, which strings have anew in each process"),
    ("x = [a for a in set(y)]", "the order of a set, which strings have anew in each process"),
]


@pytest.mark.parametrize(("text", "said"), USES)
def test_a_use_is_named(text, said):
    """With its file and line."""
    [found] = uses_in({"acts.py": text})
    assert str(found) == f"acts.py:{found.line}: {said}"
    assert found.line == len(text.splitlines())


def test_where_it_is_used_is_named():
    """The class and the method."""
    text = "import time\nclass A:\n    def on_item(self):\n        return time.time()"
    [found] = uses_in({"acts.py": text})
    assert (found.function, found.line) == ("A.on_item", 4)
    assert str(found).endswith(" in A.on_item")


@pytest.mark.parametrize(
    "text",
    [
        "import numpy as np\nrng = np.random.default_rng([1, 2])\nx = rng.normal()",
        "import numpy as np\nrng = np.random.Generator(np.random.Philox(7))",
        "import random\nrng = random.Random(4)\nx = rng.random()",
        "from jax import random\nx = random.normal(key)",
        "import time\ntime.sleep(1)",
        "def time(): pass\ntime()",
        "x = sorted({'a', 'b'})",
        "x = len(set(y)), max({1, 2}), 3 in {3}",
        "self.id(x), self.open(y)",
        "no python at all (",
        "",
    ],
)
def test_what_is_sound_is_not(text):
    """Seeded generators, names of other modules, orders that make no difference."""
    assert uses_in({"acts.py": text}) == []


def test_the_examples_are_quiet():
    """Where they use such a call, it is for files of data, or for a figure that people read."""
    texts = {each.name: each.read_text() for each in EXAMPLES.glob("*.py")}
    kinds = {(use.file, use.of) for use in uses_in(texts)}
    assert kinds <= {("tiny_gpt.py", "a clock")}, kinds


def test_the_sources_of_a_run_are_those_that_it_keeps(tmp_path):
    """None, if it keeps none, or is damaged."""
    assert sources_of(tmp_path) == {}
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "task.py").write_text("import time\n")
    assert sources_of(tmp_path) == {}
    (tmp_path / "job.toml").write_text('[job]\ntask = "task:task"\n')
    assert sources_of(tmp_path) == {"task.py": "import time\n"}
    (tmp_path / "job.toml").write_text("[job")
    assert sources_of(tmp_path) == {}
