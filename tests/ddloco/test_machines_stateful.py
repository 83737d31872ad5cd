"""Machines under faults that Hypothesis chooses; after every event the world's checks look.

A counterexample is a list of rules that can be read, and always the same one: what the world draws
is fixed by its seed.
"""

import math

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from clocks import actor_of
from ddloco.job.protocol.messages import Contribution, GlobalFragment, Progress, Pull
from ddloco.stage.files.faults import SYNCER
from transport.message import Hello, Welcome

STEPS = 120
PAUSES = st.sampled_from([0.0, 0.3, 0.7, 1.0, 2.5])
"""Seconds that pass after a fault."""
HEALED_S_MAX = 600.0
HEALED_DELAY_S = 0.01


def stateful(World, make_job, **more):
    """The state machine over a given world."""

    class Machines(RuleBasedStateMachine):
        """Faults in any order; then healing, and the job must end."""

        def __init__(self):
            super().__init__()
            self.story = []
            self.world = None

        @initialize(
            learners=st.integers(2, 4),
            overlap=st.integers(1, 3),
            quorum=st.integers(1, 2),
            fragments=st.sampled_from([1, 2, 4]),
            interval=st.sampled_from([4, 6]),
            slow=st.sampled_from([1.0, 1.3, 4.0]),
            delay_s=st.sampled_from([0.01, 0.3, 1.5]),
            calm_s=st.sampled_from([0.0, 0.4, 6.2]),
        )
        def begin(self, **chosen):
            """A job of some size."""
            self.story = [("begin", chosen)]
            self.world = begun(chosen)
            self.tell("run", chosen["calm_s"])

        def tell(self, *sentence, then=0.0):
            """Do something to the world, let time pass, and remember both."""
            for each in (sentence, ("run", then))[: 2 if then else 1]:
                self.story.append(each)
                world, self.world = self.world, None  # A world that failed is not healed.
                apply(world, each)
                self.world = world

        def learner(self, index):
            """One of the learners."""
            names = self.world.job.learner_names()
            return names[index % len(names)]

        @rule(seconds=st.sampled_from([1.0, 4.0, 9.0]))
        def time_passes(self, seconds):
            """Whatever is due happens."""
            self.tell("run", seconds)

        @rule(index=st.integers(0, 3), then=PAUSES)
        def stall(self, index, then):
            """A learner's step hangs."""
            self.tell("stall", self.learner(index), then=then)

        @rule(index=st.integers(0, 3), then=PAUSES)
        def freeze(self, index, then):
            """A learner is stopped whole."""
            self.tell("freeze", self.learner(index), then=then)

        @rule(index=st.integers(0, 3), then=PAUSES)
        def resume(self, index, then):
            """A learner continues."""
            self.tell("resume", self.learner(index), then=then)

        @rule(index=st.integers(0, 3), then=PAUSES)
        def kill(self, index, then):
            """A learner dies."""
            self.tell("kill", self.learner(index), then=then)

        @precondition(lambda self: self.world is not None)
        @rule(index=st.integers(0, 3), then=PAUSES)
        def come_back(self, index, then):
            """A dead learner comes back as its next incarnation."""
            name = self.learner(index)
            if dead(self.world.nodes[name]):
                self.tell("start", name, then=then)

        @precondition(lambda self: self.world is not None and self.world.nodes[SYNCER].present)
        @rule(then=PAUSES)
        def kill_the_syncer(self, then):
            """The syncer dies."""
            self.tell("kill", SYNCER, then=then)

        @precondition(lambda self: self.world is not None and dead(self.world.nodes[SYNCER]))
        @rule(then=PAUSES)
        def the_syncer_comes_back(self, then):
            """A dead syncer comes back as its next incarnation, with what was kept."""
            self.tell("start", SYNCER, then=then)

        @rule(
            index=st.integers(0, 3),
            theirs=st.booleans(),
            lane=st.sampled_from(["control", "bulk"]),
            then=PAUSES,
        )
        def break_lane(self, index, theirs, lane, then):
            """One end of a lane breaks."""
            name = self.learner(index)
            peer = self.world.nodes[name].incarnation if theirs else SYNCER
            self.tell("break_lane", SYNCER if theirs else name, peer, lane, then=then)

        @rule(index=st.integers(0, 3), seconds=st.sampled_from([0.0, 0.4, 3.0]), then=PAUSES)
        def delay(self, index, seconds, then):
            """A learner's link becomes slower or faster."""
            self.tell("delay", self.learner(index), seconds, then=then)

        @rule(
            index=st.integers(0, 3),
            kind=st.sampled_from([Progress, Pull, Contribution, GlobalFragment, Hello, Welcome]),
            number=st.integers(0, 2),
            then=PAUSES,
        )
        def lose(self, index, kind, number, then):
            """A message of a learner's link vanishes, and leaves a gap."""
            self.tell("lose", self.learner(index), kind, number, then=then)

        @invariant()
        def newest_versions_only(self):
            """No learner holds a version that the syncer has not made."""
            if self.world is None:
                return
            versions = self.world.merging.versions
            for node in self.world.nodes.values():
                assert all(v <= versions[p] for p, v in enumerate(node.simulated_work.versions))

        def teardown(self):
            """Once faults stop the job ends, and the same story is told the same way again."""
            if self.world is None:
                return
            self.tell("heal")
            healed_at = self.world.now
            self.tell("run", HEALED_S_MAX)
            finishes = {n: d.finish for n, d in self.world.nodes.items() if not dead(d)}
            assert SYNCER in finishes
            assert all(f is not None and f.status == "done" for f in finishes.values()), finishes
            assert f"global step {STEPS}" == finishes[SYNCER].reason, healed_at
            assert max(self.world.merging.versions.values()) == STEPS
            again = begun(self.story[0][1])
            for sentence in self.story[1:]:
                apply(again, sentence)
            assert self.world.trail.value() == again.trail.value()

    def begun(chosen):
        job = make_job(
            learners=chosen["learners"],
            fragments=chosen["fragments"],
            interval=chosen["interval"],
            steps=STEPS,
            overlap=chosen["overlap"],
            quorum=chosen["quorum"],
        )
        return World(job, {"learner-1": chosen["slow"]}, chosen["delay_s"], **more)

    return Machines


