"""One process of a round of gloo's or torchft's; run by `bench_peers` with the Python of the peers.

    PYTHON peer_round.py lighthouse WORKERS
    PYTHON peer_round.py gloo|torchft RANK WORKERS MEETING BYTES PIECES

The lighthouse prints its address. The others meet, at a file for gloo and at the lighthouse for
torchft, and print "ready"; each line of standard input is then one round, and the answer to it
"whole". The first round is checked: every process has its own number at the beginning, and the
average of all at the end.
"""

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

PATIENCE = timedelta(seconds=60)
JOIN_MS = 1000


def lighthouse(workers: int) -> None:
    """The coordinator of torchft; ends with its standard input."""
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=workers, join_timeout_ms=JOIN_MS, quorum_tick_ms=100
    )
    port = server.address().rsplit(":", 1)[1].strip("/")
    print(f"http://127.0.0.1:{port}", flush=True)
    sys.stdin.read()
    os._exit(0)  # Its threads would stay.


def worker(kind: str, rank: int, workers: int, meeting: str, nbytes: int, pieces: int) -> None:
    """Average some tensors again and again."""
    import torch

    torch.set_num_threads(1)
    tensors = [torch.full((nbytes // 4 // pieces,), float(rank)) for _ in range(pieces)]
    average = {"gloo": joined_gloo, "torchft": joined_torchft}[kind](rank, workers, meeting)
    print("ready", flush=True)
    for number, _ in enumerate(sys.stdin):
        average(tensors)
        if number == 0:
            for each in tensors:
                assert bool((each == (workers - 1) / 2).all()), each
        print("whole", flush=True)
    os._exit(0)


def joined_gloo(rank: int, workers: int, meeting: str) -> Callable[[list[Any]], None]:
    """`torch.distributed.all_reduce` over Gloo, all tensors at once, and a division."""
    import torch.distributed as dist

    place = f"file://{meeting}"
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=workers)

    def average(tensors: list[Any]) -> None:
        for work in [dist.all_reduce(each, async_op=True) for each in tensors]:
            work.wait()
        for each in tensors:
            each.div_(workers)

    return average


def joined_torchft(rank: int, workers: int, meeting: str) -> Callable[[list[Any]], None]:
    """A quorum, torchft's all-reduce over Gloo, and the vote whether it counts."""
    from torch.distributed import TCPStore
    from torchft.manager import Manager
    from torchft.process_group import ProcessGroupGloo

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=PATIENCE),
        load_state_dict=lambda _: None,
        state_dict=dict,
        min_replica_size=workers,
        use_async_quorum=False,
        init_sync=False,
        timeout=PATIENCE,
        quorum_timeout=PATIENCE,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        hostname="127.0.0.1",
        lighthouse_addr=meeting,
        replica_id=f"r{rank}_",
    )

    def average(tensors: list[Any]) -> None:
        assert store is not None, "the manager's store lives as long as a reference to it"
        manager.start_quorum()
        for work in [manager.allreduce(each) for each in tensors]:
            work.wait()
        assert manager.should_commit(), "a round that does not count"
        assert manager.num_participants() == workers, manager.num_participants()

    return average


if __name__ == "__main__":
    if sys.argv[1] == "lighthouse":
        lighthouse(int(sys.argv[2]))
    else:
        kind, rank, workers, meeting, nbytes, pieces = sys.argv[1:]
        worker(kind, int(rank), int(workers), meeting, int(nbytes), int(pieces))
