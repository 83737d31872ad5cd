"""How the parameters are split into fragments (paper section 4).

A fragment is a set of whole tensors that are synchronised together; fragment p is due when
`t mod H == t_p`. Each actor derives the plan from the names, shapes and dtypes, and the handshake
compares digests, so everything here is a pure function of its arguments.

The plan also defines the memory layout. The whole parameter copy is one byte region: fragment after
fragment, tensor after tensor, with the start of each tensor aligned to a cache line. So a fragment
is one contiguous slice, which can be sent without gathering. Padding belongs to the slice and is
always written as zeros, so that equal parameters have equal bytes.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from math import prod

import msgspec

from transport import DTYPES, aligned

STATE = "state:/"
"""How the names of a task's state begin, which is averaged and not trained; see ``is_state``."""


INTERVAL_MAX = 2**20
"""Maximum steps between two syncs of a fragment: two numbers are kept for each step of an interval.
Intervals of a thousand steps are long."""


class Leaf(msgspec.Struct, frozen=True):
    """One tensor: its path such as `blocks/3/attn/qkv`, its shape, its numpy-style dtype name."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The number of bytes, without padding."""
        return self.size * DTYPES[self.dtype].itemsize


class _Layout(msgspec.Struct, frozen=True):
    """Where each fragment and tensor starts, and by `t mod H` which fragment is due at step t and
    how many steps later the next one is."""

    slices: tuple[tuple[int, int], ...]
    tensors: tuple[tuple[int, ...], ...]
    due: tuple[int | None, ...]
    until_due: tuple[int, ...]


class FragmentPlan(msgspec.Struct, frozen=True, dict=True):
    """Which tensor is in which fragment, when each fragment is due, and where its bytes are.

    `fragments[p]` lists the tensors of fragment p, sorted by name as UTF-8 bytes.
    `offsets[p]` is t_p, in steps, distinct and below `interval` (H).
    Lookups are computed once in advance, because each step and each message needs them.
    """

    fragments: tuple[tuple[Leaf, ...], ...]
    offsets: tuple[int, ...]
    interval: int

    @cached_property
    def _layout(self) -> _Layout:
        if self.interval > INTERVAL_MAX:
            raise ValueError(f"an interval of {self.interval} steps; want at most {INTERVAL_MAX}")
        if not all(0 <= each < self.interval for each in self.offsets):
            raise ValueError(f"offsets {self.offsets[:3]}...; want 0 to {self.interval - 1}")
        slices: list[tuple[int, int]] = []
        tensors: list[tuple[int, ...]] = []
        end = 0
        for fragment in self.fragments:
            start = end
            starts: list[int] = []
            for leaf in fragment:
                starts.append(end)
                end = aligned(end + leaf.nbytes)
            slices.append((start, end))
            tensors.append(tuple(starts))
        due: list[int | None] = [None] * self.interval
        for p, offset in enumerate(self.offsets):
            assert due[offset] is None, "offsets are distinct"
            due[offset] = p
        until_due = [0] * self.interval
        following = self.interval + min(self.offsets)
        for t in reversed(range(self.interval)):
            until_due[t] = following - t
            if due[t] is not None:
                following = t
        return _Layout(tuple(slices), tuple(tensors), tuple(due), tuple(until_due))

    @cached_property
    def digest(self) -> str:
        """SHA-256 in hex over names, shapes, dtypes, assignment, offsets and interval."""
        assigned = [[(x.name, x.shape, x.dtype) for x in leaves] for leaves in self.fragments]
        content = (assigned, self.offsets, self.interval)
        return hashlib.sha256(msgspec.msgpack.encode(content, order="deterministic")).hexdigest()

    @property
    def total_bytes(self) -> int:
        """The length of the whole region, including padding."""
        return self._layout.slices[-1][1]

    def fragment_slice(self, p: int) -> tuple[int, int]:
        """Return (start, stop) in bytes of fragment p; the slices tile the region."""
        return self._layout.slices[p]

    def tensor_offset(self, p: int, i: int) -> int:
        """Return the byte at which tensor i of fragment p starts, from the region's start."""
        return self._layout.tensors[p][i]

    def fragment_due(self, t: int) -> int | None:
        """Return the fragment p with t mod H == t_p, or None if no fragment is due at step t."""
        return self._layout.due[t % self.interval]

    def steps_until_due(self, t: int) -> int:
        """Return in how many steps after step t a fragment is due again, from 1 to H."""
        return self._layout.until_due[t % self.interval]

    def next_due(self, after: int, last: int) -> int | None:
        """Return the first step in (after, last] at which a fragment is due, or None."""
        t = after + self.steps_until_due(after)
        return t if t <= last else None


def is_state(name: str) -> bool:
    """Whether a tensor is not a parameter, but part of the state beside them: merges replace it by
    the plain weighted average of the learners' values."""
    return name.startswith(STATE)


