"""A syncer's host is cut off while it sleeps; a standby on another host leads, and never both."""

import signal
from pathlib import Path

import pytest

from ddloco.stage.nodes.exit_codes import AGAIN
from ddloco.stage.nodes.lease import SILENT_S
from tests.hosts.cluster import DDLOCO, PORT, ROOT, SYNCER, WAIT_S, Cluster, wait_until
from tests.hosts.hosts import Hosts, missing

STANDBY = "standby"
LEADS = (SYNCER, STANDBY)
LEARNERS = ("learner-0", "learner-1")
MERGES = 6


class TwoLeads(Cluster):
    """A cluster with a standby; learners find whoever leads by the lease in a shared folder."""

    def __init__(self, hosts: Hosts, folder: Path, settings: tuple[str, ...] = ()) -> None:
        super().__init__(hosts, folder, settings)
        self.place = folder / "place"

    def start(self, *names: str) -> None:
        """Start actors, for the first time or again."""
        for name in names:
            self._starts[name] += 1
            role = ["learner", "--connect", f"lease:{self.place}", "--name", name]
            if name in LEADS:
                bind = f"tcp://{self.hosts.addresses[name]}:{PORT}"
                role = ["syncer", "--bind", bind, "--lease", str(self.place)]
            role += ["--standby"] if name == STANDBY else []
            run = [str(self.job), "--dir", str(self.folder / name), "--join"]
            run += [f"--set={each}" for each in self.settings]
            command = [*DDLOCO, role[0], *run, *role[1:]]
            with (self.folder / f"{name}.said").open("ab") as said:
                self.processes[name] = self.hosts.start(
                    name, command, cwd=ROOT, env=self._environment(), stdout=said, stderr=said
                )

    def merged(self, lead: str, learner: str, since: int) -> bool:
        """Whether a lead has merged so many times with a learner since then."""
        made = self.events(lead, "merge")[since:]
        return sum(self.incarnation(learner) in each["learners"] for each in made) >= MERGES


@pytest.mark.slow
@pytest.mark.parametrize("settings", [(), ("job.shards=5", "elastic.gone_s=2")])
def test_a_lead_that_was_cut_off_and_wakes_up_does_nothing_more(tmp_path, settings):
    """Learners find the standby, one of them is killed and returns meanwhile, the lead before ends
    with 75, and the tapes replay."""
    if missing():
        pytest.skip(f"no hosts: {missing()}")
    with Hosts([*LEADS, *LEARNERS]) as hosts:
        cluster = TwoLeads(hosts, tmp_path, settings)
        cluster.start(SYNCER, *LEARNERS)
        for name in LEARNERS:
            wait_until(lambda who=name: cluster.merged(SYNCER, who, 0), f"{name} takes part")
        cluster.start(STANDBY)
        copied = cluster.place / SYNCER / "tapes" / "syncer.1.tape"
        wait_until(copied.exists, "what a successor needs is in the place")
        hosts.line(SYNCER, "both", cut=True)
        cluster.send(SYNCER, signal.SIGSTOP)
        wait_until(
            lambda: all(cluster.merged(STANDBY, name, 0) for name in LEARNERS),
            f"the standby merges with both, after {SILENT_S} s of silence",
        )
        cluster.kill("learner-1")
        cluster.start("learner-1")
        wait_until(lambda: cluster.merged(STANDBY, "learner-1", 0), "learner-1 takes part again")

        before = len(cluster.events(SYNCER, "merge"))
        cluster.send(SYNCER, signal.SIGCONT)
        assert cluster.processes[SYNCER].wait(WAIT_S) == AGAIN, cluster.said(SYNCER)
        hosts.line(SYNCER, "both", cut=False)
        assert "acts as syncer now" in cluster.said(SYNCER)
        assert len(cluster.events(SYNCER, "merge")) == before
        since = len(cluster.events(STANDBY, "merge"))
        wait_until(lambda: cluster.merged(STANDBY, "learner-0", since), "the job goes on")

        del cluster.processes[SYNCER]
        stop = [*DDLOCO, "stop", f"lease:{cluster.place}", "--timeout", str(WAIT_S)]
        stopped = hosts.call(STANDBY, stop, cwd=ROOT)
        assert stopped.returncode == 0, stopped.stdout + stopped.stderr
        ended = {name: each.wait(WAIT_S) for name, each in cluster.processes.items()}
        assert set(ended.values()) == {0}, {name: cluster.said(name) for name in ended}
        replayed = cluster.replay()
        assert "identical" in replayed.stdout, replayed.stdout + replayed.stderr
