"""Reading a snapshot back: arrays as they were held, and who is past, present, or not there."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

from ddloco.api.launch import LaunchTerms, prepare_job
from ddloco.job.config import Outer, job_from
from ddloco.job.protocol.events import Started
from ddloco.job.protocol.fragment_plan import Leaf, make_plan
from ddloco.job.protocol.messages import GlobalFragment
from ddloco.job.protocol.work import CopyState, Recovered, RunStep, StepFinished
from ddloco.machines.learner.machine import Learner
from ddloco.machines.outer.optimizers.optimizer import STEPS, state_digest
from ddloco.machines.syncer.machine import Syncer
from ddloco.roles.job_program import program_of
from ddloco.roles.resume import (
    JobStart,
    begins_anew,
    check_start_point,
    other_settings,
    place_said,
    plan_difference,
    refuse_without_learners,
    steps_under_way,
    stored_from,
)
from ddloco.stage.actors.actor import new_actor
from ddloco.stage.arrays.array_table import ArrayTable, HostCopy
from ddloco.stage.arrays.shared_memory import SharedMemory
from ddloco.stage.driver.resume import StartPoint, passed, payload_from, place_and_id
from ddloco.stage.driver.snapshot_sink import StoreSink
from ddloco.stage.driver.snapshot_writer import FROZEN, payload_tensors
from ddloco.stage.files.run_folder import open_folder, run_of
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.nodes.node import sink_of
from ddloco.workers import rpc
from ddloco.workers.process import WorkerRequestError
from ddloco.workers.snapshot_work import LAST, STATE, leaf_tensors, state_tensors
from snapshot import Entry, Part, SnapshotError, Store, write_state
from transport import BULK, MessageArrived, Payload, describe

WHO = "learner-0.2"
TRAINED = rpc.Trained(0.5, 8, b"batch")
LEAVES = (Leaf("w", (2, 3), "float32"), Leaf("b", (4,), "float32"))
JOB = job_from({"job": {"task": "none:none"}}, "test")
PLAN = make_plan(LEAVES, fragments=1, interval=1, strategy="tensor")
MESSAGE = MessageArrived("syncer", BULK, "syncer.1", 2, 5, {"syncer.1": 9},
                         GlobalFragment(0, 3), b"0" * 16, "in/8")  # fmt: skip


LAYERS = tuple(Leaf(f"l/{n}/a", (2, 3), "float32") for n in range(6))


def plan_of(leaves=LAYERS, fragments=3, interval=4, strategy="layer"):
    """A plan of six layers; each test changes one thing about it."""
    return make_plan(leaves, fragments=fragments, interval=interval, strategy=strategy)


def payload():
    """Tensors of two kinds, in an order that is not that of their names."""
    layout = (("w", (2,), "float32"), ("b", (3,), "uint8"))
    data = np.zeros(128, np.uint8)
    data[:8], data[64:67] = range(8), range(3)
    return Payload(describe(data, layout), data)


class Place:
    """A store, and what one learner writes to it."""

    def __init__(self, folder):
        self.folder = folder
        self.store = Store(folder)
        self.sink = StoreSink(self.store, {})
        self.actor = new_actor(WHO, Learner(JOB))
        self.actor.clock.number = 7

    def piece(self, kind, data, *more):
        """What lists frozen bytes, and more."""
        blob = self.sink.write_bytes(data)
        return self.sink.write_piece([Entry(kind, FROZEN, blob.digest, blob.size), *more])

    def entry(self, kind, name, tensors):
        """A blob of tensors."""
        blob = self.sink.write_tensors(tensors)
        return Entry(kind, name, blob.digest, blob.size)

    def commit(self, *contents):
        """A snapshot of that one learner."""
        n = self.actor.clock.number
        clock = {WHO: n, "syncer.1": 12}
        self.sink.commit(f"{WHO}:{n}", [Part(WHO, n, clock, (), {}, contents)], {})

    def whole(self):
        """One with a worker, an array, and a message in flight."""
        worker = self.entry("worker", STATE, {STATE: np.arange(8, dtype=np.uint8)})
        last = self.sink.write_bytes(rpc.encode(TRAINED))
        last = Entry("worker", LAST, last.digest, last.size)
        host = self.entry("array", "host/4", {STATE: np.ones(4, np.uint8)})
        brought = self.entry("array", "in/8", payload_tensors(payload()))
        self.commit(
            self.piece("flight", write_state([MESSAGE]), brought),
            self.piece("state", self.actor.write(), host, worker, last),
        )


@pytest.fixture
def place(tmp_path):
    """Nothing is there yet."""
    return Place(tmp_path / "place")


@pytest.fixture
def arrays():
    """Arrays in an arena."""
    arena = SharedMemory()
    yield ArrayTable(arena)
    arena.close()


def test_a_payload_comes_back_to_the_byte():
    """Names, shapes, digests, and their order, which the names alone would not give."""
    before = payload()
    after = payload_from(payload_tensors(before))
    assert before.tensors == after.tensors
    assert before.data.tobytes() == after.data.tobytes()
    assert before.digest == after.digest


def test_arrays_come_back_as_they_were_held(arrays):
    """Host copies in shared memory, payloads, and fragments in one piece."""
    data = np.arange(16, dtype=np.uint8)
    host = stored_from({STATE: data}, PLAN, "host/4", arrays, Outer())
    assert isinstance(host, HostCopy)
    assert data.tolist() == host.region.data.tolist()
    flat = np.arange(10, dtype=np.float32)
    theta = stored_from(leaf_tensors(PLAN, "theta/0/3", flat), PLAN, "theta/0/3", arrays, Outer())
    assert flat.tobytes() == theta.tobytes()
    assert isinstance(
        stored_from(payload_tensors(payload()), PLAN, "in/9", arrays, Outer()), Payload
    )


@pytest.mark.parametrize("names", [("0/w", "1/w"), ("0000/a", "0001/b"), (STATE,), ("parameters",)])
@pytest.mark.parametrize("handle", ["theta/0/3", "error/0/7"])
def test_any_name_of_a_tensor_comes_back(arrays, names, handle):
    """What an array is stands in its handle: a list of layers has names like those of payloads,
    and one tensor may be named like a worker's state."""
    leaves = tuple(Leaf(name, (4,), "float32") for name in names)
    plan = make_plan(leaves, fragments=1, interval=1, strategy="balanced")
    flat = np.arange(4 * len(names), dtype=np.float32)
    back = stored_from(leaf_tensors(plan, handle, flat), plan, handle, arrays, Outer())
    assert back.tobytes() == flat.tobytes()
    state = {"mean": flat, "variance": flat + 1, STEPS: np.array([3])}
    adam, handle = Outer(optimizer="adam"), "outer/0/3"
    again = stored_from(state_tensors(plan, handle, state), plan, handle, arrays, adam)
    assert state_digest(state) == state_digest(again)


