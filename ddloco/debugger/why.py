"""The answers of ``ddloco why``: each claim with the events that show it."""

from collections.abc import Sequence
from typing import Any

import msgspec

from clocks import actor_of
from ddloco.debugger.absences import absences_of
from ddloco.debugger.causes import chain
from ddloco.debugger.detectors import detect
from ddloco.debugger.loss_analysis import analyse_losses
from ddloco.debugger.merge_history import Absence, Merge, MergeAnswer
from ddloco.debugger.recorded_job import RecordedJob
from ddloco.debugger.recorded_run import RecordedRun, parse_event
from ddloco.monitoring.status_view import seconds
from ddloco.stage.files.toml import ConfigError

Told = tuple[list[str], dict[str, Any]]
"""Lines for people, and the same as plain data."""


def why_merge(run: RecordedJob, t: int) -> Told:
    """Explain a merge: what its launch waited for, who was in it, and who was not."""
    merge = run.merge(t)
    wait = merge.wait
    held = (
        f"launch floor {seconds(wait.floor_s)}, quorum {seconds(wait.quorum_s)}, "
        f"grace window {seconds(wait.grace_s)}"
    )
    lines = [
        f"merge {t} (fragment {merge.fragment}) was done at {merge.event}, {merge.at:.4f} s",
        f"  waited {seconds(wait.total_s)} for its launch {_at(merge.launched)}: {held}",
        *(f"  was repeated: {reason}" for reason in merge.repeats),
        *(f"  in it: {_contribution_line(each)}" for each in merge.contributions),
        *(f"  not in it: {_absence_line(each)}" for each in merge.absent),
    ]
    return [*lines, *_undecided(merge)], msgspec.to_builtins(merge)


def why_absent(run: RecordedJob, learner: str, t: int | None) -> Told:
    """Explain why a learner is not in a merge; without one, from which merges it was absent."""
    if actor_of(learner) not in run.job.learner_names() and learner not in run.job.learner_names():
        names = ", ".join(run.job.learner_names()[:8])
        raise ConfigError(f"{learner!r} is no learner of this job; it has {names}")
    if t is None:
        [found] = absences_of(run, [actor_of(learner)])
        return found.lines(), msgspec.to_builtins(found)
    merge = run.merge(t)
    for each in merge.contributions:
        if learner in {each.learner, actor_of(each.learner)}:
            said = f"{each.learner} is in merge {t}: {_contribution_line(each)}"
            return [said], {"absent": False, **msgspec.to_builtins(each)}
    for absence in merge.absent:
        if learner in {absence.learner, actor_of(absence.learner)}:
            lines = [f"merge {t} without {_absence_line(absence)}", *_undecided(merge)]
            return lines, {"absent": True, **msgspec.to_builtins(absence)}
    said = f"{learner} was not connected under that name {_at(merge.launched)}"
    return [said], {"absent": True, "learner": learner, "reason": said, "event": merge.launched}


def why_event(run: RecordedRun, event: str, most: int) -> Told:
    if most < 1:
        raise ConfigError(f"--depth {most}: want the number of causes to show, 1 or more")
    incarnation, number = parse_event(event)
    links = chain(run, incarnation, number, most)
    lines: list[str] = []
    for link in links:
        lines.append(f"{link.event}  {link.at:.4f} s  {link.what}")
        lines.append(f"    because {link.because}")
    if links and links[-1].before:
        lines.append(f"    ({most} causes are shown; ask for more with --depth)")
    return lines, {"event": event, "causes": [msgspec.to_builtins(link) for link in links]}


def why_loss(run: RecordedJob) -> Told:
    findings = analyse_losses(run)
    return findings.lines(), msgspec.to_builtins(findings)


def why_anything(run: RecordedJob) -> Told:
    found, quiet = detect(run)
    lines = [line for each in found for line in each.lines]
    said = f"nothing to say of: {', '.join(quiet)}"
    lines += [said if found else f"nothing stands out; looked at: {', '.join(quiet)}"]
    return lines, {"found": [msgspec.to_builtins(each) for each in found], "quiet": quiet}


def _contribution_line(each: MergeAnswer) -> str:
    figures = "" if each.norm is None else f", norm {each.norm:.4g}"
    figures += "" if each.cosine is None else f", cosine {each.cosine:.3f}"
    after = "" if each.wait_s is None else f" {seconds(each.wait_s)} after the launch,"
    # Of what goes through a relay, the syncer is told when it is sent.
    came = f"sent to {each.relay}" if each.relay else "arrived"
    return (
        f"{each.learner} with weight {each.weight:.3f}: {each.steps:,} steps and {each.tokens:,} "
        f"tokens since version {each.base}{figures}; {came}{after} {_at(each.event)}"
    )


def _at(event: str) -> str:
    return f"at {event}" if event else "before the tape begins"


def _absence_line(each: Absence) -> str:
    figures = "" if each.norm is None else f" (norm {each.norm:.4g}"
    if figures:
        figures += ")" if each.cosine is None else f", cosine {each.cosine:.3f})"
    return f"{each.learner}: {each.reason}{figures}, {_at(each.event)}"


def _undecided(merge: Merge) -> Sequence[str]:
    measured = [each.cosine for each in merge.contributions] + [x.cosine for x in merge.absent]
    if len([each for each in measured if each is not None]) != 2:
        return []
    if not any(each.cosine is not None for each in merge.absent):
        return []
    return [
        (
            "  two contributions were compared with each other: their cosine says that they "
            "disagree, and cannot say which of the two is wrong; ddloco why RUN loss compares "
            "the learners' losses"
        )
    ]
