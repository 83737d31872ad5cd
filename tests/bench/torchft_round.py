"""Three torchft replicas average 4 MB again and again; one is stopped. Run by `bench_frozen`.

    PYTHON torchft_round.py "before it joins" | "after it joined"

Prints one JSON object: seconds of a normal round, and of the one in which the third was stopped.
Each replica is a process with a Manager (Gloo, one member), the parent holds the lighthouse. The
lighthouse waits ``JOIN_MS`` for stragglers: what its README recommends is ten seconds, so this is
kind to it.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from datetime import timedelta
from importlib import metadata

REPLICAS, ROUNDS = 3, 8
ELEMENTS = 1_000_000
JOIN_MS = 1000
PATIENCE_S = 60


def replica(rank: int, when: str) -> None:
    """One of them: a round for each line of standard input, a line of output when it is done."""
    import torch
    from torch.distributed import TCPStore
    from torchft.manager import Manager
    from torchft.process_group import ProcessGroupGloo

    torch.set_num_threads(1)
    patience = timedelta(seconds=PATIENCE_S)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=patience),
        load_state_dict=lambda _: None,
        state_dict=dict,
        min_replica_size=REPLICAS - 1,
        use_async_quorum=False,
        init_sync=False,
        timeout=patience,
        quorum_timeout=patience,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        hostname="127.0.0.1",
        lighthouse_addr=os.environ["TORCHFT_LIGHTHOUSE"],
        replica_id=f"r{rank}_",
    )
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "stop" and when == "before it joins":
            os.killpg(0, signal.SIGSTOP)
        while True:
            tensor = torch.full((ELEMENTS,), float(rank))
            manager.start_quorum()
            if line.strip() == "stop":
                manager.wait_quorum()
                os.killpg(0, signal.SIGSTOP)
            manager.allreduce(tensor).wait()
            if manager.should_commit():
                break
        print(manager.num_participants(), flush=True)
    os._exit(0)


def main(when: str) -> None:
    """The parent."""
    from torchft.coordination import LighthouseServer

    lighthouse = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=REPLICAS - 1, join_timeout_ms=JOIN_MS, quorum_tick_ms=100
    )
    port = lighthouse.address().rsplit(":", 1)[1].strip("/")
    env = {
        **os.environ,
        "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    replicas = [
        subprocess.Popen(
            [sys.executable, __file__, when, str(rank)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
            start_new_session=True,
        )
        for rank in range(REPLICAS)
    ]
    try:
        for each in replicas:
            assert each.stdout is not None
            assert each.stdout.readline() == "ready\n"
        normal = [one_round(replicas, REPLICAS) for _ in range(ROUNDS)][2:]
        fault_s = one_round(replicas, REPLICAS - 1)
    finally:
        for each in replicas:
            os.killpg(each.pid, signal.SIGKILL)
            each.wait()
    version = metadata.version("torchft")
    told = {"version": version, "normal_s": statistics.median(normal), "fault_s": fault_s}
    print(json.dumps(told), flush=True)
    os._exit(0)  # The lighthouse's threads would stay.


def one_round(replicas: list[subprocess.Popen[str]], survivors: int) -> float:
    """Seconds until all survivors are done; the others are told to stop."""
    begun = time.monotonic()
    for number, each in enumerate(replicas):
        assert each.stdin is not None
        each.stdin.write("go\n" if number < survivors else "stop\n")
        each.stdin.flush()
    for each in replicas[:survivors]:
        assert each.stdout is not None
        participants = int(each.stdout.readline())
        assert participants == survivors, participants
    return time.monotonic() - begun


if __name__ == "__main__":
    if len(sys.argv) > 2:
        replica(int(sys.argv[2]), sys.argv[1])
    else:
        main(sys.argv[1])
