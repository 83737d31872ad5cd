"""The records of a snapshot: one part per participant, and the names of snapshots."""

from collections.abc import Mapping

import msgspec

from clocks import ClockError, check_entries

NAME_CHARS_MAX = 128
NUMBER_DIGITS_MAX = 19
"""Digits of an event's number: what a signed 64-bit integer holds."""

PEERS_MAX = 16_384
"""Peers of one participant: sixteen incarnations of each of the actors that a job may have."""

CONTENTS = 2
"""What a participant writes for a snapshot: its state, and the messages in flight to it."""

REASON_CHARS_MAX = 1000
"""Length of the reason why a part could not be written; it appears in logs and manifests."""


class Part(msgspec.Struct, frozen=True):
    """What one participant recorded.

    Attributes:
        who: its incarnation.
        number: the number of its last event before the cut.
        clock: its vector clock at that event, all entries.
        peers: the peers with which it had channels at the cut, and to which it sent markers.
        lost: peers with which it has no complete channel, and why: no marker arrived, or the
            channel had broken before the cut, with messages possibly still in flight.
        contents: names of what it wrote, for readers of the snapshot.
        failed: why the part could not be written; empty if it was.
    """

    who: str
    number: int
    clock: Mapping[str, int]
    peers: tuple[str, ...]
    lost: Mapping[str, str]
    contents: tuple[str, ...] = ()
    failed: str = ""


def name_of(initiator: str, number: int) -> str:
    """The name of a snapshot: the event that began it, ``syncer.1:1042``."""
    return f"{initiator}:{number}"


def split(snapshot: str) -> tuple[str, int]:
    """The initiator of a snapshot, and the number of its event.

    Raises:
        ValueError: it is not the name of a snapshot.
    """
    initiator, colon, number = snapshot.rpartition(":")
    is_number = number.isascii() and number.isdigit() and len(number) <= NUMBER_DIGITS_MAX
    if not colon or not initiator or not is_number:
        raise ValueError(f"{snapshot!r}: a snapshot is named after an event, such as syncer.1:1042")
    return initiator, int(number)


def problem_of(part: Part) -> str | None:
    """Why no participant can have recorded this part, which came from a peer; None if valid."""
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
