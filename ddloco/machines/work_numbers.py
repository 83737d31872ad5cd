"""The numbers by which a machine and its parts tell apart the work that they ask for."""

from msgspec import Struct


class WorkNumbers(Struct, forbid_unknown_fields=True):
    """A counter that a machine shares with its parts, so that no two use one number.

    Attributes:
        newest: the number that was given last; 0 before the first.
    """

    newest: int = 0

    def next(self) -> int:
        """Return the next unused number."""
        self.newest += 1
        return self.newest
