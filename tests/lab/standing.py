"""Checks that no syncer merges nothing for long without a line that says so."""

from typing import Any

from ddloco.machines.data_parallel.coordinator import Coordinator
from ddloco.machines.syncer.machine import Syncer
from ddloco.replayer.invariants.base import InvariantCheck

STANDING = "said-to-stand"

FIRST_S, STEPS_MORE = 240.0, 8
"""The longest silence without a merge, in seconds, and in steps beyond two intervals: three minutes
before the first merge, and a minute between two looks."""

BETWEEN_S = 600.0
"""Between two lines, which come ever more rarely, it is so much longer at most, in seconds."""


class Standing(InvariantCheck[Any, Any]):
    """said-to-stand: a syncer that merges nothing for a few of the job's steps says so."""

    invariants = (STANDING,)

    def __init__(self) -> None:
        super().__init__()
        self._since: dict[str, float] = {}
        self._said: dict[str, float] = {}

    def observed(self, node: Any, what: Any) -> None:
        """A merge, a line, or the beginning."""
        if what.event in {"merge", "listening", "recovered", "reconfigures", "joined"}:
            self._since[node.incarnation] = node.at
            self._said.pop(node.incarnation, None)
        elif what.event == "no merge":
            self._said[node.incarnation] = node.at

    def see(self, world: Any, node: Any, event: Any, effects: Any) -> None:
        """Some event happens to a syncer."""
        del event, effects
        machine, since = node.actor.machine, self._since.get(node.incarnation)
        if since is None or node.frozen or not isinstance(machine, Syncer | Coordinator):
            return
        rounds = machine.rounds if isinstance(machine, Syncer) else None
        over = rounds is not None and rounds.over(world.job, world.plan)
        if over or machine.shutdown is not None:
            return
        said, learners = self._said.get(node.incarnation), world.job.learner_names()
        steps = [each.pace.step_s * each.slow for n, each in world.nodes.items() if n in learners]
        longest = FIRST_S + (2 * world.job.sync.interval + STEPS_MORE) * max(steps, default=0.0)
        if said is not None:
            again = node.at - said <= BETWEEN_S + longest
            self.hold(again, STANDING, f"nothing said since {said:.0f} s")
            return
        self.hold(node.at - since <= longest, STANDING, f"nothing merged since {since:.0f} s")
