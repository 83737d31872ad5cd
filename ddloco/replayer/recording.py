"""The tapes of a run folder, which belong together: to one job, which is the folder's own."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from clocks import actor_of
from ddloco.job.config import Job, job_from, load_job
from ddloco.job.protocol.tape_facts import (
    ARITHMETIC,
    SEMANTICS,
    STATE_PIECES,
    TENSORS,
    is_simulated,
)
from ddloco.replayer.start_point import Permit, choose_start_point
from ddloco.roles.job_program import JobProgram, program_of
from ddloco.stage.actors.actor import ACTOR_SEMANTICS
from ddloco.stage.driver.resume import StartPoint, place_now
from ddloco.stage.files.run_folder import JOB_FILE, SNAPSHOTS, TAPES
from ddloco.stage.files.toml import read_toml
from ddloco.stage.files.trust import check_states, check_trust, content_of, job_digest
from ddloco.stage.nodes.runnable import Runnable
from ddloco.stage.process.entry_point import parted
from ddloco.stage.programs.program import (
    PLACE,
    LoadedProgram,
    find_programs,
    is_program,
    load_program,
)
from replay import Tape, TapeError, open_tapes

TENSORS_MAX = 2**20
"""More tensors than any model has."""

HEADER_AT = 16
"""The byte of a tape at which its header begins."""


def run_folder_of(path: Path) -> Path:
    inner = path.parent if path.is_file() else path
    return inner.parent if inner.name == TAPES else inner


def open_recording(
    path: Path, *, salvage: bool = False, wanted: Callable[[str], bool] | None = None
) -> list[Tape]:
    """Open the tapes of a run, scanned; all are of the job or the program that their folder is of.
    ``TapeError`` if one cannot be read, or is of another job or other semantics; ``ConfigError`` if
    this version cannot run the recorded job, or the folder's own."""
    tapes = open_tapes(path, salvage=salvage, wanted=wanted)
    folder = run_folder_of(path)
    program = is_program(tapes[0].header.job)
    for each in tapes:
        _check_id(each)
        _check_semantics(each, ACTOR_SEMANTICS if program else SEMANTICS)
        _check_facts(each)
        if content_of(each.header.job) != content_of(tapes[0].header.job):
            raise _refused(each, f"its settings are not those in {tapes[0].path.name}")
    if program:
        _check_program(tapes[0], folder)
    else:
        _check_job(tapes, folder)
    return tapes


def check_task(tapes: Sequence[Tape], path: Path, task: str, *, trust: bool) -> None:
    """Refuse to call what tapes name, unless this user recorded them, confirms it (``trust``), or
    names something else (``task``)."""
    if task:
        parted("--task", task)
        return
    # A simulated task calls no user code.
    if not trust and not all(is_simulated(each.header) for each in tapes):
        check_trust(run_folder_of(path), tapes[0].header.job)


def permit_of(tapes: Sequence[Tape], path: Path, *, trust: bool) -> Permit:
    """What refuses the states in a place, unless this user recorded the run or trusts its author;
    see ``check_states``."""
    return partial(check_states, run_folder_of(path), tapes[0].header.job, trust=trust)


def program_in(
    tapes: Sequence[Tape], path: Path, task: str = "", *, trust: bool = False
) -> JobProgram | LoadedProgram:
    """Return what the tapes of a run are of: a job, or a user's program, which is imported here.
    ``ConfigError`` if this version cannot run the job, or another user recorded the program;
    ``NamedError`` if that cannot be used here; ``TapeError`` if it lacks the actor of a tape
    now."""
    plain = tapes[0].header.job
    if not is_program(plain):
        return program_of(job_of(tapes[0]))
    check_task(tapes, path, task, trust=trust)
    find_programs()
    program = load_program(task or plain["program"], plain["options"])
    for each in tapes:
        if actor_of(each.incarnation) not in program.names:
            raise _refused(each, f"{each.incarnation} is not an actor of the program now")
    return program


