"""The job file: one schema for the TOML, the ``--set`` overrides and the tape's header.

Every key except the task has a default. An error is one line that names the file and the field.
"""

import math
import re
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from ddloco.job.protocol.compression import Format, Rounding
from ddloco.job.protocol.fragment_plan import (
    INTERVAL_MAX,
    FragmentPlan,
    Leaf,
    make_plan,
    wire_layout,
)
from ddloco.stage.files.faults import LARGE, SYNCER, Faults, Whole, impossible
from ddloco.stage.files.settings import Positive, SnapshotTable, TapeTable
from ddloco.stage.files.span import unbounded
from ddloco.stage.files.toml import DEPTH_MAX, ConfigError, Section, convert, read_toml
from ddloco.stage.files.trust import job_digest
from transport import PROTOCOL_VERSION, layout_problem

T = TypeVar("T")

Share = Annotated[float, Meta(ge=0.0, lt=1.0)]
Name = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=64,
        pattern=r"^[\w-][\w.-]*\Z",
        description='letters, digits, "-", "_" and ".", not beginning with "."',
    ),
]

Axes = Annotated[dict[Name, Positive], Meta(max_length=8)]
"""The axes of a mesh of devices: their names, and the number of devices along each."""

Processes = Annotated[int, Meta(ge=1, le=256)]
"""The processes of one learner."""

LEARNERS_MAX = 1024
"""The largest job that was measured. Each message has a clock with an entry per actor, so the
traffic to all actors grows with the square of their number, and so does a snapshot: with four times
as many learners its clocks hold sixteen million counts, in memory until all parts have arrived."""

LEARNERS = 3
"""The learners of a job that names no number."""

SHARDS_MAX = 4096
"""Parts of the data, four for each learner that a job may have: a report names all that its learner
has, and one merge's record all of them."""

RELAY = "relay-"
"""What the names of relays begin with."""

SYNCERS_MAX = 64
"""More shards than the fragments of one job could usefully be divided among."""

ROUNDING = 1e-9
"""What a share of learners may be above a whole number, as 0.1 of 30."""

NEVER = 2**62
"""A global step that no job reaches."""

Method = Literal[
    "decoupled-diloco",
    "streaming-diloco",
    "diloco",
    "fedavg",
    "data-parallel",
    "elastic-data-parallel",
    "lone",
]
DATA_PARALLEL = ("data-parallel", "elastic-data-parallel")

Late = Literal["overwrite", "blend", "carry"]
"""What becomes of steps that a learner takes between a contribution and its answer."""

WeightRule = Literal["rate", "tokens", "equal"]
"""The rules for the weights of contributions, which are in ``machines.outer.weights``."""


class JobTable(Section, frozen=True):
    """``[job]``: what is trained, for how long, by how many learners, and with which method.

    Attributes:
        task: the function that makes the task, as ``module:function``; the module is imported from
            the current folder or from installed packages.
        name: the job's name, part of its id.
        seed: of the parameters, the data and the global random generators.
        steps: global steps until the job is done.
        tokens: in place of ``steps``: the job is done when so many tokens are merged, on average
            over the fragments; with several syncers, over those of the one that leads.
        learners: number of learners.
        syncers: number of syncer shards; each owns some of the fragments.
        shards: parts of the data, at least as many as ``learners``, which is then the most learners
            that may take part. The leading syncer gives them to the learners that are there, to
            each several if they are fewer, and gives those of a learner that is gone for good
            (``elastic.gone_s``) to others. Unset, each learner has one of its own for ever.
        method: Decoupled DiLoCo, or what it is compared with: Streaming DiLoCo (arXiv 2501.18512),
            DiLoCo (arXiv 2311.08105), FedAvg (arXiv 1602.05629), synchronous data-parallel
            training, the same with replicas that come and go, or one learner alone. A method sets
            other keys: docs/methods.md lists them.
    """

    task: str
    name: Name = "job"
    seed: Whole = 0
    steps: Positive = 500
    tokens: Positive | None = None
    learners: Annotated[int, Meta(ge=1, le=LEARNERS_MAX)] = LEARNERS
    syncers: Annotated[int, Meta(ge=1, le=SYNCERS_MAX)] = 1
    shards: Annotated[int, Meta(ge=1, le=SHARDS_MAX)] | None = None
    method: Method = "decoupled-diloco"

    @property
    def last_step(self) -> int:
        """The last global step; one that is never reached if the job ends by ``tokens``."""
        return self.steps if self.tokens is None else NEVER

    @property
    def length(self) -> str:
        return f"{self.steps} steps" if self.tokens is None else f"{self.tokens:,} merged tokens"


