"""What a snapshot is made of: one part for each participant, and what a cut's name says."""

from collections.abc import Mapping

import msgspec

from clocks import ClockError, check_entries

NAME_CHARS_MAX = 128
NUMBER_DIGITS_MAX = 19
"""Digits of an event's number: what a signed 64-bit integer holds."""

PEERS_MAX = 16_384
"""Peers of one participant: sixteen incarnations of as many actors as a job may have."""

CONTENTS = 2
"""What a participant writes of a snapshot: its state, and what was in flight to it."""

REASON_CHARS_MAX = 1000
"""Of why a part could not be written: it stands in logs and manifests."""


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
    is_number = number.isascii() and number.isdigit() and len(number) <= NUMBER_DIGITS_MAX
    if not colon or not initiator or not is_number:
        raise ValueError(f"{snapshot!r}: a snapshot is named after an event, such as syncer.1:1042")
    return initiator, int(number)


def problem_of(part: Part) -> str | None:
    """Why a part is none that a participant can have recorded, if so: parts come from peers."""
    names = (part.who, *part.peers, *part.lost)
    if not all(0 < len(name) <= NAME_CHARS_MAX for name in names):
        return f"part: a name has 1 to {NAME_CHARS_MAX} characters"
    if len(part.peers) > PEERS_MAX or len(part.lost) > PEERS_MAX:
        return f"part.peers: {len(part.peers)}, at most {PEERS_MAX}"
    if part.who in part.peers or part.who in part.lost:
        return f"part.peers: {part.who} is its own peer"
    try:
        check_entries(part.clock)
    except ClockError as error:
        return f"part.clock: {error}"
    if part.number < 1 or part.clock.get(part.who, 0) != part.number:
        return f"part.number: {part.number}, its clock has {part.clock.get(part.who, 0)}"
    if not all(len(each) <= REASON_CHARS_MAX for each in (part.failed, *part.lost.values())):
        return f"part: a reason has at most {REASON_CHARS_MAX} characters"
    if len(part.contents) != (0 if part.failed else CONTENTS):
        return f"part.contents: {len(part.contents)}, {CONTENTS} expected"
    if not all(0 < len(each) <= NAME_CHARS_MAX for each in part.contents):
        return f"part.contents: a name has 1 to {NAME_CHARS_MAX} characters"
    return None
