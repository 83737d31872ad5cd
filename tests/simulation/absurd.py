"""Peers that say what is well-formed and makes no sense, to every machine of a simulated job.

A puppet has the name and the sessions of one actor of a job that is not there. What it says is
drawn from the types themselves, so a new body or field is drawn as soon as it exists; values are
what is near the truth, at the edges of what a field may hold, or beyond. Every message is encoded,
decoded and judged as at a real door; what passes is handled. Nothing may be raised, and no actor
may end because of it.
"""

import random
from collections import Counter
from typing import Any

import msgspec
from msgspec import UNSET, inspect

from clocks import actor_of
from ddloco.job.protocol.compression import compressed_layout
from ddloco.job.protocol.fragment_plan import wire_layout
from ddloco.job.protocol.messages import (
    Contribution,
    ContributionSum,
    GlobalFragment,
    JobBody,
    StatePiece,
    Stop,
)
from ddloco.job.protocol.validation import admission
from ddloco.machines.data_parallel.coordinator import LOST
from ddloco.simulation.physics import Physics
from ddloco.simulation.world import World
from ddloco.stage.driver.connection_guard import ConnectionGuard
from ddloco.workers.simulated.work import PIECE, SUM, TOKENS, Content
from transport import (
    LANES,
    PROTOCOL_VERSION,
    Codec,
    Header,
    LaneBroken,
    LocalProtocolError,
    MessageArrived,
    RemoteProtocolError,
    Transmit,
)
from transport.message import Bye, Hello, Refused, Reset, TensorMeta, Welcome, encoder

STATE_BYTES = 3 * 2**24 - 64
"""Three pieces, as simulated states have."""

SECONDS_EACH = 0.05
"""What passes between two messages, on average: a step of the others every twenty."""

INTEGERS = (0, 1, 2, 3, 7, 64, 2**31, 2**53, 2**63 - 2, 2**63 - 1)
FLOATS = (0.0, 1e-300, 0.5, 1.0, 1e9, 1e300, float("inf"), float("nan"))
TEXTS = (
    "", ".", ":", "::", "x", "job", "learner-0", "learner-0.1", "learner-1.1", "learner-2.1",
    "learner-2.2", "learner-9.1", "learner-0.999999999", "learner-0.007", "learner-0.\u0662",
    "syncer.1", "syncer.2", "syncer", "syncer-0.1", "syncer-1.1", "..", "../../etc", "/", "\x00",
    "\U0001f600" * 40, "a" * 1024, "learner-0.1/control", "f" * 64, "0" * 64,
)  # fmt: skip


KINDS = inspect.type_info(JobBody).types
ENDINGS = (Bye, Hello, Refused, Reset, Stop, Welcome)
"""What ends a session or a job is said seldom: what follows it goes nowhere."""