class SyncTable(Section, frozen=True):
    """``[sync]``: how parameters are cut into fragments, and when fragments are merged.

    Attributes:
        fragments: the paper's P: parts into which the parameters are cut; at most ``interval``.
        interval: the paper's H: global steps between two syncs of one fragment.
        overlap: the paper's tau: steps that a sync may take while learners train on.
        quorum: the paper's K: learners that must have finished a step since the last sync started
            before the next one starts.
        grace: the safety factor gamma of the paper's Eq. 3, for the grace window: the time that
            the syncer waits, after the quorum, for learners that are about to finish a step.
        grace_steps_max: longest grace window, in inner steps.
        pull: whom the syncer asks for contributions once the quorum is there: "unmerged" asks all
            learners with trained steps that are in no merge yet; "fresh" only those that
            finished a step since the last sync started, as the paper may be read (section 3.3).
        staleness: how many intervals a contribution's base version may lag behind the newest
            version; older contributions are not merged.
        band: a contribution whose norm or token count is more than so many times the usual is
            rejected as an outlier; 0 accepts everything that is finite, but for 1,000 times the
            tokens a step of the others.
        fragmentation: how tensors are assigned to fragments: by equal bytes, by tensor, by runs of
            layers, or "strided" by layers: those whose numbers are equal modulo the fragments.
        blocking: whether learners contribute what they have at exactly the global step at which
            a fragment is due, and wait if the answer is not there ``overlap`` steps later, as
            published for DiLoCo and Streaming DiLoCo. Decoupled DiLoCo never waits.
        late: what becomes of the steps that a learner takes between a contribution and its
            answer: "overwrite" drops them, as the paper does; "blend" keeps ``mixing`` of the
            learner's own parameters; "carry" takes them again on top of the answer.
        mixing: Streaming DiLoCo's alpha, of "blend".
        clients: the share of the learners that take part in a round of "fedavg".
        final_merges: after the last global step, merge each fragment once more, so that the model
            has all steps of the learners whatever the phase of its fragments.
        round_float64: merges are in float32, so a task with tensors of float64 is refused; with
            this they are rounded at each merge.
    """

    fragments: Positive = 24
    interval: Positive = 24
    overlap: Whole = 2
    quorum: Positive = 1
    grace: Share = 0.5
    grace_steps_max: Annotated[float, Meta(ge=0.0, le=LARGE)] = 1.0
    pull: Literal["unmerged", "fresh"] = "unmerged"
    staleness: Positive = 1
    band: Annotated[float, Meta(ge=0.0, le=LARGE)] = 32.0
    fragmentation: Literal["balanced", "tensor", "layer", "strided"] = "balanced"
    blocking: bool = False
    late: Late = "overwrite"
    mixing: Share = 0.5
    clients: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    final_merges: bool = False
    round_float64: bool = False

    @property
    def lag(self) -> int:
        """The most global steps that a contribution's base version may be behind the newest."""
        return self.staleness * self.interval


class Elastic(Section, frozen=True):
    """``[elastic]``: what happens when learners come and go, in seconds.

    The data-parallel methods stand still then, for these times and what the processes themselves
    need.

    Attributes:
        gone_s: with ``job.shards``, after so long without a word a learner is gone for good, and
            others get its data shards.
        downscale_s: to continue without a replica that was lost.
        upscale_s: to add a replica.
        restart_s: to continue, in a job that is not elastic, once all replicas are back.
    """

    gone_s: Annotated[float, Meta(gt=0.0, le=LARGE)] = 300.0
    downscale_s: Annotated[float, Meta(ge=0.0, le=LARGE)] = 0.0
    upscale_s: Annotated[float, Meta(ge=0.0, le=LARGE)] = 0.0
    restart_s: Annotated[float, Meta(ge=0.0, le=LARGE)] = 0.0


class Inner(Section, frozen=True):
    """``[inner]``: the learners' optimizer, unless the task brings its own optax transformation.

    Attributes:
        optimizer: which optax optimizer.
        lr: the learning rate.
        b1: decay of the first moment; of "sgd" and "muon", the momentum.
        b2: decay of the second moment.
        weight_decay: of "adamw" and "muon".
        adamw: shell patterns of names of matrices that "adamw" updates where the optimizer is
            "muon", as it does all vectors.
        warmup: inner steps over which the learning rate rises linearly to ``lr``.
        schedule: how the learning rate falls to zero until the end of the job, "cosine" or
            "linear"; it follows the global step, so it is the same for fast and slow learners.
        clip: largest global norm of a gradient; 0 does not clip.
    """

    optimizer: Literal["adamw", "adam", "sgd", "muon"] = "adamw"
    lr: Annotated[float, Meta(gt=0.0, le=LARGE)] = 1e-3
    b1: Share = 0.9
    b2: Share = 0.99
    weight_decay: Annotated[float, Meta(ge=0.0, le=LARGE)] = 0.0
    warmup: Whole = 0
    schedule: Literal["cosine", "linear"] | None = None
    clip: Annotated[float, Meta(ge=0.0, le=LARGE)] = 1.0
    adamw: tuple[str, ...] = ("*embed*", "*head*")


MergeRuleName = Literal["rda", "average", "median"]
"""The merge rules, which are in ``machines.outer.merge_rules``."""


OuterOptimizerName = Literal["nesterov", "sgd", "adam"]
"""The outer optimizers, which are in ``machines.outer.optimizers``."""


class Outer(Section, frozen=True):
    """``[outer]``: how contributions are merged, and the outer step on the result.

    The paper takes Nesterov steps and does not publish its learning rate and momentum. On the
    quickstart's job 0.7 with 0.9 is worse than the defaults, and nothing that was tried is better.

    Attributes:
        preset: learning rate and momentum of a publication, by name: "diloco" is 0.7 and 0.9
            (arXiv 2311.08105), "streaming" 0.4 and 0.9 (arXiv 2501.18512), "muloco" 0.7 and 0.6
            (arXiv 2505.23725), all with "nesterov"; "decoupled" is 0.7 and 0.6, these defaults.
            Leave out what it sets, or give the same.
        optimizer: "nesterov" is the paper's; "sgd" has no momentum, which with ``lr`` 1 is FedAvg
            (arXiv 1602.05629); "adam" is FedAdam (arXiv 2003.00295) with bias correction. A
            setting of another optimizer must be left at its default, and is not used.
        lr: the outer learning rate. If it is not set, "sgd" has 1 and "adam" 0.003: its steps have
            that length whatever the length of a change.
        momentum: of "nesterov".
        b1: of "adam": decay of the mean of changes.
        b2: of "adam": decay of the mean of their squares.
        eps: of "adam": added to the root of that mean; FedAdam's tau. In the quickstart 0.1 with
            ``lr`` 0.1 was better than the defaults, and "nesterov" better than both.
        merge: "rda" merges directions and lengths separately, as the paper does; "average" is the
            plain weighted average; "median" is the median of each element, without weights, which
            a wrong contribution cannot move far if more than half of at least three are sound.
        average: shell patterns of tensor names that are merged by the weighted average whatever
            ``merge`` is; the paper does so for embeddings. Empty it for a median of all tensors,
            where rows that fewer than half of the learners train then stay as they are.
        weight: what a contribution counts: "rate" is the paper's tokens times tokens per step,
            "tokens" FedAvg's number of samples, "equal" DiLoCo's plain mean.
    """

    preset: Literal["none", "diloco", "streaming", "muloco", "decoupled"] = "none"
    optimizer: OuterOptimizerName = "nesterov"
    lr: Annotated[float, Meta(gt=0.0, le=LARGE)] = 0.7
    momentum: Share = 0.6
    b1: Share = 0.9
    b2: Share = 0.99
    eps: Annotated[float, Meta(ge=1e-30, le=LARGE)] = 1e-3
    merge: MergeRuleName = "rda"
    average: tuple[str, ...] = ("*embed*",)
    weight: WeightRule = "rate"


