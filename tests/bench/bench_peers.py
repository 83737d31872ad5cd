"""One round of four learners beside its peers: gloo, torchft and raw TCP, in the same run.

Divided: our seconds by those of each peer, for the same 64 MiB of float32 in each of four
processes, on the same cores; below 1 we are faster. All kinds take turns, one round each. A round
lasts from telling all four processes to begin to the answer of the last.

* Ours, as in `bench_round`: a star. Four learners send 64 MiB each with digests, the hub checks
  them, merges each fragment (RDA and Nesterov), and sends the result to all, who check it. On one
  host, as here, bytes are read where they lie; beside it the same over TCP, as between hosts.
* Raw TCP, as there: the same star that does not look at the bytes, which is the floor of a star,
  and the same with a hub that averages. Each in 16 pieces and in one, of which the faster counts.
* gloo: `torch.distributed.all_reduce` and a division. Every process has the average at the end.
  There is no hub, and no digest: each process sends 96 MiB and receives 96 MiB, so 384 MiB move
  where a star moves 512. It cannot go on without one of the four.
* torchft: a quorum, its all-reduce over Gloo, and a vote on the result, which is how its users
  average among replicas that come and go.
* hivemind: matchmaking over its DHT, and a butterfly all-reduce. Flower: FedAvg over gRPC.
  GradientMail, the nearest relative, in its fastest form: its mailbox is a folder in memory, looked
  at every 20 ms, and it is set to plain averaging of one fragment.

The peers have one thread for arithmetic in each process, as four processes share two cores. gloo
and torchft are measured with 16 tensors at once and with one; the faster counts. Those that need
seconds take turns with ours in fewer rounds. `make bench-peers` installs them in environments of
their own. Where one is missing a line says so, and the rest is measured.
"""

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from bench_round import AVERAGING, RAW, Learner, timed
from raw_star import start_raw
from star import FRAGMENTS, LEARNERS, start_ours
from tools import EXIT_S_MAX, median, median_interval, peers_python

SCRIPT = Path(__file__).with_name("peer_round.py")
SHAPES = {"by fragment": FRAGMENTS, "whole": 1}

BEYOND = """\
[Decision 058](decisions/058-payloads-in-place.md) says where the 0.185 core-seconds of a round \
on one host go, and what the aim would need."""


class PeerKind(NamedTuple):
    """A peer: its environment, the package whose version is said, and its name in words."""

    environment: str
    package: str
    name: str
    aim: str = ""


QUICK = {
    "gloo": PeerKind("torch", "torch", "gloo's all-reduce, torch", " (aim 0.6)"),
    "torchft": PeerKind("torch", "torchft", "torchft"),
}
SLOW = {
    "hivemind": PeerKind("hivemind", "hivemind", "hivemind"),
    "flower": PeerKind("flower", "flwr", "Flower"),
    "gradientmail": PeerKind("gradientmail", "gradientmail", "GradientMail"),
}
PEERS = QUICK | SLOW
NAMES = {
    "sockets": "ours over TCP, as between hosts",
    "raw": "raw TCP",
    "averaging": "raw TCP whose hub averages",
}


def measure(quick: bool) -> dict[str, Any]:
    """Seconds of every round, by kind, and ratios to the peers'."""
    nbytes = (1 if quick else 64) << 20
    there = {kind: peers_python(each.environment) for kind, each in PEERS.items()}
    pythons = {kind: python for kind, python in there.items() if python is not None}
    with ExitStack() as stack:
        kinds: dict[str, Sequence[Learner]] = {"ours": start_ours(stack, nbytes, share=True)}
        kinds["sockets whole"] = start_ours(stack, nbytes)
        for name, (pieces, average) in (RAW | AVERAGING).items():
            kinds[name] = start_raw(stack, nbytes, pieces, average)
        for kind in filter(pythons.__contains__, QUICK):
            for shape, pieces in list(SHAPES.items())[: 1 if quick else None]:
                kinds[f"{kind} {shape}"] = start_peer(stack, pythons[kind], kind, nbytes, pieces)
        found = compared(timed(kinds, 2 if quick else 20))  # Peers check their first round.
    with ExitStack() as stack:
        kinds = {"ours": start_ours(stack, nbytes, share=True)}
        for kind in filter(pythons.__contains__, SLOW):
            kinds[f"{kind} whole"] = start_peer(stack, pythons[kind], kind, nbytes, 1)
        if len(kinds) > 1:
            found |= compared(timed(kinds, 1 if quick else 5))
    versions = {kind: version(python, PEERS[kind].package) for kind, python in pythons.items()}
    return {"peers": found, "versions": versions, "megabytes": nbytes / 2**20}


