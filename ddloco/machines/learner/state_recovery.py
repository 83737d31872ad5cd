"""How a learner that comes back gets a peer's state: piece by piece, from whoever has it.

A machine inside the learner's. The syncer says where its data goes on and names a donor; the pieces
of the donor's copy are asked for a few at a time, so that they never fill a lane, and those that
have come are not asked for again after a broken link (paper 6.1). Nobody waits for it but itself.
"""

from typing import Any

from ddloco.protocol.events import OwnState
from ddloco.protocol.messages import Resume, StatePiece, StateRefused, StateWanted
from transport import CONTROL, Drop, Effect, Keep, Send

WINDOW_PIECES = 2
"""Pieces asked for and not there yet: one travels while the next is cut."""

PIECES_MAX = 65_536
"""Pieces of one copy: a terabyte; more is abuse."""


class Recovery:
    """What a learner has of a donor's state.

    Args:
        lead: the peer that names donors and passes pieces on.

    Attributes:
        batches: batches of its shard that earlier incarnations have used up; None while unknown.
        cursor: where stream and schedules stood after them; empty where that is not known.
        donor: whose state it is; empty for nobody's.
        own: the snapshot that it is one's own of, where it is.
        copy: the donor's step at which it was copied, 0 before the first piece.
        versions: per fragment the version that the donor held then.
    """

    def __init__(self, lead: str) -> None:
        self._lead = lead
        self.batches: int | None = None
        self.cursor = b""
        self.donor = ""
        self.own = ""
        self.copy = 0
        self.versions: tuple[int, ...] = ()
        self._count = 0
        self._pieces: dict[int, str] = {}
        self._asked: set[int] = set()

    @property
    def complete(self) -> bool:
        """Whether every piece is there."""
        return 0 < self._count == len(self._pieces)

    @property
    def seen(self) -> dict[str, Any]:
        """What people see of a state that was taken over."""
        return {"from": self.own or self.donor, "copy": self.copy, "batches": self.batches}

    def refused(self, reason: str) -> list[Effect]:
        """Tell that the donor's state cannot be trained from; of one's own nobody needs to know."""
        said = StateRefused(self.donor, reason)
        return [Send(self._lead, CONTROL, said)] if self.donor else []

    def held(self) -> int:
        """How many arrays are held."""
        return len(self._pieces)

    def handles(self) -> tuple[str, ...]:
        """The pieces, in order."""
        return tuple(handle for _, handle in sorted(self._pieces.items()))

    def bring(self, state: OwnState) -> list[Effect]:
        """One's own state is there already, from a snapshot: nobody is asked for one."""
        self.own, self.copy, self.versions = state.snapshot, state.copy, state.versions
        self._count, self._pieces = 1, {0: state.handle}
        return [Keep(state.handle)]

    def resume(self, said: Resume) -> list[Effect]:
        """The syncer's word on where to go on, and with whose state."""
        self.batches, self.cursor = said.batches, said.cursor
        if self.own:
            return []
        effects: list[Effect] = []
        if said.donor != self.donor:
            effects += self.drop()
            self.donor = said.donor
        self._asked.clear()  # Whatever was asked for over a lost link may be lost with it.
        return effects + self._ask()

    def take(self, said: StatePiece, handle: str) -> list[Effect]:
        """A piece has come; the next one is asked for."""
        if said.who != self.donor or not handle or said.pieces > PIECES_MAX:
            return []
        effects: list[Effect] = []
        if (said.copy, said.pieces) != (self.copy, self._count):
            effects += self.drop()  # Pieces of two copies make no state.
            self.copy, self._count, self.versions = said.copy, said.pieces, said.versions
        self._asked.discard(said.piece)
        if said.piece not in self._pieces and said.piece < self._count:
            self._pieces[said.piece] = handle
            effects.append(Keep(handle))
        return effects + self._ask()

    def drop(self) -> list[Effect]:
        """Let go of every piece: they are installed, or of no use."""
        effects: list[Effect] = [Drop(handle) for handle in self.handles()]
        self._pieces.clear()
        self._asked.clear()
        self.copy = self._count = 0
        return effects

    def give_up(self) -> list[Effect]:
        """What has come is of no use; nothing more is taken of this donor."""
        self.donor = self.own = ""
        return self.drop()

    def _ask(self) -> list[Effect]:
        """Ask for the first pieces that are missing; of a copy that is unknown, for the first."""
        if not self.donor:
            return []
        effects: list[Effect] = []
        missing = (n for n in range(max(self._count, 1)) if n not in self._pieces)
        for piece in missing:
            if len(self._asked) >= WINDOW_PIECES:
                break
            if piece not in self._asked:
                self._asked.add(piece)
                wanted = StateWanted(self.donor, self.copy, piece)
                effects.append(Send(self._lead, CONTROL, wanted))
        return effects
