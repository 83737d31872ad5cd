"""How much bandwidth a method needs to keep its accelerators busy (paper 8.2): the smallest of a
fixed grid with which compute time over wall time (compute utilisation, CU) reaches a target.

Two independent models: *simulated*, a graph of events as Streaming DiLoCo describes it, ``4 L - 1``
nodes per step, on one compute and one network resource, both in order, with one fitted constant,
the volume; and *closed*, the formulas of paper 8.2, with five fitted constants.

Decoupled DiLoCo has no utilisation in this sense, because its learners never wait. Its requirement
is the bandwidth at which the syncer keeps its interval; again there are two models.

Units: parameters are counts, bandwidths Gbit/s in each direction of one site's link, times s.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

GRID: Array = np.logspace(-1, 3, 50)
"""Gbit/s; contains every value of the published tables (paper 8.2)."""

TARGETS = (0.50, 0.75, 0.80, 0.90, 0.95, 0.99)
"""The compute utilisations in the tables of the two papers."""

GBIT_PER_BILLION = 13.45
"""Gbit per 1e9 nominal parameters at 16 bits, for the simulation. Fitted: 13.38 to 13.49 give the
same 48 of 50 published cells. It is less than 16; the reason was not published."""

GBIT_PER_BILLION_CLOSED = 13.3
HIDDEN_DATA_PARALLEL = 0.65
HIDDEN_DILOCO = 0.6
HIDDEN_STREAMING = 0.55
HIDDEN_BESIDE_OVERLAP = 0.5
"""The constants of the closed form, fitted together (paper 8.2): the volume as above, and the steps
of communication hidden by compute, per reduction; with overlap this is added to the overlap itself,
1.5 at an overlap of one step."""

ROUNDS = 3
"""Simulated rounds of ``interval`` steps; the communication of the last one counts as a whole. Two
to five rounds match 48 published cells; one matches 45, ten 47, and twenty, where the end hardly
matters, 46."""

Method = Literal[
    "data-parallel",
    "diloco",
    "streaming",
    "streaming-overlap",
    "streaming-overlap-4bit",
    "decoupled",
    "decoupled-4bit",
]

LABELS: dict[Method, str] = {
    "data-parallel": "Data-parallel",
    "diloco": "DiLoCo",
    "streaming": "Streaming DiLoCo",
    "streaming-overlap": "Streaming + overlap",
    "streaming-overlap-4bit": "Streaming + overlap, 4 bit",
    "decoupled": "Decoupled DiLoCo",
    "decoupled-4bit": "Decoupled DiLoCo, 4 bit",
}
METHODS: tuple[Method, ...] = tuple(LABELS)

BITS: tuple[tuple[int, Method], ...] = ((16, "decoupled"), (4, "decoupled-4bit"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is trained, where, and how it is exchanged.

    Args:
        parameters: nominal count, such as 10e9.
        layers: number of layers of the model; reductions are per layer.
        step_s: seconds of compute in one step.
        sites: number of data centres; each is a learner, or all together are data-parallel.
        interval: H, steps between two exchanges of one fragment.
        fragments: P; Streaming DiLoCo's fragments are whole layers, so there at most ``layers``
            of them count.
        overlap: tau, steps that an exchange may take while compute continues.
        bits: size of an exchanged value.
    """

    parameters: float
    layers: int
    step_s: float
    sites: int = 2
    interval: int = 24
    fragments: int = 24
    overlap: int = 2
    bits: int = 16


def as_method(setting: Setting, method: Method) -> Setting:
    """The setting with a method's restrictions: each method is a special case of the next."""
    match method:
        case "data-parallel":
            return replace(setting, interval=1, fragments=1, overlap=0)
        case "diloco":
            return replace(setting, fragments=1, overlap=0)
        case "streaming":
            return replace(setting, overlap=0)
        case "streaming-overlap-4bit" | "decoupled-4bit":
            return replace(setting, bits=4)
        case "streaming-overlap" | "decoupled":
            return setting


def copy_gbit(setting: Setting, per_billion: float = GBIT_PER_BILLION) -> float:
    """Gbit of one copy of everything that is exchanged, with ``setting.bits`` per value."""
    return per_billion * setting.parameters / 1e9 * setting.bits / 16


def reduction_copies(sites: int) -> float:
    """Copies that each site sends and receives in a ring all-reduce: 2 (M - 1) / M. That is one for
    two sites, as in Streaming DiLoCo's tables, to which the volume was fitted."""
    return 2 * (sites - 1) / sites


