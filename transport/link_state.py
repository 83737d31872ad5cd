"""The state of one link: its session, and the state of its two lanes."""

from typing import Generic

from msgspec import Struct, field

from clocks import LaneSequence
from transport.flow_control import WINDOW_MESSAGES, Outbox
from transport.message import GREETINGS, LANES, B, Body, Lane

REDIAL_S_MIN = 0.5
REDIAL_S_MAX = 8.0
"""The dialling side repeats Hello after 0.5 s, then after 1, 2, 4, and every 8 s: soon enough for a
syncer that starts late, and rarely enough to cost nothing. The first wait also keeps a broken pair
of links from shaking hands in a tight loop."""

DOUBLINGS_MAX = 8
"""More doublings than it takes from the first wait to the longest; 2**1100 overflows a float."""

STALL_S = 30.0
"""If messages wait for credit this long while neither credit nor a report of arriving bytes comes,
everything in flight on the lane may be lost, with no later message to reveal the gap. The link is
given up; if the peer was only paused, that costs a handshake."""

SESSIONS_AHEAD_MAX = 2**20
"""How far a session number may exceed the previous one (0 for a new link): that many dials take
weeks. A number near the maximum would leave none for the next dial."""

ALONE = "one peer alone names another incarnation"
"""The counter of a Hello that is not answered since nobody else says the same."""

CLAIM_S, CLAIMS_MAX = 10.0, 64
"""How long, in seconds, one peer must be the only one that comes until it is believed that there is
a later incarnation; and how many such peers are remembered."""

SUPERSEDED_UNLINKED = "superseded before any link"
"""The counter of an incarnation that has done nothing but hear of a later one."""

NUMBERS_AHEAD_MAX = 2**20
"""How far the number of a later incarnation may exceed an actor's own. A number near the largest
one would leave none for the next."""

RUNS_MAX = 8
"""Other runs whose members may join this one. There is one if the syncer lost its run folder, and
one more each time that happens again."""

REASON_CHARS_MAX = 1000
"""A peer's own text may be long; a reason that quotes it must still fit its field."""


class LaneState(Struct, Generic[B], forbid_unknown_fields=True):
    """One lane of one session.

    Attributes:
        advanced: the last known progress of the peer: messages taken in, and bytes of the next.
        watched: the value of ``advanced`` when the lane ran out of credit; None if no stall timer
            is set.
        told: the number of this actor's event up to which the peer knows its clock.
        credited: the value of ``taken`` in the last credit message.
    """

    outbox: Outbox[B]
    outgoing: LaneSequence = field(default_factory=LaneSequence)
    incoming: LaneSequence = field(default_factory=LaneSequence)
    advanced: tuple[int, int] = (0, 0)
    watched: tuple[int, int] | None = None
    told: int = 0
    taken: int = 0
    credited: int = 0
    open: bool = False


def new_lanes() -> dict[Lane, LaneState]:
    return {lane: LaneState(Outbox(WINDOW_MESSAGES[lane])) for lane in LANES}


class Link(Struct, Generic[B], forbid_unknown_fields=True):
    """One peer: its current session and lanes; ``dialled`` is the agreement of a link dialled here,
    None on the listening side."""

    peer: str
    dialled: dict[str, str] | None
    session: int = 0
    incarnation: str = ""
    run: str = ""
    """The run that the listening side named in its Welcome."""
    up: bool = False
    owes: bool = False
    """Whether credit is due that will be sent with the next message."""
    attempts: int = 0
    lanes: dict[Lane, LaneState[B]] = field(default_factory=new_lanes)

    @property
    def whole(self) -> bool:
        return all(self.lanes[lane].open for lane in LANES)

    def carries(self, lane: Lane, session: int, body: Body) -> bool:
        """Whether a message is numbered on an open lane, and so not part of a handshake."""
        numbered = session == self.session and type(body) not in GREETINGS
        return numbered and self.lanes[lane].open

    def redial_wait(self) -> float:
        return min(REDIAL_S_MIN * 2 ** min(self.attempts, DOUBLINGS_MAX), REDIAL_S_MAX)


def disagreement(ours: dict[str, str], theirs: dict[str, str]) -> str | None:
    """The first entry on which two agreements differ, as text; None if they are equal."""
    if ours == theirs:
        return None
    for key in sorted({*ours, *theirs}):
        if ours.get(key) != theirs.get(key):
            said = f"{key} differs: {ours.get(key)} here, {theirs.get(key)} there"
            return said[:REASON_CHARS_MAX]
    return None


class AcceptedRuns(Struct, forbid_unknown_fields=True):
    """The runs whose members a listening side accepts: its own, those that joined it, and, until it
    is settled, any other; see ``Listen``."""

    own: str = ""
    joined: list[str] = []
    settled: bool = False

    def objection(self, run: str) -> str | None:
        """Why a member of ``run`` cannot take part; None if it can."""
        if not run or not self.own or run in (self.own, *self.joined):
            return None
        if not self.settled and len(self.joined) < RUNS_MAX:
            return None
        said = f"it took part in run {run}, and this is run {self.own}, which has merged without it"
        return f"{said}; started again, it takes part in this one"

    def join(self, run: str) -> None:
        if run and self.own and run not in (self.own, *self.joined):
            self.joined.append(run)
