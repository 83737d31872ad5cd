"""Recovery of a restarted learner: it fetches a donor's state piece by piece (paper 6.1), a few at
a time, so that they never fill a lane. Pieces received before a broken link are not requested
again. No other actor waits for the recovery."""

from typing import Any

from msgspec import Struct

from ddloco.job.protocol.events import OwnState
from ddloco.job.protocol.messages import Resume, StatePiece, StateRefused, StateWanted
from transport import CONTROL, Drop, Effect, Keep, Send

WINDOW_PIECES = 2
"""Pieces requested and not yet received: one is in flight while the next is encoded."""

PIECES_MAX = 65_536
"""Pieces of one copy, enough for a terabyte; more is abuse."""


class StateRecovery(Struct, forbid_unknown_fields=True):
    """The state that a restarted learner has received so far.

    Attributes:
        batches: batches of the shard that earlier incarnations consumed; None while unknown.
        cursor: the position of the data stream and the schedules after them; empty if unknown.
        own: the snapshot that this learner's own state was loaded from; empty without one.
        copy: the donor's step at which the state was copied; 0 before the first piece.
        versions: for each fragment, the version that was installed at the donor at that step.
    """

    batches: int | None = None
    cursor: bytes = b""
    donor: str = ""
    own: str = ""
    copy: int = 0
    versions: tuple[int, ...] = ()
    count: int = 0
    pieces: dict[int, str] = {}
    asked: dict[int, None] = {}

    @property
    def complete(self) -> bool:
        return 0 < self.count == len(self.pieces)

    @property
    def seen(self) -> dict[str, Any]:
        return {"from": self.own or self.donor, "copy": self.copy, "batches": self.batches}

    def refused(self, reason: str, lead: str) -> list[Effect]:
        """Report to the lead that the donor's state is unusable; empty for the own snapshot."""
        said = StateRefused(self.donor, reason)
        return [Send(lead, CONTROL, said)] if self.donor else []

    def held(self) -> int:
        return len(self.pieces)

    def handles(self) -> tuple[str, ...]:
        return tuple(handle for _, handle in sorted(self.pieces.items()))

    def bring(self, state: OwnState) -> list[Effect]:
        """Take this learner's own state from a snapshot; no donor is asked."""
        self.own, self.copy, self.versions = state.snapshot, state.copy, state.versions
        self.count, self.pieces = 1, {0: state.handle}
        return [Keep(state.handle)]

    def resume(self, said: Resume, lead: str) -> list[Effect]:
        """Take the position in the data and the donor that the syncer names; request pieces."""
        self.batches, self.cursor = said.batches, said.cursor
        if self.own:
            return []
        effects: list[Effect] = []
        if said.donor != self.donor:
            effects += self.drop()
            self.donor = said.donor
        self.asked.clear()  # Requests on a lost link may be lost with it.
        return effects + self._ask(lead)

    def take(self, said: StatePiece, handle: str, lead: str) -> list[Effect]:
        """Keep a received piece and request the next one; one of another donor, without an array,
        or of more than ``PIECES_MAX`` is ignored."""
        if said.who != self.donor or not handle or said.pieces > PIECES_MAX:
            return []
        effects: list[Effect] = []
        if (said.copy, said.pieces) != (self.copy, self.count):
            effects += self.drop()  # Pieces of two copies cannot be combined.
            self.copy, self.count, self.versions = said.copy, said.pieces, said.versions
        self.asked.pop(said.piece, None)
        if said.piece not in self.pieces and said.piece < self.count:
            self.pieces[said.piece] = handle
            effects.append(Keep(handle))
        return effects + self._ask(lead)

    def drop(self) -> list[Effect]:
        effects: list[Effect] = [Drop(handle) for handle in self.handles()]
        self.pieces.clear()
        self.asked.clear()
        self.copy = self.count = 0
        return effects

    def give_up(self) -> list[Effect]:
        """Release every piece as unusable and take no more from this donor."""
        self.donor = self.own = ""
        return self.drop()

    def _ask(self, lead: str) -> list[Effect]:
        """Request the first missing pieces; before the copy is known, its first piece."""
        if not self.donor:
            return []
        effects: list[Effect] = []
        missing = (n for n in range(max(self.count, 1)) if n not in self.pieces)
        for piece in missing:
            if len(self.asked) >= WINDOW_PIECES:
                break
            if piece not in self.asked:
                self.asked[piece] = None
                wanted = StateWanted(self.donor, self.copy, piece)
                effects.append(Send(lead, CONTROL, wanted))
        return effects
