"""Gossip averaging without a server: peers that dial each other, recorded and replayed."""

import json
import re

import pytest

from ddloco.cli.parser import command_named, parser
from ddloco.stage import Array
from ddloco.stage.actors.events import Begun
from ddloco.stage.programs.user_actor import Returned
from examples import gossip
from snapshot.attributes import machine_from, plain_state
from tests.reruns import look_at
from transport import PeerJoined


def ddloco(*words):
    """Run a command in this process; its exit code."""
    given = parser().parse_args([str(word) for word in words])
    return command_named(given.run)(given)


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
    copies, error = [], 0.0
    for step in range(150):
        theta, error = gossip.train(*copies, seed=[0, step], half=0)
        copies = [theta]
    assert error > 0.4 * float((gossip.TRUTH**2).mean())


def test_it_replays(played, capsys):
    """Every decision and every result again, equal to the bit."""
    assert ddloco("replay", played) == 0
    assert re.match(r"identical: [\d,]{3,} events", look_at(capsys.readouterr().out))


def test_a_peer_can_be_part_of_a_snapshot():
    """Its state is plain data: it is written and read back, and asks for the same again."""
    peer = gossip.program(peers=2).roles["peer-1"].machine()
    peer.handle(0.0, Begun("peer-1.1"))
    peer.handle(1.0, PeerJoined("peer-0.1", "peer-0.1"))
    again = machine_from(peer, plain_state(peer))
    done = Returned(1, value=0.5)
    assert again.handle(2.0, done) == peer.handle(2.0, done)
    assert [Array("call/1")] == [*again._pending[2].reads] == [*peer._pending[2].reads]