def start_point_in(
    program: Runnable, tapes: Sequence[Tape], path: Path, permit: Permit, snapshot: str = ""
) -> StartPoint[Any] | None:
    """Read the snapshot that tapes begin with; see ``choose_start_point``. A run folder may have
    been copied; what is in it is where it is now."""
    folder = run_folder_of(path)
    named = tapes[0].header.facts.get(PLACE)
    own = not named or (folder / SNAPSHOTS).is_dir()
    place = program.place(folder) if own or not named else place_now(named, tapes[0].path)
    return choose_start_point(tapes, place, program.restored, snapshot, permit)


def job_of(tape: Tape) -> Job:
    return job_from(tape.header.job, f"{tape.path} (header)")


def named_settings(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a job or a program by their names, such as ``sync.quorum``."""
    return {key: "not set" if value is None else value for key, value in _flat(plain)}


def _flat(plain: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in plain.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")  # pyright: ignore[reportUnknownArgumentType]
        else:
            yield f"{prefix}{key}", value


def _refused(each: Tape, problem: str) -> TapeError:
    return TapeError(each.path, HEADER_AT, f"header: {problem}")


def _check_id(each: Tape) -> None:
    header = each.header
    if header.job_id.rpartition("-")[2] != job_digest(header.job) or not content_of(header.job):
        said = f"says job {header.job_id[:80]}, but its settings have the digest "
        raise _refused(each, f"{said}{job_digest(header.job)}")


def _check_semantics(each: Tape, ours: Sequence[str]) -> None:
    """A tape replays only with the behaviours that it names."""
    theirs = each.header.semantics
    if set(theirs) == set(ours):
        return
    unknown = ", ".join(sorted(set(theirs) - set(ours)))[:200]
    missing = ", ".join(sorted(set(ours) - set(theirs)))
    parts = [f"with {unknown}, which this version has not" if unknown else ""]
    parts.append(f"without {missing}, which this version has" if missing else "")
    said = f"semantics: recorded {' and '.join(filter(None, parts))}"
    raise _refused(each, f"{said}; replay it with {each.header.code[:80]}, which recorded it")


def _check_facts(each: Tape) -> None:
    """What a replay reads of facts and fingerprint must be what it takes it for."""
    header = each.header
    pieces = header.facts.get(STATE_PIECES, "1")
    if not (pieces.isascii() and pieces.isdigit() and int(pieces[:9]) > 0 and len(pieces) < 10):
        raise _refused(each, f"facts: {STATE_PIECES}: {pieces[:40]!r} is no count")
    if not is_simulated(header):
        return
    task = header.job.get("task")
    tensors = task.get(TENSORS) if isinstance(task, dict) else None
    if not isinstance(tensors, int) or not 0 < tensors <= TENSORS_MAX:
        raise _refused(each, f"job: task.{TENSORS}: a simulated task has 1 to {TENSORS_MAX}")
    if ARITHMETIC not in header.fingerprint:
        raise _refused(each, f"fingerprint: {ARITHMETIC}: missing; a simulation says whether")


def _check_job(tapes: Sequence[Tape], folder: Path) -> None:
    job = job_of(tapes[0])
    for each in tapes:
        if actor_of(each.incarnation) not in job.names():
            raise _refused(each, f"{each.incarnation} is no actor of {job.id}")
    if (folder / JOB_FILE).exists():
        own = load_job(folder / JOB_FILE)
        if content_of(own.as_plain()) != content_of(job.as_plain()):
            said = f"of job {tapes[0].header.job_id}, while {folder / JOB_FILE} is of {own.id}"
            raise _refused(tapes[0], said)


def _check_program(first: Tape, folder: Path) -> None:
    path = folder / JOB_FILE
    if path.exists() and content_of(read_toml(path)) != content_of(first.header.job):
        raise _refused(first, f"its program or its options are not those in {path}")