PRESETS: dict[str, dict[str, Any]] = {
    "diloco": {"optimizer": "nesterov", "lr": 0.7, "momentum": 0.9},
    "streaming": {"optimizer": "nesterov", "lr": 0.4, "momentum": 0.9},
    "muloco": {"optimizer": "nesterov", "lr": 0.7, "momentum": 0.6},
    "decoupled": {"optimizer": "nesterov", "lr": 0.7, "momentum": 0.6},
}
"""The settings that ``outer.preset`` stands for."""

LONE = "lone"
ROUND_OF_ALL = {"blocking": True, "fragments": 1, "overlap": 0}
FIXED: dict[str, dict[str, Any]] = {
    "diloco": ROUND_OF_ALL,
    "fedavg": ROUND_OF_ALL,
    "streaming-diloco": {"blocking": True},
}
"""The keys of ``[sync]`` that a method has whatever the job file says. Its quorum is all learners
of a round."""

EXACT = {"grace": 0.0, "band": 0.0}
"""No window, and no contribution is left out as an outlier."""

MEAN = {"merge": "average", "weight": "equal"}
USUAL: dict[str, dict[str, dict[str, Any]]] = {
    "diloco": {"sync": {**EXACT, "interval": 500}, "outer": {**MEAN, "preset": "diloco"}},
    "fedavg": {
        "sync": EXACT,
        "outer": {"merge": "average", "weight": "tokens", "optimizer": "sgd"},
    },
    "streaming-diloco": {
        "sync": {
            **EXACT,
            "fragments": 8,
            "interval": 100,
            "overlap": 1,
            "late": "blend",
            "mixing": 0.5,
            "fragmentation": "strided",
        },
        "outer": {**MEAN, "preset": "streaming"},
        "compress": {"up": "e3m0"},
    },
}
"""The keys that a method's publication sets, which a job file may set otherwise."""

OPTIMIZER_KEYS = ("preset", "optimizer", "lr", "momentum", "b1", "b2", "eps")
"""The keys of ``[outer]`` that are the outer optimizer: a job that sets one sets all."""

OUTER_RATES = {"sgd": 1.0, "adam": 0.003}
"""``outer.lr`` of other optimizers than the default one, where it is not set."""

OF_OPTIMIZER = {"momentum": "nesterov", "b1": "adam", "b2": "adam", "eps": "adam"}
"""The settings of ``[outer]`` that belong to one optimizer."""


class Compress(Section, frozen=True):
    """``[compress]``: how many bits an element of a fragment takes on the wire (paper section 5).

    What is compressed is a difference: upwards that between a learner's parameters and the version
    that it trained from, downwards that between a new version and the one before. "int8", "int4",
    "int2" and "int1" have equally spaced levels, "e3m0" four bits of sign and exponent; every 256
    elements share a scale of 32 bits. "float32" sends the parameters whole, in their own dtype.

    Attributes:
        up: the format of contributions; the paper finds "int4" as good as 16 bits.
        down: the format of global fragments. What a version loses is made up for by the next one.
        rounding: to the nearest level, or up or down at random without bias.
        feedback: whether a learner adds what its contributions lost to its next one. It then keeps
            a second copy of the parameters, in float32.
    """

    up: Format = "float32"
    down: Format = "float32"
    rounding: Rounding = "nearest"
    feedback: bool = False

    @property
    def differences(self) -> bool:
        """Whether learners send differences and not whole parameters."""
        return self.up != "float32" or self.down != "float32"


class Transport(Section, frozen=True):
    """``[transport]``: how the actors of a ``run`` reach each other, and with which keys.

    Attributes:
        kind: in-process queues, Unix sockets, or TCP; ``--processes`` always uses TCP.
        keys: a folder that ``ddloco keys`` made; empty for no keys. Not used with "inproc", where
            nothing leaves the process.
        insecure: whether a syncer without keys may listen on other addresses than loopback.
        shared_memory: whether processes of one user on one host read each other's fragments where
            they lie, in place of sending them; not where ``[chaos]`` has faults of links.
        memory_gb: how many GB of fragments from others an actor keeps in memory; further ones lie
            in a file in the folder for temporary files (``TMPDIR``) until they have been used. 0
            for as many as ``/dev/shm`` holds.
    """

    kind: Literal["inproc", "ipc", "tcp"] = "inproc"
    keys: str = ""
    insecure: bool = False
    shared_memory: bool = True
    memory_gb: Annotated[float, Meta(ge=0.0, le=LARGE)] = 0.0


