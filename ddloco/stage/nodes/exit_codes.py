"""The exit codes of commands, and the one table of what ends with which: 2 for what a person must
change, 75 for all that may pass, 1 for results and bugs. Engines take 0, 1 and 2 as final, and
start again on 75."""

from ddloco.stage.files.toml import passes

HELD = 0
"""Success: the job is done, or what was checked held."""

FOUND = 1
"""The job failed, or a check found something: a divergence, damage, no answer."""

BAD_INPUT = 2
"""A file, an option or an address that cannot be used."""

AGAIN = 75
"""The process left in good order and should be started again: EX_TEMPFAIL of sysexits.h.
Schedulers take 0 to mean that a process is done and need not be restarted."""

ENDS = {"done": HELD, "stopped": HELD, "left": AGAIN, "bad-input": BAD_INPUT, "failed": FOUND}


def end_code(status: str, *, again: bool) -> int:
    return AGAIN if again else ENDS[status]


def error_code(error: BaseException) -> int:
    """Return the exit code of a command that an error has ended which is no bug: that of bad
    input, unless it may pass."""
    return AGAIN if passes(error) else BAD_INPUT
