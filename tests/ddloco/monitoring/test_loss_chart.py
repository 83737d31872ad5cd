"""Losses over global steps: bounded in memory, drawn as text and as a figure."""

from xml.etree import ElementTree as ET

import pytest

from ddloco.monitoring.loss_chart import COLOURED_MAX, PARTS, SPARK_CHARS, LossCurve, draw_losses

SVG = "{http://www.w3.org/2000/svg}"


def falling(steps=1000, last=1000):
    """A curve that falls from 5 towards 4."""
    curve = LossCurve(steps)
    for t in range(last):
        curve.add(t, 5 - t / steps)
    return curve


def test_a_part_has_the_mean_of_its_losses():
    """Memory does not grow with the number of steps; what comes behind the end is in the last."""
    curve = LossCurve(10)
    for t, loss in ((0, 1.0), (0, 3.0), (10, 4.0), (12, 6.0)):
        curve.add(t, loss)

    assert curve.points() == [(0.0, 2.0), (10.0, 5.0)]
    assert len(falling(10**5, 10**5).points()) == PARTS


@pytest.mark.parametrize(
    ("losses", "said"), [([], ""), ([2.0], "▁"), ([2.0, 2.0], "▁▁"), ([8.0, 4.5, 1.0], "█▅▁")]
)
def test_few_losses_have_a_cell_each(losses, said):
    """A constant loss is a low line."""
    curve = LossCurve(len(losses) or 1)
    for t, loss in enumerate(losses):
        curve.add(t, loss)
    assert curve.spark() == said


def test_many_losses_are_averaged():
    """The line is never longer than its column, and falls with the loss."""
    spark = falling().spark()

    assert len(spark) == SPARK_CHARS
    assert list(spark) == sorted(spark, reverse=True)
    assert (spark[0], spark[-1]) == ("█", "▁")


def test_the_figure_has_a_line_for_each_learner_and_the_held_out_loss():
    """It is well-formed, names all learners in its key, and stays within its frame."""
    curves = {"learner-0": falling(), "learner-1": falling(last=500)}
    text = draw_losses(curves, [(1000, 3.5)], 1000, "a <job>")
    root = ET.fromstring(text)  # noqa: S314, we have just written it
    words = [each.text for each in root.iter(f"{SVG}text")]
    lines = list(root.iter(f"{SVG}polyline"))

    assert {"a <job>", "learner-0", "learner-1", "held out: 3.5000"} <= set(words)
    assert {"5.00", "3.50"} <= set(words)
    assert len(lines) == 3
    points = [pair.split(",") for line in lines for pair in line.get("points").split()]
    _, _, width, height = map(float, root.get("viewBox").split())
    assert all(0 < float(x) < width and 0 < float(y) < height for x, y in points)
    assert len(text) < 20_000


def test_figures_without_a_loss_and_of_many_learners():
    """A job that trained nothing has an empty figure; of many learners one entry is in the key."""
    ET.fromstring(draw_losses({"learner-0": LossCurve(5)}, [], 5, "empty"))  # noqa: S314
    many = {f"learner-{n}": falling() for n in range(COLOURED_MAX + 1)}
    assert f"{COLOURED_MAX + 1} learners" in draw_losses(many, [], 1000, "many")
