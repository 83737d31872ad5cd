"""The setting for how much of a job's tapes is kept, and what it requires."""

import re

_SAID = re.compile(r"([1-9][0-9]{0,8}) snapshots?")


def snapshots_said(keep: str) -> int | None:
    """The number in ``2 snapshots``, 0 for an empty text; None for anything else."""
    if not keep:
        return 0
    said = _SAID.fullmatch(keep)
    return int(said[1]) if said is not None else None


def unbounded(keep: str, *, wanted: bool, stay: int, ships: bool) -> str | None:
    count = snapshots_said(keep)
    if count is None:
        return f'tape.keep: {keep!r} is not valid; want "2 snapshots", or "" to keep everything'
    if not count:
        return None
    if not wanted:
        said = "but the job takes none; set snapshot.every_s or snapshot.every_steps"
        return f"tape.keep: {keep}, {said}"
    if stay < count:
        return (
            f"tape.keep: {keep}, but snapshot.keep retains only {stay}; set it to at least {count}"
        )
    if ships:
        return f"tape.keep: {keep}, but shipped tapes are kept whole; set tape.ship = false"
    return None
