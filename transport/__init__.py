"""Messages between actors: framing, links with credit, and the endpoints that carry them.

``message`` defines what is sent, ``codec`` converts it to frames and back, ``link`` is the state
machine for handshakes, sequence numbers and credit, and ``endpoint`` is the interface that
``zeromq`` implements.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from transport.effects import CancelTimer as CancelTimer
from transport.effects import Dial as Dial
from transport.effects import Drop as Drop
from transport.effects import Effect as Effect
from transport.effects import Free as Free
from transport.effects import Hangup as Hangup
from transport.effects import Keep as Keep
from transport.effects import Listen as Listen
from transport.effects import Mark as Mark
from transport.effects import Retire as Retire
from transport.effects import Send as Send
from transport.effects import SetTimer as SetTimer
from transport.effects import Transmit as Transmit
from transport.endpoint import Arrival as Arrival
from transport.endpoint import Endpoint as Endpoint
from transport.endpoint import LaneFull as LaneFull
from transport.endpoint import PeerGone as PeerGone
from transport.events import BytesArrived as BytesArrived
from transport.events import Event as Event
from transport.events import LaneAdvanced as LaneAdvanced
from transport.events import LaneBroken as LaneBroken
from transport.events import MessageArrived as MessageArrived
from transport.events import PeerJoined as PeerJoined
from transport.events import PeerLost as PeerLost
from transport.events import PeerRefused as PeerRefused
from transport.events import Superseded as Superseded
from transport.events import TimerFired as TimerFired
from transport.message import BULK as BULK
from transport.message import CONTROL as CONTROL
from transport.message import GREETINGS as GREETINGS
from transport.message import LANES as LANES
from transport.message import PROTOCOL_VERSION as PROTOCOL_VERSION
from transport.message import Body as Body
from transport.message import Count as Count
from transport.message import Header as Header
from transport.message import Hello as Hello
from transport.message import Lane as Lane
from transport.message import LinkBody as LinkBody
from transport.message import Marker as Marker
from transport.message import Name as Name
from transport.message import Reason as Reason
from transport.message import TensorMeta as TensorMeta
from transport.refcounts import Handles as Handles
from transport.timer import LinkTimer as LinkTimer
from transport.timer import Redial as Redial
from transport.timer import Stall as Stall
from transport.timer import Timer as Timer
from transport.token_bucket import Allowances as Allowances
from transport.token_bucket import TokenBucket as TokenBucket

if TYPE_CHECKING:
    from transport.codec import Assembler as Assembler
    from transport.codec import Codec as Codec
    from transport.codec import LocalProtocolError as LocalProtocolError
    from transport.codec import Message as Message
    from transport.codec import RemoteProtocolError as RemoteProtocolError
    from transport.codec import layout_problem as layout_problem
    from transport.link import Links as Links
    from transport.payload import DTYPES as DTYPES
    from transport.payload import SENDABLE as SENDABLE
    from transport.payload import Bytes as Bytes
    from transport.payload import Payload as Payload
    from transport.payload import Pieces as Pieces
    from transport.payload import aligned as aligned
    from transport.payload import copy_payload as copy_payload
    from transport.payload import describe as describe
    from transport.payload import payload_of as payload_of
    from transport.payload import tensor_bytes as tensor_bytes
    from transport.payload import tensors_of as tensors_of

_HOMES = {
    "codec": (
        "Assembler",
        "Codec",
        "LocalProtocolError",
        "Message",
        "RemoteProtocolError",
        "layout_problem",
    ),
    "payload": (
        "DTYPES",
        "SENDABLE",
        "Bytes",
        "Payload",
        "Pieces",
        "aligned",
        "copy_payload",
        "describe",
        "payload_of",
        "tensor_bytes",
        "tensors_of",
    ),
    "link": ("Links",),
}
"""The names above that need numpy, or take long to define, by module: each is imported when it is
first used, because an endpoint alone needs none of them."""


if not TYPE_CHECKING:  # For a type checker it would make every name valid.

    def __getattr__(name: str) -> Any:
        for home, names in _HOMES.items():
            if name in names:
                found = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