class Worker(Section, frozen=True):
    """``[worker]``: the environment of the processes that run JAX; part of the tape's fingerprint.

    Attributes:
        threads: XLA's threads (NPROC). Another number changes the bits of weight gradients.
        env: more environment variables, such as XLA_FLAGS. PYTHONHASHSEED is 0 unless it is set
            here. Secrets, such as HF_TOKEN, are refused here: what the job file says is on tapes.
            Workers inherit the environment of the process that starts them.
        mesh: the number of devices along each axis of a learner's mesh, such as
            ``{data = 2, model = 4}``; without it a learner uses one device, or divides its batches
            among those of all its processes.
        processes: the processes of one learner, usually one on each of its hosts.
        stall_s: how long, in seconds, one of several processes may give no sign of life. Then all
            of them end, and the learner begins its next incarnation.
        check_every: every so many steps, a learner runs its step twice and compares the results, to
            find hardware that computes wrongly; 0 for never.
        on_corruption: what a learner does whose step had two results: "leave", with exit code 75,
            or "continue" with the second one.
        together_s: short steps are asked for several at once, as many as take so long in all, in
            seconds, and at most an eighth of those between two versions of a fragment. Only between
            two requests does a learner copy and install fragments. 0 asks for each step by itself.
            With ``sync.blocking`` or ``job.shards`` it makes no difference.
        retry_s: how long, in seconds, a learner that has trained before tries again to draw a batch
            when the task's stream raises, with growing pauses; not after a ValueError, KeyError or
            their like, which say that the code or the data are wrong. Then it ends with exit code
            75 and comes back; after three incarnations in a row with the same error at the same
            batch it does not, and the others go on. 0 does not try again.
        nice: how much of a busy processor the workers leave to the actors, which have little to do
            and must answer at once: a niceness of 0 to 19. With 0 a syncer that shares its cores
            with short steps does not keep up, and intervals get longer than asked for.
    """

    threads: Annotated[int, Meta(ge=1, le=1024)] = 1
    env: dict[str, str] = {}
    mesh: Axes = {}
    processes: Processes = 1
    stall_s: Annotated[float, Meta(ge=1.0, le=LARGE)] = 20.0
    check_every: Whole = 0
    on_corruption: Literal["leave", "continue"] = "leave"
    together_s: Annotated[float, Meta(ge=0.0, le=60.0)] = 0.01
    retry_s: Annotated[float, Meta(ge=0.0, le=LARGE)] = 60.0
    nice: Annotated[int, Meta(ge=0, le=19)] = 10


SECRET = re.compile(
    r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|API_?KEY|ACCESS_KEY|SECRET_KEY|PRIVATE_KEY)$",
    re.IGNORECASE,
)
"""Names of variables whose values are secrets, such as HF_TOKEN; HF_TOKEN_PATH is none."""

UNSAID = {
    "worker": (
        *("mesh", "processes", "stall_s", "check_every", "on_corruption", "together_s"),
        *("retry_s", "nice"),
    ),
    "sync": ("blocking", "late", "mixing", "clients", "final_merges", "round_float64"),
    "outer": ("weight",),
    "inner": ("adamw",),
    "transport": ("shared_memory", "memory_gb"),
}
"""Keys that are left out of a job's id where they have their defaults."""


class LearnerTable(Section, frozen=True):
    """``[learner.NAME]``: what is different about one learner, such as ``[learner.learner-2]``.

    Attributes:
        factor: how many times slower it is than it could be; for experiments.
        shard: the data shard that it trains on; by default the number in its name.
        threads: in place of ``worker.threads``.
        batch: the size of its batches, for a task whose ``batches`` takes one; a contribution's
            weight follows from its tokens.
        local_steps: the steps that it trains for in each round of "fedavg" or "diloco", of at most
            ``sync.interval``: the local epochs of federated averaging, where learners have parts of
            the data of different sizes. By default the whole interval.
        env: added to ``worker.env``.
        mesh: in place of ``worker.mesh``.
        processes: in place of ``worker.processes``.
    """

    factor: Annotated[float, Meta(ge=1.0, le=LARGE)] = 1.0
    shard: Whole | None = None
    batch: Positive | None = None
    local_steps: Positive | None = None
    threads: Annotated[int, Meta(ge=1, le=1024)] | None = None
    env: dict[str, str] = {}
    mesh: Axes | None = None
    processes: Processes | None = None


class RelayTable(Section, frozen=True):
    """``[relay.NAME]``: a relay for the learners of one site, such as ``[relay.relay-0]``.

    The relay takes in the contributions of its learners and sends the syncer one sum of them, and
    it spreads the syncer's fragments: so the bytes between a site and the syncer follow the number
    of sites, not that of learners. Learners keep a connection to the syncer, over which they report
    and, while their relay is away, send their contributions as well.

    Attributes:
        learners: the names of its learners. A learner has one relay or none.
    """

    learners: Annotated[tuple[str, ...], Meta(min_length=1, max_length=LEARNERS_MAX)]


class Slurm(Section, frozen=True):
    """``[launch.slurm]``: what ``ddloco launch --on slurm`` writes for this cluster.

    Attributes:
        sbatch: options of sbatch for all actors, such as "--partition=gpu".
        syncer: more of them for syncers.
        learner: more of them for learners, such as "--gpus=1".
        setup: lines of bash that come before ddloco, such as "source venv/bin/activate".
    """

    sbatch: tuple[str, ...] = ()
    syncer: tuple[str, ...] = ()
    learner: tuple[str, ...] = ()
    setup: str = ""


class Kubernetes(Section, frozen=True):
    """``[launch.kubernetes]``: what ``ddloco launch --on kubernetes`` writes for this cluster.

    Attributes:
        image: the container image, with ddloco and the task.
        secret: the name of the Secret with the folder that ``ddloco keys`` made; empty for none.
        storage: the size of each syncer's volume.
        syncer_pod: fields of the syncers' pod, such as nodeSelector, as Kubernetes names them.
        syncer_container: fields of their container, such as resources.
        learner_pod: fields of the learners' pod.
        learner_container: fields of their container.
    """

    image: str = ""
    secret: str = ""
    storage: str = "100Gi"
    syncer_pod: dict[str, Any] = {}
    syncer_container: dict[str, Any] = {}
    learner_pod: dict[str, Any] = {}
    learner_container: dict[str, Any] = {}


class Ray(Section, frozen=True):
    """``[launch.ray]``: what ``ddloco launch --on ray`` asks of the cluster.

    Attributes:
        resources: what Ray gives each learner: CPU (by default 1), GPU, and the cluster's own.
    """

    resources: dict[str, Annotated[float, Meta(ge=0.0, le=LARGE)]] = {}


class SkyPilot(Section, frozen=True):
    """``[launch.skypilot]``: what ``ddloco launch --on skypilot`` writes.

    Attributes:
        bucket: a bucket that all machines mount, in which syncers leave their addresses.
        syncer: fields of the syncers' task, such as resources, as SkyPilot names them.
        learner: fields of the learners' task, such as resources and setup.
    """

    bucket: str = ""
    syncer: dict[str, Any] = {}
    learner: dict[str, Any] = {}


