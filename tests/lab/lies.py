"""Lying heads: messages of a peer in which one field says what cannot be, or what is not so.

A liar computes and sends what it should, but for one field at a time, of the body or of the header.
Each field of each kind of message is drawn with the same chance, and a value that is extreme, or
near, or that of somebody else. What the codec or the admission of the receiver refuses breaks the
lane there, as in a live job; the rest reaches the machine.
"""

import math
import random
from collections import Counter
from collections.abc import Collection, Sequence
from copy import copy
from typing import Any

import msgspec
from msgspec.structs import replace

from clocks import actor_of
from ddloco.job.protocol.messages import DataPlace, JobBody, Progress, StatePiece
from ddloco.job.protocol.validation import Layouts, admission
from ddloco.job.protocol.work import FragmentMerged
from ddloco.machines.syncer.outlier_history import FEW
from ddloco.replayer.invariants.base import Effects, InvariantCheck, hold
from ddloco.simulation.node import Node
from ddloco.simulation.world import World
from ddloco.stage.actors.effects import Finish, Observe
from ddloco.stage.driver.connection_guard import ConnectionGuard
from transport import Codec, Event, LaneBroken, MessageArrived, RemoteProtocolError, Transmit
from transport.codec import SENDABLE
from transport.message import GREETINGS, PROTOCOL_VERSION, Header, TensorMeta

COUNTS = (0, 1, 2, 255, 4096, 2**31, 2**53, 2**63 - 1, -1, -(2**63))
NUMBERS = (0.0, -1.0, 1e-300, 1e9, 1e38, 1e308, math.inf, -math.inf, math.nan)
BYTES = (b"", b"\x00", b"\xc1\xff\x00", bytes(4096))
LONG = "x" * 128
ITSELF = "of-itself-only"
TOKENS = "more tokens"
DOUBTED = (TOKENS, "more steps", "not finite", "too ", "trained from", "nothing was trained")
"""How reasons begin that an honest learner can give no cause for."""

SELDOM = 0.1
"""How much more seldom a greeting is a lie than what follows."""

RELIED_ON = {StatePiece: ("piece", "copy", "pieces"), DataPlace: ("cursor",), Progress: ("cursor",)}
"""What is as good as the numbers of a donor's state, and as the stream of a data shard, which are
of the sender alone, and relied on by who has them next."""

LEAST = 1e-10
"""The least weight of honest contributions together, beside those of a liar."""

SHORT = 16
"""A job of fewer steps may end while one answer is waited for that a lie has spoiled."""

AGAIN_S = 5.0
"""Seconds between two looks whether somebody's lies have ended it."""

HEAD = ("session", "seq", "clock")
"""The fields of a header that a sender can lie in; its name is that of its connection."""


def lies_of(value: Any, rng: random.Random, names: Sequence[str]) -> Any:
    """Another value of the type of ``value``, drawn; ``names`` are those of actors."""
    match value:
        case bool():
            return not value
        case int():
            return rng.choice((*COUNTS, value + 1, value - 1, 2 * value + 1))
        case float():
            return rng.choice((*NUMBERS, value * 2, -value))
        case str():
            return rng.choice(("", LONG, *names))
        case bytes():
            return rng.choice(BYTES)
        case tuple() | list():
            return _of_sequence(tuple(value), rng, names)
        case dict():
            key = rng.choice(names)
            return {**value, key: lies_of(value.get(key, 0), rng, names)}
        case msgspec.Struct():
            return lie_in(value, rng, names)[1]
        case _:  # None, and what a message does not have.
            return rng.choice((0, 1.0, "", (), names[0]))


def _of_sequence(value: tuple[Any, ...], rng: random.Random, names: Sequence[str]) -> Any:
    """One element less, more, or another one."""
    if not value:
        return rng.choice(((0,), (names[0],), ((),)))
    index, how = rng.randrange(len(value)), rng.randrange(5)
    if how == 0:
        return value[:index] + value[index + 1 :]
    if how == 1:
        return (*value, value[index])
    return (*value[:index], lies_of(value[index], rng, names), *value[index + 1 :])


