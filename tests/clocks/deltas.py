"""Deltas of clocks, from whole ones."""


def changed(clock, before):
    """The entries that differ from those of an earlier clock, in wire order."""
    return {name: clock[name] for name in clock if clock[name] != before[name]}