@pytest.mark.parametrize(
    ("handle", "said"),
    [
        ("theta", "its fragment is '', of 1"),
        ("theta/x/3", "its fragment is 'x', of 1"),
        ("theta/1/3", "its fragment is '1', of 1"),
        ("outer/-1/3", "its fragment is '-1', of 1"),
        ("error/" + "9" * 5000, "its fragment is '999999999', of 1"),
        ("host/4/7", "its fragment is '7', of 1"),
        ("theta/0/3", "it lacks the tensor 'b'"),
        ("outer/0/3", "it lacks the tensor 'momentum/b'"),
        ("outer/0/4", "its steps are no count"),
        ("outer/0/5", "its steps are no count"),
        ("own", "it lacks the tensor 'parameters and optimizer'"),
    ],
    ids=lambda each: each[:12],
)
def test_an_array_that_is_of_no_fragment_is_one_line(arrays, handle, said):
    """A manifest may name anything; the line names the array, and no more of it than fits."""
    tensors = {"w": np.zeros(6, np.float32), STEPS: np.zeros(1, np.int64)}
    if handle in {"outer/0/4", "outer/0/5"}:
        whole = {"momentum": np.zeros(10, np.float32), STEPS: np.full(1, -1, np.int64)}
        tensors = state_tensors(PLAN, handle, whole)
    if handle == "outer/0/5":
        tensors[STEPS] = np.zeros(2, np.int64)
    if handle.startswith("host"):
        tensors = {STATE: np.zeros(8, np.uint8)}
    said = said.replace("parameters and optimizer", STATE)
    with pytest.raises(WorkerRequestError, match=re.escape(said)) as error:
        stored_from(tensors, PLAN, handle, arrays, Outer())
    assert len(str(error.value)) < 200
    assert handle[:80] in str(error.value)