def lie_in(body: Any, rng: random.Random, names: Sequence[str]) -> tuple[str, Any]:
    """A field of a struct, drawn, and the struct with another value in it."""
    relied_on = RELIED_ON.get(type(body), ())
    field = rng.choice([each for each in body.__struct_fields__ if each not in relied_on])
    return field, replace(body, **{field: lies_of(getattr(body, field), rng, names)})


class Liars:
    """The liars of a world: ``lie`` begins, with a chance for each message, and ``stop`` ends it.

    Attributes:
        told: how many lies were told, by kind of message and field.
        refused: how many of them the receiver's codec or admission refused.
    """

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._rng = random.Random(f"lies {seed}")
        self._chance: dict[str, float] = {}
        self._said: dict[int, tuple[Any, Any]] = {}
        self._arrive, self._transmit = world.switch.arrive, world.switch.transmit
        world.switch.arrive = self._arrives
        world._doers[Transmit] = self._transmits
        self._codec = Codec[Any](JobBody, "hostile")
        formats = world.job.compress.up, world.job.compress.down
        self._layouts = {
            relays: Layouts(world.plan, 0, *formats, relays=relays) for relays in (False, True)
        }
        self._admits = {
            relays: admission(world.plan, 0, *formats, relays=relays) for relays in (False, True)
        }
        self.told: Counter[tuple[str, str]] = Counter()
        self.refused = 0

    def begin(self, who: str, chance: float) -> None:
        self._chance[who] = chance

    def end(self, who: str) -> None:
        """From now on it says the truth; if its lies end it, a person starts it again; and a shard
        in any case, since learners that know of events that it has not had cannot go without it."""
        del self._chance[who]
        shard = self._world.nodes[who] if who in self._world.job.syncer_names() else None
        if shard is not None and shard.present and not self._world.over:
            self._world.kill(who)
            self._world.start(who)
        self._again(who)

    def _again(self, who: str) -> None:
        """Start the liar again, and whoever has left to be started again."""
        if self._world.over:
            return
        for name, node in list(self._world.nodes.items()):
            status = node.finish.status if node.finish is not None else "done"
            if not node.present and (status == "left" or (name == who and status != "done")):
                self._world.start(name)
        self._world.call(self._world.now + AGAIN_S, self._again, who)

    def _transmits(self, node: Node, said: Transmit[Any]) -> None:
        chance = self._chance.get(node.actor_name, 0.0)
        if type(said.body) in GREETINGS:
            chance *= SELDOM  # Or there would be no link over which to lie.
        if said.peer in self._relied_on_by(node.actor_name):
            chance = 0.0
        if chance and self._rng.random() < chance:
            said = copy(said)  # Told apart by its identity.
            self._said[id(said)] = said, self._lie(node, said)
        self._transmit(node, said)

    def _relied_on_by(self, who: str) -> Collection[str]:
        """Whom a liar tells the truth: members take their fragments from their relay, and learners
        those of a shard from that."""
        job = self._world.job
        if who not in job.relay and who not in job.syncer_names():
            return ()
        nodes = self._world.nodes.values()
        return [each.incarnation for each in nodes if each.actor_name not in job.syncer_names()]

    def _lie(self, node: Node, said: Transmit[Any]) -> Transmit[Any]:
        names = [*self._world.nodes, *(each.incarnation for each in self._world.nodes.values())]
        names += ["learner-99", "learner-0.99", "syncer.9", "nobody"]
        field = self._rng.choice(HEAD) if self._rng.random() < 0.1 else "body"
        value = getattr(said, field)
        if field == "clock":
            names = [node.incarnation, self._world.nodes[actor_of(said.peer)].incarnation]
        if field == "body" and value.__struct_fields__:
            at, changed = lie_in(value, self._rng, names)
            self.told[type(value).__name__, at] += 1
        else:
            at, changed = field, lies_of(value, self._rng, names)
            self.told["header", at] += 1
        return replace(said, **{field: changed})

    def _arrives(self, node: Node, item: Any) -> None:
        said, sender, content, line, way, generation = item
        here = generation == line.generation and not line.ways[way].held
        if not here or id(said) not in self._said:
            self._arrive(node, item)
            return
        true, lied = self._said.pop(id(said))
        reason = self._objection(node, sender, lied, true.body)
        if reason:
            self.refused += 1
            peer = actor_of(sender) if way == "from-syncer" else sender
            self._world.admit(node, LaneBroken(peer, said.lane, reason))
            return
        self._arrive(node, (lied, sender, content, line, way, generation))

    def _objection(self, node: Node, sender: str, lied: Transmit[Any], true: Any) -> str:
        """Why a live receiver would not take a message; empty if it would."""
        relays = node.actor_name in self._world.job.relay
        admits = self._admits[relays]
        try:
            layout = self._layouts[relays].of(true) or ()
            admits(self._header(sender, lied, true, layout))  # The truth, as it would be taken.
        except RemoteProtocolError:
            admits, layout = lambda _: None, ()
        try:
            header = self._header(sender, lied, lied.body, layout)
            actors = self._world.job.names()
            guard = ConnectionGuard(node.incarnation, actors, admits)
            guard.check(sender, self._codec.decode_head(self._codec.encode(header, None)[0][0]))
        except (RemoteProtocolError, TypeError, OverflowError, ValueError) as error:
            return f"header: {error}"
        return ""

    def _header(self, sender: str, said: Transmit[Any], body: Any, layout: Any) -> Header[Any]:
        metas = tuple(
            TensorMeta(name, shape, dtype, SENDABLE[dtype].itemsize * 8, bytes(16))
            for name, shape, dtype in layout
        )
        head = PROTOCOL_VERSION, "hostile", sender, said.session, said.seq, said.clock
        return Header(*head, body, metas)


