"""What any actors say to each other, beyond the link's own words; the rest they add themselves."""

from typing import Annotated

from msgspec import Meta

from snapshot import Part
from transport import Body, LinkBody


class SnapshotPart(Body, frozen=True):
    """A participant's part of a snapshot, on its way to whoever began it."""

    snapshot: Annotated[str, Meta(min_length=3, max_length=160)]
    part: Part


SaidByAll = LinkBody | SnapshotPart
"""What every codec must know."""
