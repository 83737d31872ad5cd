"""Arithmetic of single numbers that machines and merges share: weights, medians, norms."""

from collections.abc import Sequence


def merge_weight(tokens: int, steps: int) -> float:
    """Return w = tokens * (tokens / steps), quantity times quality (paper 3.4); 0 when idle."""
    assert min(tokens, steps) >= 0, "both are counted up from zero"
    return tokens * (tokens / steps) if steps else 0.0


def usual_norm(known: Sequence[tuple[float, int]], steps: int) -> float:
    """The usual norm after so many steps, from what is known as (norm, steps); 0 for nothing known.

    More steps go further, at most so many times further; fewer may have gone as far, as they do
    around an optimum.
    """
    if not known:
        return 0.0
    return lower_median([norm * max(1.0, steps / max(taken, 1)) for norm, taken in known])


def lower_median(values: Sequence[float]) -> float:
    """The median, of an even number of values the lower one: half of them may be too large."""
    return sorted(values)[(len(values) - 1) // 2]
