"""Everything that a learner or a syncer may ask for, beyond what transport offers.

Work effects carry a number, ``work``, that their result event repeats. Arrays are named by handles:
``host/STEP`` a learner's whole parameters, ``theta/P/T`` and ``momentum/P/T`` a fragment's global
state in float32, ``wire/P/T`` the same fragment as it is sent.
"""

from typing import Any, Literal

from msgspec import Struct

from transport import Effect

Status = Literal["done", "stopped", "bad-input", "failed"]


class Overwrite(Struct, frozen=True, array_like=True):
    """Before the step: replace the fragment by the global one under the handle."""

    fragment: int
    version: int
    handle: str


class Share(Struct, frozen=True, array_like=True):
    """One learner's part in a merge: its payload and its weight (tokens x tokens / steps)."""

    name: str
    handle: str
    weight: float


class Work(Effect, frozen=True):
    """Base of what workers do; its result event repeats the number."""

    work: int


class MakeParameters(Work, frozen=True):
    """Initialise the task's parameters; fragment p under ``theta/p/0`` and ``wire/p/0``."""


class RunStep(Work, frozen=True):
    """Overwrite what is newer, run inner step ``step``, copy the parameters to ``out``."""

    step: int
    overwrites: tuple[Overwrite, ...]
    out: str


class EncodeFragment(Work, frozen=True):
    """Make a payload of one fragment of a host copy."""

    fragment: int
    source: str
    out: str


class MergeFragment(Work, frozen=True):
    """Merge contributions into a fragment and take the outer step; new handles for the result.

    An empty ``momentum`` stands for zeros.
    """

    t: int
    fragment: int
    theta: str
    momentum: str
    shares: tuple[Share, ...]
    out: tuple[str, str, str]


class Evaluate(Work, frozen=True):
    """Held-out loss of the global parameters, given fragment by fragment."""

    fragments: tuple[str, ...]


class SaveModel(Work, frozen=True):
    """Write the global parameters to the run folder, given fragment by fragment."""

    fragments: tuple[str, ...]


class Observe(Effect, frozen=True):
    """Something that people should see; ``fields`` are plain data."""

    event: str
    fields: dict[str, Any]


class Finish(Effect, frozen=True):
    """The actor is done; nothing is handled after this."""

    status: Status
    reason: str
