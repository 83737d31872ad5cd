"""``ddloco tape verify``: the checks of tapes that need no execution."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ddloco.cli.ask import complain_of_tape
from ddloco.debugger.timeline import receipt_of
from ddloco.replayer.gaps import dropped_before, gaps_of
from ddloco.replayer.invariants.merged_tokens import MergedShare
from ddloco.replayer.invariants.tape_audit import Audit, InvariantResult
from ddloco.replayer.recording import open_recording
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.nodes.exit_codes import FOUND, HELD
from ddloco.stage.process.terminal import one_line
from ddloco.stage.programs.program import is_program
from replay import Tape, TapeError, verify


def verify_folder(folder: Path, *, salvage: bool = False, as_json: bool) -> tuple[bool, list[str]]:
    """Check all tapes: whether everything held and nothing is missing, and the lines to print."""
    tapes = open_recording(folder, salvage=salvage)
    verdicts, between = verify(tapes, receipt_of)
    goes_on = any(each.header.after for each in tapes)  # The checks would need the earlier events.
    program = is_program(tapes[0].header.job)
    findings: list[InvariantResult] = []
    share: MergedShare | None = None
    if not (goes_on or program):
        audit = Audit(tapes)
        findings, share = audit.run(), audit.share()
    gaps = gaps_of(tapes, folder)
    sound = not between and not any(verdict.problems for verdict in verdicts)
    sound = sound and not any(finding.violation for finding in findings)
    held = sound and not gaps
    if as_json:
        found = {
            "tapes": [asdict(verdict) for verdict in verdicts],
            "between": between,
            "gaps": gaps,
            "invariants": [asdict(finding) for finding in findings],
            "tokens": asdict(share) if share is not None and share.merges else None,
        }
        return held, [json.dumps({"held": held, **found}, indent=2)]
    lines: list[str] = []
    for verdict in verdicts:
        counts = f"{verdict.events:,} events, {verdict.messages:,} messages"
        lines.append(f"{verdict.incarnation:<14} {counts}, ends: {verdict.ends}")
        lines += [f"  {verdict.incarnation} {problem}" for problem in verdict.problems]
    lines += [*between, *(f"gap: {gap}" for gap in gaps), *(each.line() for each in findings)]
    if share is not None and share.merges:
        lines.append(share.line())
    lines += [f"{each.incarnation:<14} {dropped_before(each)}" for each in tapes if each.dropped]
    if not held:
        return held, [*lines, "not held: parts of the run are missing" if sound else "failed"]
    total = sum(verdict.events for verdict in verdicts)
    checked = _checked(tapes, program=program)
    return held, [*lines, f"held: {total:,} events of {len(verdicts)} tapes, {checked}"]


def _checked(tapes: Sequence[Tape], *, program: bool) -> str:
    if program:
        return "every record and clock"
    if not any(each.header.after for each in tapes):
        return "every record, clock and invariant"
    dropped = any(each.dropped for each in tapes)
    why = "do not have the first events" if dropped else "start from a snapshot"
    return f"every record and clock; invariants were not checked: these tapes {why}"


def tape_verify(given: argparse.Namespace) -> int:
    try:
        held, lines = verify_folder(given.folder, salvage=given.salvage, as_json=given.json)
    except (TapeError, ConfigError) as error:
        return complain_of_tape(given, error)
    for line in lines:
        print(one_line(line))
    return HELD if held else FOUND
