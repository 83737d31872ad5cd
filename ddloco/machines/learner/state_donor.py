"""The donor side of state recovery: a learner sends its state to a restarted peer (paper 6.1). The
state is copied in memory between two steps; the copy is cut and digested while later steps run."""

from msgspec import Struct

from ddloco.job.protocol.messages import StatePiece, StateWanted
from ddloco.job.protocol.timers import CopyUnused
from ddloco.job.protocol.work import CopyState, EncodePiece, PieceEncoded, StateCopied
from ddloco.machines.work_numbers import WorkNumbers
from transport import BULK, CONTROL, CancelTimer, Drop, Effect, Keep, Send, SetTimer

LENDING_S = 60.0
"""Seconds without a request after which the copy is released."""

ASKED_MAX = 64
"""Requests that wait for a copy or are being answered. A syncer assigns few peers to a donor."""


class Copy(Struct, forbid_unknown_fields=True):
    """A copy of this learner's state after step ``step``; ``pieces`` is 0 until it is made."""

    step: int
    versions: tuple[int, ...]
    handle: str
    pieces: int = 0
    made: bool = False


class StateDonor(Struct, forbid_unknown_fields=True):
    """The copy of this learner's state and the requests for its pieces.

    Attributes:
        cutting: by work number, a piece that is encoded: the message, the handle of the copy and
            that of the piece.
    """

    copy: Copy | None = None
    asked: list[StateWanted] = []
    cutting: dict[int, tuple[StatePiece, str, str]] = {}

    def held(self) -> int:
        return (self.copy is not None) + 2 * len(self.cutting)

    def wanted(self, at: float, said: StateWanted, work: WorkNumbers) -> list[Effect]:
        """Handle a request for a piece; the first one causes a copy at the next step boundary."""
        if len(self.asked) + len(self.cutting) >= ASKED_MAX:
            return []
        self.asked.append(said)
        return self._answer(at, work)

    def between_steps(
        self, step: int, versions: tuple[int, ...], work: WorkNumbers
    ) -> list[Effect]:
        """Copy the state if a copy is wanted and none exists; called while no step is running."""
        if not self.asked or self.copy is not None or step == 0:
            return []  # Before the first step this learner has no state to give.
        self.copy = Copy(step, versions, f"state/{step}")
        copy = CopyState(work.next(), self.copy.handle)
        return [Keep(copy.out), copy]

    def copied(self, at: float, event: StateCopied, lead: str, work: WorkNumbers) -> list[Effect]:
        """Handle the finished copy: answer the pending requests, by way of the syncer ``lead``."""
        copy = self.copy
        assert copy is not None, "a copy was asked for"
        copy.pieces, copy.made = event.pieces, True
        if event.pieces:
            return self._answer(at, work)
        # This task's optimizer state cannot be copied. Without a refusal the peers would wait.
        refusals: list[Effect] = [
            Send(lead, CONTROL, StatePiece(each.who, copy.step, 0, 0, copy.versions))
            for each in self.asked
        ]
        self.asked.clear()
        return [*refusals, *self.expire()]

    def _answer(self, at: float, work: WorkNumbers) -> list[Effect]:
        copy = self.copy
        if copy is None or not copy.pieces:
            return []
        effects: list[Effect] = [SetTimer(CopyUnused(), at + LENDING_S)]
        for said in self.asked:
            # A request may refer to an older copy; the new one is then sent from its first piece.
            piece = said.piece if said.piece < copy.pieces else 0
            number = work.next()
            out = f"piece/{number}"
            body = StatePiece(said.who, copy.step, piece, copy.pieces, copy.versions)
            self.cutting[number] = (body, copy.handle, out)
            effects += [Keep(copy.handle), Keep(out), EncodePiece(number, piece, copy.handle, out)]
        self.asked.clear()
        return effects

    def encoded(self, event: PieceEncoded, lead: str) -> list[Effect]:
        body, source, out = self.cutting.pop(event.work)
        key = f"state/{body.who}/{body.piece}"
        return [Send(lead, BULK, body, out, key), Drop(source), Drop(out)]

    def expire(self) -> list[Effect]:
        """Release the copy; does nothing without a copy or while it is still being made."""
        copy = self.copy
        if copy is None or not copy.made:
            return []
        self.copy = None
        return [Drop(copy.handle), CancelTimer(CopyUnused())]
