"""Seeds of one promise, of which a run of the tests tries the first, and ``make slow`` all."""

import pytest


def seeds(count, fast):
    """``range(count)`` for a parametrized test; those from ``fast`` on are marked slow."""
    slow = [pytest.param(n, marks=pytest.mark.slow) for n in range(fast, count)]
    return [*range(fast), *slow]
