"""Wall time to the same tokens over wide links, data-parallel training beside Decoupled DiLoCo."""

from dataclasses import dataclass, replace

import numpy as np

from ddloco.simulation.bandwidth.model import BITS, Array, Setting, utilisation

HEADLINE = Setting(parameters=12e9, layers=32, step_s=1.6, sites=8)
HEADLINE_TARGET = 0.80
"""The setting in which our model gives the announced 198 and 0.84 Gbit/s (paper 8.1), an
interpretation: the model size that was announced with them, H = P = 24 and tau = 2 as in the
paper, 4 bits."""

REGIONS = replace(HEADLINE, sites=4)
"""The same model and step across 4 regions (paper 8.1: 12B, 2 to 5 Gbit/s)."""

LINKS: Array = np.array([0.1, 1.0, 2.0, 5.0, 10.0, 25.0, 100.0, 400.0])
"""Typical links, in Gbit/s."""


@dataclass(frozen=True, slots=True)
class WideLink:
    """The cost of one link for both methods: seconds of wall time per step, and their ratios.

    Attributes:
        data_parallel_s: a step with its reduction.
        faster: wall time to the same tokens, data-parallel over Decoupled.
        faster_holding: the same if Decoupled waited to keep its interval, at 4 bits.
        interval: steps between two exchanges of a fragment that the link sustains, at 16 bits.
        interval_4bit: the same at 4 bits.
    """

    gbit_s: float
    data_parallel_s: float
    decoupled_s: float
    faster: float
    faster_holding: float
    interval: float
    interval_4bit: float


def wall_clock(setting: Setting, links: Array = LINKS) -> list[WideLink]:
    """Wall time to the same number of tokens on several links. Every site computes the same batch
    in the same time with either method, so the ratio of total times is that of the steps. Latency,
    packet loss and the syncer's own link, which carries all learners' traffic, are ignored."""
    slow = setting.step_s / utilisation(setting, "data-parallel", links)
    whole, small = (utilisation(setting, method, links) for _, method in BITS)
    return [
        WideLink(
            gbit_s=float(links[n]),
            data_parallel_s=float(slow[n]),
            decoupled_s=setting.step_s,
            faster=float(slow[n] / setting.step_s),
            faster_holding=float(slow[n] / setting.step_s * small[n]),
            interval=float(setting.interval / whole[n]),
            interval_4bit=float(setting.interval / small[n]),
        )
        for n in range(len(links))
    ]
