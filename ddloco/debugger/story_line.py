"""One line of a story."""

from msgspec import Struct


class Line(Struct, frozen=True):
    """One line of a story, ``at`` seconds on the one axis of the run; of several events the first
    shows it."""

    at: float
    event: str
    text: str