def apply(world, sentence):
    """One sentence of a story happens to a world."""
    match sentence:
        case ("run", seconds):
            world.pass_time(seconds)
        case ("lose", *which):
            world.lose = Losing(*which)
        case ("heal",):
            heal(world)
        case (verb, *arguments):
            getattr(world, verb)(*arguments)


def dead(node):
    """Whether it was killed, and did not finish before."""
    return not node.present and node.finish is None


class Losing:
    """Loses one learner's message of a kind, after the next ``number`` ones."""

    def __init__(self, name, kind, number):
        self._name, self._kind, self._left = name, kind, number

    def __call__(self, sender, said):
        """Whether this one is lost."""
        mine = self._name in {actor_of(sender), actor_of(said.peer)}
        if mine and isinstance(said.body, self._kind):
            self._left -= 1
            return self._left == -1
        return False


def heal(world):
    """Faults stop: links are fast, stalled actors continue, dead ones come back."""
    world.lose = lambda sender, said: False
    if dead(world.nodes[SYNCER]):
        world.start(SYNCER)
    for name in world.job.learner_names():
        world.delay(name, HEALED_DELAY_S)
        if not dead(world.nodes[name]):
            world.resume(name)
        elif world.nodes[SYNCER].finish is None:
            world.start(name)
    assert not math.isinf(world.now)


def test_faults_in_any_order(World, make_job):
    """Under any faults the invariants hold; once they stop the job ends; a story is its trace."""
    explore(stateful(World, make_job), 8)


@pytest.mark.slow
def test_faults_in_any_order_over_numbers(World, make_job):
    """The same with numbers behind the arrays: every merge is what the reference makes of it."""
    explore(stateful(World, make_job, arithmetic=True), 80)


def explore(machine, examples):
    """Let Hypothesis tell so many stories."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=25,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.explicit, Phase.generate],  # Add Phase.shrink to find the shortest story.
            suppress_health_check=list(HealthCheck),
        ),
    )