class Launch(Section, frozen=True):
    """``[launch]``: what an engine that places and restarts processes is told beside the job.

    No actor reads it, so it belongs neither to the job's id nor to what a run records.
    """

    slurm: Slurm = Slurm()
    kubernetes: Kubernetes = Kubernetes()
    ray: Ray = Ray()
    skypilot: SkyPilot = SkyPilot()


class _LaunchOnly(Section, frozen=True):
    """The part of a job file that is no part of the job."""

    launch: Launch = Launch()


class Job(Section, frozen=True):
    """A whole job file, resolved."""

    job: JobTable
    task: dict[str, Any] = {}
    sync: SyncTable = SyncTable()
    elastic: Elastic = Elastic()
    inner: Inner = Inner()
    outer: Outer = Outer()
    compress: Compress = Compress()
    transport: Transport = Transport()
    tape: TapeTable = TapeTable()
    snapshot: SnapshotTable = SnapshotTable()
    worker: Worker = Worker()
    chaos: Faults = Faults()
    learner: dict[str, LearnerTable] = {}
    relay: dict[str, RelayTable] = {}

    def learner_names(self) -> tuple[str, ...]:
        """``learner-0`` and so on, in order of number."""
        return tuple(f"learner-{index}" for index in range(self.job.learners))

    def too_few(self, left: int) -> str:
        """Why the job cannot go on with so many learners, and what would; empty if it can."""
        method, total = self.job.method, self.job.learners
        all_needed = self.sync.blocking or method == "data-parallel"
        needed = total if all_needed else self.sync.quorum
        if left >= needed or method == "elastic-data-parallel":
            return ""
        other = "elastic-data-parallel" if method == "data-parallel" else "decoupled-diloco"
        way = f'method = "{other}" goes on' if all_needed else "a smaller sync.quorum lets it go on"
        are = "is" if left == 1 else "are"
        return f"{left} of {total} learners {are} left, and a merge needs {needed}; {way}"

    def syncer_names(self) -> tuple[str, ...]:
        """``syncer``; or with several shards ``syncer-0``, which leads, and so on."""
        count = self.job.syncers
        return (SYNCER,) if count == 1 else tuple(f"{SYNCER}-{n}" for n in range(count))

    def relay_names(self) -> tuple[str, ...]:
        """The relays, in order of name."""
        return tuple(sorted(self.relay))

    def relay_of(self, learner: str) -> str:
        """The relay of a learner; empty if it has none."""
        return next(
            (name for name in self.relay_names() if learner in self.relay[name].learners), ""
        )

    def names(self) -> tuple[str, ...]:
        """All actors of the job: syncers, then relays, then learners."""
        return (*self.syncer_names(), *self.relay_names(), *self.learner_names())

    def listeners(self) -> tuple[str, ...]:
        """The actors that others dial: syncers, then relays."""
        return (*self.syncer_names(), *self.relay_names())

    def dials(self, name: str) -> tuple[str, ...]:
        """The actors that one dials: shards the lead, all others every syncer, and learners their
        relay, too."""
        lead, *shards = syncers = self.syncer_names()
        if name in syncers:
            return (lead,) if name in shards else ()
        relay = self.relay_of(name)
        return (*syncers, relay) if relay else syncers

    def syncer_of(self, fragment: int) -> str:
        """The shard that owns a fragment."""
        names = self.syncer_names()
        return names[fragment % len(names)]

    @property
    def last_sync(self) -> int:
        """The last global step for which a fragment is merged."""
        extra = self.sync.interval - 1 if self.sync.final_merges else 0
        return self.job.last_step + extra

    def learner_table(self, name: str) -> LearnerTable:
        """The settings of one learner."""
        return self.learner.get(name, LearnerTable())

    @property
    def data_shards(self) -> int:
        """The number of parts of the data."""
        return self.job.shards or self.job.learners

    def shard(self, name: str) -> int:
        """The data shard, of ``data_shards`` many, that a learner trains on; with ``job.shards``
        the first one that it may be given."""
        shard = self.learner_table(name).shard
        return int(name.rpartition("-")[2]) if shard is None else shard

    def worker_of(self, name: str) -> Worker:
        """The worker of one actor; only learners have several processes."""
        table, common = self.learner_table(name), self.worker
        return replace(
            common,
            threads=table.threads or common.threads,
            env={**common.env, **table.env},
            mesh=common.mesh if table.mesh is None else table.mesh,
            processes=(table.processes or common.processes) if name in self.learner_names() else 1,
        )

    @property
    def id(self) -> str:
        """Name and digest, which identify the job in messages and tapes."""
        # The digest covers what a tape's header contains, so readers of a tape can compute it.
        return f"{self.job.name}-{job_digest(self.as_plain())}"

    def plan(self, leaves: Sequence[Leaf]) -> FragmentPlan:
        """How this job splits the task's parameters into fragments."""
        sync = self.sync
        if self.job.method in DATA_PARALLEL:
            # Gradients are sent whole.
            return make_plan(leaves, fragments=1, interval=1, strategy="balanced")
        return make_plan(
            leaves, fragments=sync.fragments, interval=sync.interval, strategy=sync.fragmentation
        )

    def sendable_plan(self, leaves: Sequence[Leaf]) -> FragmentPlan:
        """Like ``plan``, but raises ValueError if a fragment does not fit into one message, or its
        numbers would be others after a merge."""
        plan = self.plan(leaves)
        double = [leaf.name for leaf in leaves if leaf.dtype == "float64"]
        if double and not self.sync.round_float64:
            raise ValueError(
                f"tensor {double[0]!r} is float64, and merges are in float32: make it float32 in "
                "init (the loss may compute in float64), or set sync.round_float64 = true to have "
                "it rounded at each merge"
            )
        for p in range(len(plan.fragments)):
            problem = layout_problem(wire_layout(plan, p))
            if problem is not None:
                raise ValueError(f"fragment {p} of {len(plan.fragments)}: {problem}; {self._cure}")
        if len(plan.fragments) < self.job.syncers:
            raise ValueError(
                f"its parameters make {len(plan.fragments)} fragments, which are fewer than the "
                f"{self.job.syncers} shards of job.syncers; each shard owns at least one"
            )
        return plan

    @property
    def _cure(self) -> str:
        if self.job.method in DATA_PARALLEL:
            return f"gradients of a {self.job.method} job are sent whole: use fewer, larger tensors"
        if "fragments" in FIXED.get(self.job.method, {}):
            return f"a {self.job.method} job sends all tensors at once: use fewer, larger ones"
        return "raise sync.fragments, or use fewer, larger tensors"

    def agreement(self, plan: FragmentPlan) -> dict[str, str]:
        """What both sides of a handshake must have in common, by name."""
        return {
            "protocol": str(PROTOCOL_VERSION),
            "job": self.id,
            "fragment plan": plan.digest[:16],
        }

    def as_plain(self) -> dict[str, Any]:
        """The job as plain data, without unset fields, since TOML has no null.

        What came later is left out where it says nothing: the ids of jobs, which are on tapes, stay
        as they were. A method that sets keys would set what is left out, so it leaves out nothing.
        """
        plain = _without_none(msgspec.to_builtins(self))
        if not self.relay:
            del plain["relay"]
        if self.job.method in {*USUAL, LONE}:
            return plain
        if self.compress == Compress():
            del plain["compress"]
        if self.job.shards is None:
            del plain["elastic"]["gone_s"]
        for table, keys in UNSAID.items():
            own = getattr(self, table)
            for key in keys:
                if getattr(own, key) == getattr(type(own)(), key):
                    del plain[table][key]
        return plain