def test_a_snapshot_is_read_back(place):
    """Each participant with actor, arrays, worker and messages in flight."""
    place.whole()
    start_point = program_of(JOB).restored(place.folder, f"{WHO}:7")
    start = start_point.starts[WHO]
    assert (f"{WHO}-7", 7) == (start_point.snapshot, start.part.number)
    assert WHO == start.actor.incarnation
    assert list(range(8)) == start.worker.tolist()
    assert ["host/4"] == list(start.arrays)
    assert [MESSAGE] == start.flight
    assert payload().digest == start.payload(MESSAGE).digest
    assert ("syncer.1", BULK, 2, 5) == passed(MESSAGE)


def test_only_the_step_that_ran_is_done_already(place):
    """Whatever else was under way is done again."""
    step = RunStep(3, 3, (), "host/3")
    place.actor.under_way = {3: step, 4: CopyState(4, "copy/4")}
    place.whole()
    start = program_of(JOB).restored(place.folder, f"{WHO}:7").starts[WHO]
    assert [step] == steps_under_way(start.actor)
    assert [StepFinished(3, 3, 0.5, 8, b"batch")] == start.results


def test_who_is_past_and_who_is_yet_to_come(place):
    """Former incarnations are past, and all that a clock names; the rest begin later."""
    place.whole()
    start_point = program_of(JOB).restored(place.folder, f"{WHO}:7")
    assert [True, False] == [start_point.before(WHO, number) for number in (7, 8)]
    assert not start_point.before("syncer.1", 1)
    assert [7, 0] == [start_point.after(who) for who in (WHO, "learner-0.3")]
    past = ["learner-0.1", WHO, "learner-0.3", "syncer.1", "learner-9.1"]
    assert [True, False, False, True, False] == [start_point.is_past(who) for who in past]
    assert 12 == start_point.heard("syncer.1")
    former = ["learner-0.1", WHO, "learner-0.3", "syncer.1"]
    assert [True, False, False, False] == [start_point.is_former(who) for who in former]
    # Also of an actor absent from the snapshot, whose earlier incarnation is in no clock.
    assert "syncer.1" not in start_point.starts
    assert start_point.is_past("syncer.0")


def test_what_is_missing_is_one_line(place):
    """A snapshot that is not there, and a part that lacks something."""
    with pytest.raises(SnapshotError) as missing:
        program_of(JOB).restored(place.folder, "syncer.1:9")
    place.commit(place.piece("state", place.actor.write()))
    with pytest.raises(SnapshotError, match="has no frozen flight") as lacking:
        program_of(JOB).restored(place.folder, "latest")
    for error in (missing, lacking):
        assert "\n" not in str(error.value)


def test_another_version_is_named(place):
    """Whatever cannot be read back names its blob, and what may be the matter."""
    place.commit(place.piece("state", b"other"), place.piece("flight", write_state([])))
    with pytest.raises(SnapshotError, match=f"of {WHO}.*may be of other code") as error:
        program_of(JOB).restored(place.folder, f"{WHO}:7")
    assert "\n" not in str(error.value)


