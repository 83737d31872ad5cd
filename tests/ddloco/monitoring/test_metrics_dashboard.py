"""The Grafana dashboard: it asks for what `ddloco observe --track prometheus:PORT` exports."""

import json
import re
from pathlib import Path

import pytest

from ddloco.job.protocol.status import MemberStatus, Status
from ddloco.monitoring.metrics import MEMBER_FIELDS, MERGE_FIELDS, STATUS_FIELDS, Metrics
from ddloco.stage.observers.observer_protocol import News

FILE = Path(__file__).parents[3] / "examples" / "grafana.json"
QUERY = re.compile(r'ddloco_(\w+)\{instance=~"\$instance"\}')


class Kept:
    """A sink that keeps the labels of each metric."""

    def __init__(self):
        self.labels = {}

    def gauge(self, name, value, t, **labels):
        """One point."""
        self.labels[name] = set(labels)

    def close(self):
        """The end."""


@pytest.fixture(scope="module")
def dashboard():
    """The file."""
    return json.loads(FILE.read_text())


@pytest.fixture(scope="module")
def exported():
    """The labels of every metric, by name, of an observer that has heard all there is."""
    kept = Kept()
    metrics = Metrics([kept])
    numbers = dict.fromkeys(MEMBER_FIELDS, 1)
    member = MemberStatus(learner="learner-0.1", **numbers, metrics={"acc": 1.0})
    job = dict.fromkeys(STATUS_FIELDS, 1)
    metrics.status(Status(t=1, **job, members=(member,)))
    metrics.news(News(1, 0, "merge", 1.5, "syncer.1:9", dict.fromkeys(MERGE_FIELDS, 1)))
    metrics.score(1, 0.5, {"acc": 1.0})
    return kept.labels


def queries(dashboard):
    """Every target of every panel."""
    return [target for panel in dashboard["panels"] for target in panel["targets"]]


def test_every_query_is_of_a_metric_that_is_exported(dashboard, exported):
    """Each asks for one, by the name that it has in Prometheus, and for the chosen job."""
    for target in queries(dashboard):
        found = QUERY.findall(target["expr"])
        assert len(found) == 1, target
        assert target["expr"].count("ddloco_") == 1, target
        assert found[0] in exported, target


def test_every_legend_is_of_labels_that_the_metric_has(dashboard, exported):
    """And a metric that has labels is told apart by all of them, or summed up in one number."""
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            labels = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            of = exported[QUERY.findall(target["expr"])[0]]
            assert labels == of or panel["type"] == "stat", target


def test_the_panels_do_not_overlap(dashboard):
    """Each has a place and a number of its own, on a grid of 24 columns."""
    taken = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert not cells & taken
        taken |= cells
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
