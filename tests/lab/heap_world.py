"""The package's own heap world, with what tests do to it by hand and with what they look at."""

from ddloco.job.config import job_from
from ddloco.job.protocol.messages import Pull
from ddloco.job.protocol.work import RunStep
from ddloco.replayer.invariants.base import InvariantCheck
from ddloco.replayer.invariants.training import Causal, Durable, Learning, Merging
from ddloco.simulation import world as worlds
from ddloco.simulation.network import Wire
from ddloco.simulation.node import Costs, Pace
from ddloco.simulation.trail import Trail
from ddloco.stage.actors.effects import Observe
from ddloco.workers.simulated.work import leaves_of
from tests.lab.launches import Launches
from tests.lab.merge_oracle import Oracle
from tests.lab.resource_bounds import Bounds, Holders
from tests.lab.truth import Clocks, Optimizer
from transport import LaneBroken, Transmit

LEAVES = leaves_of(6)


def make_job(learners=2, fragments=3, interval=3, steps=12, **sync):
    """A job with small numbers; more keys go to its ``[sync]`` table."""
    table = {"fragments": fragments, "interval": interval, "fragmentation": "tensor", **sync}
    return job_from(
        {"job": {"task": "none:none", "steps": steps, "learners": learners}, "sync": table}, "test"
    )


class Trace(InvariantCheck):
    """Everything that happened, and what of it tests ask for."""

    def __init__(self):
        self.lines = []
        self.launches = []

    def see(self, world, node, event, effects):
        """Write it down."""
        self.lines.append((world.now, node.incarnation, event, list(effects)))
        pulls = {}
        for effect in effects:
            if isinstance(effect, Transmit) and isinstance(effect.body, Pull):
                pulls.setdefault((effect.body.t, effect.body.fragment), []).append(effect.peer)
        for (t, fragment), peers in pulls.items():
            self.launches.append((world.now, t, fragment, tuple(peers)))


class World(worlds.World):
    """The heap world with a person in it, who breaks things by name.

    Args:
        job: as ``make_job`` makes it.
        step_s: seconds of one learner's step, by name; one second for the others.
        delay_s: one-way delay of every message.
        leaves: the model's tensors.
        arithmetic: whether there are numbers behind handles, and an oracle for every merge.
    """

    def __init__(self, job, step_s=None, delay_s=0.01, *, leaves=LEAVES, arithmetic=False):
        self.merging, self.learning, self.trail = Merging(), Learning(), Trail()
        self.traced = Trace()
        self.lose = lambda sender, said: False
        self._hung = {}
        self._delays = {}
        paces = step_s or {}
        physics = worlds.Physics(
            leaves=leaves,
            wire=Wire(delay_s),
            costs=Costs(),
            arithmetic=arithmetic,
            pace=lambda name, stream: Pace(paces.get(name, 1.0), 0.0, stream),
        )
        checks = [self.traced, self.merging, Launches(), self.learning, Causal(), Clocks()]
        checks += [Bounds(), Holders(), Durable(), Optimizer(), *([Oracle()] if arithmetic else [])]
        checks.append(self.trail)
        super().__init__(job, physics, checks)
        self._doers[Transmit] = self._unless_lost
        self.begin()

    def start(self, actor):
        """The next incarnation of an actor; its link is as slow as it was."""
        node = super().start(actor)
        if self.switch.of(node):
            self.delay(actor, self._delays.get(actor, self.physics.wire.delay_s))
        return node

    def stall(self, actor):
        """Its running step does not finish any more; it still talks."""
        self._hung.setdefault(self.nodes[actor], [])

    def resume(self, actor):
        """It continues; whatever waited happens now, in order."""
        node = self.nodes[actor]
        for work in self._hung.pop(node, []):
            self.push(self.now, node, self._end_work, work)
        self.thaw(node)

    def _end_work(self, node, work):
        if isinstance(work, RunStep) and node in self._hung:
            self._hung[node].append(work)
        else:
            super()._end_work(node, work)

    def break_lane(self, actor, peer, lane="bulk"):
        """An actor's own end of a lane breaks."""
        self.tell(self.nodes[actor], LaneBroken(peer, lane, "test"))

    def delay(self, actor, seconds):
        """Messages of a learner's link take so long from now on, each way."""
        self._delays[actor] = seconds
        for line in self.switch.of(self.nodes[actor]):
            for way in line.ways.values():
                way.delay_s = seconds

    def _unless_lost(self, node, said):
        if not self.lose(node.incarnation, said):
            self.switch.transmit(node, said)

    def pass_time(self, seconds, **more):
        """Let so many seconds pass."""
        self.run(self.now + seconds, events_max=200_000, **more)

    def observed(self, event, actor=None):
        """The fields of every observation of a kind, with their times."""
        return [
            (at, effect.fields)
            for at, name, _, effects in self.traced.lines
            for effect in effects
            if isinstance(effect, Observe) and effect.event == event and actor in {None, name}
        ]