class Puppet:
    """One peer of one actor.

    Args:
        world: of the job.
        target: the actor that is spoken to.
        name: the actor that the puppet says it is.
        rng: draws all that is said.
    """

    def __init__(self, world: World, target: str, name: str, rng: random.Random) -> None:
        self.world, self.target, self.name, self.rng = world, target, name, rng
        self.dials = target in world.job.dials(name)
        self.codec: Codec[Any] = Codec(JobBody, world.job.id)
        self.number = 1
        self.session = 0
        self.seqs = dict.fromkeys(LANES, 0)
        self.told: list[Any] = []
        self.counts: Counter[str] = Counter()

    @property
    def who(self) -> str:
        """Its incarnation."""
        return f"{self.name}.{self.number}"

    @property
    def peer(self) -> str:
        """Its name at the target."""
        return self.who if self.dials else self.name

    def hears(self, said: Transmit[Any]) -> None:
        """The target says something."""
        self.told = [*self.told[-20:], said.body]
        if isinstance(said.body, Hello) and not self.dials:
            self.session, self.seqs = said.session, dict.fromkeys(LANES, 0)

    def greet(self) -> None:
        """A good handshake, as far as this side goes."""
        job, plan = self.world.job, self.world.plan
        if self.dials:
            self.session += 1
            self.seqs = dict.fromkeys(LANES, 0)
        for lane in LANES:
            body = Hello(job.agreement(plan)) if self.dials else Welcome()
            self.say(lane, body, clock={self.who: 1 + self.rng.randrange(50)})

    def speak(self) -> None:
        """Say one thing."""
        rng = self.rng
        if rng.random() < 0.02:
            self.number = rng.choice((1, 1, 2, 3, self.number + 1, 999_999_999))
            self.session = 0 if self.dials else self.session
        linked = self.peer in self.world.nodes[self.target].actor.links.peers()
        if rng.random() < (0.005 if linked else 0.3):
            self.greet()
            return
        kind = rng.choice(KINDS)
        while kind.cls in ENDINGS and rng.random() < 0.95:
            kind = rng.choice(KINDS)
        self.say(rng.choice(LANES), self.draw(kind))

    def say(self, lane: str, body: Any, clock: dict[str, int] | None = None) -> None:
        """Through the wire format and the door, as far as it gets."""
        rng, node = self.rng, self.world.nodes[self.target]
        straight = rng.random() < 0.97
        clock = clock or {self.who: rng.choice((1, 5, 50, 2**62))}
        if rng.random() < 0.05:
            clock = {**clock, rng.choice(TEXTS): rng.choice(INTEGERS)}
        header = Header(
            PROTOCOL_VERSION,
            self.world.job.id,
            self.who if straight else rng.choice(TEXTS),
            self.session if straight else rng.choice(INTEGERS),
            self.seqs[lane] if straight else rng.choice(INTEGERS),
            clock,
            body,
            self._tensors(body),
        )
        try:
            frame = encoder().encode(header)
            head = self.codec.decode_head(frame)
            door_of(self.world, self.target).check(self.peer, head)
        except (LocalProtocolError, RemoteProtocolError):
            self.counts["refused at the door"] += 1
            if rng.random() < 0.05 and node.actor.links.knows(self.peer):
                self.world.admit(node, LaneBroken(self.peer, lane, "refused"))
            return
        self.seqs[lane] += straight
        handle = ""
        if head.tensors:
            handle = f"in/{node.actor.number + 1}"
            node.contents[handle] = self._content(head.body)
        event = MessageArrived(
            self.peer, lane, head.sender, head.session, head.seq, head.clock, head.body,
            b"p" * 16 if handle else b"", handle,
        )  # fmt: skip
        self.counts[type(head.body).__name__] += 1
        self.counts["of an open session"] += node.actor.links.teaches(event)
        self.world.admit(node, event)

    def _tensors(self, body: Any) -> tuple[TensorMeta, ...]:
        """What the body must carry, mostly."""
        plan = self.world.plan
        known = getattr(body, "fragment", 0) < len(plan.fragments)
        if isinstance(body, ContributionSum) and known and body.names:
            layout = compressed_layout(plan, body.fragment, "float32")
            return tuple(TensorMeta(*each, 8, b"d" * 16) for each in layout)
        told = isinstance(body, Contribution) and body.relay is not UNSET
        if told and self.target not in self.world.job.relay:
            return ()
        if isinstance(body, Contribution | GlobalFragment) and known:
            layout = wire_layout(plan, body.fragment)
            return tuple(TensorMeta(*each, 32, b"d" * 16) for each in layout)
        if isinstance(body, StatePiece) and body.pieces:
            meta = TensorMeta("state", (2**24,), "uint8", 8, b"d" * 16)
            return (meta if body.piece < 2 else msgspec.structs.replace(meta, shape=(2**24 - 64,)),)
        return ()

    def _content(self, body: Any) -> Content:
        match body:
            case Contribution():
                return Content((body.fragment, body.base, body.steps, body.step))
            case GlobalFragment():
                return Content((body.fragment, body.version, 0, 0))
            case ContributionSum():
                return Content((body.fragment, 0, SUM, body.t))
            case _:
                device = tuple((0, 0) for _ in self.world.plan.fragments)
                return Content((body.who, device, 0, body.piece, PIECE))

    # Values, by type.

    def draw(self, kind: Any) -> Any:
        """A value of a type, likely or not."""
        rng = self.rng
        match kind:
            case inspect.StructType():
                fields = {each.name: self._field(kind.cls, each) for each in kind.fields}
                return kind.cls(**fields)
            case inspect.IntType():
                return rng.choice((*INTEGERS, *self._near(), -1, rng.randrange(30), TOKENS))
            case inspect.FloatType():
                return rng.choice(FLOATS)
            case inspect.BoolType():
                return rng.random() < 0.5
            case inspect.StrType():
                return rng.choice((*TEXTS, *self._names(), *self._snapshots()))
            case inspect.BytesType():
                return bytes(16)
            case inspect.LiteralType():
                return rng.choice(kind.values)
            case inspect.VarTupleType() | inspect.ListType():
                fragments = len(self.world.plan.fragments)
                size = rng.choice((fragments, fragments, fragments, 0, 1, 40))
                return tuple(self.draw(kind.item_type) for _ in range(size))
            case inspect.TupleType():
                return tuple(self.draw(each) for each in kind.item_types)
            case inspect.DictType():
                size = rng.choice((0, 1, 2, 5))
                items = (
                    (self.draw(kind.key_type), self.draw(kind.value_type)) for _ in range(size)
                )
                return dict(items)
            case inspect.UnionType():
                return self.draw(rng.choice(kind.types))
            case inspect.NoneType():
                return None
            case _:
                raise AssertionError(f"no values are known for {kind}")

    def _field(self, owner: Any, field: Any) -> Any:
        """Now and then exactly what would be right there."""
        rng = self.rng
        if rng.random() < 0.5:
            fitting = {
                "fragment": rng.randrange(len(self.world.plan.fragments)),
                "who": rng.choice(self._names()),
                "donor": rng.choice(self._names()),
                "agreement": self.world.job.agreement(self.world.plan),
                "pieces": 3,
                "piece": rng.randrange(3),
                "snapshot": rng.choice(self._snapshots()),
                "contents": ("f" * 64, "0" * 64),
                "failed": "",
                "t": rng.choice(self._near()),
                "base": rng.choice(self._near()),
                "number": rng.choice(self._near()),
                "version": rng.choice(self._near()),
                "name": rng.choice(self._names()),
                "names": tuple(rng.choices(self._names(), k=rng.randrange(3))),
                "spents": UNSET,
                "relay": rng.choice(("relay-0", UNSET)),
                "form": "float32" if owner is ContributionSum else UNSET,
                "lengths": (1.0, 1.0),
            }
            if field.name in fitting:
                return fitting[field.name]
        return self.draw(field.type)

    def _near(self) -> list[int]:
        """Numbers that the target has spoken of."""
        numbers = [
            value
            for body in self.told
            for value in (getattr(body, name) for name in body.__struct_fields__)
            if isinstance(value, int)
        ]
        return numbers[-8:] or [0]

    def _names(self) -> list[str]:
        incarnations = [node.incarnation for node in self.world.nodes.values()]
        return [*incarnations, *map(actor_of, incarnations), self.who, self.name]

    def _snapshots(self) -> list[str]:
        node = self.world.nodes[self.target]
        told = [body.snapshot for body in self.told if hasattr(body, "snapshot")]
        here = f"{node.incarnation}:{node.actor.number}"
        mine = f"{self.who}:{self.rng.choice((1, 5, 50))}"
        return [
            *told[-4:],
            here,
            mine,
            f"{self.who}:99999999999999999999999",
            f"{self.name}:\u0663",
        ]


