"""The job file: what is wrong is said in one line, what is right is written out and read back."""

import string
import tomllib
from pathlib import Path

import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from ddloco.job.config import (
    PRESETS,
    USUAL,
    Compress,
    Job,
    LearnerTable,
    Outer,
    SyncTable,
    Worker,
    job_from,
    load_job,
    load_launch,
)
from ddloco.job.protocol.fragment_plan import Leaf
from ddloco.stage.files.toml import ConfigError
from transport.message import TENSORS_MAX as MOST

MINIMAL = '[job]\ntask = "tiny:Task"\n'

FULL = """
[job]
task = "examples/tiny_gpt.py:TinyGPT"
name = "my-job_1.0"
seed = 7
steps = 20
learners = 4
method = "decoupled-diloco"

[task]
width = 32
name = "ü"
layers = [1, 2, 3]
rate = 0.5
deep = { nested = true }

[sync]
fragments = 4
interval = 8
overlap = 3
quorum = 2
grace = 0.25
grace_steps_max = 2.5
fragmentation = "layer"

[inner]
optimizer = "sgd"
lr = 0.1

[outer]
merge = "average"
average = ["a*", "b"]

[transport]
kind = "tcp"
insecure = true

[tape]
level = "off"
on_error = "drop"

[worker]
threads = 2
env = { XLA_FLAGS = "--x" }

[chaos]
seed = 5
fault = [{what = "crash", who = "learner-1", at_s = 3.0}]
storm = [{what = ["stall"], every_s = 5.0}]

[learner.learner-1]
factor = 2.0
shard = 0
threads = 8
env = { A = "1" }

[learner.learner-3]
"""


@pytest.fixture
def path(tmp_path):
    """Give the path of the job file."""
    return tmp_path / "job.toml"