def simulated(setting: Setting, bandwidth: Array) -> Array:
    """CU of the event graph at each bandwidth (paper 8.2). Fragments are strided layers. Each
    fragment is sent layer by layer in the last step of its share of the interval, and after
    ``overlap`` further steps the next forward pass of a layer waits for it."""
    layers, interval = setting.layers, setting.interval
    fragments = min(setting.fragments, layers)
    node_s = setting.step_s / (3 * layers - 1)
    volume_gbit = copy_gbit(setting) * reduction_copies(setting.sites)
    layer_s = volume_gbit / layers / bandwidth
    sends = {(p + 1) * interval // fragments - 1: p for p in range(fragments)}
    due: dict[int, list[tuple[int, Array]]] = {}
    clock, network = np.zeros_like(bandwidth), np.zeros_like(bandwidth)
    quiet = 0
    for step in range(ROUNDS * interval):
        fragment = sends.get(step % interval)
        if fragment is None and step not in due:
            quiet += 1
            continue
        clock = clock + quiet * setting.step_s
        done = quiet = 0
        for layer, arrival in due.pop(step, ()):
            clock = np.maximum(clock + (layer - done) * node_s, arrival)
            done = layer
        clock = clock + (layers - done) * node_s
        if fragment is not None:
            arrivals: list[tuple[int, Array]] = []
            for layer in reversed(range(fragment, layers, fragments)):
                backward = 2 * (layers - layer) - (layer == 0)
                network = np.maximum(network, clock + backward * node_s) + layer_s
                arrivals.append((layer, network))
            due[step + 1 + setting.overlap] = arrivals[::-1]
        clock = clock + (2 * layers - 1) * node_s
    clock = clock + quiet * setting.step_s
    return ROUNDS * interval * setting.step_s / np.maximum(clock, network)


def closed(setting: Setting, bandwidth: Array) -> Array:
    """CU by the fitted formulas (paper 8.2): communication not hidden by compute is waited for.
    With overlap this is also Decoupled DiLoCo's model (A). It counts hidden time once per fragment.
    So where ``fragments * (overlap + 0.5)`` exceeds the interval, time shared by several fragments
    is counted more than once, and the result exceeds what the link can carry."""
    volume_gbit = copy_gbit(setting, GBIT_PER_BILLION_CLOSED) * reduction_copies(setting.sites)
    return _waiting(setting, volume_gbit, bandwidth)


def _hidden_steps(setting: Setting) -> float:
    """How much communication a round hides, in steps."""
    if setting.overlap:
        return setting.fragments * (setting.overlap + HIDDEN_BESIDE_OVERLAP)
    if setting.interval == 1:
        return HIDDEN_DATA_PARALLEL
    return HIDDEN_DILOCO if setting.fragments == 1 else setting.fragments * HIDDEN_STREAMING


def _waiting(setting: Setting, volume_gbit: float, bandwidth: Array) -> Array:
    round_s = setting.interval * setting.step_s
    hidden_s = _hidden_steps(setting) * setting.step_s
    return round_s / (round_s + np.maximum(0.0, volume_gbit / bandwidth - hidden_s))


def decoupled_waiting(setting: Setting, bandwidth: Array) -> Array:
    """Model (A) of paper 8.2: as if a learner waited as in Streaming DiLoCo with overlap. One copy
    is sent in each direction for any number of sites: to the syncer, and back."""
    return _waiting(setting, copy_gbit(setting), bandwidth)


def decoupled_sustained(setting: Setting, bandwidth: Array) -> Array:
    """Model (B) of paper 8.2: the share of the interval's exchanges that the link sustains."""
    round_s = setting.interval * setting.step_s
    return np.minimum(1.0, round_s * bandwidth / copy_gbit(setting))


def utilisation(setting: Setting, method: Method, bandwidth: Array) -> Array:
    """CU of a method, simulated; for Decoupled DiLoCo, what the link sustains, model (B)."""
    if method in {"decoupled", "decoupled-4bit"}:
        return decoupled_sustained(as_method(setting, method), bandwidth)
    return simulated(as_method(setting, method), bandwidth)


def second_opinion(setting: Setting, method: Method, bandwidth: Array) -> Array:
    """CU by the other model: the closed form; for Decoupled DiLoCo model (A)."""
    if method in {"decoupled", "decoupled-4bit"}:
        return decoupled_waiting(as_method(setting, method), bandwidth)
    return closed(as_method(setting, method), bandwidth)


Model = Callable[[Setting, Method, Array], Array]


def needed(model: Model, setting: Setting, method: Method) -> list[float | None]:
    """The smallest sufficient bandwidth of the grid for each target, in Gbit/s; None if none is."""
    reached = model(setting, method, GRID)
    return [on_grid(reached, target) for target in TARGETS]


def on_grid(reached: Array, target: float) -> float | None:
    """The smallest bandwidth of the grid with a CU of at least the target; None if none has."""
    enough = np.flatnonzero(reached >= target - 1e-12)
    return float(GRID[enough[0]]) if enough.size else None


def needed_exactly(model: Model, setting: Setting, method: Method, target: float) -> float:
    """The smallest bandwidth for a target, in Gbit/s, not on the grid; to about nine digits."""
    low, high = 1e-9, 1e12
    for _ in range(8):
        points = np.geomspace(low, high, 50)
        first = int(np.argmax(model(setting, method, points) >= target))
        low, high = float(points[max(first - 1, 0)]), float(points[first])
    return high


def in_time_gbit_s(setting: Setting, method: Method) -> float:
    """Gbit/s at which a pulled fragment is merged and returned within the overlap (paper 8.2): ``V
    / (P B)`` in each direction within ``tau t``; the time to merge is ignored. Below it fragments
    arrive late, which makes them stale but stops no learner. Infinite without overlap."""
    used = as_method(setting, method)
    if not used.overlap:
        return float("inf")
    return 2 * copy_gbit(used) / (used.fragments * used.overlap * used.step_s)
