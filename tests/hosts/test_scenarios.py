"""Every scenario, on a real job whose actors have a host each; and the catalogue they come from."""

import ast
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.hosts.catalogue import ELSEWHERE, NOT_HERE, NUMBERS
from tests.hosts.cluster import ROOT, SYNCER, Cluster
from tests.hosts.hosts import Hosts, missing
from tests.hosts.play import Play
from tests.hosts.scenarios import BAD_DAY, LONGER_THAN_ANY_TIMEOUT_S, SCENARIOS, Scenario, scenario
from transport.link_state import REDIAL_S_MAX, STALL_S


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[[Scenario], Cluster]]:
    """Starts the job of a scenario, and waits until all learners take part."""
    if missing():
        pytest.skip(f"no hosts: {missing()}")
    with ExitStack() as stack:

        def start(of: Scenario) -> Cluster:
            learners = [f"learner-{n}" for n in range(of.learners)]
            hosts = stack.enter_context(Hosts([SYNCER, *learners]))
            cluster = Cluster(hosts, tmp_path, of.settings)
            if any(fault.what == "wall" for fault in of.faults):
                cluster.clock.write_text("0")
            there = [name for name in learners if name not in of.absent]
            cluster.start(SYNCER, *there)
            cluster.wait_for(there)
            return cluster

        yield start


def check_the_end(cluster: Cluster, *, replay: bool) -> None:
    """All actors end in good order, and the replay is identical to the bit."""
    assert {0} == set(cluster.stop().values()), {n: cluster.said(n) for n in cluster.processes}
    if replay:
        replayed = cluster.replay()
        assert replayed.returncode == 0, replayed.stdout + replayed.stderr
        assert "identical" in replayed.stdout


@pytest.mark.slow
@pytest.mark.parametrize("of", SCENARIOS, ids=lambda of: of.name.replace(" ", "-"))
def test_a_scenario(started, of):
    """What is expected happens meanwhile, all actors are back afterwards, and the tapes replay."""
    cluster = started(of)
    Play(cluster, of).run()
    check_the_end(cluster, replay=of.replay)


@pytest.mark.slow
def test_a_bad_day(started):
    """One job lives through one scenario after the other, and replays."""
    cluster = started(scenario(BAD_DAY[0]))
    for name in BAD_DAY:
        Play(cluster, scenario(name)).run()
    check_the_end(cluster, replay=True)
    assert {"F1", "F4", "F8", "F10"} == {n for name in BAD_DAY for n in scenario(name).covers}


def test_the_wall_clock_of_the_tests_does_jump(tmp_path):
    """The scenario of wall clocks would notice: time.time and datetime jump, monotonic does not."""
    import subprocess

    clock = tmp_path / "clock"
    clock.write_text("86400")
    code = "import time, datetime; print(time.time(), datetime.datetime.now().timestamp())"
    code += "; print(time.monotonic())"
    env = {"PYTHONPATH": str(ROOT / "tests/hosts/wall"), "WALL_CLOCK_SHIFT": str(clock)}
    said = subprocess.check_output([sys.executable, "-c", code], env=env, text=True).split()
    wall, dated, monotonic = map(float, said)
    assert wall == pytest.approx(time.time() + 86400, abs=600)
    assert dated == pytest.approx(time.time() + 86400, abs=600)
    assert monotonic == pytest.approx(time.monotonic(), abs=600)


def test_every_fault_of_the_catalogue_is_somewhere():
    """Each number has a scenario, a test elsewhere that exists, or a reason why it has none."""
    here = {number for each in SCENARIOS for number in each.covers}
    assert set(NUMBERS) == here | set(ELSEWHERE) | set(NOT_HERE)
    assert set() == (here | set(ELSEWHERE)) & set(NOT_HERE)
    assert [] == [test for tests in ELSEWHERE.values() for test in tests if not exists(test)]


def test_a_test_that_is_gone_is_noticed():
    """The check above can fail: for the file and for the function."""
    assert exists("tests/hosts/test_scenarios.py::test_a_bad_day")
    assert not exists("tests/hosts/test_scenarios.py::test_a_good_day")
    assert not exists("tests/hosts/test_nothing.py::test_a_bad_day")


def test_scenarios_say_what_they_mean():
    """One name each; the default run's are among them; the long faults outlast every time-out."""
    names = [each.name for each in SCENARIOS]
    assert sorted(set(names)) == sorted(names)
    assert set(BAD_DAY) <= set(names)
    assert max(STALL_S, REDIAL_S_MAX) < LONGER_THAN_ANY_TIMEOUT_S


def exists(test: str) -> bool:
    """Whether there is a test of that name."""
    path, _, name = test.partition("::")
    if not (ROOT / path).is_file():
        return False
    tree = ast.parse((ROOT / path).read_text())
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return any(isinstance(node, kinds) and node.name == name for node in ast.walk(tree))
