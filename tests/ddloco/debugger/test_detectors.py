"""``ddloco why RUN``: each detector finds what is planted, and all are quiet in sound runs."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec import structs

from ddloco.cli.debug import why
from ddloco.cli.parser import parser
from ddloco.debugger import detectors
from ddloco.debugger.detectors import DETECTORS, detect
from ddloco.debugger.learner_time import times_of
from ddloco.debugger.recorded_job import open_job
from ddloco.job.config import job_from
from ddloco.job.protocol.messages import Progress
from ddloco.job.protocol.time_spent import TimeSpent
from ddloco.job.protocol.work import Evaluated, OneStep
from ddloco.stage.process.run_identity import identity_of
from ddloco.workers.data_stream import pack_cursor
from ddloco.workers.simulated.work import SimulatedWork

GUILTY = "learner-1.1"
SOUND = ("job.learners=3", "chaos.fault=[]", "learner={}", "work.variance=0.1")


def plant_result(monkeypatch, change):
    """Change what the guilty learner's steps bring."""
    run_step = SimulatedWork._run_step

    def planted(work, request, contents):
        done = run_step(work, request, contents)
        return change(done) if work._name == GUILTY else done

    monkeypatch.setattr(SimulatedWork, "_run_step", planted)


def plant_nan(monkeypatch):
    """Its loss is no number in one step."""
    plant_result(monkeypatch, lambda d: structs.replace(d, loss=math.nan) if d.step == 50 else d)


def plant_still_tensor(monkeypatch):
    """Its updates leave the parameters as they were."""
    descend = SimulatedWork._descend

    def planted(work, step):
        before = work._params.copy()
        loss = descend(work, step)
        if work._name == GUILTY and step >= 60:
            work._params = before
        return loss

    monkeypatch.setattr(SimulatedWork, "_descend", planted)


def plant_count(monkeypatch):
    """A schedule of it begins again; before that, it counts its steps."""
    cursor = lambda step: pack_cursor(b"", [step if step < 50 else step - 50])  # noqa: E731
    plant_result(monkeypatch, lambda d: structs.replace(d, cursor=cursor(d.step)))


PLANTS = {
    "counts": (
        plant_count,
        f"{GUILTY}: the count of a schedule falls from 49 to 0 at inner step 50",
    ),
    "finite numbers": (plant_nan, f"{GUILTY}: its loss is nan at inner step 50"),
    "tensors": (plant_still_tensor, f"{GUILTY}: its last updates left "),
}


@pytest.mark.parametrize("detector", PLANTS)
def test_what_is_planted_is_found(detector, simulate, monkeypatch):
    """By its detector, with the learner and no other one."""
    plant, said = PLANTS[detector]
    plant(monkeypatch)
    found, _ = detect(open_job(simulate(*SOUND)))
    mine = [each for each in found if each.detector == detector]
    assert [each.learner for each in mine] == [GUILTY], found
    assert mine[0].lines[0].startswith(said), mine
    assert {each.learner for each in found} <= {GUILTY, ""}, found


class Told:
    """A run of which only that is known which a detector asks for."""

    is_simulated = False

    def __init__(
        self,
        *,
        batches=None,
        losses=(),
        held_out=None,
        spent=None,
        flags=None,
        other="",
        waits=(),
        shapes=None,
    ):
        self.job = job_from({"job": {"task": "json:loads", "learners": 3}}, "test")
        self._shapes = shapes or {}
        self.learners = [f"learner-{n}.1" for n in range(3)]
        self.syncers = ["syncer.1"]
        flags = flags or {}
        self.tapes = {
            who: self._tape(flags.get(who, ""), "b" if who == other else "a")
            for who in self.learners
        }
        self._batches, self._losses = batches or {}, losses
        self._held_out, self._spent, self._waits = held_out, spent or {}, waits

    def _tape(self, flags, code):
        fingerprint = {"env.XLA_FLAGS": flags} if flags else {}
        return SimpleNamespace(
            header=SimpleNamespace(code=f"ddloco 0.2.0 sources-{code}", fingerprint=fingerprint)
        )

    def merges(self):
        """Each with the seconds that it waited for each learner."""
        for waits in self._waits:
            pairs = zip(self.learners, waits, strict=True)
            yield SimpleNamespace(
                contributions=[SimpleNamespace(learner=who, wait_s=wait) for who, wait in pairs]
            )

    def identity(self, who):
        """As its tape says."""
        return identity_of(self.tapes[who].header)

    def steps_of(self, who):
        """Its steps, with the batches or the losses that are given."""
        drawn = self._batches.get(who, [f"{who} {n}" for n in range(len(self._losses))])
        losses = self._losses or [1.0] * len(drawn)
        return [
            (SimpleNamespace(n=n), n, OneStep(loss, 1, f"{batch}".encode()))
            for n, (batch, loss) in enumerate(zip(drawn, losses, strict=False), 1)
        ]

    def finished(self, who):
        """Its requests, with the shapes of their batches."""
        told = self._shapes.get(who, [])
        return [(None, SimpleNamespace(shapes=each)) for each in told]

    def reports(self, syncer):
        """The last ones."""
        return {
            learner: Progress(20, 0.1, (0,), (0,), (0,), spent=spent)
            for learner, spent in self._spent.items()
        }

    def held_out(self, syncer):
        """The evaluation."""
        evaluated = [] if self._held_out is None else [Evaluated(1, self._held_out)]
        return [(SimpleNamespace(n=9), each) for each in evaluated]


