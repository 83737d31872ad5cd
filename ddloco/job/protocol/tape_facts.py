"""Names of the facts in a tape's header that say how it was recorded, in addition to the job."""

from ddloco.stage.actors.actor import ACTOR_SEMANTICS
from replay import TapeHeader

TENSORS = "tensors"
"""The option of a simulated task: the number of tensors in its model."""

DEVICE, SIMULATED = "device", "simulated"
"""The entry and value in the fingerprint of a simulated actor."""

ARITHMETIC = "arithmetic"
"""The entry in such a fingerprint that says whether numbers were computed as well."""

STATE_PIECES = "state pieces"
"""The fact with the number of pieces of a state, if the state came from elsewhere."""

FROM_COPY = "from a copy"
"""The fact in the header of a syncer that began with what its lease's place has of another host's
folder, which may lack the last second."""

SEMANTICS: tuple[str, ...] = (
    *ACTOR_SEMANTICS,
    *("fresh-quorum", "pull-unmerged", "launch-steps", "recent-median", "bands", "numbers"),
    *("lost-pulls", "outer-state", "waits", "relays", "steps-together"),
    *("refused-answers", "stops-in-steps", "saved-before-told", "state-outlives-theta"),
    "possible-claims",
)
"""The behaviours that a job's tapes name. Tapes that name others are not replayed."""


def is_simulated(header: TapeHeader) -> bool:
    return header.fingerprint.get(DEVICE) == SIMULATED
