"""What a snapshot is made of: one part for each participant, and what a cut's name says."""

from collections.abc import Mapping

import msgspec


class Part(msgspec.Struct, frozen=True):
    """What one participant recorded.

    Attributes:
        who: its incarnation.
        number: the number of its last event before the cut.
        clock: its vector clock there, all entries.
        peers: whom it had channels with at the cut, and so sent markers.
        lost: with whom it has no whole channel, and why: no marker came, or the channel had broken
            before the cut, and what it had said may still have been on its way.
        contents: names of what it wrote, for whoever reads snapshots.
        failed: why it could not be written; empty when it is.
    """

    who: str
    number: int
    clock: Mapping[str, int]
    peers: tuple[str, ...]
    lost: Mapping[str, str]
    contents: tuple[str, ...] = ()
    failed: str = ""


def name_of(initiator: str, number: int) -> str:
    """A snapshot is named after the event that began it, ``syncer.1:1042``."""
    return f"{initiator}:{number}"


def split(snapshot: str) -> tuple[str, int]:
    """Who began a snapshot, and with which event.

    Raises:
        ValueError: it is no snapshot's name.
    """
    initiator, colon, number = snapshot.rpartition(":")
    if not colon or not initiator or not (number.isascii() and number.isdigit()):
        raise ValueError(f"{snapshot!r}: a snapshot is named after an event, such as syncer.1:1042")
    return initiator, int(number)