QUICK, WAITS = TimeSpent(computing=10.0), TimeSpent(computing=2.0, data=8.0)
OF_ONE = {"learner-0.1": QUICK, "learner-1.1": WAITS, "learner-2.1": QUICK}
OWN = {f"learner-{n}.1": range(n * 100, n * 100 + 20) for n in range(3)}
HELD = (
    "merges waited for learner-1 alone for 8.4 s, 76% of their time; its contribution was the last "
    "of 13"
)
RUNS = {
    "twins": (
        Told(batches={**OWN, "learner-2.1": range(100, 120)}),
        "learner-1.1 and learner-2.1 drew the same data: 20 of 20 batches are equal",
    ),
    "one batch": (
        Told(batches={**OWN, GUILTY: [*range(100, 112), *[7] * 9]}),
        f"{GUILTY} drew the same batch 9 times, inner steps 13 to 21",
    ),
    "evaluation": (
        Told(losses=[0.5] * 8 + [0.1] * 8, held_out=0.66),
        "the held-out loss is 6.6 times the training loss: 0.66 and 0.1 (syncer.1:9)",
    ),
    "data": (
        Told(spent=OF_ONE),
        f"{GUILTY} waits for data 80% of its time (400 of 500 ms a step); of the median learner 0%",
    ),
    "shapes": (
        Told(shapes={who: ["", "8x9 int32" if who != GUILTY else "4x9 int32"] for who in OWN}),
        f"{GUILTY}: its batches are 4x9 int32, those of the others 8x9 int32",
    ),
    "held back": (
        Told(waits=[(0.1, 0.9, 0.2)] * 12 + [(0.3, 0.2, 0.1), (9.0, 0.1, 0.2), (0.1, 8.0, 0.2)]),
        HELD,
    ),
    "stopped": (
        Told(spent={GUILTY: TimeSpent(computing=10.0, stopped=8.0)}),
        f"{GUILTY} was stopped in its steps for 8.0 s",
    ),
    "flags": (
        Told(flags={GUILTY: "--xla_cpu_enable_fast_math=true"}),
        f"{GUILTY}: env.XLA_FLAGS is --xla_cpu_enable_fast_math=true; of the others not set",
    ),
}
RUNS["source"] = (
    Told(other=GUILTY),
    f"{GUILTY}: ddloco is ddloco 0.2.0 sources-b; of the others ddloco 0.2.0 sources-a",
)
ASKED = ("batches", "held-out loss", "settings", "time")


@pytest.mark.parametrize("kind", RUNS)
def test_what_is_told_is_found(kind):
    """In words, and nothing else is."""
    run, said = RUNS[kind]
    found = [line for name in ASKED for each in DETECTORS[name](run) for line in each.lines]
    assert found == [said]


@pytest.mark.parametrize(
    "run",
    [
        Told(batches=OWN),
        Told(batches=dict.fromkeys(OWN, [1] * 30)),
        Told(batches={**OWN, "learner-1.2": range(100, 120)}),
        Told(losses=[0.5] * 8 + [0.1] * 8, held_out=0.2),
        Told(losses=[0.5] * 8 + [1e-9] * 8, held_out=1e-7),
        Told(spent=dict.fromkeys(OF_ONE, WAITS)),
        Told(waits=[(0.1, 0.9, 0.2), (0.9, 0.2, 0.1)] * 20),
        Told(shapes={**{who: ["8x9"] for who in OWN}, GUILTY: ["4x9", "", "8x9"]}),
        Told(waits=[(0.1, 9.0, 0.2), (0.1, 0.2, 0.15)] + [(0.1, 0.2, 0.15)] * 20),
    ],
    ids=[
        *("own data", "one batch of all", "came back", "sound", "next to nothing", "all wait"),
        *("by turns", "shapes that vary", "compiled"),
    ],
)
def test_what_is_usual_is_not(run):
    """All learners that wait alike are slow, and none of them stands out."""
    assert [each for name in ASKED for each in DETECTORS[name](run)] == []


