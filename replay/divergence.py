"""The first difference between a recording and its replay, and what helps to find its cause."""

from dataclasses import dataclass, field
from typing import Any, Literal

Aspect = Literal["clock", "effects", "message", "result", "exception"]

CONTEXT_EVENTS = 4
"""How many events of the actor before the first difference are shown."""

VALUE_CHARS_MAX = 2000
"""Longest printed form of an expected or actual value."""


@dataclass(eq=False)
class Divergence(Exception):  # noqa: N818, a difference is a finding, not an error
    """Where replay and recording part.

    Attributes:
        actor: the incarnation, and ``number`` its event.
        aspect: what differs: the clock, the effects asked for, a message against what its sender's
            replay said, the result of work, or whether handling failed.
        expected: as recorded on the tape.
        actual: as the replay has it.
        clock: the actor's clock at that event.
        hint: what kind of difference it is, in words, where that is known.
        context: the events that led to it, oldest first, as text.
        happened: the event itself.
        values: what differs, as recorded and as the replay has it.
        work: what asked for the result that differs; None if it is no result, or that is unknown.
        tensor: the first tensor that differs, where that is known.
    """

    actor: str
    number: int
    aspect: Aspect
    expected: str
    actual: str
    clock: dict[str, int]
    event: str = ""
    context: tuple[str, ...] = field(default=())
    hint: str = ""
    happened: Any = None
    values: tuple[Any, Any] = (None, None)
    work: Any = None
    tensor: str = ""

    def __str__(self) -> str:
        return f"{self.actor}:{self.number} differs in its {self.aspect}"

    def report(self) -> str:
        """The whole finding, several lines."""
        clock = ", ".join(f"{name}:{count}" for name, count in self.clock.items())
        lines = [
            f"DIVERGENCE at {self.actor}:{self.number} ({self.aspect})",
            f"  event     {self.event}",
            f"  recorded  {_shortened(self.expected)}",
            f"  replayed  {_shortened(self.actual)}",
            f"  clock     {clock}",
        ]
        if self.hint:
            lines.append(f"  so        {self.hint}")
        lines += [f"  before    {line}" for line in self.context]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """The finding as plain data, for ``--json``."""
        return {
            "actor": self.actor,
            "event": self.number,
            "aspect": self.aspect,
            "recorded": self.expected,
            "replayed": self.actual,
            "clock": self.clock,
            "at": self.event,
            "hint": self.hint,
            "tensor": self.tensor,
            "before": list(self.context),
        }


def _shortened(text: str) -> str:
    if len(text) <= VALUE_CHARS_MAX:
        return text
    return f"{text[:VALUE_CHARS_MAX]}... ({len(text)} characters)"
