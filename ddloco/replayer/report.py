"""What a replay found."""

from dataclasses import dataclass, field
from typing import Any

from replay import Divergence, Tape


@dataclass
class Report:
    events: int = 0
    counts: dict[str, int] = field(default_factory=dict[str, int])
    """How many events of each kind were executed again, by the name that reports show."""
    equal: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    """By incarnation, how many of its events, and of those of each kind, were found equal."""
    payloads: int = 0
    unverified: int = 0
    gaps: list[str] = field(default_factory=list[str])
    """What could not be verified, so that the replay cannot be called identical."""
    notes: list[str] = field(default_factory=list[str])
    """What people should know besides."""
    divergences: list[Divergence] = field(default_factory=list[Divergence])
    """Every difference that follows from no other one, in a causal order."""
    dependent: list[str] = field(default_factory=list[str])
    """Incarnations that were not replayed to their ends, since they depend on a difference."""

    @property
    def divergence(self) -> Divergence | None:
        return self.divergences[0] if self.divergences else None

    @property
    def identical(self) -> bool:
        return self.divergence is None and not self.gaps and not self.unverified

    @property
    def lacks(self) -> str:
        found = [f"{self.unverified:,} results were not verified"] if self.unverified else []
        found += ["parts of the run are missing"] if self.gaps else []
        return " and ".join(found)

    def as_dict(self) -> dict[str, Any]:
        return {
            "identical": self.identical,
            "events": self.events,
            **self.counts,
            "payloads": self.payloads,
            "unverified": self.unverified,
            "gaps": self.gaps,
            "notes": self.notes,
            "divergence": self.divergence.as_dict() if self.divergence else None,
            "also": [each.as_dict() for each in self.divergences[1:]],
        }


def damage_said(each: Tape) -> str:
    return f"damaged at {each.damage}; read up to event {each.events}"