def test_numbers_go_on_above_all_that_were_heard_of(place):
    """An actor that was not there begins as an incarnation that no clock names."""
    place.whole()
    start_point = program_of(JOB).restored(place.folder, "latest")
    assert WHO == start_point.incarnation("learner-0")
    assert ["syncer.2", "learner-1.1"] == [
        start_point.incarnation(name) for name in ("syncer", "learner-1")
    ]
    alone = program_of(JOB).restored(place.folder, "latest", "learner-1")
    assert {} == alone.starts
    assert "learner-0.3" == alone.incarnation("learner-0")


@pytest.mark.parametrize("only", [None, "learner-0", "syncer"])
def test_all_find_the_same_newest(place, only):
    """A snapshot is damaged for all actors, also for those that would not read the damaged blob."""
    place.whole()
    place.actor.clock.number = 8
    place.commit(place.piece("flight", write_state([])), place.piece("state", b"new"))
    (frozen,) = (place.folder / "blobs").rglob(place.store.write_bytes(b"new").digest)
    frozen.write_bytes(b"old")

    assert f"{WHO}-7" == program_of(JOB).restored(place.folder, "latest", only).snapshot


def test_processes_continue_from_the_snapshot_that_was_checked(place, tmp_path):
    """Each is told its id, and reads nothing of the others; its place was checked by the first."""
    place.whole()
    terms = LaunchTerms(processes=True, snapshot=str(place.folder), trust=True)
    program = prepare_job(JOB, tmp_path / "more", terms).program

    command = program.command("learner-1", tmp_path)
    assert ["--from", f"{place.folder}/{WHO}-7", "--trust"] == [
        each for each in command if "--trust" in each or "--from" in each or WHO in each
    ]


def test_settings_are_those_of_now(place):
    """A machine's job is the one that is run, whatever it was; its own state is as it was."""
    now = job_from({"job": {"task": "none:none", "steps": 7}, "sync": {"quorum": 2}}, "test")
    place.actor.machine = Learner(JOB)
    place.actor.machine.step = 4
    place.whole()
    machine = program_of(now).restored(place.folder, "latest").starts[WHO].actor.machine
    assert machine.job is now
    assert 4 == machine.step


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"outer": {"optimizer": "adam"}},
            'outer.optimizer = "nesterov" there, this job has "adam"',
        ),
        ({"job": {"shards": 8}}, "job.shards = none there, this job has 8"),
        ({"inner": {"optimizer": "sgd"}}, 'inner.optimizer = "adamw" there, this job has "sgd"'),
        ({"job": {"method": "diloco"}}, "sync.blocking = false there, this job has true"),
    ],
)
def test_what_cannot_change_is_refused(place, changed, said):
    """In one line that names both values."""
    place.whole()
    now = job_from({**changed, "job": {"task": "none:none", **changed.get("job", {})}}, "test")
    said = f"{WHO} has {said}"
    with pytest.raises(SnapshotError, match=said):
        program_of(now).restored(place.folder, f"{WHO}:7")


def test_how_stale_contributions_may_be_is_that_of_now():
    """A run that continues with another ``sync.staleness``; the versions are as they were."""
    now = job_from({"job": {"task": "none:none"}, "sync": {"staleness": 3}}, "test")
    machine = Syncer(JOB)
    machine.handle(0.0, Started("syncer.1", LEAVES))
    machine.handle(0.0, Recovered(1, ()))
    start = JobStart(None, new_actor("syncer.1", machine), {}, [], {}, {}, (), None, None, JOB)
    assert -JOB.sync.lag == machine.rounds.oldest(0)
    start.adopt(now, PLAN)
    assert -3 * now.sync.interval == machine.rounds.oldest(0)


