"""The messages between all kinds of actors besides those of links; actors add their own."""

from typing import Annotated

from msgspec import Meta

from snapshot import Part
from transport import Body, LinkBody


class SnapshotPart(Body, frozen=True):
    """A participant's part of a snapshot, sent to the actor that began the snapshot."""

    snapshot: Annotated[str, Meta(min_length=3, max_length=160)]
    part: Part


ActorBody = LinkBody | SnapshotPart
"""The message bodies that every codec must know."""
