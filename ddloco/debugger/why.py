"""The answers of ``ddloco why``: each claim with the events that show it."""

from collections.abc import Sequence
from typing import Any

import msgspec

from clocks import actor_of
from ddloco.debugger.absences import absences_of
from ddloco.debugger.causes import chain
from ddloco.debugger.detectors import detect
from ddloco.debugger.learner_time import held_back, times_of
from ddloco.debugger.loss_analysis import analyse_losses
from ddloco.debugger.merge_history import Absence, Merge, MergeAnswer
from ddloco.debugger.not_finite import not_finite_in
from ddloco.debugger.one_step import step_of
from ddloco.debugger.recorded_job import RecordedJob
from ddloco.debugger.recorded_run import RecordedRun, parse_event
from ddloco.debugger.stuck import stuck_at_end
from ddloco.debugger.version_travel import travels_of
from ddloco.monitoring.status_view import seconds, time_in_words
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.process.terminal import quoted

HELD_SHOWN, HELD_SHARE = 3, 0.01
"""Learners of which it is said how long merges waited for them alone: the first so many, if it is
more than this share of their time."""

TIMES_SHOWN = 16
"""Incarnations of learners whose time is shown."""

TRAVELS_SHOWN = 8
"""Learners of which it is said how long versions travelled to them."""

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


def why_nan(run: RecordedJob) -> Told:
    """Say where numbers first stopped being finite, and how to see which tensor it was."""
    found = not_finite_in(run)
    lines = found.lines()
    if not run.is_simulated:
        learners = [each.whose for each in found.firsts if each.learner] or ["*"]
        there = "which tensor it was" if found.firsts else "whether a tensor was not, for a step"
        lines.append(f"{there}, also of the optimizer's state, a replay shows:")
        lines += [f"  {_replay(run, '--watch', f'{who} * not-finite > 0')}" for who in learners]
    return lines, msgspec.to_builtins(found)


def why_step(run: RecordedJob, learner: str, number: int) -> Told:
    found = step_of(run, learner, number)
    where = f"step:{found.learner}:{found.step}"
    lines = [*found.lines(), "its tensors, and the optimizer's state, just before:"]
    return [*lines, f"  {_replay(run, '--until', where, '--shell')}"], msgspec.to_builtins(found)


def why_time(run: RecordedJob) -> Told:
    """Say where the time of a run went: of each learner, of merges, and of versions."""
    times, travels = times_of(run), travels_of(run)
    held = [each for each in held_back(run.merges()) if each.alone_s > HELD_SHARE * each.of_s]
    lines = [f"all learners: {time_in_words(run.numbers)}"]
    lines += [each.line() for each in times[:TIMES_SHOWN]]
    more = len(times) - TIMES_SHOWN
    lines += [f"and {more} more incarnations; --json has all"] if more > 0 else []
    lines += [each.line() for each in held[:HELD_SHOWN]] or ["merges waited for nobody alone"]
    lines += [each.line() for each in travels[:TRAVELS_SHOWN]]
    plain = {"learners": times, "held_back": held, "versions": travels}
    return lines, msgspec.to_builtins({"numbers": run.numbers, **plain})


def why_stuck(run: RecordedRun) -> Told:
    found = stuck_at_end(run)
    return found.lines(), msgspec.to_builtins(found)


def _replay(run: RecordedRun, *options: str) -> str:
    return quoted(["ddloco", "replay", run.path, *options])


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