def refusal(path, text, *overrides):
    """Give the one line with which a job file is refused."""
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_job(path, overrides)
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_only_the_task_has_to_be_said(path):
    """Everything else has a default."""
    path.write_text(MINIMAL)
    job = load_job(path)

    assert (job.job.task, job.job.learners, job.sync.fragments) == ("tiny:Task", 3, 24)
    assert job.learner_names() == ("learner-0", "learner-1", "learner-2")
    assert job == job_from({"job": {"task": "tiny:Task"}}, "here")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("color = 1", "job.color|unknown key `color`"),
        ("steps = '5'", "job.steps: Expected `int`, got `str`"),
        ("steps = 1.5", "job.steps: Expected `int`, got `float`"),
        ("steps = true", "job.steps: Expected `int`, got `bool`"),
        ("steps = 0", "job.steps: Expected `int` >= 1"),
        ("seed = -1", "job.seed: Expected `int` >= 0"),
        ("seed = 9223372036854775808", "job.seed: Expected `int` <= 9223372036854775807"),
        ("learners = 0", "job.learners: "),
        ("learners = 4097", "job.learners: "),
        ("syncers = 65", "job.syncers: "),
        ("syncers = 25", "job.syncers: 25 shards of 24 fragments"),
        ("syncers = 2\nmethod = 'data-parallel'", "job.syncers: a data-parallel job has one"),
        ("shards = 2", "job.shards: 2 parts of the data for up to 3 learners; each draws from at"),
        ("shards = 4097", "job.shards: "),
        ("shards = 3\nmethod = 'data-parallel'", "job.shards: a data-parallel job has a part of"),
        ("shards = 3\n[learner.learner-0]\nshard = 1", "learner.learner-0.shard: with job.shards"),
        ("[elastic]\ngone_s = 9.0", "elastic.gone_s: without job.shards each learner has its part"),
        ("tokens = 9\nmethod = 'data-parallel'", "job.tokens: a data-parallel job ends by"),
        ("tokens = 9\n[inner]\nschedule = 'linear'", "inner.schedule: follows job.steps"),
        ("tokens = 0", "job.tokens"),
        ("name = ''", "job.name: "),
        ("name = 'a b'", "job.name: want letters, digits,"),
        ("name = 'a/b'", 'job.name: want letters, digits, "-", "_" and ".", not beginning with'),
        ("name = '../x'", "job.name: "),
        ('name = "a\\n"', "job.name: "),
        (f"name = '{'x' * 65}'", "job.name: "),
        ("method = 'magic'", "job.method: Invalid enum value 'magic'"),
        ("[extra]\nx = 1", "unknown key `extra`"),
        ("[sync]\nquorums = 1", "sync: unknown key `quorums`"),
        ("[sync]\nfragments = 0", "sync.fragments: "),
        ("[sync]\ngrace = 1.0", "sync.grace: Expected `float` < 1.0"),
        ("[sync]\ngrace = nan", "sync.grace: "),
        ("[sync]\nfragmentation = 'x'", "sync.fragmentation: Invalid enum value 'x'"),
        ("[sync]\nquorum = [1]", "sync.quorum: Expected `int`, got `array`"),
        ("[inner]\nlr = 0.0", "inner.lr: Expected `float` > 0.0"),
        ("[inner]\nlr = nan", "inner.lr: "),
        ("[inner]\noptimizer = 'x'", "inner.optimizer: "),
        ("[outer]\nmomentum = 1.0", "outer.momentum: "),
        ("[outer]\naverage = 'x'", "outer.average: Expected `array`, got `str`"),
        ("[outer]\naverage = [1]", r"outer.average[0]: Expected `str`, got `int`"),
        ("[compress]\nup = 'int5'", "compress.up: Invalid enum value 'int5'"),
        ("[compress]\nfeedback = true", 'compress.feedback: with compress.up = "float32"'),
        ("[transport]\nkind = 'pigeon'", "transport.kind: "),
        ("[tape]\non_error = 'cry'", "tape.on_error: "),
        ("[worker]\nthreads = 0", "worker.threads: "),
        ("[worker]\nenv = { A = true }", "worker.env"),
        ("[learner]\nlearner-0 = 1", "learner"),
        ("[learner.learner-0]\nfactor = 0.5", "learner[...].factor: Expected `float` >= 1.0"),
        ("[learner.learner-0]\nspeed = 1", "unknown key `speed`"),
        ("[sync]\nfragments = 9\ninterval = 8", "sync.fragments: 9 fragments in an interval of 8"),
        ("[sync]\nquorum = 4", "sync.quorum: a quorum of 4 of 3 learners can never be met"),
        ("[sync]\noverlap = 24", "sync.overlap: 24 steps of overlap in an interval of 24"),
        ("[sync]\nfragments = 2\ninterval = 2\noverlap = 3", "sync.overlap: 3 steps"),
        ("[learner.learner-3]", "learner.learner-3: no such learner; this job has learner-0 to"),
        ("[learner.nobody]", "learner.nobody: no such learner"),
        (
            '[relay.site]\nlearners = ["learner-0"]',
            'relay.site: want "relay-" with a letter or digit after it',
        ),
        ("[relay.relay-0]\nlearners = []", "relay[...].learners: Expected `array` of length >= 1"),
        (
            '[relay.relay-0]\nlearners = ["learner-9"]',
            "relay.relay-0: no learner learner-9; this job",
        ),
        (
            '[relay.relay-0]\nlearners = ["learner-1"]\n[relay.relay-1]\nlearners = ["learner-1"]',
            "relay.relay-1: learner-1 has the relay relay-0 already",
        ),
        (
            '[outer]\nmerge = "median"\n[relay.relay-0]\nlearners = ["learner-0"]',
            "relay: a median of sums is not one of contributions; want another outer.merge",
        ),
        (
            'method = "fedavg"\n[relay.relay-0]\nlearners = ["learner-0"]',
            "relay: learners of a fedavg job wait for each other; want none",
        ),
        ("[learner.learner-0]\nlocal_steps = 4", "learner.learner-0.local_steps: of method = "),
        (
            'method = "fedavg"\n[learner.learner-0]\nlocal_steps = 25',
            "learner.learner-0.local_steps: 25; a round has 24 steps, the most",
        ),
        ("[learner.learner-0]\nshard = 3", "learner.learner-0.shard: 3 is not one of 0 to 2"),
    ],
)
def test_a_bad_field_is_named_with_its_file(path, more, says):
    """One line: the file, the field, and what is wrong with it."""
    line = refusal(path, MINIMAL + more)

    assert line.startswith(f"{path}: ")
    assert any(each in line for each in says.split("|")), line


def test_options_are_ordered_as_a_tape_orders_them(path):
    """Machines hold the job, and their states are compared by their bytes."""
    path.write_text(
        '[job]\ntask = "tiny:Task"\n[task]\nwide = 2\ndeep = [{b = 1, a = 2}]\n'
        "[learner.learner-2]\nshard = 1\n[learner.learner-1]\nshard = 0\n"
    )
    job = load_job(path)
    assert list(job.task) == ["deep", "wide"]
    assert list(job.task["deep"][0]) == ["a", "b"]
    assert list(job.learner) == ["learner-1", "learner-2"]


