"""What the syncer holds of each fragment, and of each synchronisation under way."""

from dataclasses import dataclass, field

from ddloco.messages import Contribution


@dataclass(slots=True)
class Global:
    """A fragment as the syncer owns it: version, and handles of its arrays."""

    version: int
    theta: str
    momentum: str
    wire: str


@dataclass(slots=True)
class Part:
    """A contribution that arrived; ``merged`` is its learner's, as ``Member`` has it."""

    said: Contribution
    handle: str
    merged: list[int]


@dataclass(slots=True)
class Sync:
    """A sync under way: launched, then merging once ``work`` is set."""

    t: int
    fragment: int
    pulled: tuple[str, ...]
    grace_s: float
    launched_at: float
    parts: dict[str, Part] = field(default_factory=dict[str, Part])
    work: int = 0
