"""A single merge, computed again without some of its contributions: how far its result moves.
Everything before it is as it was recorded. Nothing after it is computed; ``ddloco run --schedule
RUN --without LEARNER`` does that."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from clocks import actor_of
from ddloco.debugger.merge_history import Merge
from ddloco.debugger.recorded_job import RecordedJob
from ddloco.debugger.recorded_run import parse_event
from ddloco.debugger.stopped_replay import StoppedReplay, replay_until
from ddloco.job.protocol.work import FragmentMerged, MergeFragment
from ddloco.replayer.job_executor import JobExecutor
from ddloco.stage.arrays.array_table import F32
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.process.terminal import quoted


class TensorChange(Struct, frozen=True):
    """One tensor of a merge's result. Norms are Euclidean, of float32 values.

    Attributes:
        name: the tensor; empty for the whole fragment.
        difference: the norm of the difference between the results without and with the
            contributions that are left out.
        relative: ``difference`` divided by ``update``; None if the merge changed nothing.
        update: the norm of what the merge changed: of its result minus the version before.
    """

    name: str
    difference: float
    update: float
    relative: float | None

    def line(self) -> str:
        share = "" if self.relative is None else f", {self.relative:.2%} of it"
        difference = f"the difference is {self.difference:.4g}{share}"
        return f"{self.name or 'the whole'}: the merge moved it by {self.update:.4g}, {difference}"


class Members(Struct, frozen=True):
    """Whose contributions are in a merge: their shares, which add up to 1, and why others were
    refused."""

    weights: dict[str, float]
    refused: dict[str, str]

    def line(self) -> str:
        taken = ", ".join(f"{name} {weight:.3f}" for name, weight in self.weights.items())
        refused = "".join(f"; refused {name}: {why}" for name, why in self.refused.items())
        return f"{taken or 'no contribution'}{refused}"


class MergeWithout(Struct, frozen=True):
    """What ``merge_without`` found.

    Attributes:
        tensors: its tensors, the one with the largest relative difference first.
    """

    t: int
    fragment: int
    event: str
    without: tuple[str, ...]
    recorded: Members
    changed: Members
    whole: TensorChange
    tensors: tuple[TensorChange, ...]

    def lines(self) -> list[str]:
        without = ", ".join(self.without)
        return [
            f"merge {self.t} (fragment {self.fragment}, {self.event}) without {without}",
            f"  weights as recorded: {self.recorded.line()}",
            f"  weights without: {self.changed.line()}",
            f"  {self.whole.line()}",
            *(f"    {each.line()}" for each in self.tensors),
        ]


def merge_without(
    run: RecordedJob, t: int, without: Collection[str], **options: Any
) -> MergeWithout:
    """Compute a merge again without the contributions of some learners, by name or incarnation;
    ``options`` are those of ``replay_until``. ``ConfigError`` if there is no such merge, they are
    not in it, no other contribution is, or the replay parts from the tapes before it."""
    merge = run.merge(t)
    names = [each.learner for each in (*merge.contributions, *merge.refused)]
    left_out = [name for name in names if {name, actor_of(name)} & set(without)]
    for each in without:
        if not any(each in {name, actor_of(name)} for name in left_out):
            said = f"has no contribution of {each}; it has those of {', '.join(names)}"
            raise ConfigError(f"--without {each}: merge {t} {said}")
    summed = {each.learner: each.relay for each in merge.contributions if each.relay}
    for name in left_out:
        if name in summed:
            words = ["ddloco", "run", "--schedule", run.path, "--without", actor_of(name)]
            raise ConfigError(
                f"--without {name}: merge {t} has it in the sum of {summed[name]}, from which it "
                f"cannot be taken; use {quoted(words)}"
            )
    if len(left_out) == len(names):
        everyone = " and ".join(names)
        raise ConfigError(f"--without: merge {t} has no other contributions than {everyone}")
    found: list[MergeWithout] = []

    def look(there: StoppedReplay) -> None:
        found.append(_computed(there, merge, left_out))

    report = replay_until(run, *parse_event(merge.event), look, **options)
    if not found:
        raise ConfigError(f"{run.path}: the replay parts from the tapes: {report.divergence}")
    return found[0]


def _computed(there: StoppedReplay, merge: Merge, without: Sequence[str]) -> MergeWithout:
    t = merge.t
    runner = there.runners[there.incarnation]
    executor = runner.pending.executor
    assert isinstance(executor, JobExecutor), "a job is replayed"
    work = executor.merge_of(t, runner.actor.under_way.values())
    if work is None or not runner.arrays.known(*work.reads):
        raise ConfigError(f"merge {t} cannot be computed again: a tape is missing")
    kept = tuple(share for share in work.shares if share.name not in without)
    before = _numbers(runner.arrays.get(work.theta), t)
    event, with_all = _merged(executor, work, t)
    if event.theta.hex() != merge.theta:
        raise ConfigError(f"merge {t}: with all contributions, its result is not the recorded one")
    changed, with_rest = _merged(executor, replace(work, shares=kept), t)
    plan = there.plan()
    assert plan is not None, "a job's replay that got here knows the parameters"
    leaves = plan.fragments[work.fragment]
    tensors: list[TensorChange] = []
    start = 0
    for leaf in leaves:
        part = slice(start, start + leaf.size)
        tensors.append(_change(leaf.name, before[part], with_all[part], with_rest[part]))
        start += leaf.size
    return MergeWithout(
        t=t,
        fragment=work.fragment,
        event=f"{there.incarnation}:{there.number}",
        without=tuple(without),
        recorded=_members(event),
        changed=_members(changed),
        whole=_change("", before, with_all, with_rest),
        tensors=tuple(sorted(tensors, key=lambda each: (-(each.relative or 0.0), each.name))),
    )


def _merged(executor: JobExecutor, work: MergeFragment, t: int) -> tuple[FragmentMerged, F32]:
    event, theta = executor.merge_apart(work)
    return event, _numbers(theta, t)


def _members(event: FragmentMerged) -> Members:
    return Members(dict(zip(event.accepted, event.weights, strict=True)), dict(event.refused))


def _numbers(stored: Any, t: int) -> F32:
    inner = getattr(stored, "array", stored)  # A simulated array has a description beside it.
    if inner is None:
        raise ConfigError(f"merge {t}: this run was simulated without numbers")
    return inner


def _change(name: str, before: F32, with_all: F32, with_rest: F32) -> TensorChange:
    difference, update = _norm(with_rest, with_all), _norm(with_all, before)
    return TensorChange(name, difference, update, difference / update if update else None)


def _norm(one: F32, other: F32) -> float:
    return float(np.linalg.norm(one.astype(np.float64) - other.astype(np.float64)))
