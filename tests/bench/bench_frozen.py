"""One of three learners freezes or dies: how much later the survivors' next merge comes.

Divided: the delay of the merge that follows, by the longest that a round may be held up: the grace
window and the deadline of a pull, both as the job itself had set them. 4 MB of parameters as one
fragment. The delay is the time between the two merges around the fault, less the median of those
before it; a round that is held up longer than its bound would show above 1.

* "as a round begins": SIGSTOP right after a merge was logged, or SIGKILL.
* "between report and reply": SIGSTOP right after a step was logged, which is after it was reported;
  only rounds count that had pulled the frozen one and were merged without it, as the merge's own
  figures say. A freeze that hit another moment is shown as what it was.
* Beside it torchft, where `make bench-peers` has installed it: three replicas average 4 MB through
  its Manager and Gloo, one is stopped before it has joined a quorum, or after. Without it a line
  says that it was not measured.
"""

import json
import signal
import subprocess
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from tools import median, peers_python, say

from ddloco.machines.syncer.pacing import PULL_S_MIN
from tests.hosts.cluster import SYNCER, Cluster, wait_until
from tests.hosts.hosts import Loopback

LEARNERS = ("learner-0", "learner-1", "learner-2")
VICTIM = "learner-2"
STEP_S = 0.1
SETTINGS = (
    "job.task=tests.bench.slab:slab",
    f"task={{megabytes=4.0,step_s={STEP_S}}}",
    "sync.fragments=1",
    "sync.interval=4",
    "inner.optimizer=sgd",
)
NORMAL = 12
"""Merges with all learners before each fault."""

FROZEN_S_MAX = 20.0
TORCHFT_S_MAX = 90.0


def measure(quick: bool) -> dict[str, Any]:
    """Every fault's delay and bound, ours; what torchft needed."""
    faults: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        hosts = Loopback([SYNCER, *LEARNERS])
        cluster = Cluster(hosts, Path(place), SETTINGS)
        with hosts:
            cluster.start(SYNCER, *LEARNERS)
            for kind in ("begins", "replies") * (1 if quick else 3) + ("dies",):
                faults.append(one_fault(cluster, kind))
                say(f"{faults[-1]}")
    return {"faults": faults, "torchft": torchft(quick)}


def lines(figures: dict[str, Any]) -> list[str]:
    """The figures in words."""
    said = []
    for what in sorted({each["what"] for each in figures["faults"]}):
        each = [fault for fault in figures["faults"] if fault["what"] == what]
        ratio, delay = (median([f[key] for f in each]) for key in ("ratio", "delay_s"))
        worst = max(each, key=lambda fault: fault["ratio"])
        said.append(
            f"{what}: the next merge {1e3 * delay:.0f} ms later, {ratio:.2f} of grace window and "
            f"pull deadline (median of {len(each)}; worst {worst['ratio']:.2f}, "
            f"{1e3 * worst['delay_s']:.0f} of {1e3 * worst['bound_s']:.0f} ms); "
            f"a normal round {1e3 * each[0]['normal_s']:.0f} ms"
        )
    peer = figures["torchft"]
    if isinstance(peer, str):
        return [*said, f"torchft: {peer}"]
    for fault, each in peer.items():
        if isinstance(each, str):
            said.append(f"torchft, stopped {fault}: {each} in {TORCHFT_S_MAX:.0f} s")
            continue
        said.append(
            f"torchft {each['version']}, stopped {fault}: {each['fault_s']:.2f} s for the round of "
            f"the fault, {each['normal_s']:.3f} s normally"
        )
    return said


def one_fault(cluster: Cluster, kind: str) -> dict[str, Any]:
    """Wait for normal rounds, freeze or kill, wait for the merges after it, undo."""
    begun = len(cluster.merges())
    cluster.wait_for(list(LEARNERS), begun)
    begun = len(cluster.merges())
    wait_until(lambda: len(cluster.merges()) >= begun + NORMAL, "normal rounds")
    if kind == "replies":
        seen = len(cluster.merges())
        spin(lambda: len(cluster.merges()) > seen)
        newest = cluster.merges()[-NORMAL:]
        round_s = median([b["at"] - a["at"] for a, b in pairwise(newest)])
        # The report before the next pull: up to half a step ahead of when it is due.
        time.sleep(max(round_s - newest[-1]["sync_s"] - STEP_S / 2, 0.0))
        steps = cluster.steps(VICTIM)
        spin(lambda: cluster.steps(VICTIM) > steps)
    else:
        before = len(cluster.merges())
        spin(lambda: len(cluster.merges()) > before)
    at = len(cluster.merges())
    cluster.send(VICTIM, signal.SIGKILL if kind == "dies" else signal.SIGSTOP)
    wait_until(lambda: len(cluster.merges()) >= at + 3, "merges without it", FROZEN_S_MAX)
    merges = cluster.merges()
    if kind == "dies":
        cluster.processes[VICTIM].wait()
        cluster.start(VICTIM)
    else:
        cluster.send(VICTIM, signal.SIGCONT)
    return account(merges, at, kind, cluster.incarnation(VICTIM))


def spin(condition: Any) -> None:
    """Look every millisecond until it is so."""
    while not condition():
        time.sleep(0.001)


def account(merges: list[dict[str, Any]], at: int, kind: str, who: str) -> dict[str, Any]:
    """The longest wait among the merges after the fault, against what the rounds before say.

    Two syncs may be under way, so the first merge after the fault may have been pulled before it.
    """
    normal = merges[at - NORMAL : at]
    normal_s = median([b["at"] - a["at"] for a, b in pairwise(normal)])
    waits = [(b["at"] - a["at"], b) for a, b in pairwise(merges[at - 1 : at + 3])]
    waited_s, merge = max(waits, key=lambda each: each[0])
    short = [each for _, each in waits if each["averaged"] < each["taking_part"]]
    sync_s = median([each["sync_s"] for each in normal])
    step_s = normal_s / 4
    pull_s = max(4 * sync_s + step_s, PULL_S_MIN)
    bound_s = max(each["grace_s"] for _, each in waits) + pull_s
    answerless = "frozen between report and reply" if short else "frozen after a step, not pulled"
    what = {
        "dies": "killed as a round begins",
        "begins": "frozen as a round begins",
        "replies": answerless,
    }[kind]
    return {
        "what": what,
        "who": who,
        "delay_s": max(waited_s - normal_s, 0.0),
        "bound_s": bound_s,
        "ratio": max(waited_s - normal_s, 0.0) / bound_s,
        "normal_s": normal_s,
        "learners": len(merge["learners"]),
    }


def torchft(quick: bool) -> dict[str, Any] | str:
    """What its survivors needed, by when the third was stopped; or why that is not known."""
    python = peers_python("torch")
    if python is None:
        return "not measured, not installed (make bench-peers)"
    found: dict[str, Any] = {}
    for when in ("before it joins",) if quick else ("before it joins", "after it joined"):
        script = Path(__file__).with_name("torchft_round.py")
        try:
            ran = subprocess.run(
                [python, str(script), when],
                text=True,
                capture_output=True,
                timeout=TORCHFT_S_MAX,
                check=False,
            )
            found[when] = json.loads(ran.stdout.strip().splitlines()[-1])
        except (subprocess.TimeoutExpired, IndexError, ValueError) as error:
            found[when] = f"no round without it ({type(error).__name__})"
        say(f"torchft {when}: {found[when]}")
    return found
