"""One process of a round of a peer; run by `bench_peers` with the Python of that peer.

    PYTHON peer_round.py torchft|hivemind|flower|gradientmail serve WORKERS BYTES
    PYTHON peer_round.py KIND RANK WORKERS MEETING BYTES PIECES

With ``serve`` it is what workers meet at, and prints where: torchft's lighthouse, a node of
hivemind's DHT, Flower's server, or GradientMail's syncer with the folder that is its mailbox.
Workers meet there, or at a file for gloo, and print "ready"; each line of standard input is then
one round, and the answer to it "whole". Averages are checked: each process has its own number at
the beginning, and the average of all at the end.
"""

import os
import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

PATIENCE = timedelta(seconds=60)
JOIN_MS = 1000

MATCHMAKING_S = 1.0
"""About the least with which hivemind still forms whole groups; its default is 5."""

POLL_S = 0.02
"""How often GradientMail looks into its mailbox; with its default, 1, a round takes longer."""

ROUNDS_MAX = 10_000

Average = Callable[[], None]
"""Replaces some tensors by the average of all workers'."""


def worker(kind: str, rank: int, workers: int, meeting: str, nbytes: int, pieces: int) -> None:
    """Average some tensors again and again."""
    import torch

    torch.set_num_threads(1)
    join = {"gloo": joined_gloo, "torchft": joined_torchft, "hivemind": joined_hivemind}[kind]
    tensors = [torch.full((nbytes // 4 // pieces,), float(rank)) for _ in range(pieces)]
    average = join(rank, workers, meeting, tensors)
    print("ready", flush=True)
    for number, _ in enumerate(sys.stdin):
        average()
        if number == 0:
            for each in tensors:
                check(each, workers)
        print("whole", flush=True)
    os._exit(0)


def check(tensor: Any, workers: int) -> None:
    """Every element is the average of all ranks."""
    assert bool((tensor == (workers - 1) / 2).all()), tensor


class Rounds:
    """The rounds of a peer that calls us once in each."""

    def __init__(self) -> None:
        self.begun = False

    def next(self) -> None:
        """End a round, if one has begun, and wait until the next one is to begin."""
        print("whole" if self.begun else "ready", flush=True)
        self.begun = True
        if not sys.stdin.readline():
            os._exit(0)


# gloo.


def joined_gloo(rank: int, workers: int, meeting: str, tensors: list[Any]) -> Average:
    """`torch.distributed.all_reduce` over Gloo, all tensors at once, and a division."""
    import torch.distributed as dist

    place = f"file://{meeting}"
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=workers)

    def average() -> None:
        for work in [dist.all_reduce(each, async_op=True) for each in tensors]:
            work.wait()
        for each in tensors:
            each.div_(workers)

    return average


# torchft.


def serve_torchft(workers: int, nbytes: int) -> None:
    """The lighthouse; ends with its standard input."""
    from torchft.coordination import LighthouseServer

    del nbytes
    server = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=workers, join_timeout_ms=JOIN_MS, quorum_tick_ms=100
    )
    port = server.address().rsplit(":", 1)[1].strip("/")
    print(f"http://127.0.0.1:{port}", flush=True)
    end_with_input()


def joined_torchft(rank: int, workers: int, meeting: str, tensors: list[Any]) -> Average:
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

    def average() -> None:
        assert store is not None, "the manager's store lives as long as a reference to it"
        manager.start_quorum()
        for work in [manager.allreduce(each) for each in tensors]:
            work.wait()
        assert manager.should_commit(), "a round that does not count"
        assert manager.num_participants() == workers, manager.num_participants()

    return average


# hivemind.


def serve_hivemind(workers: int, nbytes: int) -> None:
    """A node of the DHT."""
    import hivemind

    del workers, nbytes
    dht = hivemind.DHT(host_maddrs=["/ip4/127.0.0.1/tcp/0"], start=True)
    print(dht.get_visible_maddrs()[0], flush=True)
    sys.stdin.read()
    dht.shutdown()
    os._exit(0)


def joined_hivemind(rank: int, workers: int, meeting: str, tensors: list[Any]) -> Average:
    """Matchmaking over the DHT, and a butterfly all-reduce over libp2p."""
    import hivemind
    from hivemind.averaging import DecentralizedAverager

    del rank
    dht = hivemind.DHT(initial_peers=[meeting], host_maddrs=["/ip4/127.0.0.1/tcp/0"], start=True)
    averager = DecentralizedAverager(
        tensors,
        dht,
        start=True,
        prefix="bench",
        target_group_size=workers,
        min_group_size=workers,
        min_matchmaking_time=MATCHMAKING_S,
        request_timeout=0.6 * MATCHMAKING_S,
    )
    copied = False

    def average() -> None:
        nonlocal copied
        group = averager.step(timeout=PATIENCE.total_seconds())
        assert group is not None, "no group was found"
        assert len(group) == workers, group
        if not copied:  # The averager has tensors of its own; the first average is checked.
            copied = True
            with averager.get_tensors() as averaged:
                for ours, theirs in zip(tensors, averaged, strict=True):
                    ours.copy_(theirs)

    return average


# Flower.


def serve_flower(workers: int, nbytes: int) -> None:
    """Flower's server, with FedAvg."""
    import flwr as fl
    import numpy as np

    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    print(address, flush=True)
    threading.Thread(target=end_with_input, daemon=True).start()
    strategy = fl.server.strategy.FedAvg(
        fraction_fit=1.0,
        fraction_evaluate=0.0,
        min_fit_clients=workers,
        min_available_clients=workers,
        min_evaluate_clients=0,
        initial_parameters=fl.common.ndarrays_to_parameters([np.zeros(nbytes // 4, np.float32)]),
    )
    config = fl.server.ServerConfig(num_rounds=ROUNDS_MAX)
    fl.server.start_server(server_address=address, config=config, strategy=strategy)


def flower(rank: int, workers: int, meeting: str, nbytes: int) -> None:
    """A client: its parameters to the server over gRPC, the average back with the next call."""
    import flwr as fl
    import numpy as np

    own, rounds = np.full(nbytes // 4, rank, np.float32), Rounds()

    class Client(fl.client.NumPyClient):
        def fit(self, parameters: Any, config: Any) -> Any:
            del config
            if rounds.begun:
                check(parameters[0], workers)
            rounds.next()
            return [own], 1, {}

    client = Client().to_client()
    fl.client.start_client(server_address=meeting, client=client, insecure=True, max_retries=20)


# GradientMail.


def serve_gradientmail(workers: int, nbytes: int) -> None:
    """The syncer, and a folder in memory that is its mailbox."""
    folder = tempfile.TemporaryDirectory(dir="/dev/shm")
    session, _ = mail_session("syncer", "syncer", folder.name, workers, nbytes)

    def until_the_end() -> None:
        sys.stdin.read()
        folder.cleanup()
        os._exit(0)

    threading.Thread(target=until_the_end, daemon=True).start()
    print(folder.name, flush=True)
    session.run(lambda _: 1, [])


def gradientmail(rank: int, workers: int, meeting: str, nbytes: int) -> None:
    """A learner: its difference into the mailbox, and the commit out of it."""
    import mlx.core as mx
    import numpy as np

    session, parameters = mail_session("learner", f"l{rank}", meeting, workers, nbytes)
    own, rounds = mx.full((nbytes // 4,), float(rank)), Rounds()
    session.join()

    def step(batch: int) -> int:
        del batch
        if rounds.begun:
            check(np.array(parameters["w"]), workers)
        rounds.next()
        parameters["w"] = own
        return 1

    session.run(step, range(ROUNDS_MAX))


def mail_session(
    role: str, name: str, folder: str, workers: int, nbytes: int
) -> tuple[Any, dict[str, Any]]:
    """A session that averages in every round, and the parameters that it works on."""
    import gradientmail as gm
    import mlx.core as mx
    from gradientmail.adapters.mlx import MlxBackend

    mx.set_default_device(mx.cpu)
    parameters = {"w": mx.zeros((nbytes // 4,), dtype=mx.float32)}

    class Model:
        def trainable_parameters(self) -> Any:
            return dict(parameters)

        def update(self, changed: Any, strict: bool = True) -> Any:
            del strict
            parameters.update(changed)
            return self

    algorithm = gm.DiLoCo(
        sync_every=1,
        fragments=1,
        in_flight=1,
        overlap_steps=0,
        quorum_size=workers,
        outer_lr=1.0,
        outer_momentum=0.0,
        merge=gm.WeightedMean(),
        delta_dtype=None,
    )
    session = gm.Session(
        MlxBackend().adapter(Model()),
        algorithm=algorithm,
        mailbox=folder_mailbox(Path(folder)),
        role=role,
        node_id=name,
        poll_interval=POLL_S,
        lease_every=5.0,
        lease_timeout=60.0,
        callbacks=(),
    )
    return session, parameters


def folder_mailbox(folder: Path) -> Any:
    """A mailbox whose objects are files in memory: the fastest store that a machine has."""
    from gradientmail.clock import MonotonicClock
    from gradientmail.mailbox import Mailbox

    def file_of(key: str) -> Path:
        return folder / key.replace("/", "|")

    class FolderMailbox(Mailbox):
        async def put_if_absent(self, key: str, data: bytes) -> bool:
            with tempfile.NamedTemporaryFile(prefix=".", dir=folder) as file:
                file.write(data)
                file.flush()
                try:
                    os.link(file.name, file_of(key))
                except FileExistsError:
                    return False
                return True

        async def get(self, key: str) -> bytes | None:
            try:
                return file_of(key).read_bytes()
            except FileNotFoundError:
                return None

        async def list(self, prefix: str, *, after: str = "") -> Any:
            names = (each.name.replace("|", "/") for each in folder.glob("[!.]*"))  # noqa: ASYNC240
            return sorted(name for name in names if name.startswith(prefix) and name > after)

        async def delete(self, keys: Any) -> None:
            for key in keys:
                file_of(key).unlink(missing_ok=True)

        def clock(self) -> Any:
            return MonotonicClock()

    return FolderMailbox()


def end_with_input() -> None:
    """End the process when its standard input ends, whatever its threads do."""
    sys.stdin.read()
    os._exit(0)


SERVERS = {
    "torchft": serve_torchft,
    "hivemind": serve_hivemind,
    "flower": serve_flower,
    "gradientmail": serve_gradientmail,
}


if __name__ == "__main__":
    kind, *words = sys.argv[1:]
    if words[0] == "serve":
        SERVERS[kind](*map(int, words[1:]))
    else:
        rank, workers, meeting, nbytes, pieces = words
        place = int(rank), int(workers), meeting, int(nbytes)
        called = {"flower": flower, "gradientmail": gradientmail}.get(kind)
        if called is not None:
            called(*place)
        else:
            worker(kind, *place, int(pieces))