def door_of(world: World, target: str) -> ConnectionGuard:
    """Who judges at an actor's door."""
    doors = world.__dict__.setdefault("doors", {})
    if target not in doors:
        admits = admission(world.plan, STATE_BYTES, relays=target in world.job.relay)
        doors[target] = ConnectionGuard(f"{target}.1", world.job.names(), admits)
    return doors[target]


class Stage(World):
    """A world in which one actor's messages are chosen by the test."""

    def __init__(self, job: Any, physics: Physics, target: str, name: str, seed: int) -> None:
        super().__init__(job, physics)
        self.puppet = Puppet(self, target, name, random.Random(f"absurd {seed} {target} {name}"))
        self._doers[Transmit] = self._carry

    def _carry(self, node: Any, said: Transmit[Any]) -> None:
        puppet = self.puppet
        if node.actor_name == puppet.target and actor_of(said.peer) == puppet.name:
            if said.peer in (puppet.who, puppet.name):
                puppet.hears(said)
        else:
            self.switch.transmit(node, said)

    def play(self, messages: int) -> Counter[str]:
        """Let the job run, and the puppet say so much; what it said, by kind."""
        puppet, rng = self.puppet, self.puppet.rng
        for name in self.job.names():
            if name != puppet.name:
                self.start(name)
        self.run(2.0)
        for _ in range(messages):
            node = self.nodes[puppet.target]
            if node.finish is not None or rng.random() < 0.0005:
                self._again(puppet)
            puppet.speak()
            if rng.random() < 0.5:
                self.run(self.now + rng.expovariate(0.5 / SECONDS_EACH))
        self.close()
        return puppet.counts

    def _again(self, puppet: Puppet) -> None:
        """The target starts again: where it was told to stop, and now and then."""
        finish = self.nodes[puppet.target].finish
        lost = finish is not None and LOST in finish.reason  # A data-parallel syncer starts once.
        ends = ("done", "stopped", "left", "bad-input")
        assert finish is None or finish.status in ends or lost, finish
        if finish is None:
            self.kill(puppet.target)
        puppet.counts["began again"] += 1
        self.fragment_memories.clear()
        for name in self.job.names():
            if name != puppet.name:
                self.start(name) if not self.nodes[name].present else None
        puppet.session, puppet.seqs = 0, dict.fromkeys(LANES, 0)
        self.run(self.now + 2.0)
