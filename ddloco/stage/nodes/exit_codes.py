"""The exit codes of commands."""

HELD = 0
"""Success: the job is done, or what was checked held."""

FOUND = 1
"""The job failed, or a check found something: a divergence, damage, no answer."""

BAD_INPUT = 2
"""A file, an option or an address that cannot be used."""

AGAIN = 75
"""The process left in good order and should be started again: EX_TEMPFAIL of sysexits.h.
Schedulers take 0 to mean that a process is done and need not be restarted."""