def test_a_missing_task_is_named(path):
    """A job without a task, or without its table, says which key is missing; an empty file, what
    writes one."""
    assert refusal(path, "") == f"{path}: is empty; ddloco init writes a job file to begin with"
    assert refusal(path, "[sync]\nquorum = 1") == f"{path}: missing key `job`"
    assert refusal(path, "[job]\nsteps = 3") == f"{path}: job: missing key `task`"


@pytest.mark.parametrize("text", ["[job", "task = ", "a = 1\na = 2", '[job]\ntask = "\x00"'])
def test_what_is_not_toml_is_named(path, text):
    """A syntax error says the file and the place."""
    assert refusal(path, text).startswith(f"{path}: not TOML: ")


def test_a_file_that_cannot_be_read_is_named(path, tmp_path):
    """Missing files, folders and other people's bytes are refused by name."""
    with pytest.raises(ConfigError, match=r"job\.toml: cannot be read: No such file"):
        load_job(path)
    with pytest.raises(ConfigError, match="cannot be read: is a folder"):
        load_job(tmp_path)
    path.write_bytes(b'[job]\ntask = "\xff\xfe"')
    with pytest.raises(ConfigError, match=r"job\.toml: not TOML: "):
        load_job(path)


def test_one_step_intervals_may_overlap():
    """With an interval of one step the overlap of one step is the only one there is."""
    job = job_from(
        {"job": {"task": "x"}, "sync": {"fragments": 1, "interval": 1, "overlap": 1}}, ""
    )

    assert job.sync.overlap == 1


# Overrides.


def test_overrides_replace_and_add_fields(path):
    """Numbers, lists, bare words and new tables may be set from the command line."""
    path.write_text(MINIMAL + "steps = 5\n")

    job = load_job(
        path,
        [
            "job.steps=9",
            "sync.quorum = 2",
            "job.method=data-parallel",
            'job.name="quoted"',
            "outer.average=['a', 'b']",
            "task.width=16",
            "learner.learner-1.factor=1.5",
            "worker.env.XLA_FLAGS=--a=b",
            "job.steps=11",
        ],
    )

    assert (job.job.steps, job.sync.quorum, job.job.method) == (11, 2, "data-parallel")
    assert (job.job.name, job.outer.average, job.task) == ("quoted", ("a", "b"), {"width": 16})
    assert job.learner_table("learner-1").factor == 1.5
    assert job.worker.env == {"XLA_FLAGS": "--a=b"}


def test_data_parallel_jobs_are_not_compressed(path):
    """They send whole gradients, which have no version to be a difference to."""
    said = refusal(path, MINIMAL + "method = 'data-parallel'\n[compress]\nup = 'int4'")
    assert "compress: data-parallel jobs send whole gradients" in said


def test_a_table_that_says_nothing_leaves_the_id_alone(path):
    """A table that came after the first tapes is part of the id only where it changes something."""
    ids = set()
    for more in ("", "\n[compress]", "\n[compress]\nup = 'float32'", "\n[compress]\nup = 'int8'"):
        path.write_text(MINIMAL + more)
        ids.add(load_job(path).id)
    assert len(ids) == 2


@pytest.mark.parametrize("override", ["", "quorum", "quorum=2", "sync.quorum", "=2", "sync.=2"])
def test_an_override_that_is_none_is_named(path, override):
    """What is no section.key=value is shown with an example."""
    line = refusal(path, MINIMAL, override)

    assert line == f"--set {override}: want section.key=value, such as sync.quorum=2"


def test_an_override_of_no_table_is_named(path):
    """A key below a value, not a table, cannot be set."""
    assert refusal(path, MINIMAL, "job.task.x=1") == "--set job.task.x=1: task is not a table"


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("sync.quorum=9", "sync.quorum: a quorum of 9"),
        ("sync.quorum=two", "sync.quorum: Expected `int`, got `str`"),
        ("sync.nothing=1", "sync: unknown key `nothing`"),
        ("nothing.x=1", "unknown key `nothing`"),
    ],
)
def test_an_override_is_checked_as_the_file_is(path, override, says):
    """A bad value from the command line is a bad field."""
    assert says in refusal(path, MINIMAL, override)


