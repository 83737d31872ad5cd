"""What is known of one peer: a session of a link, and the state of its two lanes."""

from dataclasses import dataclass, field

from clocks import LaneSequence
from transport.message import LANES, Lane
from transport.outbox import WINDOW_MESSAGES, Outbox

REASON_CHARS_MAX = 1000
"""A peer's own words may be long; a reason that quotes them must still fit its field."""


@dataclass(slots=True)
class LaneState:
    """One lane of one session; ``watched`` is the credit that there was when it was first found
    to have none left, None while nobody looks."""

    outbox: Outbox
    outgoing: LaneSequence = field(default_factory=LaneSequence)
    incoming: LaneSequence = field(default_factory=LaneSequence)
    watched: int | None = None
    told: int = 0
    taken: int = 0
    credited: int = 0
    open: bool = False


def new_lanes() -> dict[Lane, LaneState]:
    """Both lanes before a handshake."""
    return {lane: LaneState(Outbox(WINDOW_MESSAGES[lane])) for lane in LANES}


@dataclass(slots=True)
class Link:
    """What is known of one peer."""

    peer: str
    dialled: dict[str, str] | None
    session: int = 0
    incarnation: str = ""
    up: bool = False
    attempts: int = 0
    lanes: dict[Lane, LaneState] = field(default_factory=new_lanes)

    @property
    def whole(self) -> bool:
        """Whether both lanes are open for what comes in."""
        return all(self.lanes[lane].open for lane in LANES)


def disagreement(ours: dict[str, str], theirs: dict[str, str]) -> str | None:
    """The first thing that both sides must share and do not, in words."""
    for key in sorted({*ours, *theirs}):
        if ours.get(key) != theirs.get(key):
            said = f"{key} differs: {ours.get(key)} here, {theirs.get(key)} there"
            return said[:REASON_CHARS_MAX]
    return None


def stall_timer(peer: str, lane: Lane) -> str:
    """Its name says which lane has waited for credit."""
    return f"stall/{lane}/{peer}"


def redial_timer(peer: str) -> str:
    """Its name says who is dialled again."""
    return f"redial/{peer}"
