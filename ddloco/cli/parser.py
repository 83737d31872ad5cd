"""The command line: the commands, their options, and the exit codes.

0: success. 1: the command ran and found a difference, a gap or a failed check. 2: the input was
invalid; one line names the file, field or byte and what would be valid. 75: the process left in
good order and should be started again. Large modules are imported inside the commands, so that
``--help`` is fast.
"""

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from ddloco.cli.help_text import (
    EXAMPLES,
    INIT,
    OVERVIEW,
    PERFORM_MORE,
    RUN_MORE,
    SIMULATIONS,
    SNAPSHOTS,
    WHY,
)
from ddloco.stage.process.terminal import escaping

MODULES = {
    "completion": ("completion",),
    "debug": ("bundle", "diff", "report", "why"),
    "docs": ("docs",),
    "doctor": ("doctor",),
    "examples": ("init",),
    "keys": ("keys",),
    "observe": ("observe", "status", "stop"),
    "perform": ("perform",),
    "replay": ("replay",),
    "run": ("run",),
    "serve": ("learner", "syncer"),
    "simulate": ("simulate",),
    "snapshot": ("snapshot_export", "snapshot_list", "snapshot_take", "snapshot_verify"),
    "tape_export": ("tape_export",),
    "tape_show": ("tape_show",),
    "tape_verify": ("tape_verify",),
    "track": ("track",),
}
"""The functions of commands, by the module beside this one that has them."""


class Parser(argparse.ArgumentParser):
    """A parser that says what a misspelled command, option or choice may have meant."""

    def error(self, message: str) -> NoReturn:
        """Print the problem, and leave with exit code 2."""
        from ddloco.stage.files.near_miss import did_you_mean  # noqa: PLC0415, so that --help is fast

        choice = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if choice is not None:
            known = [each.strip(" '") for each in choice[2].split(",")]
            message += did_you_mean(choice[1], known)
        elif message.startswith("unrecognized arguments: "):
            unknown = message.partition(": ")[2].split()[0].partition("=")[0]
            options = self.options()
            elsewhere = "; other commands have it"
            message += elsewhere if unknown in options else did_you_mean(unknown, options)
        super().error(message)

    def options(self) -> list[str]:
        """All options, those of commands included."""
        return [option for action in self.arguments() for option in action.option_strings]

    def arguments(self) -> Iterator[argparse.Action]:
        """All options and other arguments, those of commands included."""
        for action in self._actions:
            yield action
            if isinstance(action.choices, dict):
                for sub in action.choices.values():
                    yield from sub.arguments()


def parser() -> Parser:
    """The parser of all commands and options."""
    top = Parser(
        prog="ddloco",
        description=OVERVIEW,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="store_true", help="print the version and leave")
    orders = top.add_subparsers(dest="command", metavar="COMMAND")
    _add_init(orders)
    _add_doctor(orders)
    _add_run(orders)
    _add_syncer(orders)
    _add_learner(orders)
    _add_perform(orders)
    _add_keys(orders)
    _add_status(orders)
    _add_observe(orders)
    _add_track(orders)
    _add_stop(orders)
    _add_replay(orders)
    _add_why(orders)
    _add_diff(orders)
    _add_bundle(orders)
    _add_report(orders)
    _add_simulate(orders)
    _add_tape(orders)
    _add_snapshot(orders)
    _add_docs(orders)
    _add_completion(orders)
    return top


LEARNER_PATIENCE_S = 600.0
"""A syncer that moves to another host returns within minutes; until then the learner occupies its
host."""

SYNCER_PATIENCE_S = 3600.0
"""Learners may have to wait for their hosts, and a waiting syncer costs little."""

Orders = Any
"""The result of add_subparsers, whose type is private to argparse."""


TRACKERS = "tensorboard:DIR, prometheus:[HOST:]PORT, wandb:PROJECT, mlflow:URI or trackio:PROJECT"
TRACK: dict[str, Any] = {
    "metavar": "TRACKER",
    "action": "append",
    "default": [],
    "help": f"send metrics to {TRACKERS}; repeatable",
}


