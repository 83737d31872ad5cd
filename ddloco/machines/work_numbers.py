"""The numbers by which a machine and its parts tell apart the work that they ask for."""

from msgspec import Struct


class WorkNumbers(Struct, forbid_unknown_fields=True):
    """A counter that a machine shares with its parts, so that no two use one number."""

    newest: int = 0

    def next(self) -> int:
        self.newest += 1
        return self.newest
