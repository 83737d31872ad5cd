"""How much bandwidth a method needs to keep its accelerators busy (paper 8.2). Pure arithmetic.

Compute utilisation (CU) is compute time over wall time; the answer is the smallest bandwidth of a
fixed grid that reaches a target. Two models give two opinions:

* *simulated*: a graph of events as Streaming DiLoCo describes it. Per layer a forward, a backward
  with respect to activations (not for the first layer), a backward with respect to parameters and
  a reduction, ``4 L - 1`` nodes a step; one compute and one network resource, both in order. One
  constant is fitted, the volume. All bandwidths are simulated at once, as arrays.
* *closed*: the formulas of paper 8.2, with five fitted constants.

Decoupled DiLoCo has no utilisation in this sense, for its learners never wait. What it needs is
read as the bandwidth at which the syncer keeps its interval; again there are two models.

Units: parameters are counts, bandwidths Gbit/s in each direction of one site's link, times s.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

GRID: Array = np.logspace(-1, 3, 50)
"""Gbit/s; every value of the published tables lies on it (paper 8.2)."""

TARGETS = (0.50, 0.75, 0.80, 0.90, 0.95, 0.99)
"""Compute utilisations that the two papers tabulate."""

GBIT_PER_BILLION = 13.45
"""Gbit per 1e9 nominal parameters at 16 bits, for the simulation. Fitted: 13.38 to 13.49 give the
same 48 of 50 published cells. It is less than 16; what the difference is was not published."""

GBIT_PER_BILLION_CLOSED = 13.3
HIDDEN_DATA_PARALLEL = 0.65
HIDDEN_DILOCO = 0.6
HIDDEN_STREAMING = 0.55
HIDDEN_BESIDE_OVERLAP = 0.5
"""The closed form's constants, fitted together (paper 8.2): volume as above, and steps of
communication that computing hides, per reduction; with overlap this beside the overlap itself,
1.5 at an overlap of one step."""

ROUNDS = 3
"""Rounds of ``interval`` steps that are simulated; the last one's communication counts whole. Two
to five match 48 published cells; one matches 45, ten 47, twenty 46, when that end hardly counts."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is trained, where, and how it is exchanged.

    Args:
        parameters: nominal count, such as 10e9.
        layers: of the model; reductions go layer by layer.
        step_s: seconds of compute in one step.
        sites: data centres; each a learner, or all together data-parallel.
        interval: H, steps between two exchanges of one fragment.
        fragments: P; Streaming's are whole layers, so at most ``layers`` of them count there.
        overlap: tau, steps that an exchange may take while computing goes on.
        bits: of one exchanged value.
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
    """The setting as a method uses it: each is a special case of the next."""
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
    """Gbit of one copy of all that is exchanged, at ``setting.bits`` a value."""
    return per_billion * setting.parameters / 1e9 * setting.bits / 16


def reduction_copies(sites: int) -> float:
    """Copies that a ring all-reduce sends and receives at each site: 2 (M - 1) / M.

    One for two sites, as in Streaming DiLoCo's tables, to which the volume was fitted.
    """
    return 2 * (sites - 1) / sites


def simulated(setting: Setting, bandwidth: Array) -> Array:
    """CU of the event graph at each bandwidth (paper 8.2).

    Fragments are strided layers, as Streaming DiLoCo's main setting has them; each leaves layer by
    layer in the last of its share of the interval's steps, and a layer's next forward but
    ``overlap`` waits for it.
    """
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
    """CU by the fitted formulas (paper 8.2): what computing does not hide is waited for.

    With overlap this is also Decoupled's model (A). It counts hidden time once per fragment, so
    where ``fragments * (overlap + 0.5)`` exceeds the interval it promises more than a link carries:
    time that two fragments share is then counted twice.
    """
    volume_gbit = copy_gbit(setting, GBIT_PER_BILLION_CLOSED) * reduction_copies(setting.sites)
    return _waiting(setting, volume_gbit, bandwidth)


def _hidden_steps(setting: Setting) -> float:
    """Steps' worth of communication that a round hides."""
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
    """Model (A) of paper 8.2: as if a learner waited like Streaming with overlap.

    One copy goes each way whatever the number of sites: to the syncer, and back.
    """
    return _waiting(setting, copy_gbit(setting), bandwidth)


def decoupled_sustained(setting: Setting, bandwidth: Array) -> Array:
    """Model (B) of paper 8.2: the share of the interval's exchanges that the link sustains."""
    round_s = setting.interval * setting.step_s
    return np.minimum(1.0, round_s * bandwidth / copy_gbit(setting))


def utilisation(setting: Setting, method: Method, bandwidth: Array) -> Array:
    """CU of a method: simulated; for Decoupled DiLoCo what the link sustains, model (B)."""
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
    """The smallest bandwidth of the grid for each target, Gbit/s; None where none is enough."""
    reached = model(setting, method, GRID)
    return [on_grid(reached, target) for target in TARGETS]


def on_grid(reached: Array, target: float) -> float | None:
    """The smallest bandwidth of the grid whose CU is at least the target."""
    enough = np.flatnonzero(reached >= target - 1e-12)
    return float(GRID[enough[0]]) if enough.size else None


def needed_exactly(model: Model, setting: Setting, method: Method, target: float) -> float:
    """The smallest bandwidth for a target, Gbit/s, off the grid; to about nine digits."""
    low, high = 1e-9, 1e12
    for _ in range(8):
        points = np.geomspace(low, high, 50)
        first = int(np.argmax(model(setting, method, points) >= target))
        low, high = float(points[max(first - 1, 0)]), float(points[first])
    return high


def in_time_gbit_s(setting: Setting, method: Method) -> float:
    """Gbit/s at which a pulled fragment is merged and back within the overlap (paper 8.2).

    ``V / (P B)`` each way in ``tau t``; merging itself is left out. Below it a fragment arrives
    late, which costs freshness, not steps. Infinite without overlap.
    """
    used = as_method(setting, method)
    if not used.overlap:
        return float("inf")
    return 2 * copy_gbit(used) / (used.fragments * used.overlap * used.step_s)
