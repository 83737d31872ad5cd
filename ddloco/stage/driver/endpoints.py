"""Endpoints for jobs: their limits, and dialling both lanes of a link."""

from transport import LANES
from transport.curve_auth import Curve
from transport.zeromq import ZmqEndpoint

QUEUE_MESSAGES_MAX = 65536
"""Chunks that one lane may have in ZeroMQ's queues: twice the credit window of four messages of at
most 8 GiB, in chunks of 2 MiB. They are references to arrays, not copies."""


def new_endpoint(context: "object", curve: Curve | None = None) -> ZmqEndpoint:
    return ZmqEndpoint(
        context,  # pyright: ignore[reportArgumentType]
        queue_messages_max=QUEUE_MESSAGES_MAX,
        curve=curve,
    )


async def dial(endpoint: ZmqEndpoint, peer: str, address: str, incarnation: str) -> None:
    for lane in LANES:
        await endpoint.dial(address, route=f"{peer}/{lane}", identity=f"{incarnation}/{lane}")
