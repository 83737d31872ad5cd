"""The donor side of state recovery: a learner sends its state to a restarted peer (paper 6.1).

This machine is part of the learner machine. The parameters and the optimizer state are copied in
memory between two steps; the copy is split into pieces and digested while later steps run.
"""

from dataclasses import dataclass

from ddloco.job.protocol.effects import CopyState, EncodePiece
from ddloco.job.protocol.events import PieceEncoded, StateCopied
from ddloco.job.protocol.messages import StatePiece, StateWanted
from ddloco.machines.work_numbers import WorkNumbers
from transport import BULK, CONTROL, CancelTimer, Drop, Effect, Keep, Send, SetTimer

LENDING = "lending"
LENDING_S = 60.0
"""Seconds without a request after which the copy is released."""

ASKED_MAX = 64
"""Requests that wait for a copy or are being answered. A syncer assigns few peers to a donor."""


@dataclass(slots=True)
class Copy:
    """A copy of this learner's state after step ``step``; ``pieces`` is 0 until it is made."""

    step: int
    versions: tuple[int, ...]
    handle: str
    pieces: int = 0
    made: bool = False


class Lending:
    """The copy of this learner's state and the requests for its pieces.

    Args:
        lead: the syncer that relays the pieces to the restarted learner.
        work: the machine's work numbers.
    """

    def __init__(self, lead: str, work: WorkNumbers) -> None:
        self._lead = lead
        self._work = work
        self._copy: Copy | None = None
        self._asked: list[StateWanted] = []
        self._cutting: dict[int, tuple[StatePiece, str, str]] = {}

    def held(self) -> int:
        """Return the number of references to arrays that this machine holds."""
        return (self._copy is not None) + 2 * len(self._cutting)

    def wanted(self, at: float, said: StateWanted) -> list[Effect]:
        """Handle a request for a piece; the first one causes a copy at the next step boundary."""
        if len(self._asked) + len(self._cutting) >= ASKED_MAX:
            return []
        self._asked.append(said)
        return self._answer(at)

    def between_steps(self, step: int, versions: tuple[int, ...]) -> list[Effect]:
        """Copy the state if a copy is wanted and none exists; called while no step is running.

        Args:
            step: the last finished step.
            versions: the installed version of each fragment.
        """
        if not self._asked or self._copy is not None or step == 0:
            return []  # Before the first step this learner has no state to give.
        work = self._work.next()
        self._copy = Copy(step, versions, f"state/{step}")
        copy = CopyState(work, self._copy.handle)
        return [Keep(copy.out), copy]

    def copied(self, at: float, event: StateCopied) -> list[Effect]:
        """Handle the finished copy: answer the pending requests."""
        copy = self._copy
        assert copy is not None, "a copy was asked for"
        copy.pieces, copy.made = event.pieces, True
        if event.pieces:
            return self._answer(at)
        # This task's optimizer state cannot be copied. Without a refusal the peers would wait.
        refusals: list[Effect] = [
            Send(self._lead, CONTROL, StatePiece(each.who, copy.step, 0, 0, copy.versions))
            for each in self._asked
        ]
        self._asked.clear()
        return [*refusals, *self.expire()]

    def _answer(self, at: float) -> list[Effect]:
        copy = self._copy
        if copy is None or not copy.pieces:
            return []
        effects: list[Effect] = [SetTimer(LENDING, at + LENDING_S)]
        for said in self._asked:
            # A request may refer to an older copy; the new one is then sent from its first piece.
            piece = said.piece if said.piece < copy.pieces else 0
            work = self._work.next()
            out = f"piece/{work}"
            body = StatePiece(said.who, copy.step, piece, copy.pieces, copy.versions)
            self._cutting[work] = (body, copy.handle, out)
            effects += [Keep(copy.handle), Keep(out), EncodePiece(work, piece, copy.handle, out)]
        self._asked.clear()
        return effects

    def encoded(self, event: PieceEncoded) -> list[Effect]:
        """Send a piece that has been encoded."""
        body, source, out = self._cutting.pop(event.work)
        key = f"state/{body.who}/{body.piece}"
        return [Send(self._lead, BULK, body, out, key), Drop(source), Drop(out)]

    def expire(self) -> list[Effect]:
        """Release the copy; does nothing without a copy or while it is still being made."""
        copy = self._copy
        if copy is None or not copy.made:
            return []
        self._copy = None
        return [Drop(copy.handle), CancelTimer(LENDING)]