@pytest.mark.parametrize(
    ("more", "overrides", "said"),
    [
        ("", ["job.steps=abc"], "--set job.steps=abc: job.steps: Expected `int`, got `str`"),
        ("", ["job.stepz=3"], "--set job.stepz=3: job: unknown key `stepz`; did you mean"),
        ("", ["job.seed=1", "sync.quorum=9", "job.steps=3"], "--set sync.quorum=9: sync.quorum: a"),
        ("", ["learner.learner-1.factor=x"], "--set learner.learner-1.factor=x: learner[...]"),
        ("steps = 'abc'", ["job.seed=1"], "{path}: job.steps: Expected `int`, got `str`"),
        ("steps = 'abc'", ["sync.quorum=x"], "{path}: job.steps: Expected `int`, got `str`"),
    ],
)
def test_the_line_names_what_a_bad_value_came_from(path, more, overrides, said):
    """The override on the command line if that is what is wrong, and else the file."""
    assert refusal(path, MINIMAL + more, *overrides).startswith(said.format(path=path))


# The resolved job.


def test_the_resolved_job_is_written_and_read_back(path):
    """What ``as_plain`` gives is TOML, and the same job with the same id."""
    path.write_text(FULL)
    job = load_job(path)

    text = tomli_w.dumps(job.as_plain())
    path.write_text(text)
    again = load_job(path)

    assert again == job
    assert again.id == job.id
    assert job_from(tomllib.loads(text), "") == job
    assert tomllib.loads(text)["learner"]["learner-3"] == {"factor": 1.0, "env": {}}


