"""What is known of one peer: a session of a link, and the state of its two lanes."""

from dataclasses import dataclass, field

from clocks import LaneSequence
from transport.flow_control import WINDOW_MESSAGES, Outbox
from transport.message import GREETINGS, LANES, Body, Lane

REDIAL_S_MIN = 0.5
REDIAL_S_MAX = 8.0
"""A dialling side repeats Hello after 0.5 s, then 1, 2, 4, and every 8 s: soon enough to follow a
syncer that starts late, seldom enough not to matter. Half a second also keeps a broken pair of
links from shaking hands in a tight loop."""

DOUBLINGS_MAX = 8
"""More doublings than lead from the first wait to the longest; 2**1100 is no float any more."""

STALL_S = 30.0
"""A lane whose messages wait for credit this long, while neither credit nor word of arriving bytes
comes, may have lost all that it had on its way: nothing that follows could show the hole. The link
is given up, which costs a handshake where the other side was merely stopped."""

SESSIONS_AHEAD_MAX = 2**20
"""So far a session may be ahead of the one before, or of none: as many dials take weeks. A number
near the largest would leave none for whoever dials next."""

RUNS_MAX = 8
"""Other runs whose members may take part in this one. There is one where a syncer has lost its
folder, and another each time that it loses it again."""

REASON_CHARS_MAX = 1000
"""A peer's own words may be long; a reason that quotes them must still fit its field."""


@dataclass(slots=True)
class LaneState:
    """One lane of one session; ``advanced`` is what the peer was last known to have taken in,
    messages and bytes of the next one; ``watched`` is what that was when the lane was first found
    to have no credit left, None while nobody looks."""

    outbox: Outbox
    outgoing: LaneSequence = field(default_factory=LaneSequence)
    incoming: LaneSequence = field(default_factory=LaneSequence)
    advanced: tuple[int, int] = (0, 0)
    watched: tuple[int, int] | None = None
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
    run: str = ""
    """The run in which the listening side has welcomed us."""
    up: bool = False
    owes: bool = False
    """Whether there is credit that leaves with the next message."""
    attempts: int = 0
    lanes: dict[Lane, LaneState] = field(default_factory=new_lanes)

    @property
    def whole(self) -> bool:
        """Whether both lanes are open for what comes in."""
        return all(self.lanes[lane].open for lane in LANES)

    def carries(self, lane: Lane, session: int, body: Body) -> bool:
        """Whether a message has a number in an open lane, and is none of a handshake."""
        numbered = session == self.session and type(body) not in GREETINGS
        return numbered and self.lanes[lane].open

    def redial_wait(self) -> float:
        """Seconds until Hello is said again, after those that were said."""
        return min(REDIAL_S_MIN * 2 ** min(self.attempts, DOUBLINGS_MAX), REDIAL_S_MAX)


def disagreement(ours: dict[str, str], theirs: dict[str, str]) -> str | None:
    """The first thing that both sides must share and do not, in words."""
    for key in sorted({*ours, *theirs}):
        if ours.get(key) != theirs.get(key):
            said = f"{key} differs: {ours.get(key)} here, {theirs.get(key)} there"
            return said[:REASON_CHARS_MAX]
    return None


@dataclass(slots=True)
class RunsHere:
    """Whose members a listening side welcomes: those of its own run, of runs that joined it, and,
    until it is settled, of any run; see ``Listen``."""

    own: str = ""
    joined: list[str] = field(default_factory=list[str])
    settled: bool = False

    def objection(self, run: str) -> str | None:
        """Why a member of ``run`` cannot take part."""
        if not run or not self.own or run in (self.own, *self.joined):
            return None
        if not self.settled and len(self.joined) < RUNS_MAX:
            return None
        said = f"it took part in run {run}, and this is run {self.own}, which has merged without it"
        return f"{said}; started again, it takes part in this one"

    def join(self, run: str) -> None:
        """A member of ``run`` takes part from now on, and so may the others."""
        if run and self.own and run not in (self.own, *self.joined):
            self.joined.append(run)


def stall_timer(peer: str, lane: Lane) -> str:
    """Its name says which lane has waited for credit."""
    return f"stall/{lane}/{peer}"


def redial_timer(peer: str) -> str:
    """Its name says who is dialled again."""
    return f"redial/{peer}"