def _without_none(plain: Any) -> Any:
    if isinstance(plain, dict):
        return {key: _without_none(each) for key, each in plain.items() if each is not None}
    if isinstance(plain, list | tuple):
        return [_without_none(each) for each in plain]
    return plain


def load_job(path: Path, overrides: Sequence[str] = (), chaos: Path | None = None) -> Job:
    """Read a job file and apply ``key=value`` overrides such as ``sync.quorum=2``.

    ``chaos`` is a file of faults that replaces the job's own ``[chaos]``. Raises ConfigError.
    """
    plain = read_toml(path)
    if not plain and not overrides:
        raise ConfigError(f"{path}: is empty; ddloco init writes a job file to begin with")
    if chaos is not None:
        plain["chaos"] = read_toml(chaos)
        convert(plain["chaos"], Faults, str(chaos))

    def check(changed: Any, source: str) -> Job:
        if chaos is not None:
            job = convert(_job_only(changed), Job, source)
            problem = impossible(job.chaos, job.learner_names(), job.listeners())
            if problem is not None:
                raise ConfigError(f"{chaos}: {problem}")
        return job_from(changed, source)

    return with_overrides(plain, overrides, check, str(path))


def load_launch(path: Path, overrides: Sequence[str] = ()) -> Launch:
    return with_overrides(read_toml(path), overrides, _launch_from, str(path))


def _launch_from(plain: Any, source: str) -> Launch:
    launch = {"launch": plain["launch"]} if isinstance(plain, dict) and "launch" in plain else {}
    return convert(launch, _LaunchOnly, source).launch


def _job_only(plain: Any) -> Any:
    if not isinstance(plain, dict):
        return plain
    return {key: each for key, each in plain.items() if key != "launch"}


def with_overrides(
    plain: dict[str, Any], overrides: Sequence[str], check: Callable[[Any, str], T], source: str
) -> T:
    """Apply ``key=value`` overrides to a copy, and check the result with ``check``, which gets it
    and its source.

    An error that an override makes names this override in place of the source.
    """
    changed = _tables_copied(plain)
    for said in overrides:
        override_said(changed, said)
    try:
        return check(changed, source)
    except ConfigError as error:
        blamed = _first_with(str(error), plain, overrides, check, source)
        if blamed is None:
            raise
    return check(changed, f"--set {_shown(blamed)}")


def _first_with(
    problem: str,
    plain: dict[str, Any],
    overrides: Sequence[str],
    check: Callable[[Any, str], Any],
    source: str,
) -> str | None:
    """The first override that makes the problem; None if the file has it without any."""
    changed = _tables_copied(plain)
    for said in (None, *overrides):
        if said is not None:
            override_said(changed, said)
        try:
            check(changed, source)
        except ConfigError as error:
            if str(error) == problem:
                return said
    return None


def job_from(plain: Any, source: str) -> Job:
    """Check plain data against the schema, and its fields against each other.

    The job's dicts are sorted by key, as on a tape: machines hold the job, and a replay compares
    their states byte by byte, so the order in a file must not matter.
    """
    _launch_from(plain, source)
    resolved = _with_usual_outer(_with_method(_with_texts(_job_only(plain), source)))
    job = convert(resolved, Job, source, sort_keys=True)
    job = _of_one(job) if job.job.method == LONE else job
    problem = _contradiction(job)
    if problem:
        raise ConfigError(f"{source}: {problem}")
    return job


def _with_texts(plain: Any, source: str) -> Any:
    """Plain data whose environment variables are texts, where they were written as numbers."""
    if not isinstance(plain, dict):
        return plain
    found = {**plain}
    if "worker" in plain:
        found["worker"] = _env_texts(plain["worker"], f"{source}: worker")
    if isinstance(plain.get("learner"), dict):
        tables = plain["learner"].items()
        found["learner"] = {n: _env_texts(each, f"{source}: learner.{n}") for n, each in tables}
    return found


def _env_texts(table: Any, where: str) -> Any:
    env = table.get("env") if isinstance(table, dict) else None
    if not isinstance(env, dict):
        return table
    for name, value in env.items():
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise ConfigError(f'{where}.env.{name[:80]}: want a number, or text in quotes ("1")')
    return {**table, "env": {name: str(value) for name, value in env.items()}}