def _command(orders: Orders, name: str, what: str, more: str = "") -> argparse.ArgumentParser:
    return orders.add_parser(
        name,
        help=what,
        description=f"{what[0].upper()}{what[1:]}.",
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _add_job(command: argparse.ArgumentParser, *, folder_needed: bool) -> None:
    command.add_argument("job", metavar="JOB.toml", type=Path, help="the job file")
    command.add_argument(
        "--dir",
        dest="folder",
        metavar="RUN",
        type=Path,
        required=folder_needed,
        help="run folder" + ("" if folder_needed else " (default: runs/NAME-NUMBER)"),
    )
    _add_overrides(command)
    command.add_argument(
        "--from",
        dest="snapshot",
        metavar="SNAPSHOT",
        default="",
        help="continue from a snapshot: RUN/snapshots/ID, RUN/snapshots/latest, or a URL",
    )
    command.add_argument(
        "--fresh-learners",
        action="store_true",
        help="with --from: also from a snapshot without learners, which then begin with step 1",
    )
    _add_trust(command)


def _add_overrides(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--set",
        dest="overrides",
        metavar="key=value",
        action="append",
        default=[],
        help="override a key of the job file, such as sync.quorum=2; may be given again",
    )


def _add_init(orders: Orders) -> None:
    command = _command(
        orders,
        "init",
        "write a task, a job file and a README that run at once",
        INIT,
    )
    command.add_argument(
        "folder",
        metavar="DIR",
        type=Path,
        nargs="?",
        default=Path(),
        help="where to (default: the current folder)",
    )
    command.add_argument(
        "--template",
        choices=("gpt", "classifier", "blank", "examples"),
        default="gpt",
        help="what to begin with (default: gpt)",
    )
    command.set_defaults(run="init")


def _add_doctor(orders: Orders) -> None:
    command = _command(
        orders,
        "doctor",
        "look at this machine before a run, and say what is in the way",
        "Python and packages, memory, file descriptors, disk, a port, the clock; with a job also\n"
        "its keys and its task, of which some steps are run: whether a step is deterministic, how\n"
        "long it takes, and what a round costs on the network.\n\n"
        "Exit code 0: no problem was found; warnings do not count. 1: one was.",
    )
    add = command.add_argument
    add("job", metavar="JOB.toml", type=Path, nargs="?", help="the job file, to look at its needs")
    _add_overrides(command)
    add("--bind", metavar="ADDRESS", default="", help="an address that a syncer is to listen on")
    add("--gbit", metavar="RATE", type=float, help="what a learner's line carries, in Gbit/s")
    add("--json", action="store_true", help="print JSON")
    command.set_defaults(run="doctor")


def _add_run(orders: Orders) -> None:
    command = _command(
        orders,
        "run",
        "run a whole job on this machine",
        RUN_MORE,
    )
    _add_job(command, folder_needed=False)
    command.add_argument("--processes", action="store_true", help="one process per actor, over tcp")
    command.add_argument(
        "--chaos",
        metavar="CHAOS.toml",
        type=Path,
        help="faults to apply on purpose, with --processes; see below",
    )
    command.add_argument("--track", **TRACK)
    command.add_argument(
        "--schedule",
        metavar="RUN",
        type=Path,
        help="train along the tapes of another run, real or simulated: its learners, steps, merges "
        "and failures, in the same order",
    )
    command.add_argument(
        "--without",
        metavar="LEARNER",
        action="append",
        default=[],
        help="with --schedule: leave this learner's contributions out of the merges; repeatable",
    )
    command.add_argument(
        "--since",
        metavar="T",
        type=int,
        help="with --schedule: apply --without and changed [outer] settings from the merge of "
        "global step T on",
    )
    command.add_argument("--overwrite", action="store_true", help="replace the run in --dir")
    command.set_defaults(run="run")


def _add_syncer(orders: Orders) -> None:
    command = _command(orders, "syncer", "run the syncer of a job, or a shard of it, on this host")
    _add_job(command, folder_needed=True)
    command.add_argument(
        "--bind", metavar="ADDRESS", required=True, help="where to listen: tcp://127.0.0.1:5555"
    )
    command.add_argument(
        "--name",
        default="",
        help="the shard's name, with job.syncers: syncer-1 (default: the lead)",
    )
    command.add_argument("--connect", metavar="ADDRESS", help="syncer-0, for the other shards")
    command.add_argument(
        "--advertise",
        metavar="ADDRESS",
        default="",
        help="where others reach it, for RUN/syncer.address: tcp://host:5555, or tcp://host:* with "
        "the port that --bind got",
    )
    _add_actor(command, SYNCER_PATIENCE_S, "no learner")
    command.set_defaults(run="syncer")


def _add_learner(orders: Orders) -> None:
    command = _command(orders, "learner", "run one learner of a job on this host")
    _add_job(command, folder_needed=True)
    command.add_argument(
        "--connect",
        metavar="ADDRESS",
        nargs="+",
        required=True,
        help="the syncer, tcp://host:5555, or file:PATH, a file with its address, which is read "
        "whenever it changes; with shards all of them, syncer-0 first",
    )
    command.add_argument("--name", required=True, help="the learner's name: learner-3")
    command.add_argument(
        "--alone",
        action="store_true",
        help="with --from, in a job that went on without it: take its own state from the snapshot",
    )
    _add_actor(command, LEARNER_PATIENCE_S, "no syncer")
    command.set_defaults(run="learner")


def _add_actor(command: argparse.ArgumentParser, patience_s: float, alone: str) -> None:
    command.add_argument(
        "--patience",
        metavar="SECONDS",
        type=float,
        default=patience_s,
        help=f"leave with exit code 75 after so many seconds with {alone}; 0 waits forever "
        f"(default: {patience_s:g})",
    )
    command.add_argument(
        "--keys",
        metavar="DIR",
        type=Path,
        help="this host's keys, in place of transport.keys; see ddloco keys",
    )
    command.add_argument("--join", action="store_true", help="share --dir with other actors")
    command.add_argument("--with-parent", action="store_true", help=argparse.SUPPRESS)


def _add_perform(orders: Orders) -> None:
    command = _command(orders, "perform", "run actors of your own", PERFORM_MORE)
    add = command.add_argument
    add(
        "program",
        metavar="MODULE:FUNCTION",
        help="what returns a ddloco.stage.Program",
    )
    add("--dir", dest="folder", metavar="RUN", type=Path, help="default: runs/FUNCTION-NUMBER")
    add(
        "--set",
        dest="overrides",
        metavar="key=value",
        action="append",
        default=[],
        help="an argument of the function; may be given again",
    )
    add("--from", dest="snapshot", metavar="SNAPSHOT", default="", help="RUN/snapshots/ID, a URL")
    _add_trust(command)
    add("--place", metavar="PLACE", default="", help="of snapshots (default: RUN/snapshots), a URL")
    add("--only", metavar="NAME", nargs="+", default=[], help="the actors that run on this host")
    add(
        "--at",
        metavar="NAME=ADDRESS",
        nargs="+",
        default=[],
        help="where an actor listens that others dial: server=tcp://10.0.0.1:5555",
    )
    add("--keys", metavar="DIR", type=Path, help="this host's keys; see ddloco keys --names")
    add("--overwrite", action="store_true", help="replace the run in --dir")
    command.set_defaults(run="perform")


def _add_keys(orders: Orders) -> None:
    command = _command(
        orders,
        "keys",
        "make the keys of a job's actors, for encryption and authentication",
        "Copy public.toml to every host, and each NAME.key only to the host of that actor,\n"
        "readable by its owner only (chmod 600). Run again, the command adds missing keys.",
    )
    add = command.add_argument
    add("folder", metavar="DIR", type=Path, help="where to; a new folder, or one made by keys")
    count = command.add_mutually_exclusive_group().add_argument
    count("--learners", metavar="N", type=int, default=3, help="how many (default: 3)")
    count("--job", metavar="JOB.toml", type=Path, help="as many learners as this job has")
    add("--names", metavar="a,b", default="", help="more keys, by name")
    command.set_defaults(run="keys")


def _add_status(orders: Orders) -> None:
    command = _command(
        orders,
        "status",
        "show the state of running syncers, and who waits for whom",
        "Exit code 0: all have answered. 1: one did not, and is named.",
    )
    add = command.add_argument
    add(
        "addresses",
        metavar="ADDRESS",
        nargs="+",
        help="a syncer: tcp://127.0.0.1:5555; with --at a run folder",
    )
    add(
        "--at",
        metavar="EVENT",
        default="",
        help="of a recorded run: the state of all actors as an event knew it: syncer.1:540, "
        "merge:40 or step:learner-1:120",
    )
    add("--watch", action="store_true", help="repeat every second until Ctrl-C")
    _add_trust(command)
    _add_asking(command)
    command.set_defaults(run="status")


def _add_observe(orders: Orders) -> None:
    command = _command(
        orders,
        "observe",
        "follow a running job until it ends, without taking part in it",
        "Without --prometheus, --tensorboard and --track all news are printed, one a line.\n"
        "An observer that is slow misses news; it never delays the job.",
    )
    add = command.add_argument
    add("address", metavar="ADDRESS", help="the syncer: tcp://127.0.0.1:5555")
    add("--prometheus", metavar="PORT", type=int, help="serve metrics on 127.0.0.1:PORT")
    add("--tensorboard", metavar="DIR", type=Path, help="write metrics for TensorBoard")
    add("--track", **TRACK)
    add(
        "--evaluate",
        metavar="JOB.toml",
        type=Path,
        help="score new global models with this job's task; give the job.toml of the run folder",
    )
    add(
        "--best",
        metavar="FILE",
        type=Path,
        help="with --evaluate: keep the model with the lowest held-out loss, as safetensors",
    )
    _add_asking(command)
    command.set_defaults(run="observe")


def _add_track(orders: Orders) -> None:
    command = _command(
        orders,
        "track",
        "send the metrics of a run to an experiment tracker, afterwards or while it runs",
        "Losses and metrics of all learners, held-out loss, goodput, quorum and bytes, by global\n"
        "step. Each tracker needs its package; Weights & Biases stays offline unless WANDB_MODE\n"
        "says otherwise.\n\n"
        "  ddloco track runs/first --to tensorboard:curves",
    )
    add = command.add_argument
    add("folder", metavar="RUN", type=Path, help="a run folder")
    add("--to", metavar="TRACKER", action="append", required=True, help=f"{TRACKERS}; repeatable")
    add("--follow", action="store_true", help="continue until the job ends")
    command.set_defaults(run="track")


def _add_stop(orders: Orders) -> None:
    command = _command(
        orders,
        "stop",
        "end a running job for all actors, in good order",
        "The model is scored and saved, and every actor ends with exit code 0. A signal to one\n"
        "process does not end the job: that process leaves (code 75) and may be started again.\n\n"
        "Exit code 0: the job has ended. 1: it failed, or no syncer answers.",
    )
    command.add_argument("address", metavar="ADDRESS", help="the syncer: tcp://127.0.0.1:5555")
    _add_asking(command)
    command.set_defaults(run="stop")


def _add_asking(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--keys", metavar="DIR", type=Path, help="the job's folder of keys, if it has any")
    add("--timeout", metavar="S", type=float, default=5.0, help="seconds to wait for an answer")
    add("--json", action="store_true", help="print JSON objects, one a line")


def _add_replay(orders: Orders) -> None:
    command = _command(
        orders,
        "replay",
        "execute a run again from its tapes, and compare every event",
        "Exit code 0: everything was identical. 1: the first difference is named, with its event,\n"
        "or a tape is missing and the gap is named. 2: a tape cannot be read.",
    )
    command.add_argument("folder", metavar="RUN", type=Path, help="the run folder, or one tape")
    command.add_argument(
        "--from",
        dest="snapshot",
        metavar="ID",
        default="",
        help="begin with this snapshot of the run, or with 'latest'",
    )
    command.add_argument(
        "--task",
        metavar="MODULE:FUNCTION",
        default="",
        help="call this task instead of the one that the tapes name; its source may differ",
    )
    _add_trust(command)
    command.add_argument(
        "--until",
        metavar="TARGET",
        default="",
        help="stop before an event, syncer.1:540, merge:40 or step:learner-1:120, at the cut of "
        "all that it knew of, and show the job there",
    )
    command.add_argument(
        "--without",
        metavar="LEARNER",
        action="append",
        default=[],
        help="with --until merge:T: compute that merge again without the contribution of this "
        "learner, and show the difference of each tensor; may be given again",
    )
    hand = command.add_mutually_exclusive_group()
    hand.add_argument(
        "--pdb",
        action="store_true",
        help="a debugger at each breakpoint() of the task, and with --until also there",
    )
    hand.add_argument("--shell", action="store_true", help="with --until: a Python prompt there")
    _add_salvage(command)
    command.add_argument("--json", action="store_true", help="print the findings as JSON")
    command.set_defaults(run="replay")


def _add_trust(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--trust",
        action="store_true",
        help="let a run act that another user recorded: its task, the states in its snapshots, and "
        "the places that its tapes name",
    )


def _add_salvage(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--salvage",
        action="store_true",
        help="read a damaged tape up to the damage, and name the rest as a gap",
    )


def _add_wanted(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--actor", metavar="NAME", default="", help="of this actor: learner-1, or learner-1.2")
    add("--type", metavar="TYPE", default="", help="of this type: StepFinished, Contribution")
    add("--merge", metavar="T", type=int, help="only messages about the merge of global step T")
    add("--around", metavar="EVENT", default="", help="ten events before and after syncer.1:540")
    add("--full", action="store_true", help="do not cut off long values")


def _add_bundle(orders: Orders) -> None:
    command = _command(
        orders,
        "bundle",
        "pack a run into one file, for a replay on another machine; or unpack such a file",
        "A run folder is packed, a file is unpacked into a new folder:\n"
        "  ddloco bundle runs/first                  to first.ddloco.tar.gz\n"
        "  ddloco bundle first.ddloco.tar.gz         to the folder first\n\n"
        "It holds the job file, the tapes, the log, the task's source, and the snapshots that the\n"
        "tapes begin with. Treat a bundle from elsewhere like a program from elsewhere: a replay\n"
        "calls its task, and the states in its snapshots decide what its actors do. Commands that\n"
        "let them ask for --trust.",
    )
    command.add_argument("path", metavar="RUN_OR_FILE", type=Path, help="what to pack or unpack")
    command.add_argument("--to", metavar="PATH", type=Path, help="the new file, or the new folder")
    command.add_argument(
        "--redact", action="store_true", help="leave out the log and the source of the task"
    )
    command.set_defaults(run="bundle")


def _add_diff(orders: Orders) -> None:
    command = _command(
        orders,
        "diff",
        "compare two recorded runs: where they part first, and of what kind the difference is",
        "Inner steps, contributions and merges are compared by what they mean; times and event\n"
        "numbers do not count. A difference is of data, arithmetic, timing, code, environment or\n"
        "configuration.\n\n"
        "Exit code 0: everything is equal. 1: the runs differ.",
    )
    command.add_argument("folder", metavar="RUN_A", type=Path, help="a run folder")
    command.add_argument("other", metavar="RUN_B", type=Path, help="another run folder")
    _add_trust(command)
    _add_salvage(command)
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run="diff")


def _add_report(orders: Orders) -> None:
    command = _command(
        orders,
        "report",
        "write one HTML file that explains a recorded run",
        "The file needs nothing but a browser: lanes of all actors, what each merge waited for\n"
        "and who was in it, losses, goodput, staleness, bytes per link. Only machines are stepped.",
    )
    command.add_argument("folder", metavar="RUN", type=Path, help="the run folder")
    command.add_argument(
        "--out", metavar="FILE", type=Path, help="the file (default: report.html in the run folder)"
    )
    command.add_argument("--compare", metavar="RUN_B", type=Path, help="show another run beside it")
    _add_trust(command)
    _add_salvage(command)
    command.set_defaults(run="report")


def _add_why(orders: Orders) -> None:
    command = _command(
        orders,
        "why",
        "explain a recorded run: a merge, an absence, an event, a loss",
        WHY,
    )
    command.add_argument("folder", metavar="RUN", type=Path, help="the run folder")
    questions = command.add_subparsers(dest="question", metavar="QUESTION", required=True)
    for name, what in (
        ("merge", "what a merge waited for, who was in it, and who was not"),
        ("absent", "why a learner was not in a merge"),
        ("event", "what led to an event, back to what came from outside"),
        ("loss", "which learner's loss left its band first, and which contributions stand out"),
    ):
        question = _command(questions, name, what)
        if name == "absent":
            question.add_argument("learner", metavar="LEARNER", help="learner-2, or learner-2.1")
        if name in {"merge", "absent"}:
            question.add_argument("t", metavar="T", type=int, help="the merge's global step")
        if name == "event":
            question.add_argument("event", metavar="EVENT", help="such as syncer.1:782")
            question.add_argument(
                "--depth", metavar="N", type=int, default=16, help="causes to show (default: 16)"
            )
        _add_trust(question)
        _add_salvage(question)
        question.add_argument("--json", action="store_true", help="print JSON")
        question.set_defaults(run="why")


def _add_tape(orders: Orders) -> None:
    tape = _command(orders, "tape", "show tapes and check them")
    actions = tape.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, what, run in (
        ("show", "print one line per event, in causal order", "tape_show"),
        ("verify", "check records, clocks and headers without executing", "tape_verify"),
    ):
        command = _command(actions, name, what)
        command.add_argument("folder", metavar="RUN_OR_TAPE", type=Path, help="folder or file")
        if name == "show":
            _add_wanted(command)
        _add_salvage(command)
        command.add_argument("--json", action="store_true", help="print JSON")
        command.set_defaults(run=run)
    _add_tape_export(actions)


def _add_tape_export(actions: Orders) -> None:
    command = _command(
        actions,
        "export",
        "write a run for another tool: Perfetto, ShiViz, OpenTelemetry, or JSON lines",
        "perfetto opens in ui.perfetto.dev and chrome://tracing; shiviz in ShiViz, with its\n"
        "default expression; otlp is an export request of OpenTelemetry; jsonl has every event.",
    )
    command.add_argument("folder", metavar="RUN_OR_TAPE", type=Path, help="folder or file")
    formats = command.add_mutually_exclusive_group(required=True)
    for name in ("perfetto", "shiviz", "otlp", "jsonl"):
        formats.add_argument(f"--{name}", dest="format", action="store_const", const=name)
    command.add_argument("--to", metavar="FILE", type=Path, help="default: standard output")
    _add_salvage(command)
    command.set_defaults(run="tape_export")


def _add_snapshot(orders: Orders) -> None:
    what = "take snapshots of a job, list and verify them, export a model"
    snapshot = _command(orders, "snapshot", what, SNAPSHOTS)
    actions = snapshot.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add_take(actions)
    for name, what in (
        ("list", "print one line per snapshot, the newest first"),
        ("verify", "read every byte of one snapshot or all, and compare clocks and digests"),
        ("export", "write a snapshot's or a run's model as one file, or for Hugging Face"),
    ):
        command = _command(actions, name, what, SNAPSHOTS)
        add = command.add_argument
        add("place", metavar="PLACE", help="folder of snapshots, run folder, or URL")
        if name != "list":
            add(
                "snapshot",
                metavar="ID",
                nargs="?" if name == "verify" else None,
                help="which one: syncer.1-1042, or latest"
                + ("; or model, the run's final one" if name == "export" else ""),
            )
        if name == "export":
            add("--to", metavar="PATH", type=Path, required=True, help="a new file or folder")
            add(
                "--format",
                choices=("safetensors", "hf"),
                default="safetensors",
                help="one file (default), or the folder that the task's hugging_face describes",
            )
            add("--job", metavar="FILE", type=Path, help="job file with the task, for hf")
        else:
            add("--json", action="store_true", help="print JSON")
        command.set_defaults(run=f"snapshot_{name}")


def _add_take(actions: Orders) -> None:
    command = _command(
        actions,
        "take",
        "take a snapshot of a running job, and print its id",
        "Each actor that is not in it is named, with the reason. The job continues meanwhile.\n\n"
        "Exit code 0: it is complete. 1: it was discarded, with the reason; or no syncer answers,\n"
        "or the job ended before.",
    )
    command.add_argument("address", metavar="ADDRESS", help="the syncer: tcp://127.0.0.1:5555")
    _add_asking(command)
    command.set_defaults(run="snapshot_take")


def _add_docs(orders: Orders) -> None:
    command = _command(
        orders,
        "docs",
        "show the documentation, which is installed with ddloco",
        "Without a page all are listed. They are Markdown:\n\n"
        "  ddloco docs tutorial\n"
        "  ddloco docs configuration      every setting of a job file\n"
        "  ddloco docs --path             the folder that holds them",
    )
    add = command.add_argument
    add("page", metavar="PAGE", nargs="?", default="", help="print this page")
    add("--path", action="store_true", help="print where it is instead")
    command.set_defaults(run="docs")


def _add_completion(orders: Orders) -> None:
    command = _command(
        orders,
        "completion",
        "print a script with which a shell completes commands, options and paths",
        "For bash, in one session, or for all of them:\n\n"
        '  eval "$(ddloco completion bash)"\n'
        "  ddloco completion bash > ~/.local/share/bash-completion/completions/ddloco\n\n"
        "It needs shtab: pip install 'ddloco[completion]'.",
    )
    shells = ("bash", "zsh", "fish", "tcsh")
    command.add_argument("shell", metavar="SHELL", choices=shells, help=", ".join(shells))
    command.set_defaults(run="completion")


def _add_simulate(orders: Orders) -> None:
    what = "run the same machines in virtual time, with faults"
    command = _command(orders, "simulate", what, SIMULATIONS)
    add = command.add_argument
    add(
        "scenario",
        metavar="SCENARIO",
        help="a scenario file, a run folder, or one of the names below",
    )
    add("--seed", type=int, metavar="S", help="the first seed (default: the scenario's)")
    add("--seeds", type=int, default=1, metavar="N", help="how many, from the first one on")
    add("--jobs", type=int, default=0, metavar="J", help="processes (default: one per core)")
    add("--case", metavar="TEXT", default="", help="only the cases whose names contain it")
    add(
        "--set",
        dest="overrides",
        metavar="key=value",
        action="append",
        default=[],
        help="override a key of the scenario, such as chips.total=300000; may be given again",
    )
    add(
        "--without",
        metavar="LEARNER",
        action="append",
        default=[],
        help="a learner of a simulated run that never joins; may be given again",
    )
    add("--dir", dest="folder", metavar="RUN", type=Path, help="write tapes and a log there")
    add("--json", action="store_true", help="print JSON")
    add_bandwidth(command)
    _add_trust(command)
    command.set_defaults(run="simulate")


def add_bandwidth(command: argparse.ArgumentParser) -> None:
    """Add the options of ``simulate bandwidth``; the defaults are the paper's headline."""
    add = command.add_argument_group("options of bandwidth").add_argument
    add("--parameters", metavar="N", type=float, help="of the model, such as 12e9")
    add("--layers", metavar="L", type=int, help="layers of the model")
    add("--step-s", metavar="S", type=float, help="seconds of a step")
    add("--sites", metavar="M", type=int, help="data centres, or learners")
    add("--interval", metavar="H", type=int, help="steps between two syncs of a fragment")
    add("--fragments", metavar="P", type=int, help="at most the interval")
    add("--overlap", metavar="TAU", type=int, help="steps that hide a sync")
    add("--svg", metavar="FILE", type=Path, help="draw utilisation against bandwidth")


def command_named(name: str) -> Callable[[argparse.Namespace], int]:
    """The function of a command; only its module is imported, so that no command waits for what
    another one needs."""
    [module] = [module for module, names in MODULES.items() if name in names]
    return getattr(import_module(f"ddloco.cli.{module}"), name)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit with its code."""
    with escaping():
        _main(arguments)


def _main(arguments: Sequence[str] | None) -> None:
    top = parser()
    given = top.parse_args(arguments)
    if given.version:
        from importlib.metadata import version  # noqa: PLC0415, so that --help is fast

        print(f"ddloco {version('ddloco')}")
        sys.exit(0)
    if not hasattr(given, "run"):
        top.print_help()
        sys.exit(2)
    try:
        code = command_named(given.run)(given)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the output has closed the pipe, which is not an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except KeyboardInterrupt:
        code = interrupted()
    except BaseExceptionGroup as group:
        # What else has failed has failed because of it: a terminal interrupts workers, too.
        if group.subgroup(KeyboardInterrupt) is None:
            raise
        code = interrupted()
    sys.exit(code)


def interrupted() -> int:
    """Say that Ctrl-C has ended the command; returns its exit code."""
    print("ddloco: interrupted", file=sys.stderr)
    return 1
