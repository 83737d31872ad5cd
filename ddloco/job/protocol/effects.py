"""The work that a learner or a syncer may request, in addition to that of every actor.

Arrays are named by handles: ``host/STEP/P`` for a fragment of a learner's parameters after a step
(``host/STEP`` for all of them, on older tapes), ``theta/P/T`` for a global fragment in float32 and
``outer/P/T`` for all arrays of its outer optimizer, ``wire/P/T`` for the same fragment in the form
in which it is sent.
"""

from collections.abc import Iterable

from msgspec import Struct

from ddloco.stage.actors.effects import Work


class Overwrite(Struct, frozen=True, array_like=True):
    """Before the step, replace the fragment by the global version under the handle."""

    fragment: int
    version: int
    handle: str


class HostFragment(Struct, frozen=True, array_like=True):
    """Before the step, copy the fragment from the device to the host, under the handle."""

    fragment: int
    handle: str


class Share(Struct, frozen=True, array_like=True):
    """One learner's contribution to a merge: its payload; its weight (tokens x tokens / steps); the
    version that it was trained from, and for how many steps. ``usual`` is the usual norm after that
    many steps, 0 if unknown; ``moved`` is how far the fragment has moved since that version."""

    name: str
    handle: str
    weight: float
    base: int
    steps: int = 1
    usual: float = 0.0
    moved: float = 0.0


class Differences(Struct, frozen=True, array_like=True):
    """What a merge needs besides where fragments are sent as compressed differences.

    ``anchors`` gives, for each share that is a difference, the handle of the parameters that it is
    a difference to. ``held`` is the previous version as learners hold it, empty if that is unknown;
    then the result is sent whole. Otherwise ``out`` names the result as learners will hold it, and
    the difference between these two as it is sent.
    """

    anchors: dict[str, str]
    held: str = ""
    out: tuple[str, ...] = ()


class Recover(Work, frozen=True):
    """Find the merges that an earlier incarnation of this syncer stored."""


class MakeParameters(Work, frozen=True):
    """Initialise the task's parameters; store those of ``fragments`` under ``theta/p/0`` and
    ``wire/p/0``."""

    fragments: tuple[int, ...]

    @property
    def makes(self) -> tuple[str, ...]:
        """See ``Work``."""
        return tuple(f"{kind}/{p}/0" for p in self.fragments for kind in ("theta", "wire"))


