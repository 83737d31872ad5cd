"""Gossip averaging without a server: peers that dial each other, recorded and replayed."""

import json
import re
from functools import partial

import pytest

from ddloco.actors.actor import Actor
from ddloco.cli import run as commands
from ddloco.cli.parser import parser
from ddloco.programs import Role
from examples import gossip
from tests.reruns import look_at


def ddloco(*words):
    """Run a command in this process; its exit code."""
    given = parser().parse_args([str(word) for word in words])
    return getattr(commands, given.run)(given)


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """The run folder of four peers."""
    folder = tmp_path_factory.mktemp("gossip") / "run"
    words = ("perform", "examples.gossip:program", "--dir", folder, "--set", "steps=150")
    assert ddloco(*words) == 0
    return folder


def errors(folder):
    """Each peer's errors, in order."""
    found = {}
    for line in (folder / "log.jsonl").read_text().splitlines():
        said = json.loads(line)
        if "error" in said:
            found.setdefault(said["actor"], []).append(said["error"])
    return found


def test_peers_solve_together_what_none_could_alone(played):
    """Every peer sees half of the features, and learns all of them."""
    of = errors(played)
    assert [f"peer-{number}" for number in range(4)] == sorted(of)
    assert all(each[-1] < 0.2 * each[0] for each in of.values()), of


def test_alone_a_peer_learns_half_of_the_features():
    """The check above can fail: without others half of the error stays."""
    theta = gossip.initialize()
    for step in range(150):
        theta, error = gossip.train(theta, seed=[0, step], half=0)
    assert error > 0.4 * float((gossip.TRUTH**2).mean())


def test_it_replays(played, capsys):
    """Every decision and every result again, equal to the bit."""
    assert ddloco("replay", played) == 0
    assert re.match(r"identical: \d{3,} events", look_at(capsys.readouterr().out))


def test_an_actor_of_it_can_be_frozen():
    """Nothing in a peer stands in the way of snapshots."""
    role = gossip.program(peers=2).cast["peer-1"]
    assert isinstance(role, Role)
    assert isinstance(role.machine, partial)
    assert Actor("peer-1.1", role.machine()).machine.number == 1
