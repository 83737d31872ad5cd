"""The page of figures in the documentation: each benchmark that ran replaces its own section."""

import re
from collections.abc import Sequence
from typing import Any

BEGINNING = """\
# Performance

On this page you see how far each part is from what the machine could do. `make bench` writes it:
ratios against a floor or a peer in the same run, because these machines are shared. What is divided
by what is in the docstring of `tests/bench/bench_NAME.py`.
Where an aim is missed, the last paragraph of a section says what the time goes to, and what the aim
would need; its figures were measured by hand with a profiler (2026-11-27). A load average above 0.5
means that something else was running.
"""

SECTION = re.compile(r"^## (\w+)\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)


def section(
    about: str,
    lines: Sequence[str],
    machine: dict[str, Any],
    date: str,
    took_s: float,
    beyond: str = "",
) -> str:
    """A section's text, below its heading.

    Args:
        about: the benchmark's docstring; its first sentence is shown.
        lines: its results in words.
        machine: as ``run.machine`` says it, before the benchmark ran.
        date: the day, as 2026-11-22.
        took_s: how long it ran.
        beyond: what lies between the figures and their aims.
    """
    said = [about.split("\n\n", maxsplit=1)[0].replace("\n", " "), ""]
    said += [f"* {line}" for line in lines]
    where = "{cores} cores of {cpu}, Python {python}, load average {load_average:.2f}"
    told = [*said, "", f"{date}, {where.format(**machine)}; took {took_s:.0f} s."]
    return "\n".join([*told, "", beyond] if beyond else told)


def updated(page: str, sections: dict[str, str], order: Sequence[str]) -> str:
    """A page with new sections in the place of older ones; those of no benchmark go.

    Args:
        page: the page as it is; empty if there is none.
        sections: the new ones, by benchmark.
        order: all benchmarks.
    """
    found = {name: text.strip() for name, text in SECTION.findall(page)} | sections
    parts = [f"## {name}\n\n{found[name]}\n" for name in order if name in found]
    return "\n".join([BEGINNING, *parts])
