"""One round of four learners beside its peers: gloo, torchft and raw TCP, in the same run.

Divided: our seconds by those of each peer, for the same 64 MiB of float32 in each of four
processes, on the same cores; below 1 we are faster. All kinds take turns, one round each. A round
lasts from telling all four processes to begin to the answer of the last.

* Ours, as in `bench_round`: a star. Four learners send 64 MiB each with digests, the hub checks
  them, merges each fragment (RDA and Nesterov), and sends the result to all, who check it.
* Raw TCP, as there: the same star that does not look at the bytes, which is the floor of a star,
  and the same with a hub that averages. Each in 16 pieces and in one, of which the faster counts.
* gloo: `torch.distributed.all_reduce` and a division. Every process has the average at the end.
  There is no hub, and no digest: each process sends 96 MiB and receives 96 MiB, so 384 MiB move
  where a star moves 512. It cannot go on without one of the four.
* torchft: a quorum, its all-reduce over Gloo, and a vote on the result, which is how its users
  average among replicas that come and go.

Both have one thread for arithmetic in each process, as four processes share two cores, and are
measured with 16 tensors at once and with one; the faster counts. `make bench-peers` installs them
in an environment of their own. Where that is missing a line says so, and the rest is measured.
"""

import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench_round import AVERAGING, RAW, Learner, start_raw, timed
from star import FRAGMENTS, LEARNERS, start_ours
from tools import EXIT_S_MAX, median, median_interval, peers_python

SCRIPT = Path(__file__).with_name("peer_round.py")
VERSIONS = "from importlib.metadata import version as v; print(v('torch'), v('torchft'))"
SHAPES = {"by fragment": FRAGMENTS, "whole": 1}
PEERS = ("gloo", "torchft")


def measure(quick: bool) -> dict[str, Any]:
    """Seconds of every round, by kind, and ratios to the peers'."""
    nbytes, rounds = (1 << 20, 2) if quick else (64 << 20, 20)
    python = peers_python()
    with ExitStack() as stack:
        kinds: dict[str, Sequence[Learner]] = {"ours": start_ours(stack, nbytes)}
        for name, (pieces, average) in (RAW | AVERAGING).items():
            kinds[name] = start_raw(stack, nbytes, pieces, average)
        for peer in PEERS if python is not None else ():
            for shape, pieces in list(SHAPES.items())[: 1 if quick else None]:
                kinds[f"{peer} {shape}"] = start_peer(stack, python, peer, nbytes, pieces)
        seconds = timed(kinds, rounds)  # The peers check their first round, which warms.
    return {
        "peers": compared(seconds),
        "ours_s": median(seconds["ours"]),
        "seconds": seconds,
        "versions": versions(python) if python is not None else "",
        "megabytes": nbytes / 2**20,
    }


def compared(seconds: dict[str, list[float]]) -> dict[str, dict[str, Any]]:
    """Each peer in its faster shape: its median, and ours by it with an interval.

    A ratio is that of a round of ours and the peer's in the same turn.
    """
    found: dict[str, dict[str, Any]] = {}
    for peer in ("raw", "averaging", *PEERS):
        shapes = [kind for kind in seconds if kind.startswith(f"{peer} ")]
        if not shapes:
            continue
        fastest = min(shapes, key=lambda kind: median(seconds[kind]))
        turns = zip(seconds["ours"], seconds[fastest], strict=True)
        ratios = [ours / theirs for ours, theirs in turns]
        found[peer] = {
            "shape": fastest.removeprefix(f"{peer} "),
            "median_s": median(seconds[fastest]),
            "ratio": median(ratios),
            "interval": median_interval(ratios),
        }
    return found


def lines(figures: dict[str, Any]) -> list[str]:
    """The figures in words."""
    ours, shape = figures["ours_s"], f"{figures['megabytes']:.0f} MiB x {LEARNERS}"
    torch, _, torchft = figures["versions"].partition(" ")
    names = {
        "raw": "raw TCP",
        "averaging": "raw TCP whose hub averages",
        "gloo": f"gloo's all-reduce (torch {torch})",
        "torchft": f"torchft {torchft}",
    }
    aims = {"averaging": " (aim 1.2)", "gloo": " (aim 1)"}
    said = []
    for peer, each in figures["peers"].items():
        low, high = each["interval"]
        said.append(
            f"{each['ratio']:.2f} times {names[peer]}, 95 % {low:.2f} to {high:.2f}"
            f"{aims.get(peer, '')}: {shape} in {ours:.3f} s against {each['median_s']:.3f} s "
            f"({each['shape']})"
        )
    if not figures["versions"]:
        said.append(f"{' and '.join(PEERS)}: not measured, not installed (make bench-peers)")
    return said


def versions(python: str) -> str:
    """Those of torch and torchft."""
    asked = [python, "-c", VERSIONS]
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
    if kind == "torchft":
        meeting = stack.enter_context(started(python, "lighthouse", LEARNERS)).answer()
    else:
        meeting = str(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "meeting")
    processes = [
        stack.enter_context(started(python, kind, rank, LEARNERS, meeting, nbytes, pieces))
        for rank in range(LEARNERS)
    ]
    for each in processes:
        assert each.answer() == "ready"
    return processes


@contextmanager
def started(python: str, *words: object) -> Iterator[Peer]:
    """A process of the script, ended on leaving."""
    with tempfile.NamedTemporaryFile() as log:
        process = subprocess.Popen(
            [python, str(SCRIPT), *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        )
        try:
            yield Peer(process, Path(log.name))
        finally:
            process.kill()
            process.communicate(timeout=EXIT_S_MAX)