class Unless(InvariantCheck[World, Node]):
    """Another check, of all but what liars say."""

    def __init__(self, check: InvariantCheck[World, Node], liars: Collection[str]) -> None:
        super().__init__()
        self._check, self._liars = check, liars

    def started(self, stage: World, role: Node) -> None:
        """Tell the check."""
        self._check.started(stage, role)

    def died(self, stage: World, role: Node) -> None:
        """Tell the check."""
        self._check.died(stage, role)

    def see(self, stage: World, role: Node, event: Event, effects: Effects) -> None:
        """Tell the check of what happens, but for lies that arrive."""
        if not (isinstance(event, MessageArrived) and actor_of(event.sender) in self._liars):
            self._check.see(stage, role, event, effects)


class OfItselfOnly(InvariantCheck[World, Node]):
    """of-itself-only: whatever a liar says, nobody else's contribution is refused for it, nobody
    else ends, and the job is done."""

    invariants = (ITSELF,)

    def __init__(self, liars: Collection[str]) -> None:
        super().__init__()
        self._liars = frozenset(liars)
        self._doubted: Counter[str] = Counter()

    def observed(self, role: Node, what: Observe) -> None:
        """A syncer says what it refused."""
        who = what.fields.get("learner", "")
        if what.event == "refused" and actor_of(who) not in self._liars:
            reason = what.fields["reason"]
            own = not reason.startswith(DOUBTED)
            if reason.startswith(TOKENS):  # The next ones are compared with its own.
                self._doubted[who] += 1
                own = self._doubted[who] <= FEW
            hold(own, ITSELF, f"{role.incarnation} refused {who}, which said the truth: {reason}")

    def see(self, stage: World, role: Node, event: Event, effects: Effects) -> None:
        """No honest actor ends but at the job's end, or as it was asked to; and none weighs
        nothing."""
        if isinstance(event, FragmentMerged):
            given = zip(event.accepted, event.weights, strict=True)
            others = [weight for who, weight in given if actor_of(who) not in self._liars]
            said = f"{role.incarnation}: {event.accepted} weigh {event.weights}"
            self.hold(not others or sum(others) >= LEAST, ITSELF, said)
        for effect in effects:
            if isinstance(effect, Finish) and role.actor_name not in self._liars:
                said = f"{role.incarnation} has ended: {effect.status}, {effect.reason}"
                # A shard that lies merges little; what is of it may be as it was initialized.
                own = bool(self._liars & {*stage.job.syncer_names()})
                little = own or stage.job.job.steps < SHORT
                never = little and "never merged" in effect.reason
                self.hold(never or effect.status in ("done", "left"), ITSELF, said)
