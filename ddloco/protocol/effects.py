"""The work that a learner or a syncer may ask for, beyond what any actor may.

Arrays are named by handles:
``host/STEP`` a learner's whole parameters, ``theta/P/T`` and ``momentum/P/T`` a fragment's global
state in float32, ``wire/P/T`` the same fragment as it is sent.
"""

from msgspec import Struct

from ddloco.actors.effects import Work


class Overwrite(Struct, frozen=True, array_like=True):
    """Before the step: replace the fragment by the global one under the handle."""

    fragment: int
    version: int
    handle: str


class Share(Struct, frozen=True, array_like=True):
    """One learner's part in a merge: its payload, its weight (tokens x tokens / steps), the
    version that it was trained from, and in how many steps. ``usual`` is the norm that is usual
    for them, 0 for unknown; ``moved`` how far the fragment has gone since that version."""

    name: str
    handle: str
    weight: float
    base: int
    steps: int = 1
    usual: float = 0.0
    moved: float = 0.0


class Recover(Work, frozen=True):
    """Look for what an earlier incarnation of this syncer had merged and kept."""


class MakeParameters(Work, frozen=True):
    """Initialise the task's parameters; those of ``fragments`` go under ``theta/p/0`` and
    ``wire/p/0``."""

    fragments: tuple[int, ...]

    @property
    def makes(self) -> tuple[str, ...]:
        """See ``Work``."""
        return tuple(f"{kind}/{p}/0" for p in self.fragments for kind in ("theta", "wire"))


class RunStep(Work, frozen=True):
    """Overwrite what is newer, run inner step ``step``, copy the parameters to ``out``; ``skip``
    batches are left out before it, since an earlier incarnation has used them up, by going to
    ``cursor`` where that is known."""

    step: int
    overwrites: tuple[Overwrite, ...]
    out: str
    skip: int = 0
    cursor: bytes = b""

    @property
    def reads(self) -> tuple[str, ...]:
        """See ``Work``."""
        return tuple(each.handle for each in self.overwrites)

    @property
    def makes(self) -> tuple[str, ...]:
        """See ``Work``."""
        return (self.out,)


class CopyState(Work, frozen=True):
    """Copy parameters and optimizer state as they are between two steps."""

    out: str

    @property
    def makes(self) -> tuple[str, ...]:
        """See ``Work``."""
        return (self.out,)


class EncodePiece(Work, frozen=True):
    """Make a payload of one piece of a copy of the state; of a piece that came, of all of it."""

    piece: int
    source: str
    out: str

    @property
    def reads(self) -> tuple[str, ...]:
        """See ``Work``."""
        return (self.source,)

    @property
    def makes(self) -> tuple[str, ...]:
        """See ``Work``."""
        return (self.out,)


class InstallState(Work, frozen=True):
    """Take over parameters and optimizer state, given piece by piece."""

    pieces: tuple[str, ...]

    @property
    def reads(self) -> tuple[str, ...]:
        """See ``Work``."""
        return self.pieces


class EncodeFragment(Work, frozen=True):
    """Make a payload of one fragment of a host copy."""

    fragment: int
    source: str
    out: str

    @property
    def reads(self) -> tuple[str, ...]:
        """See ``Work``."""
        return (self.source,)

    @property
    def makes(self) -> tuple[str, ...]:
        """See ``Work``."""
        return (self.out,)


class MergeFragment(Work, frozen=True):
    """Merge contributions into a fragment, take the outer step, keep the result where the next
    incarnation finds it; only then is the merge done. New handles for the result.

    An empty ``momentum`` stands for zeros. ``spent`` says per incarnation which base's tokens
    earlier merges of this fragment have used up, ``batches`` how many each actor has drawn of its
    shard; both are kept with the result, since no token may be merged twice, and no data read
    twice, whoever has died in between.

    ``band`` is how many times a share's usual norm is believed, 0 for everything; ``cosine`` is the
    usual one, None for unknown. See ``measure``. With ``adopt`` the shares started from a version
    that this syncer has lost: their weighted average takes the place of ``theta``, and the momentum
    begins anew.
    """

    t: int
    fragment: int
    theta: str
    momentum: str
    shares: tuple[Share, ...]
    spent: dict[str, int]
    batches: dict[str, int]
    out: tuple[str, str, str]
    band: float = 0.0
    cosine: float | None = None
    adopt: bool = False

    @property
    def reads(self) -> tuple[str, ...]:
        """See ``Work``."""
        return (self.theta, self.momentum, *(share.handle for share in self.shares))

    @property
    def makes(self) -> tuple[str, ...]:
        """See ``Work``."""
        return self.out


class Differentiate(Work, frozen=True):
    """The gradient of the next batch at the parameters under ``source``, as payload in wire dtype;
    its result is that of a step."""

    step: int
    source: str
    out: str

    @property
    def reads(self) -> tuple[str, ...]:
        """See ``Work``."""
        return (self.source,)

    @property
    def makes(self) -> tuple[str, ...]:
        """See ``Work``."""
        return (self.out,)


class AverageGradients(Work, frozen=True):
    """Average gradients by weight, take one step of the inner optimizer on the parameters under
    ``theta``; ``out`` names the new parameters and their payload. Its result is that of a merge."""

    t: int
    theta: str
    shares: tuple[Share, ...]
    out: tuple[str, str]

    @property
    def reads(self) -> tuple[str, ...]:
        """See ``Work``."""
        return (self.theta, *(share.handle for share in self.shares))

    @property
    def makes(self) -> tuple[str, ...]:
        """See ``Work``."""
        return self.out


class Evaluate(Work, frozen=True):
    """Held-out loss of the global parameters, given fragment by fragment."""

    fragments: tuple[str, ...]

    @property
    def reads(self) -> tuple[str, ...]:
        """See ``Work``."""
        return self.fragments


class SaveModel(Work, frozen=True):
    """Write the global parameters to the run folder, given fragment by fragment."""

    fragments: tuple[str, ...]

    @property
    def reads(self) -> tuple[str, ...]:
        """See ``Work``."""
        return self.fragments