plain_st = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text("aü\n"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab."), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text(string.ascii_letters, min_size=1), plain_st, max_size=3))
def test_whatever_a_task_is_given_comes_back(task):
    """The task's own table survives the round trip, whatever TOML values are in it."""
    job = job_from({"job": {"task": "x"}, "task": task}, "")

    again = job_from(tomllib.loads(tomli_w.dumps(job.as_plain())), "")

    assert again == job
    assert again.task == task


def leaves_of(plain, path=()):
    """Give every path to a value of a plain job."""
    for key, value in plain.items():
        if isinstance(value, dict) and value:
            yield from leaves_of(value, (*path, key))
        else:
            yield (*path, key)


def changed(value):
    """Give another value that is as good, as far as a field can be good by itself."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case float():
            return value * 0.5 if 0 < value < 1 else value + 1.0
        case list():
            return [*value, value[0]]
        case dict():
            return {"NEW": "1"}
        case _:
            return CHOICES.get(value, f"{value}x")


CHOICES = {
    "decoupled-diloco": "data-parallel",
    "layer": "tensor",
    "sgd": "adam",
    "average": "rda",
    "tcp": "ipc",
    "unmerged": "fresh",
    "off": "events",
    "drop": "stop",
}


def test_the_id_changes_with_any_field():
    """No two different jobs have one id; ``syncers`` has but one value, ``keys`` is the host's, and
    ``tape.keep`` and some of ``[outer]`` want other keys, too."""
    plain = job_from(tomllib.loads(FULL), "").as_plain()
    ids = {job_from(plain, "").id}
    left_out = {("job", "syncers"), ("transport", "keys"), ("tape", "keep")}
    left_out |= {("outer", key) for key in ("preset", "optimizer", "b1", "b2", "eps")}
    paths = [path for path in leaves_of(plain) if path not in left_out]

    for path in paths:
        copy = tomllib.loads(tomli_w.dumps(plain))
        table = copy
        for key in path[:-1]:
            table = table[key]
        table[path[-1]] = changed(table[path[-1]])
        ids.add(job_from(copy, ".".join(path)).id)

    assert len(ids) == len(paths) + 1
    assert len(paths) > 40


def test_the_id_does_not_depend_on_the_order_of_the_file():
    """Tables and keys in another order are the same job; the id begins with its name."""
    plain = tomllib.loads(FULL)
    turned = {table: dict(reversed(content.items())) for table, content in reversed(plain.items())}

    assert job_from(plain, "").id == job_from(turned, "").id
    assert job_from(plain, "").id.startswith("my-job_1.0-")


# What the job answers.


def test_a_learner_has_its_own_shard_and_environment():
    """A learner's table adds to the common ones; the number in its name is its shard."""
    job = job_from(tomllib.loads(FULL), "")

    assert [job.shard(name) for name in job.learner_names()] == [0, 0, 2, 3]
    assert job.worker_of("learner-0") == Worker(2, {"XLA_FLAGS": "--x"})
    assert job.worker_of("learner-1") == Worker(8, {"XLA_FLAGS": "--x", "A": "1"})
    assert job.worker_of("syncer") == Worker(2, {"XLA_FLAGS": "--x"})


def test_a_worker_has_all_settings_of_all_workers():
    """But those that a learner may have of its own."""
    others = {"nice": 3, "retry_s": 7.0, "stall_s": 9.0, "check_every": 4, "together_s": 0.0}
    job = job_from({"job": {"task": "a:b"}, "worker": {"threads": 2, **others}}, "test")
    assert job.worker_of("learner-0") == job.worker
    assert job.learner_table("learner-2") == LearnerTable()


@pytest.mark.parametrize(
    ("method", "leaves", "said"),
    [
        ("data-parallel", [("w%d", (4,))] * (MOST + 1), f"{MOST + 1} tensors, a message has at"),
        ("elastic-data-parallel", [("w%d", (2**31,))] * 2, "bytes, a message has at most"),
        ("decoupled-diloco", [("w%d", (4,))] * (2 * MOST + 2), f"at most {MOST}; raise sync.frag"),
        ("fedavg", [("w%d", (4,))] * (MOST + 1), "a fedavg job sends all tensors at once: use"),
        ("data-parallel", [("w%d" + "x" * 300, (4,))] * 4000, "make a header of"),
        ("data-parallel", [("w%d" + "x" * 600, (4,))], "at most 512 and 16"),
        ("data-parallel", [("w%d", (1,) * 17)], "at most 512 and 16"),
    ],
)
def test_what_fits_no_message_is_told_before_anything_is_sent(method, leaves, said):
    """Else each message would break its link, and the next one again, without end."""
    table = {"fragments": 2, "interval": 4} if method == "decoupled-diloco" else {}
    job = job_from({"job": {"task": "a:b", "method": method}, "sync": table}, "test")
    named = [Leaf(name % n, shape, "float32") for n, (name, shape) in enumerate(leaves)]
    with pytest.raises(ValueError, match=r"fragment 0 of [12]: ") as refused:
        job.sendable_plan(named)
    assert said in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
    few = [Leaf("a", (4,), "float32"), Leaf("b", (4,), "float32")]
    assert job.plan(few) == job.sendable_plan(few)


def test_the_agreement_names_job_and_plan():
    """Two sides share an agreement if and only if job and fragment plan are the same."""
    leaves = [Leaf(f"w{i}", (4, 4), "float32") for i in range(8)]
    one, other = (job_from({"job": {"task": "x", "seed": seed}}, "") for seed in (0, 1))

    agreement = one.agreement(one.plan(leaves))

    assert agreement == one.agreement(one.plan(leaves[::-1]))
    assert agreement["job"] == one.id
    assert agreement["job"] != other.agreement(other.plan(leaves))["job"]
    fewer = one.agreement(one.plan(leaves[1:]))
    assert agreement["fragment plan"] != fewer["fragment plan"]


def test_a_job_is_frozen():
    """A resolved job cannot be changed."""
    job = job_from({"job": {"task": "x"}}, "")

    assert isinstance(job, Job)
    with pytest.raises(AttributeError):
        job.sync = None


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_of_the_outer_step_is_taken_by_name(name):
    """It fills in what is left out; a resolved job, which has both, is read again; another value
    is refused with a line that names it."""
    plain = {"job": {"task": "tests.tasks:regression"}, "outer": {"preset": name}}
    job = job_from(plain, "job.toml")
    assert PRESETS[name] == {key: getattr(job.outer, key) for key in PRESETS[name]}
    again = job_from({**plain, "outer": {"preset": name, **PRESETS[name]}}, "job.toml")
    assert again == job
    with pytest.raises(ConfigError, match=r"job.toml: outer.momentum: 0.5, and outer.preset"):
        job_from({**plain, "outer": {"preset": name, "momentum": 0.5}}, "job.toml")


def test_the_default_outer_step_is_that_of_the_examples():
    """Whoever writes no [outer] gets what the sweep supports, as all examples and templates do."""
    outer = job_from({"job": {"task": "tests.tasks:regression"}}, "job.toml").outer
    for file in (Path(__file__).parents[3] / "examples").glob("*.toml"):
        table = tomllib.loads(file.read_text()).get("outer", {})
        assert table.get("lr", outer.lr) == outer.lr, file
        assert table.get("momentum", outer.momentum) == outer.momentum, file


@pytest.mark.parametrize(
    ("optimizer", "lr", "own"),
    [("nesterov", 0.7, {"momentum"}), ("sgd", 1.0, set()), ("adam", 0.003, {"b1", "b2", "eps"})],
)
def test_an_outer_optimizer_has_its_own_settings(optimizer, lr, own):
    """Its learning rate where none is set; a setting that only another one has is refused."""
    plain = {"job": {"task": "tests.tasks:regression"}}
    job = job_from({**plain, "outer": {"optimizer": optimizer}}, "job.toml")
    assert lr == job.outer.lr
    assert job == job_from(job.as_plain(), "job.toml"), "a resolved job is read again"
    given = job_from({**plain, "outer": {"optimizer": optimizer, "lr": 0.3}}, "job.toml")
    assert given.outer.lr == 0.3
    for name in ("momentum", "b1", "b2", "eps"):
        outer = {"outer": {"optimizer": optimizer, name: 0.5}}
        if name in own:
            assert job.id != job_from({**plain, **outer}, "job.toml").id
            continue
        said = f'job.toml: outer.{name}: 0.5, and outer.optimizer = "{optimizer}" has none; leave'
        with pytest.raises(ConfigError, match=said):
            job_from({**plain, **outer}, "job.toml")


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_says_which_outer_optimizer(name):
    """The publications that presets are named for took Nesterov steps."""
    plain = {"job": {"task": "x"}, "outer": {"preset": name, "optimizer": "adam"}}
    said = f'outer.optimizer: adam, and outer.preset = "{name}" means nesterov'
    with pytest.raises(ConfigError, match=said):
        job_from(plain, "job.toml")


def test_launch_is_no_part_of_the_job(tmp_path):
    """What an engine is told changes neither the job's id nor what is recorded."""
    (tmp_path / "job.toml").write_text('[job]\ntask = "a:b"\n')
    plain = load_job(tmp_path / "job.toml")
    (tmp_path / "job.toml").write_text(
        '[job]\ntask = "a:b"\n[launch.slurm]\nsbatch = ["--partition=gpu"]\n'
    )
    told = load_job(tmp_path / "job.toml")

    assert told == plain
    assert told.id == plain.id
    assert "launch" not in told.as_plain()
    assert load_launch(tmp_path / "job.toml").slurm.sbatch == ("--partition=gpu",)
    override = "--set launch.slurm.sbatch=1"
    with pytest.raises(ConfigError, match=override):
        load_job(tmp_path / "job.toml", ["launch.slurm.sbatch=1"])


@pytest.mark.parametrize("method", USUAL)
def test_a_resolved_job_of_a_method_is_read_as_it_is(method):
    """Also where a job sets a key of the method to the schema's default, which is left out of the
    plain data of other jobs: a tape's header is that data."""
    chosen = {
        table: {key: getattr(own(), key) for key in USUAL[method].get(table, {})}
        for table, own in (("sync", SyncTable), ("outer", Outer), ("compress", Compress))
    }
    chosen["outer"].pop("preset", None)
    for more in ({}, chosen):
        job = job_from({"job": {"task": "a:b", "method": method}, **more}, "test")
        assert job == job_from(job.as_plain(), "again")
        for table, keys in more.items():
            for key, value in keys.items():
                assert value == getattr(getattr(job, table), key), key


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "db_password", "OPENAI_APIKEY"],
)
@pytest.mark.parametrize("where", ["worker", "learner.learner-1"])
def test_secrets_are_refused_where_they_would_be_on_tapes(name, where):
    """With what to do instead; the value is not said."""
    env = {"env": {name: "hf_abc"}}
    table = {"worker": env} if where == "worker" else {"learner": {"learner-1": env}}
    with pytest.raises(ConfigError, match=rf"{where}\.env\.{name}: a secret would be in") as found:
        job_from({"job": {"task": "x:y"}, **table}, "test")
    assert "hf_abc" not in str(found.value)


@pytest.mark.parametrize(
    "name", ["TOKENIZERS_PARALLELISM", "HF_TOKEN_PATH", "MAX_TOKENS", "KEYBOARD", "XLA_FLAGS"]
)
def test_what_is_no_secret_is_not_taken_for_one(name):
    """A name that has the word somewhere else."""
    plain = {"job": {"task": "x:y"}, "worker": {"env": {name: "1"}}}
    assert job_from(plain, "test").worker.env == {name: "1"}
