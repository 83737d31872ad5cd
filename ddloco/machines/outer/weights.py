"""Scalar arithmetic shared by machines and merges: weights, medians, norms."""

from collections.abc import Sequence

from ddloco.job.config import WeightRule


def merge_weight(tokens: int, steps: int, rule: WeightRule = "rate") -> float:
    """Return the weight of a contribution of so many tokens and steps; 0 without steps. By default
    it is w = tokens * (tokens / steps), quantity times quality (paper 3.4)."""
    assert min(tokens, steps) >= 0, "both are counted up from zero"
    if not steps:
        return 0.0
    if rule == "equal":
        return 1.0
    return float(tokens) if rule == "tokens" else tokens * (tokens / steps)


def usual_norm(known: Sequence[tuple[float, int]], steps: int) -> float:
    """The usual norm after ``steps`` steps, from known pairs (norm, steps); 0 if none are known. A
    norm grows at most in proportion to the steps. For fewer steps it is not scaled down, because
    around an optimum the norm does not shrink with them."""
    if not known:
        return 0.0
    return lower_median([norm * max(1.0, steps / max(taken, 1)) for norm, taken in known])


def lower_median(values: Sequence[float]) -> float:
    """The median; of an even number of values the lower one, since the upper half may be too
    large."""
    return sorted(values)[(len(values) - 1) // 2]