@pytest.mark.parametrize("said", ["", "/", "/snapshots", "/snapshots/"])
def test_a_run_or_its_place_means_the_newest(tmp_path, said):
    """Otherwise the last part of a path or a URL is the snapshot."""
    Store(tmp_path / "snapshots").write_bytes(b"x")
    place = str(tmp_path / "snapshots")
    assert (place, "latest") == place_and_id(f"{tmp_path}{said}")
    assert (place, "syncer.1-7") == place_and_id(f"{place}/syncer.1-7")
    assert (place, "syncer.1-7") == place_and_id(f"{tmp_path}/syncer.1-7")
    assert (place, "latest") == place_and_id(f"{tmp_path}/latest")
    assert ("s3://bucket/run", "latest") == place_and_id("s3://bucket/run/latest")


@pytest.mark.parametrize(
    ("said", "refused"),
    [
        ("nope", "nope: no such folder"),
        ("nope-1", "nope-1: no such folder"),
        ("nope/snapshots/latest", "nope/snapshots: no such folder"),
        ("nope/snapshots/syncer.1-7", "nope/snapshots: no such folder"),
        ("run", "run: there are no snapshots; want a run folder, RUN/snapshots/ID or"),
    ],
)
def test_a_place_that_is_not_there_is_named(tmp_path, said, refused):
    """As it was given, and not as a snapshot whose name is wrong."""
    (tmp_path / "run").mkdir()
    with pytest.raises(SnapshotError) as caught:
        place_said(f"{tmp_path}/{said}")
    assert str(caught.value).startswith(f"{tmp_path}/{refused}")


def test_where_a_job_goes_on_is_not_where_it_was(place, tmp_path):
    """Its snapshots would be overwritten."""
    place.whole()
    assert program_of(JOB).whole_start_point("", tmp_path, trust=False) is None
    with pytest.raises(SnapshotError, match="choose another folder"):
        program_of(JOB).whole_start_point(str(place.folder), tmp_path, trust=False)
    other = tmp_path / "other"
    assert WHO in program_of(JOB).whole_start_point(str(place.folder), other, trust=True).starts
    with pytest.raises(ConfigError, match="use --trust if you trust who writes there"):
        program_of(JOB).whole_start_point(str(place.folder), other, trust=False)


@pytest.mark.parametrize(
    ("then", "said"),
    [
        (plan_of(fragments=2), "sync.fragments: 3, the snapshot has 2"),
        (plan_of(interval=8), "sync.interval: 4, the snapshot has 8"),
        (plan_of(LAYERS, strategy="balanced"), "sync.fragmentation: another one than"),
        (
            plan_of(leaves=(Leaf("l/0/a", (2, 2), "float32"), *LAYERS[1:])),
            "task: parameter 'l/0/a' is float32[2, 3], the snapshot has float32[2, 2]",
        ),
        (
            plan_of(leaves=LAYERS[:-1], fragments=3),
            "task: parameter 'l/5/a' is float32[2, 3], the snapshot has none",
        ),
    ],
)
def test_what_cuts_the_parameters_in_another_way_is_named(then, said):
    """The key and both values, or the parameter."""
    assert plan_difference(plan_of(), then).startswith(said)


class Standing:
    """A snapshot of these syncers, at a global step; each incarnation that a clock names has
    existed."""

    snapshot, place = "syncer.1-7", "p"

    def __init__(self, *syncers, t=0, heard=()):
        clock = dict.fromkeys((*syncers, *heard, "learner-0.1"), 3)
        self.parts = tuple(Part(who, 3, clock, (), {}) for who in (*syncers, "learner-0.1"))
        rounds = SimpleNamespace(schedule=SimpleNamespace(t=t))
        machine = SimpleNamespace(rounds=rounds)
        self.starts = {who: SimpleNamespace(actor=SimpleNamespace(machine=machine))
                       for who in syncers}  # fmt: skip


