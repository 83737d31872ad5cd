"""Published bandwidth figures, compared with the results of our models (paper 8.1 and 8.3).

Streaming DiLoCo's tables are compared cell by cell. Decoupled DiLoCo's own figures were published
without their assumptions. So we search for settings in which our models give those figures; the
result is our interpretation, not the authors'.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Literal

import numpy as np

from ddloco.simulation.bandwidth.model import (
    BITS,
    GRID,
    TARGETS,
    Method,
    Model,
    Setting,
    copy_gbit,
    needed_exactly,
    on_grid,
    reduction_copies,
    second_opinion,
    utilisation,
)

REFERENCE_TARGETS = (0.50, 0.80, 0.90, 0.95, 0.99)

REFERENCES: dict[str, tuple[Setting, dict[Method, tuple[float, ...]]]] = {
    "1B": (
        Setting(parameters=1e9, layers=24, step_s=0.1, interval=100, fragments=8, overlap=1),
        {
            "data-parallel": (86.8, 152.6, 184.2, 222.3, 569.0),
            "diloco": (1.4, 6.2, 13.3, 23.3, 86.8),
            "streaming": (1.4, 5.2, 9.1, 16.0, 28.1),
            "streaming-overlap": (1.4, 4.3, 6.2, 9.1, 11.0),
            "streaming-overlap-4bit": (0.4, 0.9, 1.7, 2.0, 3.0),
        },
    ),
    "10B": (
        Setting(parameters=10e9, layers=48, step_s=0.8, interval=100, fragments=16, overlap=1),
        {
            "data-parallel": (104.8, 222.3, 222.3, 268.3, 471.5),
            "diloco": (1.7, 7.5, 16.0, 33.9, 104.8),
            "streaming": (1.7, 5.2, 9.1, 13.3, 19.3),
            "streaming-overlap": (1.7, 3.6, 5.2, 6.2, 7.5),
            "streaming-overlap-4bit": (0.4, 0.9, 1.4, 1.4, 1.7),
        },
    ),
}
"""Streaming DiLoCo, Table 4: fragments of three layers, two replicas; Gbit/s (paper 8.3)."""


@dataclass(frozen=True, slots=True)
class PublishedCell:
    """A published number and ours; ``steps`` is how many grid steps ours is above it."""

    table: str
    method: Method
    target: float
    published: float
    ours: float | None
    steps: int


def compare_cells(model: Model) -> list[PublishedCell]:
    """Every cell of the reference tables with a model's result."""
    cells: list[PublishedCell] = []
    for table, (setting, rows) in REFERENCES.items():
        for method, row in rows.items():
            reached = model(setting, method, GRID)
            for target, published in zip(REFERENCE_TARGETS, row, strict=True):
                ours = on_grid(reached, target)
                index = len(GRID) if ours is None else int(np.searchsorted(GRID, ours))
                steps = index - int(np.argmin(np.abs(GRID - published)))
                cells.append(PublishedCell(table, method, target, published, ours, steps))
    return cells


@dataclass(frozen=True, slots=True)
class Agreement:
    """How well a model agrees with the references, in cells and grid steps."""

    cells: int
    exact: int
    within_one: int
    worst: int
    misses: tuple[PublishedCell, ...]


def agreement(model: Model) -> Agreement:
    """Count the cells that match."""
    cells = compare_cells(model)
    off = [abs(cell.steps) for cell in cells]
    misses = tuple(cell for cell in cells if cell.steps)
    return Agreement(len(cells), off.count(0), sum(n <= 1 for n in off), max(off), misses)


LAYERS = (24, 28, 32, 36, 40, 48, 56, 64)


@dataclass(frozen=True, slots=True)
class PublishedPair:
    """Two published figures, and the settings in which they are searched.

    Args:
        gbit_s: data-parallel training and Decoupled DiLoCo, Gbit/s.
        half_digits: the tolerance: half of the last printed digit.
        gridded: whether the figures are values of the grid.
        sizes: parameters in 1e9.
        steps_s: step times in seconds.
        sites: numbers of data centres.
    """

    gbit_s: tuple[float, float]
    half_digits: tuple[float, float]
    gridded: bool
    sizes: tuple[float, ...]
    steps_s: tuple[float, ...]
    sites: tuple[int, ...]


HEADLINE_CLAIM = PublishedPair(
    gbit_s=(198.0, 0.84),
    half_digits=(0.5, 0.005),
    gridded=False,
    sizes=(2.0, 5.0, 9.0, 12.0),
    steps_s=tuple(n / 10 for n in range(1, 51)),
    sites=(8,),
)
"""The announcement: 0.84 instead of 198 Gbit/s between 8 data centres (paper 8.1). The search
covers the model sizes that were trained, and steps of up to 5 s. Neither figure is on the grid."""

PAIR_CLAIM = PublishedPair(
    gbit_s=(104.8, 1.7),
    half_digits=(0.05, 0.05),
    gridded=True,
    sizes=tuple(n / 2 for n in range(2, 41)),
    steps_s=(1.0,),
    sites=(2, 4, 8, 16),
)
"""The one published pair of the paper's table, at a step of 1 s (paper 8.1). Size, sites and column
were not reported; both figures are assumed to be from one column."""

ModelName = Literal["A", "B"]
MODELS: tuple[tuple[Model, ModelName], ...] = ((second_opinion, "A"), (utilisation, "B"))
"""The two models of Decoupled DiLoCo, with their names in paper 8.2."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A setting in which our models give both figures of a claim, with the results in Gbit/s."""

    setting: Setting
    target: float
    model: ModelName
    data_parallel: float
    decoupled: float


def search(claim: PublishedPair) -> tuple[int, list[Reading]]:
    """The number of settings tried, and those that give both figures."""
    found: list[Reading] = []
    choices = list(product(claim.sizes, LAYERS, claim.steps_s, claim.sites, TARGETS))
    for size, layers, step_s, sites, target in choices:
        setting = Setting(parameters=size * 1e9, layers=layers, step_s=step_s, sites=sites)
        exact = copy_gbit(setting) * reduction_copies(sites) / (step_s * _load(layers, target))
        if _same(claim, 0, exact):
            found += _with_decoupled(claim, setting, target, _said(claim, exact))
    return len(choices) * 2 * len(BITS), found


def _with_decoupled(
    claim: PublishedPair, setting: Setting, target: float, data_parallel: float
) -> Iterator[Reading]:
    for bits, method in BITS:
        for model, name in MODELS:
            exact = needed_exactly(model, setting, method, target)
            if _same(claim, 1, exact):
                used = replace(setting, bits=bits)
                yield Reading(used, target, name, data_parallel, _said(claim, exact))


def _said(claim: PublishedPair, exact: float) -> float:
    """The value as the claim would print it: on the grid or not."""
    return float(GRID[np.searchsorted(GRID, exact * (1 - 1e-9))]) if claim.gridded else exact


def _same(claim: PublishedPair, which: int, exact: float) -> bool:
    if not 0 < exact <= GRID[-1]:
        return False
    return abs(_said(claim, exact) - claim.gbit_s[which]) < claim.half_digits[which]


@cache
def _load(layers: int, target: float) -> float:
    """The transfer time of a data-parallel step at a target, in step times, by simulation.

    Volume, step time and bandwidth matter only in this ratio, so a search needs one simulation for
    each pair of arguments.
    """
    unit = Setting(parameters=1e9, layers=layers, step_s=1.0)
    return copy_gbit(unit) / needed_exactly(utilisation, unit, "data-parallel", target)
