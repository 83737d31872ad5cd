"""A job of sixteen sites: what crosses the lines between them and the syncer."""

from collections import Counter

import pytest
import trio

from ddloco.job.config import job_from
from ddloco.job.protocol.messages import Contribution, ContributionSum, GlobalFragment
from ddloco.job.protocol.tape_facts import TENSORS
from ddloco.replayer.invariants.base import InvariantCheck
from ddloco.replayer.invariants.training import Merging
from ddloco.replayer.replay_of import replay_of
from ddloco.simulation.network import Wire
from ddloco.simulation.node import Pace
from ddloco.simulation.physics import Physics
from ddloco.simulation.tapes import recorder_maker
from ddloco.simulation.world import World
from ddloco.stage.files.faults import SYNCER
from ddloco.stage.files.run_folder import open_folder
from ddloco.workers.simulated.work import leaves_of
from tests.lab.merge_oracle import Oracle
from transport import Transmit

LEARNERS, SITES, FRAGMENTS = 64, 16, 4


class WideLines(InvariantCheck):
    """Counts the payloads that the syncer sends and is sent, by their kind."""

    def __init__(self):
        super().__init__()
        self.crossed = Counter()

    def see(self, world, node, event, effects):
        """Count those that an actor sends."""
        for effect in effects:
            sent = type(effect) is Transmit and effect.payload
            if sent and SYNCER in {node.actor_name, effect.peer}:
                self.crossed[type(effect.body)] += 1


def run(sites, folder=None, steps=4 * FRAGMENTS):
    """Train with so many relays, each for as many learners; returns the world and its checks."""
    per_site = LEARNERS // sites if sites else 0
    plain = {
        "task": {TENSORS: FRAGMENTS},
        "job": {"task": "simulated:tensors", "steps": steps, "learners": LEARNERS},
        "sync": {"fragments": FRAGMENTS, "interval": FRAGMENTS, "overlap": 1},
        "relay": {
            f"relay-{n}": {
                "learners": [f"learner-{n * per_site + k}" for k in range(per_site)]
            } for n in range(sites)
        },
    }  # fmt: skip
    job = job_from(plain, "sites")
    if folder is not None:
        open_folder(folder, job)
    wide, merging = WideLines(), Merging()
    physics = Physics(
        leaves=leaves_of(FRAGMENTS),
        arithmetic=True,
        wire=Wire(delay_s=0.05, jitter_s=0.0, bytes_per_s=float("inf")),
        pace=lambda _, rng: Pace(1.0, 0.05, rng),
        recorder=recorder_maker(job, folder, arithmetic=True),
    )
    world = World(job, physics, [wide, merging, Oracle()])
    world.begin()
    world.run(500.0)
    world.close()
    assert world.nodes[SYNCER].finish.status == "done"
    return world, wide.crossed, merging


def test_what_crosses_follows_the_sites():
    """Each merge brings a sum per site, and takes a version to each; without relays as many as
    there are learners. What is merged is the same by the oracle, which knows no relays."""
    _, with_relays, merging = run(SITES)
    _, without, _ = run(0)
    merges = len(merging.merges)
    taken = Counter(name for merge in merging.merges for name in merge[3])
    assert len(taken) == LEARNERS
    assert merges >= 4 * FRAGMENTS - 2
    assert without[Contribution] > 0.8 * LEARNERS * (merges - 1)
    # Before its first merge, each fragment comes directly.
    directly = with_relays[Contribution]
    assert directly <= LEARNERS * FRAGMENTS
    assert with_relays[ContributionSum] <= SITES * merges
    assert with_relays[ContributionSum] + directly < without[Contribution] / 2
    assert with_relays[GlobalFragment] < without[GlobalFragment] / 2


def test_a_recorded_job_of_sites_replays(tmp_path):
    """All eighty-one tapes, to the bit."""
    run(SITES, tmp_path, steps=2 * FRAGMENTS)
    assert len(list(tmp_path.glob("tapes/relay-*.tape"))) == SITES
    assert trio.run(replay_of(tmp_path).run).identical


@pytest.mark.parametrize("sites", [1, 64])
def test_a_site_may_have_all_learners_or_one(sites):
    """Both are sites."""
    world, crossed, _ = run(sites, steps=2 * FRAGMENTS)
    assert crossed[ContributionSum] > 0
    assert world.over
