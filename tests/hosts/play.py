"""Plays a scenario on a job that runs, and says what was expected and did not come."""

import signal
import time
from collections.abc import Iterator
from dataclasses import fields

from ddloco.stage.nodes.exit_codes import AGAIN
from tests.hosts.cluster import SYNCER, WAIT_S, Cluster, wait_until
from tests.hosts.scenarios import EVERYONE, Fault, Scenario
from tests.hosts.switch import Line

MERGES_SEEN = 3
STEPS_SEEN = 5
SOCKETS_SPARE = 4
"""Of connections that are just being made or given up."""
SOCKETS_OF_LEARNER = 2

GOOD = {each.name: getattr(Line(), each.name) for each in fields(Line)}


class Play:
    """One scenario on one job.

    Args:
        cluster: the job, with every learner that is to be there taking part.
        scenario: what happens to it.
    """

    def __init__(self, cluster: Cluster, scenario: Scenario) -> None:
        self.cluster = cluster
        self.scenario = scenario
        self._stopped: set[str] = set()
        self._switched = cluster.hosts.switch.counts.copy()

    def run(self) -> None:
        """Let it happen, wait for what is expected meanwhile, and until all actors are back."""
        begun = time.monotonic()
        lost, refused = len(self._lost()), len(self._refused())
        sockets = self.cluster.sockets(SYNCER)
        seen = False
        for at_s, begins, fault in self._moments():
            time.sleep(max(begun + at_s - time.monotonic(), 0.0))
            if not begins and not seen:
                self._wait_for_what_goes_on()
                seen = True
            for who in self._whom(fault):
                (self._begin if begins else self._end)(fault, who)
        if not seen:
            self._wait_for_what_goes_on()
        self._wait_for_all()
        counts = self.cluster.hosts.switch.counts - self._switched
        assert all(counts[what] for what in self.scenario.happened), counts
        if self.scenario.links_hold:
            assert len(self._lost()) == lost, self._lost()[lost:]
        assert (len(self._refused()) > refused) == self.scenario.refused, self._refused()[refused:]
        joined = sum(fault.what == "join" for fault in self.scenario.faults)
        sockets += SOCKETS_SPARE + SOCKETS_OF_LEARNER * joined
        wait_until(
            lambda: self.cluster.sockets(SYNCER) <= sockets,
            f"the syncer has at most {sockets} sockets again",
        )

    def _lost(self) -> list[dict]:
        return self.cluster.events(SYNCER, "lost")

    def _refused(self) -> list[dict]:
        return self.cluster.events(SYNCER, "message refused")

    def _moments(self) -> Iterator[tuple[float, bool, Fault]]:
        """Every beginning and end, in order of time."""
        moments = [(fault.at_s, True, fault) for fault in self.scenario.faults]
        moments += [
            (fault.at_s + fault.for_s, False, fault)
            for fault in self.scenario.faults
            if fault.for_s is not None
        ]
        yield from sorted(moments, key=lambda each: each[0])

    def _whom(self, fault: Fault) -> list[str]:
        return list(self.cluster.processes) if fault.who == EVERYONE else [fault.who]

    # Faults.

    def _begin(self, fault: Fault, who: str) -> None:
        cluster = self.cluster
        match fault.what:
            case "kill":
                cluster.kill(who)
            case "kill-worker":
                cluster.kill_worker(who)
                assert cluster.processes[who].wait(WAIT_S) == 1, cluster.said(who)
            case "leave":
                cluster.processes[who].terminate()
                assert cluster.processes[who].wait(WAIT_S) == AGAIN, cluster.said(who)
            case "stop":
                cluster.send(who, signal.SIGSTOP)
                self._stopped.add(who)
            case "join":
                cluster.start(who)
            case "line":
                cluster.hosts.line(who, fault.way, **fault.line)
            case "wall":
                cluster.clock.write_text(str(fault.shift_s))

    def _end(self, fault: Fault, who: str) -> None:
        cluster = self.cluster
        match fault.what:
            case "kill" | "kill-worker" | "leave":
                cluster.start(who)
            case "stop":
                self._stopped.discard(who)
                cluster.send(who, signal.SIGCONT)
            case "line":
                cluster.hosts.line(who, fault.way, **GOOD)
            case "wall":
                cluster.clock.write_text("0")

    # What is expected.

    def _wait_for_what_goes_on(self) -> None:
        cluster, what = self.cluster, self.scenario.goes_on
        if what == "merges":
            before = len(cluster.merges())
            wait_until(
                lambda: self._merges_without(cluster.merges()[before:]),
                f"{MERGES_SEEN} merges without {self.scenario.without}",
            )
        elif what == "steps":
            running = {name: cluster.steps(name) for name in self._running()}
            wait_until(
                lambda: all(
                    cluster.steps(name) >= steps + STEPS_SEEN for name, steps in running.items()
                ),
                f"{STEPS_SEEN} steps of each of {running}",
            )

    def _running(self) -> list[str]:
        """Learners that are neither dead nor stopped."""
        return [
            name
            for name, process in self.cluster.processes.items()
            if name != SYNCER and process.poll() is None and name not in self._stopped
        ]

    def _merges_without(self, merges: list[dict]) -> bool:
        """Whether the newest few are all without whom they are to be."""
        there = {self.cluster.incarnation(name) for name in self.scenario.without}
        newest = merges[-MERGES_SEEN:]
        return len(newest) == MERGES_SEEN and not any(there & {*m["learners"]} for m in newest)

    def _wait_for_all(self) -> None:
        """Every learner takes part again, as the newest of its incarnations."""
        learners = [name for name in self.cluster.processes if name != SYNCER]
        self.cluster.wait_for(learners, len(self.cluster.merges()))
