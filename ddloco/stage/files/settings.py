"""Settings that any run has: what is recorded of it, and its snapshots."""

from typing import Annotated, Literal

from msgspec import Meta

from ddloco.stage.files.faults import LARGE, Whole
from ddloco.stage.files.span import snapshots_said
from ddloco.stage.files.toml import Section

Positive = Annotated[int, Meta(ge=1, le=2**63 - 1)]


class TapeTable(Section, frozen=True):
    """``[tape]``: what is recorded, what happens when recording fails, and what is kept.

    Attributes:
        level: "events" records every event; "off" records nothing, and the run cannot be replayed.
        on_error: when a tape cannot be written, such as on a full disk: "stop" ends the actor,
            "drop" continues without a tape.
        ship: whether learners' tapes are sent to the syncer's run folder while they are written.
        segment_bytes: largest segment that is sent, in bytes.
        segment_s: longest time that a segment waits before it is sent, in seconds.
        keep: "2 snapshots" deletes what is before the second newest snapshot; empty keeps
            everything. Needs ``ship = false`` and a ``[snapshot]`` schedule.
    """

    level: Literal["events", "off"] = "events"
    on_error: Literal["stop", "drop"] = "stop"
    ship: bool = True
    segment_bytes: Annotated[int, Meta(ge=4096, le=2**20)] = 2**18
    segment_s: Annotated[float, Meta(gt=0.0, le=3600.0)] = 1.0
    keep: str = ""

    @property
    def ships(self) -> bool:
        """Whether there are tapes, and they are shipped."""
        return self.ship and self.level != "off"

    @property
    def bound(self) -> int:
        """The number of newest snapshots that bound the tapes; 0 means tapes are kept whole."""
        return snapshots_said(self.keep) or 0


class SnapshotTable(Section, frozen=True):
    """``[snapshot]``: when snapshots of the whole job are taken, where they are, how many are kept.

    With ``every_s`` or ``every_steps`` one more snapshot is taken at an orderly end. A running job
    takes one at any time on request.

    Attributes:
        every_s: seconds between two snapshots; 0 for none.
        every_steps: global steps between two snapshots; 0 for none.
        place: the store: a folder, or a URL that fsspec supports; empty for ``RUN/snapshots``.
        keep: how many of the newest snapshots are kept.
        keep_every: of the older snapshots, every so many-th is kept forever; 0 for none.
    """

    every_s: Annotated[float, Meta(ge=0.0, le=LARGE)] = 0.0
    every_steps: Whole = 0
    place: str = ""
    keep: Positive = 5
    keep_every: Whole = 0

    @property
    def wanted(self) -> bool:
        """Whether snapshots are taken on a schedule."""
        return bool(self.every_s or self.every_steps)
