"""What is known of one peer: a session of a link, and the state of its two lanes."""

from dataclasses import dataclass, field

from clocks import LaneSequence
from transport.message import LANES, Lane
from transport.outbox import WINDOW_MESSAGES, Outbox


@dataclass(slots=True)
class LaneState:
    """One lane of one session."""

    outbox: Outbox
    outgoing: LaneSequence = field(default_factory=LaneSequence)
    incoming: LaneSequence = field(default_factory=LaneSequence)
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
