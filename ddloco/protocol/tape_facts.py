"""What a tape's header says of how it was recorded, beside the job: facts, by name."""

from replay import Header

TENSORS = "tensors"
"""The option of a simulated task: how many tensors its model has."""


DEVICE = "device"

SIMULATED = "simulated"

ARITHMETIC = "arithmetic"


STATE_PIECES = "state pieces"
"""The fact that tells into how many pieces a state was cut, where that is not its own affair."""

TASK = "task sha256"
"""The fact in a tape's header that tells which source the task had."""

SEMANTICS: tuple[str, ...] = (
    "fresh-quorum", "pull-unmerged", "launch-floor", "median-step", "bands", "shared-deltas",
    "owed-credit",
)  # fmt: skip
"""Behaviours that a later version may change; an old tape replays with those that it names."""


def is_simulated(header: Header) -> bool:
    """Whether a tape was left by a simulation."""
    return header.fingerprint.get(DEVICE) == SIMULATED
