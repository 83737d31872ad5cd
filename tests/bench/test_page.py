"""The page of figures: what ran is new, what did not run stays, and nothing else is on it."""

from pathlib import Path

from tests.bench.page import section, updated

MACHINE = {"cores": 2, "cpu": "a processor", "python": "3.11.7", "load_average": 0.2}
ORDER = ("merge", "round", "step")
PAGE = Path(__file__).parents[2] / "docs" / "performance.md"


def test_a_section_says_what_and_where():
    """The first sentence of the benchmark, its lines, and the machine."""
    said = section(
        "How fast.\n\nDivided: a by b.\n", ["1.2 times the floor"], MACHINE, "2026-01-02", 61.4
    )

    assert said.splitlines() == [
        "How fast.",
        "",
        "* 1.2 times the floor",
        "",
        "2026-01-02, 2 cores of a processor, Python 3.11.7, load average 0.20; took 61 s.",
    ]


def test_what_an_aim_would_need_is_said_last():
    """As the benchmark has it."""
    said = section("How fast.\n\nMore.", ["2"], MACHINE, "2026-01-02", 1.0, "The rest is Python.")
    assert said.splitlines()[-2:] == ["", "The rest is Python."]


def test_only_what_ran_is_replaced():
    """Sections keep the order of the benchmarks; a benchmark that is gone leaves the page."""
    page = updated("", {"step": "old step", "merge": "old merge"}, ORDER)
    again = updated(page + "\n## gone\n\nx\n", {"merge": "new merge", "round": "new round"}, ORDER)

    headings = [line for line in again.splitlines() if line.startswith("## ")]
    assert headings == ["## merge", "## round", "## step"]
    assert "new merge" in again
    assert "old merge" not in again
    assert "old step" in again
    assert again == updated(again, {}, ORDER)


def test_the_page_of_the_documentation_is_one_of_these():
    """It has no text between or around the sections, such as figures written by hand."""
    from tests.bench.test_quick import NAMES

    text = PAGE.read_text()
    order = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
    assert {*order} <= {*NAMES}
    assert text == updated(text, {}, order)
