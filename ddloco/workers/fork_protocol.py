"""What an actor and its fork server say to each other. A module of its own, so that the server and
the workers that it forks import no trio."""

import signal

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

from ddloco.stage.process.entry_point import KeptModules

FOR_ACTOR = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that a terminal or an engine sends to whole process groups; the actor decides."""

MEETING = "meeting"
"""What a worker tells its actor that waits for the other ranks, and again when they have met."""

FORK_BYTES_MAX = 2**17
"""The size of one request: a name, three paths, and names and digests of up to 500 modules."""

FORK_FDS_MAX = 10
"""Descriptors of one request: the two sockets, the three standard streams, and an arena's files."""

NEWS_BYTES_MAX = 4096
"""The size of one message about a worker: a process id, an exit status, or a reason."""

SAID_CHARS_MAX = 600
"""Of a worker's last line: a message has room for it however it is encoded."""


class Rank(Struct, frozen=True):
    """One of the processes of a learner.

    Attributes:
        number: its number; 0 answers the actor's requests, and the others follow it.
        coordinator: where rank 0 lets JAX's processes find each other, as HOST:PORT; empty if JAX
            finds it in the environment of Slurm, Open MPI or Kubernetes.
        stall_s: how long, in seconds, one of them may give no sign of life.
        devices: the numbers of the GPUs that it uses on its host; empty for all.
    """

    number: int
    of: int
    coordinator: str
    stall_s: float
    devices: tuple[int, ...] = ()


class Fork(Struct, frozen=True):
    """Asks for a worker. The descriptors that come with it are: the socket for messages about it,
    the socket for its requests, standard output, standard error, standard input if it may stop at a
    prompt, and an arena's files.

    Attributes:
        shared: for each file of the arena, whether its descriptor comes along.
        kept: the modules that the run folder keeps; see ``kept_modules``.
        turns: the file by which workers take turns at the prompt; empty where none stops.
        rank: which of a learner's processes it is; None if it is the only one.
        folder: its working folder, in which its task is looked for.
    """

    name: str
    shared: tuple[bool, ...]
    kept: KeptModules | None = None
    turns: str = ""
    rank: Rank | None = None
    folder: str = "."
    nice: int = 0


class Began(Struct, frozen=True, tag=True):
    """The worker has this process id."""

    pid: int


class Ended(Struct, frozen=True, tag=True):
    """The worker ended with this exit status, or if it is negative by this signal; ``said`` is the
    last line that it wrote while it opened its devices, if it ended there."""

    code: int
    said: str = ""


class NotForked(Struct, frozen=True, tag=True):
    """There is no worker, for this reason of the system's."""

    reason: str


News = Began | Ended | NotForked
encode_news = Encoder().encode
decode_news = Decoder(News).decode
encode_fork = Encoder().encode
decode_fork = Decoder(Fork).decode