class RunStep(Work, frozen=True):
    """Copy fragments to the host as the last step left them, overwrite fragments that have newer
    versions, and run inner step ``step``. Before it, ``skip`` batches that an earlier incarnation
    used are skipped, by going to ``cursor`` if that is known. ``t`` is the newest global step of
    its fragments, for schedules.

    Learners on older tapes did not say ``t``, and copied all parameters to ``out`` after the step.
    The copies are not among the results (``makes``): they exist before the step begins.
    """

    step: int
    overwrites: tuple[Overwrite, ...]
    out: str
    skip: int = 0
    cursor: bytes = b""
    t: int = 0
    copies: tuple[HostFragment, ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        """See ``Work``."""
        return tuple(each.handle for each in self.overwrites)

    @property
    def makes(self) -> tuple[str, ...]:
        """See ``Work``."""
        return (self.out,) if self.out else ()


class CopyState(Work, frozen=True):
    """Copy parameters and optimizer state as they are between two steps."""

    out: str

    @property
    def makes(self) -> tuple[str, ...]:
        """See ``Work``."""
        return (self.out,)


class EncodePiece(Work, frozen=True):
    """Make a payload of one piece of a copy of the state, or of a whole received piece."""

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
    """Replace parameters and optimizer state by these pieces."""

    pieces: tuple[str, ...]

    @property
    def reads(self) -> tuple[str, ...]:
        """See ``Work``."""
        return self.pieces


class EncodeFragment(Work, frozen=True):
    """Make a payload of one fragment's host copy.

    With ``base``, the version that it was trained from, the payload is the compressed difference to
    that. With ``error_out``, what earlier compressions lost (``error``, empty for zeros) is added
    to the difference first, and what this one loses is stored there (error feedback).
    """

    fragment: int
    source: str
    out: str
    base: str = ""
    error: str = ""
    error_out: str = ""

    @property
    def reads(self) -> tuple[str, ...]:
        """See ``Work``."""
        return tuple(each for each in (self.source, self.base, self.error) if each)

    @property
    def makes(self) -> tuple[str, ...]:
        """See ``Work``."""
        return (self.out, self.error_out) if self.error_out else (self.out,)


class DecodeFragment(Work, frozen=True):
    """Make a version of a fragment from the version ``base`` and the compressed difference under
    ``source``, in wire dtype."""

    fragment: int
    base: str
    source: str
    out: str

    @property
    def reads(self) -> tuple[str, ...]:
        """See ``Work``."""
        return (self.base, self.source)

    @property
    def makes(self) -> tuple[str, ...]:
        """See ``Work``."""
        return (self.out,)


class MergeTokens(Struct, frozen=True, array_like=True):
    """The tokens of a merge's shares, by name, and those merged into the fragment ``before``."""

    shares: dict[str, int]
    before: int

    def after(self, accepted: Iterable[str]) -> int:
        """Return how many are merged once these shares are."""
        return self.before + sum(self.shares[name] for name in accepted)


class MergeFragment(Work, frozen=True):
    """Merge contributions into a fragment, take the outer step, and store the result on disk for
    the next incarnation; only then is the merge done. The result gets new handles.

    ``state`` is that of the outer optimizer; empty means zeros. ``spent`` gives per incarnation the
    base version of the last contribution merged into this fragment, ``batches`` gives per actor the
    batches of its shard that it has used. Both are stored with the result, so that after a crash no
    token is merged twice and no batch is trained on twice.

    ``band`` is the largest accepted multiple of a share's usual norm, 0 for no limit; ``cosine`` is
    the usual cosine, None if unknown. See ``outlier_test``. With ``adopt`` the shares were trained
    from a version that this syncer has lost: their weighted average replaces ``theta``, and the
    state restarts at zero.

    ``tokens`` are counted where a job ends by them. Do not add a field: with more than 15, msgpack
    writes a longer head for all merges, and the digests of their effects on tapes change.
    """

    t: int
    fragment: int
    theta: str
    state: str
    shares: tuple[Share, ...]
    spent: dict[str, int]
    batches: dict[str, int]
    out: tuple[str, str, str]
    band: float = 0.0
    cosine: float | None = None
    adopt: bool = False
    differences: Differences | None = None
    tokens: MergeTokens | None = None

    @property
    def reads(self) -> tuple[str, ...]:
        """See ``Work``."""
        read = (self.theta, self.state, *(share.handle for share in self.shares))
        more = self.differences
        if more is None:
            return read
        return (*read, *more.anchors.values(), *((more.held,) if more.held else ()))

    @property
    def makes(self) -> tuple[str, ...]:
        """See ``Work``."""
        return self.out if self.differences is None else (*self.out, *self.differences.out)


class Differentiate(Work, frozen=True):
    """Compute the gradient of the next batch at the parameters under ``source``, as a payload in
    wire dtype. The result is a ``StepFinished``."""

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
    """Average gradients by weight and take one step of the inner optimizer on the parameters under
    ``theta``. ``out`` names the new parameters and their payload. The result is a
    ``FragmentMerged``."""

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
    """Compute the held-out loss of the global parameters, given by fragment."""

    fragments: tuple[str, ...]

    @property
    def reads(self) -> tuple[str, ...]:
        """See ``Work``."""
        return self.fragments


class SaveModel(Work, frozen=True):
    """Write the global parameters, given by fragment, to the run folder."""

    fragments: tuple[str, ...]

    @property
    def reads(self) -> tuple[str, ...]:
        """See ``Work``."""
        return self.fragments


Asked = (
    Recover
    | MakeParameters
    | RunStep
    | CopyState
    | EncodePiece
    | InstallState
    | EncodeFragment
    | DecodeFragment
    | MergeFragment
    | Differentiate
    | AverageGradients
    | Evaluate
    | SaveModel
)
"""The work that the machines of a job request."""
