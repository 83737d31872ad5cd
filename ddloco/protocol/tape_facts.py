"""What a tape's header says of how it was recorded, beside the job: facts, by name."""

from ddloco.actors.actor import ACTOR_SEMANTICS
from replay import Header

TENSORS = "tensors"
"""The option of a simulated task: how many tensors its model has."""

DEVICE, SIMULATED = "device", "simulated"
"""The fingerprint of a simulated actor names this device."""

ARITHMETIC = "arithmetic"
"""The entry of such a fingerprint that tells whether numbers were computed, too."""

STATE_PIECES = "state pieces"
"""The fact that tells into how many pieces a state was cut, where that is not its own affair."""

TASK = "task sha256"
"""The fact in a tape's header that tells which source the task had."""

SEMANTICS: tuple[str, ...] = (
    *ACTOR_SEMANTICS,
    *("fresh-quorum", "pull-unmerged", "launch-floor", "median-step", "bands"),
)
"""What a job's tapes name. A tape that names others is refused before it is replayed."""


def is_simulated(header: Header) -> bool:
    """Whether a tape was left by a simulation."""
    return header.fingerprint.get(DEVICE) == SIMULATED