def _with_method(plain: Any) -> Any:
    table: Any = plain.get("job") if isinstance(plain, dict) else None
    method = str(table.get("method")) if isinstance(table, dict) else ""
    if method not in FIXED or not all(
        isinstance(plain.get(name, {}), dict) for name in ("sync", "outer", "compress")
    ):
        return plain
    learners, usual = table.get("learners", LEARNERS), USUAL[method]
    tables = {name: {**usual.get(name, {}), **plain.get(name, {})} for name in usual}
    own = plain.get("outer", {})
    if any(key in own for key in OPTIMIZER_KEYS):
        unsaid = [key for key in OPTIMIZER_KEYS if key not in own]
        tables["outer"] = {k: each for k, each in tables["outer"].items() if k not in unsaid}
    share = tables["sync"].get("clients", 1.0) if method == "fedavg" else 1.0
    if isinstance(learners, int) and isinstance(share, int | float):
        tables["sync"]["quorum"] = clients_of(learners, share)
    tables["sync"] |= FIXED[method]
    return {**plain, **tables}


def _of_one(job: Job) -> Job:
    """A job of one learner on all of the data, without what is between several.

    Merging replaces the global parameters by the learner's, and it waits for that.
    """
    alone = replace(job.job, learners=1, syncers=1, shards=None)
    sync = replace(job.sync, quorum=1, **ROUND_OF_ALL, final_merges=True, late="overwrite")
    outer = replace(Outer(), optimizer="sgd", lr=1.0, merge="average", weight="tokens")
    return replace(
        job,
        job=alone,
        sync=replace(sync, **EXACT, clients=1.0),
        outer=outer,
        compress=Compress(),
        learner={},
        relay={},
        chaos=Faults(),
    )


def clients_of(learners: int, share: float) -> int:
    return max(math.ceil(learners * share - ROUNDING), 1)


def _with_usual_outer(plain: Any) -> Any:
    outer: Any = plain.get("outer") if isinstance(plain, dict) else None
    if not isinstance(outer, dict):
        return plain
    preset, optimizer = (str(outer.get(key)) for key in ("preset", "optimizer"))
    rate = {"lr": OUTER_RATES[optimizer]} if optimizer in OUTER_RATES else {}
    return {**plain, "outer": {**rate, **PRESETS.get(preset, {}), **outer}}


def _tables_copied(plain: dict[str, Any], depth: int = DEPTH_MAX) -> dict[str, Any]:
    """Plain data whose tables may be changed; what is nested too deep to be valid is shared."""
    if not depth:
        return plain
    return {
        key: _tables_copied(each, depth - 1) if isinstance(each, dict) else each
        for key, each in plain.items()
    }


def override_said(plain: dict[str, Any], said: str) -> None:
    """Apply an override in the form used on the command line: ``sync.quorum=2``."""
    key, equals, text = said.partition("=")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except RecursionError:
        raise ConfigError(f"--set {key}: nested too deep") from None
    except ValueError:  # Not TOML, or an impossible date or number.
        value = text  # Treat a bare word as a string, since shells remove the quotes.
    if not equals or ("." not in key and not isinstance(value, dict)):
        raise ConfigError(f"--set {_shown(said)}: want section.key=value, such as sync.quorum=2")
    override(plain, key.strip(), value, source=f"--set {said}")


def _shown(said: str) -> str:
    return said[:200] if said.isprintable() else ascii(said[:200])


def override(plain: dict[str, Any], key: str, value: Any, source: str = "set") -> None:
    """Set ``section.key`` in plain data; missing tables are created."""
    *tables, name = key.split(".")
    if not name:
        raise ConfigError(f"{source}: want section.key=value, such as sync.quorum=2")
    table: Any = plain
    for part in tables:
        table = table.setdefault(part, {}) if isinstance(table, dict) else None
        if not isinstance(table, dict):
            raise ConfigError(f"{source}: {part} is not a table")
    table[name] = value


def _contradiction(job: Job) -> str | None:
    problem = _of_sync(job)
    if problem is not None:
        return problem
    sync, names = job.sync, job.learner_names()
    if job.job.syncers > sync.fragments:
        return (
            f"job.syncers: {job.job.syncers} shards of {sync.fragments} fragments; each owns at "
            f"least one, so at most {sync.fragments}"
        )
    if job.job.syncers > 1 and job.job.method != "decoupled-diloco":
        return f"job.syncers: a {job.job.method} job has one syncer"
    if job.compress.differences and job.job.method in DATA_PARALLEL:
        return f"compress: {job.job.method} jobs send whole gradients; want no [compress]"
    if job.compress.feedback and job.compress.up == "float32":
        return 'compress.feedback: with compress.up = "float32" nothing is lost; set it to false'
    if job.job.tokens is not None and job.job.method != "decoupled-diloco":
        return f"job.tokens: a {job.job.method} job ends by job.steps"
    if job.job.tokens is not None and job.inner.schedule is not None:
        return "inner.schedule: follows job.steps; want job.steps in place of job.tokens"
    problem = _unusable(job) or _of_data_shards(job) or _of_relays(job)
    problem = problem or _other_than_preset(job.outer) or _of_other_optimizer(job.outer)
    if problem is not None:
        return problem
    table, taken = job.tape, job.snapshot
    unbound = unbounded(table.keep, wanted=taken.wanted, stay=taken.keep, ships=table.ships)
    if unbound is not None:
        return unbound
    problem = impossible(job.chaos, names, job.listeners())
    if problem is not None:
        return f"chaos.{problem}"
    for name, table in job.learner.items():
        if name not in names:
            return f"learner.{name}: no such learner; this job has {names[0]} to {names[-1]}"
        if table.shard is not None and table.shard >= job.job.learners:
            return f"learner.{name}.shard: {table.shard} is not one of 0 to {job.job.learners - 1}"
        local, interval = table.local_steps or 0, job.sync.interval
        if local > interval:
            return f"learner.{name}.local_steps: {local}; a round has {interval} steps, the most"
        method = job.job.method
        if local and FIXED.get(method) is not ROUND_OF_ALL:
            return f'learner.{name}.local_steps: of method = "fedavg" or "diloco", not {method}'
    return None


