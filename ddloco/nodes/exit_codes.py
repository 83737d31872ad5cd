"""The exit codes of commands."""

HELD = 0

FOUND = 1

BAD_INPUT = 2

AGAIN = 75
"""It left in good order and wants to be started again: EX_TEMPFAIL of sysexits.h. Engines that
place and restart processes take 0 for done, for good."""