@pytest.mark.parametrize(
    ("there", "syncers", "steps", "said"),
    [
        (Standing("syncer.1"), 1, 5, ""),
        (Standing("syncer.2", t=5), 1, 5, ""),
        (Standing("syncer.1", t=6), 1, 5, "is of global step 6, and job.steps = 5"),
        (Standing("syncer.1"), 2, 5, "has the syncers syncer, and job.syncers = 2"),
        (Standing("syncer-0.1", "syncer-1.1"), 2, 5, ""),
        (Standing("syncer-0.1", "syncer-1.1"), 1, 5, "and job.syncers = 1 wants syncer;"),
        (Standing("syncer-0.1", "syncer-1.1"), 3, 5, "wants syncer-0, syncer-1, syncer-2"),
        (Standing("syncer-0.1", "syncer-1.1", "syncer-2.1"), 2, 5, "syncer-2, and job.syncers = 2"),
        (Standing("syncer-0.1", heard=("syncer-1.1",)), 2, 5, ""),
    ],
)
def test_who_can_go_on(there, syncers, steps, said):
    """As many shards as there were, one of which may have been absent; and no fewer steps."""
    job = job_from({"job": {"task": "x:y", "syncers": syncers, "steps": steps}}, "test")
    if not said:
        check_start_point(there, job)
        return
    with pytest.raises(SnapshotError) as refused:
        check_start_point(there, job)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_run_whose_snapshots_are_elsewhere_is_looked_up_there(tmp_path):
    """Its own newest one, by name, and not that of another run of the place."""
    place, run = tmp_path / "place", tmp_path / "run"
    job = job_from({"job": {"task": "x:y"}, "snapshot": {"place": str(place)}}, "test")
    mine = run_of(open_folder(run, job), make=True)
    for name, number in ((mine, 3), ("f" * 12, 9)):
        sink = sink_of(program_of(job), place, name)
        blob = sink.write_bytes(b"state")
        piece = sink.write_piece([Entry("state", "frozen", blob.digest, blob.size)])
        part = Part("syncer.1", number, {"syncer.1": number}, (), {}, (piece,))
        sink.commit(f"syncer.1-{number}", [part], {})

    found, snapshot = place_said(str(run))
    assert (str(place), True) == (found, snapshot.endswith("syncer.1-3"))
    (run / "job.toml").write_text("[job]\nname = 3")
    with pytest.raises(ConfigError, match=r"job.toml"):
        place_said(str(run))


def test_a_snapshot_without_learners_is_refused(place):
    """They had left before it, and would begin anew with step 1; the line names one that has them.
    A job whose learners were never heard of may begin with it."""
    place.whole()
    job = job_from({"job": {"task": "x:y", "learners": 2}}, "test")

    def found(who, **clock):
        part = Part(who, 30, {who: 30, **clock}, (), {}, ())
        return StartPoint("syncer.1-30", str(place.folder), (part,), {})

    left = found("syncer.1", **{WHO: 9})
    with pytest.raises(
        SnapshotError, match=r"begin anew with step 1; .*-7 has learners; .*--fresh"
    ):
        refuse_without_learners(left, job)
    assert begins_anew(left, job).endswith("begins with step 1")
    refuse_without_learners(found("syncer.1"), job)
    refuse_without_learners(found(WHO), job)
    assert "learner-1: not in" in begins_anew(found(WHO), job)
    assert begins_anew(found(WHO), job).endswith("with another learner's state")
    assert not begins_anew(found(WHO), job_from({"job": {"task": "x:y", "learners": 1}}, "test"))


def test_settings_that_are_others_are_listed(place):
    """With what holds now; those that say only where something is are not, nor equal ones."""
    place.whole()
    plain = JOB.as_plain()

    def line(**tables):
        job = job_from({**plain, **tables}, "test")
        return other_settings(program_of(job).restored(place.folder, f"{WHO}:7"), job)

    assert line() == ""
    assert line(tape={"level": "off"}, job={**plain["job"], "name": "another"}) == ""
    more = line(job={**plain["job"], "steps": 7777}, task={"lr": 0.5})
    was = JOB.job.steps
    assert f"with other settings: job.steps 7777 (was {was}), task.lr 0.5 (was not set);" in more
    assert "restored state of the optimizer" in more
    assert "optimizer" not in line(job={**plain["job"], "steps": 7777})