def _of_sync(job: Job) -> str | None:
    sync = job.sync
    if sync.interval > INTERVAL_MAX:
        return f"sync.interval: {sync.interval} steps; want at most {INTERVAL_MAX}"
    if sync.fragments > sync.interval:
        return (
            f"sync.fragments: {sync.fragments} fragments in an interval of {sync.interval} steps; "
            f"at most one fragment is due at a step, so at most {sync.interval}"
        )
    if sync.quorum > job.job.learners:
        return (
            f"sync.quorum: a quorum of {sync.quorum} of {job.job.learners} learners can never be "
            f"met; at most {job.job.learners}"
        )
    problem = _of_waiting(job)
    if problem is not None:
        return problem
    if sync.overlap >= sync.interval and sync.interval > 1:
        return (
            f"sync.overlap: {sync.overlap} steps of overlap in an interval of {sync.interval}; "
            f"a fragment would be due again before its sync ends, so at most {sync.interval - 1}"
        )
    if 0.0 < sync.band <= 1.0:
        said = "would refuse usual contributions; want more than 1, or 0 for no band"
        return f"sync.band: {sync.band} {said}"
    return None


def _of_waiting(job: Job) -> str | None:
    """The first setting of ``[sync]`` that does not fit how learners wait and what they keep, as
    text; None if there is none."""
    sync, method = job.sync, job.job.method
    if not sync.overlap and not sync.blocking:
        return "sync.overlap: 0 steps, and learners do not wait; want at least 1, or sync.blocking"
    everyone = clients_of(job.job.learners, sync.clients)
    if sync.blocking and sync.quorum != everyone:
        waits = f"with sync.blocking a sync waits for all {everyone} learners of its round"
        return f"sync.quorum: {sync.quorum}, and {waits}; set it to {everyone}"
    if sync.blocking and job.job.shards is not None:
        return (
            "job.shards: with sync.blocking a sync waits for a learner that is gone; leave it out"
        )
    if sync.clients != 1.0 and method != "fedavg":
        return f'sync.clients: all learners of a {method} job take part; of method = "fedavg"'
    if sync.mixing != SyncTable().mixing and sync.late != "blend":
        return f'sync.mixing: {sync.mixing}, and sync.late is "{sync.late}"; of late = "blend"'
    if sync.final_merges and job.job.tokens is not None:
        return "sync.final_merges: a job of job.tokens has no last step; want job.steps"
    return None


def _of_data_shards(job: Job) -> str | None:
    shards, table = job.job.shards, job.job
    if shards is None and job.elastic.gone_s != Elastic().gone_s:
        return "elastic.gone_s: without job.shards each learner has its part of the data for ever"
    if shards is None:
        return None
    if table.method != "decoupled-diloco":
        return f"job.shards: a {table.method} job has a part of the data per learner"
    if shards < table.learners:
        return (
            f"job.shards: {shards} parts of the data for up to {table.learners} learners; each "
            f"draws from at least one, so at least {table.learners}"
        )
    for name, each in job.learner.items():
        if each.shard is not None:
            return f"learner.{name}.shard: with job.shards the leading syncer gives them away"
    return None


def _of_relays(job: Job) -> str | None:
    if not job.relay:
        return None
    if job.job.method != "decoupled-diloco" or job.sync.blocking:
        return f"relay: learners of a {job.job.method} job wait for each other; want none"
    if job.outer.merge == "median":
        return "relay: a median of sums is not one of contributions; want another outer.merge"
    seen: dict[str, str] = {}
    for name, table in job.relay.items():
        if not re.fullmatch(rf"{RELAY}[A-Za-z0-9][A-Za-z0-9_-]{{0,47}}", name):
            want = 'want "relay-" with a letter or digit after it, such as relay-0'
            return f"relay.{name[:64]}: {want}"
        for learner in table.learners:
            if learner not in job.learner_names():
                names = job.learner_names()
                return f"relay.{name}: no learner {learner}; this job has {names[0]} to {names[-1]}"
            if learner in seen:
                return f"relay.{name}: {learner} has the relay {seen[learner]} already"
            seen[learner] = name
    return None


def _other_than_preset(outer: Outer) -> str | None:
    for name, value in PRESETS.get(outer.preset, {}).items():
        if (own := getattr(outer, name)) != value:
            means = f'outer.preset = "{outer.preset}" means {value}'
            return f"outer.{name}: {own}, and {means}; set outer.preset, or what it stands for"
    return None


def _of_other_optimizer(outer: Outer) -> str | None:
    for name, optimizer in OF_OPTIMIZER.items():
        own, usual = getattr(outer, name), getattr(Outer(), name)
        if optimizer != outer.optimizer and own != usual:
            has = f'outer.optimizer = "{outer.optimizer}" has none'
            return f"outer.{name}: {own}, and {has}; leave it out"
    return None


def _unusable(job: Job) -> str | None:
    for pattern in job.outer.average:
        if not pattern or not pattern.isprintable() or pattern.count("[") > pattern.count("]"):
            said = "want a shell pattern for tensor names, such as *embed*"
            return f"outer.average: {pattern[:80]!r} is not a pattern; {said}"
    tables = {"worker": job.worker.env}
    tables |= {f"learner.{name}": table.env for name, table in job.learner.items()}
    for where, env in tables.items():
        for name in env:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                return f"{where}.env: {name[:80]!r} is not the name of a variable"
            if SECRET.search(name):
                return (
                    f"{where}.env.{name[:80]}: a secret would be in run folders, tapes and "
                    "bundles; leave it out, and set it where ddloco is started: workers inherit it"
                )
    if not job.snapshot.place.isprintable():
        return f"snapshot.place: {job.snapshot.place[:80]!a} is neither a path nor a URL"
    return None
