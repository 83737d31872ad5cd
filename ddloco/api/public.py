"""What users need of the packages beside ``ddloco``; ``ddloco`` has these names, too."""

from replay import Tape, TapeError, tape
from snapshot import SnapshotError, StorageError

__all__ = ["SnapshotError", "StorageError", "Tape", "TapeError", "tape"]
