"""How a learner gives its state to another that comes back, without waiting for anybody.

A machine inside the learner's. The copy is made between two steps, one memory copy of parameters
and optimizer state; it is cut and digested beside the steps that follow (paper 6.1).
"""

from collections.abc import Callable
from dataclasses import dataclass

from ddloco.protocol.effects import CopyState, EncodePiece
from ddloco.protocol.events import PieceEncoded, StateCopied
from ddloco.protocol.messages import StatePiece, StateWanted
from transport import BULK, CONTROL, CancelTimer, Drop, Effect, Keep, Send, SetTimer

LENDING = "lending"
LENDING_S = 60.0
"""A copy that nobody has asked anything of for this long is let go."""

ASKED_MAX = 64
"""Requests that wait for a copy, or are being answered: a syncer names a donor to few at a time."""


@dataclass(slots=True)
class Copy:
    """A copy of this learner's state, after its step ``step``; no pieces while it is made."""

    step: int
    versions: tuple[int, ...]
    handle: str
    pieces: int = 0
    made: bool = False


class Lending:
    """What a learner lends.

    Args:
        lead: the peer that passes pieces on.
        next_work: numbers for work.
    """

    def __init__(self, lead: str, next_work: Callable[[], int]) -> None:
        self._lead = lead
        self._next_work = next_work
        self._copy: Copy | None = None
        self._asked: list[StateWanted] = []
        self._cutting: dict[int, tuple[StatePiece, str, str]] = {}

    def held(self) -> int:
        """How many holders of arrays there are."""
        return (self._copy is not None) + 2 * len(self._cutting)

    def wanted(self, at: float, said: StateWanted) -> list[Effect]:
        """Somebody asks for a piece; the first one makes a copy, at the next step boundary."""
        if len(self._asked) + len(self._cutting) >= ASKED_MAX:
            return []
        self._asked.append(said)
        return self._answer(at)

    def between_steps(self, step: int, versions: tuple[int, ...]) -> list[Effect]:
        """No step is running: copy now, if a copy is asked for and there is none."""
        if not self._asked or self._copy is not None or step == 0:
            return []  # Before the first step there is nothing of one's own to lend.
        work = self._next_work()
        self._copy = Copy(step, versions, f"state/{step}")
        copy = CopyState(work, self._copy.handle)
        return [Keep(copy.out), copy]

    def copied(self, at: float, event: StateCopied) -> list[Effect]:
        """The copy stands; whoever has asked is answered."""
        copy = self._copy
        assert copy is not None, "a copy was asked for"
        copy.pieces, copy.made = event.pieces, True
        if event.pieces:
            return self._answer(at)
        # This task's optimizer state cannot be copied: say so, or they would wait.
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
            # Of a copy that is gone nothing can be had: what there is begins anew at the other end.
            piece = said.piece if said.piece < copy.pieces else 0
            work = self._next_work()
            out = f"piece/{work}"
            body = StatePiece(said.who, copy.step, piece, copy.pieces, copy.versions)
            self._cutting[work] = (body, copy.handle, out)
            effects += [Keep(copy.handle), Keep(out), EncodePiece(work, piece, copy.handle, out)]
        self._asked.clear()
        return effects

    def encoded(self, event: PieceEncoded) -> list[Effect]:
        """A piece stands ready to be sent."""
        body, source, out = self._cutting.pop(event.work)
        key = f"state/{body.who}/{body.piece}"
        return [Send(self._lead, BULK, body, out, key), Drop(source), Drop(out)]

    def expire(self) -> list[Effect]:
        """Let go of the copy: its time is over. One that is still being made is not there yet."""
        copy = self._copy
        if copy is None or not copy.made:
            return []
        self._copy = None
        return [Drop(copy.handle), CancelTimer(LENDING)]