def wire_layout(plan: FragmentPlan, fragment: int) -> tuple[tuple[str, tuple[int, ...], str], ...]:
    """(name, shape, dtype) of a fragment's tensors, in the order in which they are sent."""
    return tuple((leaf.name, leaf.shape, leaf.dtype) for leaf in plan.fragments[fragment])


def make_plan(
    leaves: Iterable[Leaf], *, fragments: int, interval: int, strategy: str
) -> FragmentPlan:
    """Split `leaves` into at most `fragments` (P) fragments, each due every `interval` (H) steps.

    P is at most H; there are fewer if there are fewer tensors or layers. Strategies are "layer"
    (runs of layers), "strided" (every P-th layer), "tensor" (runs of tensors) and "balanced" (LPT).
    The order of `leaves` makes no difference. Raises ValueError.
    """
    ordered = sorted(leaves, key=_utf8)
    _check(ordered, fragments, interval, strategy)
    bins = [b for b in _STRATEGIES[strategy](ordered, fragments) if b]
    count = len(bins)
    assert sum(len(b) for b in bins) == len(ordered), "every tensor is in one fragment"
    return FragmentPlan(
        fragments=tuple(tuple(sorted(b, key=_utf8)) for b in bins),
        offsets=tuple(p * interval // count for p in range(count)),
        interval=interval,
    )


def _check(leaves: Sequence[Leaf], fragments: int, interval: int, strategy: str) -> None:
    if strategy not in _STRATEGIES:
        raise ValueError(f"unknown strategy {strategy!r}, choose from {sorted(_STRATEGIES)}")
    if fragments < 1:
        raise ValueError(f"at least one fragment is needed, not {fragments}")
    if fragments > interval:
        raise ValueError(f"{fragments} fragments need an interval of as many steps, not {interval}")
    if not leaves:
        raise ValueError("there are no tensors to split into fragments")
    for leaf, following in pairwise(leaves):
        if leaf.name == following.name:
            raise ValueError(f"two tensors are named {leaf.name!r}")
    for leaf in leaves:
        if leaf.dtype not in DTYPES:
            raise ValueError(f"tensor {leaf.name!r} is {leaf.dtype}; {_instead_of(leaf.dtype)}")
        if any(n < 0 for n in leaf.shape):
            raise ValueError(f"tensor {leaf.name!r} has the impossible shape {leaf.shape}")


def _instead_of(dtype: str) -> str:
    if dtype.startswith("complex"):
        return "keep its real and imaginary parts as two tensors, and join them in the loss"
    return f"want one of {', '.join(name for name in DTYPES if name != 'float64')}"


def _balanced(leaves: Sequence[Leaf], count: int) -> list[list[Leaf]]:
    # Longest processing time first: the largest fragment is within 4/3 of the optimum.
    bins: list[list[Leaf]] = [[] for _ in range(count)]
    weights = [0] * count
    for leaf in sorted(leaves, key=lambda leaf: (-leaf.nbytes, _utf8(leaf))):
        lightest = weights.index(min(weights))
        bins[lightest].append(leaf)
        weights[lightest] += leaf.nbytes
    return bins


def _tensor(leaves: Sequence[Leaf], count: int) -> list[list[Leaf]]:
    n = len(leaves)
    return [list(leaves[p * n // count : (p + 1) * n // count]) for p in range(count)]


def _layers(leaves: Sequence[Leaf]) -> list[list[Leaf]]:
    layers: dict[tuple[str, ...], list[Leaf]] = {}
    for leaf in leaves:
        layers.setdefault(_layer_of(leaf.name), []).append(leaf)
    return [layers[name] for name in sorted(layers, key=_natural)]


def _layer(leaves: Sequence[Leaf], count: int) -> list[list[Leaf]]:
    layers = _layers(leaves)
    n = len(layers)
    runs = [layers[p * n // count : (p + 1) * n // count] for p in range(count)]
    return [[leaf for layer in run for leaf in layer] for run in runs]


def _strided(leaves: Sequence[Leaf], count: int) -> list[list[Leaf]]:
    layers = _layers(leaves)
    return [[leaf for layer in layers[p::count] for leaf in layer] for p in range(count)]


_STRATEGIES: dict[str, Callable[[Sequence[Leaf], int], list[list[Leaf]]]] = {
    "balanced": _balanced,
    "layer": _layer,
    "strided": _strided,
    "tensor": _tensor,
}


def _layer_of(name: str) -> tuple[str, ...]:
    # The last component names the tensor in its layer: a `w1` there is not a layer's index.
    parts = name.split("/")
    for i, part in enumerate(parts[:-1]):
        if part[-1:].isdecimal():
            return tuple(parts[: i + 1])
    return (parts[0],)


def _natural(parts: tuple[str, ...]) -> tuple[object, ...]:
    # re.split with a group alternates text and digits, so text is never compared with numbers.
    pieces = [re.split(r"(\d+)", part) for part in parts]
    keys = [[int(x) if i % 2 else x for i, x in enumerate(piece)] for piece in pieces]
    return (keys, parts)


def _utf8(leaf: Leaf) -> bytes:
    return leaf.name.encode()