@pytest.mark.parametrize(
    "settings",
    [SOUND, (*SOUND, "job.learners=8"), (*SOUND, "job.syncers=2"), (*SOUND, "job.steps=1200")],
)
def test_sound_runs_are_quiet(settings, simulate):
    """Of two, eight and sharded learners nothing is said."""
    found, quiet = detect(open_job(simulate(*settings)))
    assert found == []
    assert quiet == [*DETECTORS]


@pytest.mark.parametrize(
    ("still", "said"),
    [
        ({"a.1": (1.0, 0.0), "b.1": (0.0, 0.0), "c.1": (0.0, 0.0)}, ["a.1", "x as it was"]),
        ({"a.1": (1.0, 1.0), "b.1": (0.0, 0.0), "c.1": (0.0, 0.0)}, ["a.1", "x, y as they were"]),
        ({"a.1": (1.0, 0.0), "b.1": (1.0, 0.0), "c.1": (0.0, 0.0)}, ["", "a.1, b.1: their last"]),
        ({"a.1": (1.0, 0.0), "a.2": (0.0, 0.0), "b.1": (1.0, 0.0)}, []),
        ({"a.1": (1.0, 0.0), "b.1": (1.0, 0.0)}, []),
        ({"a.1": (0.0, 0.0), "b.1": (0.0, 0.0)}, []),
    ],
)
def test_a_tensor_that_several_leave_is_nobodys_alone(still, said, monkeypatch):
    """What they merged has stopped it, as dead units do; where all leave it, it has no gradient."""
    monkeypatch.setattr(detectors, "_stood_once", lambda *_: True)
    monkeypatch.setattr(detectors, "_still_of", lambda _, who, of: dict(enumerate(still[who])))
    leaves = [SimpleNamespace(name="x")], [SimpleNamespace(name="y")]
    run = SimpleNamespace(plan=SimpleNamespace(fragments=leaves), learners=list(still))
    found = list(DETECTORS["tensors"](run))
    assert [each.learner for each in found] == said[:1]
    assert all(said[1] in each.lines[0] for each in found)


def test_who_was_away_is_said_with_the_cause(folder, capsys):
    """Of all merges in a row, and not merge by merge."""
    assert why(parser().parse_args(["why", str(folder), "absent", "learner-1"])) == 0
    out = capsys.readouterr().out
    assert "learner-1 is in " in out
    assert " in a row): not connected: " in out


def test_a_learner_that_is_stopped_is_silent(simulate):
    """Not the old version is named that it holds afterwards, but since when nothing was heard."""
    stall = "chaos.fault=[{what='stall', who='learner-1', at_s=60.0, for_s=60.0}]"
    run = open_job(simulate(*SOUND, stall, "sync.quorum=1"))
    found, _ = detect(run)
    [said] = [each for each in found if each.detector == "merges"]
    assert said.learner == "learner-1"
    assert any("has reported nothing since " in line for line in said.lines), said.lines


def test_an_answer_without_a_question_is_data_too(folder, capsys):
    """What was found and which detectors were quiet; options may come before a question."""
    assert why(parser().parse_args(["why", str(folder), "--json"])) == 0
    found = json.loads(capsys.readouterr().out)
    assert {each["detector"] for each in found["found"]} | {*found["quiet"]} == {*DETECTORS}
    assert parser().parse_args(["why", str(folder), "--salvage", "loss"]).salvage
    assert parser().parse_args(["why", str(folder), "loss", "--salvage"]).salvage
    assert not parser().parse_args(["why", str(folder), "loss"]).salvage


def test_time_is_said_by_learner(simulate):
    """As the learners told it: the sum is their time, and shares are of that."""
    times = times_of(open_job(simulate(*SOUND)))
    assert [each.learner for each in times] == ["learner-0.1", "learner-1.1", "learner-2.1"]
    assert all(each.sum_s > 0 for each in times)
    assert np.isclose(sum(times[0].share(part) for part in TimeSpent.__struct_fields__), 1.0)