def compared(seconds: dict[str, list[float]]) -> dict[str, dict[str, Any]]:
    """Each peer in its faster shape: its median, and ours by it with an interval.

    A ratio is that of a round of ours and the peer's in the same turn.
    """
    found: dict[str, dict[str, Any]] = {}
    for peer in (*NAMES, *PEERS):
        shapes = [kind for kind in seconds if kind.startswith(f"{peer} ")]
        if not shapes:
            continue
        fastest = min(shapes, key=lambda kind: median(seconds[kind]))
        turns = zip(seconds["ours"], seconds[fastest], strict=True)
        ratios = [ours / theirs for ours, theirs in turns]
        found[peer] = {
            "shape": fastest.removeprefix(f"{peer} "),
            "ours_s": median(seconds["ours"]),
            "median_s": median(seconds[fastest]),
            "ratio": median(ratios),
            "interval": median_interval(ratios),
        }
    return found


def lines(figures: dict[str, Any]) -> list[str]:
    """The figures in words."""
    shape, said = f"{figures['megabytes']:.0f} MiB x {LEARNERS}", []
    for peer, each in figures["peers"].items():
        name, aim = NAMES.get(peer, ""), ""
        if peer in PEERS:
            name = f"{PEERS[peer].name} {figures['versions'][peer]}"
            aim = PEERS[peer].aim
        low, high = each["interval"]
        said.append(
            f"{each['ratio']:.3g} times {name}, 95 % {low:.3g} to {high:.3g}{aim}: {shape} in "
            f"{each['ours_s']:.3f} s against {each['median_s']:.3f} s ({each['shape']})"
        )
    missing = [each.name for kind, each in PEERS.items() if kind not in figures["versions"]]
    if missing:
        said.append(f"{', '.join(missing)}: not measured, not installed (make bench-peers)")
    return said


def version(python: str, package: str) -> str:
    """That of a package in an environment."""
    asked = [python, "-c", f"from importlib.metadata import version; print(version({package!r}))"]
    return subprocess.run(asked, capture_output=True, check=True, text=True).stdout.strip()


# The peers' processes.


class Peer:
    """A process of a peer, which answers lines with lines."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self.process = process
        self._log = log

    def ask(self, what: Any) -> None:
        """Ask without waiting."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        """The next answer.

        Raises:
            RuntimeError: it has ended.
        """
        assert self.process.stdout is not None
        said = self.process.stdout.readline().strip()
        if not said:
            raise RuntimeError(f"{self.process.args} ended:\n{self._log.read_text()[-2000:]}")
        return said


def start_peer(
    stack: ExitStack, python: str, kind: str, nbytes: int, pieces: int
) -> Sequence[Learner]:
    """Four processes of a peer, ended with the stack."""
    if kind == "gloo":
        meeting = str(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "meeting")
    else:
        served = stack.enter_context(started(python, kind, "serve", LEARNERS, nbytes))
        meeting = served.answer()
    processes = [
        stack.enter_context(started(python, kind, rank, LEARNERS, meeting, nbytes, pieces))
        for rank in range(LEARNERS)
    ]
    for each in processes:
        assert each.answer() == "ready"
    return processes


@contextmanager
def started(python: str, *words: object) -> Iterator[Peer]:
    """A process of the script; on leaving it and all that it has started are ended."""
    with tempfile.NamedTemporaryFile() as log:
        process = subprocess.Popen(
            [python, str(SCRIPT), *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        try:
            yield Peer(process, Path(log.name))
        finally:
            assert process.stdin is not None
            with suppress(OSError):  # It may have ended already.
                process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=EXIT_S_MAX)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
