"""The algorithm of arXiv 2604.21428 again, in plain JAX and numpy, along a recorded run.

It is written from the paper (sections 2 to 5) and shares no arithmetic with the product: AdamW,
fragments by greedy bin packing, weights, RDA, Nesterov, and blocks of quantized differences. What
it takes from a run's tapes is the order alone: which steps a learner did, which versions it had
received before each, after which step it contributed to which merge, who was in a merge, and from
whom a learner that came back had its state. Every number is computed here.
"""

import json
from collections import defaultdict
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial

import jax
import jax.numpy as jnp
import msgspec
import numpy as np

from ddloco.job.protocol.events import Happened
from ddloco.job.protocol.messages import Contribution, GlobalFragment, Resume, StatePiece
from ddloco.job.protocol.work import FragmentDecoded, StateInstalled, StepFinished
from ddloco.replayer.recording import job_of, open_recording
from ddloco.workers.task import load_task
from replay import tape
from transport import MessageArrived

BLOCK = 256
LEVELS = {"int8": 127.0, "int4": 7.0}


@dataclass
class Order:
    """What a learner did, in order: ("receive", fragment, version), ("give", t, fragment, step),
    ("step", number, loss, whether it is the last that was asked for at once) and ("take", donor,
    step, versions)."""

    did: list = field(default_factory=list)
    skipped: int = 0
    """Batches that its earlier incarnations have used."""


def order_of(run):
    """What each incarnation did; the merges as (t, fragment, who is in it); and the contributions
    by global step and incarnation, without their payloads."""
    decode = msgspec.msgpack.Decoder(Happened).decode
    orders, given = defaultdict(Order), {}
    for each in open_recording(run):
        who = each.header.incarnation
        donor, piece, own, ups = "", None, orders[who], {}
        for record in each.records():
            if not isinstance(record, tape.Event):
                continue
            event = decode(record.event)
            body = getattr(event, "body", None)
            if isinstance(event, MessageArrived) and isinstance(body, GlobalFragment):
                # A compressed one is there once it is decoded.
                if body.form is msgspec.UNSET:
                    own.did.append(("receive", body.fragment, body.version))
                else:
                    ups.setdefault(body.fragment, []).append(body.version)
            elif isinstance(event, FragmentDecoded):
                fragment = min(ups, key=lambda p: ups[p][0])
                own.did.append(("receive", fragment, ups[fragment].pop(0)))
                ups = {p: left for p, left in ups.items() if left}
            elif isinstance(event, MessageArrived) and isinstance(body, Resume):
                own.skipped, donor = body.batches, body.donor
            elif isinstance(event, MessageArrived) and isinstance(body, StatePiece):
                piece = body
            elif isinstance(event, StateInstalled) and event.sound:
                own.did.append(("take", donor, piece.copy, piece.versions))
            elif isinstance(event, StepFinished):
                own.did += [
                    ("step", number, each.loss, number == event.step)
                    for number, each in event.steps()
                ]
            elif isinstance(event, MessageArrived) and isinstance(body, Contribution):
                given[body.t, event.sender] = body
    lines = map(json.loads, (run / "log.jsonl").read_text().splitlines())
    merges = [
        (each["t"], each["fragment"], each["learners"])
        for each in lines
        if each["event"] == "merge"
    ]
    return orders, merges, given


def fragments_of(shapes, count, interval):
    """Names by fragment, and offsets: the largest tensor first, into the lightest fragment."""
    bins, weights = [[] for _ in range(count)], [0] * count
    for name in sorted(shapes, key=lambda n: (-shapes[n], n)):
        lightest = weights.index(min(weights))
        bins[lightest].append(name)
        weights[lightest] += shapes[name]
    bins = [sorted(each) for each in bins if each]
    return bins, [p * interval // len(bins) for p in range(len(bins))]


def flat(tree):
    """A pytree of dicts as one dict, with paths as names."""
    found = {}
    for name, each in tree.items():
        if isinstance(each, dict):
            found |= {f"{name}/{below}": leaf for below, leaf in flat(each).items()}
        else:
            found[name] = each
    return found


def nested(named):
    """The inverse of ``flat``."""
    tree = {}
    for name, leaf in named.items():
        *path, last = name.split("/")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        node[last] = leaf
    return tree


def quantized(x, form):
    """What a receiver makes of a difference: levels between plus and minus the largest of each
    block of 256."""
    if form == "float32":
        return x
    values = np.concatenate([x.ravel(), np.zeros(-x.size % BLOCK)]).reshape(-1, BLOCK)
    scale = np.abs(values).max(axis=1, keepdims=True) / LEVELS[form]
    levels = np.rint(np.divide(values, scale, out=np.zeros_like(values), where=scale > 0))
    return (levels * scale).ravel()[: x.size].reshape(x.shape)


@partial(jax.jit, static_argnums=(0,))
def adamw(loss_of, params, moments, batch, number, lr, clip):
    """One step of AdamW without decay (0.9, 0.99), after clipping by the global norm."""
    loss, gradient = jax.value_and_grad(loss_of)(params, batch)
    norm = jnp.sqrt(sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(gradient)))
    gradient = jax.tree.map(lambda g: jnp.where(norm < clip, g, g / norm * clip), gradient)
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], gradient)
    square = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, moments[1], gradient)

    def moved(p, m, v):
        m, v = m / (1 - 0.9**number), v / (1 - 0.99**number)
        return p - lr * m / (jnp.sqrt(v) + 1e-8)

    return jax.tree.map(moved, params, mean, square), (mean, square), loss


class Model:
    """A run computed again.

    Attributes:
        losses: for each incarnation its losses, here and in the run.
        theta: the final global parameters, by name, in float64.
        deltas: for each fragment, the merged differences.
    """

    def __init__(self, run, dtype=np.float32):
        self.orders, merges, self.given = order_of(run)
        job = job_of(open_recording(run)[0])
        self.job, self.dtype = job, dtype
        self.task = load_task(job.job.task, job.task)
        start = flat(self.task.init(jax.random.key(job.job.seed)))
        self.kind = {name: leaf.dtype for name, leaf in start.items()}
        self.theta = {name: np.asarray(leaf, np.float64) for name, leaf in start.items()}
        sizes = {name: leaf.nbytes for name, leaf in start.items()}
        sync = job.sync
        self.bins, self.offsets = fragments_of(sizes, sync.fragments, sync.interval)
        self.velocity = {name: np.zeros_like(leaf) for name, leaf in self.theta.items()}
        self.held = {(p, 0): self._part(p) for p in range(len(self.bins))}
        self.anchors = dict(self.held)
        self.learners, self.losses = {}, defaultdict(list)
        self.at = dict.fromkeys(self.orders, 0)
        self.given_by = {(who, said.fragment, said.step) for (_, who), said in self.given.items()}
        self.copies, self.states = {}, {}
        self.deltas = defaultdict(list)
        self._run(merges)

    def _part(self, p):
        return {name: self.theta[name].copy() for name in self.bins[p]}

    def _run(self, merges):
        for t, p, names in merges:
            assert self.offsets[p] == t % self.job.sync.interval, "another fragment is due"
            self.merge(t, p, names)
        for who in self.orders:
            self.advance(who, None)

    # Learners.

    def advance(self, who, until):
        """Have an incarnation do what it did, up to step ``until``; to its end with None."""
        order = self.orders[who].did
        while self.at[who] < len(order):
            what, *more = order[self.at[who]]
            mine = self.learners.setdefault(who, self._fresh(order))
            if until is not None and mine["step"] >= until:
                return
            self.at[who] += 1
            getattr(self, f"_{what}")(who, mine, *more)

    def _fresh(self, order):
        """A learner that has not begun. It begins with the last first fragment, or with a state."""
        takes = any(what == "take" for what, *_ in order)
        return {"step": 0, "incoming": {}, "coming": {}, "versions": {}, "begun": takes}

    def _receive(self, _who, mine, fragment, version):
        mine["incoming"][fragment] = max(version, mine["incoming"].get(fragment, -1))
        if not mine["begun"] and len(mine["incoming"]) == len(self.bins):
            mine |= {"begun": True, "coming": mine["incoming"], "incoming": {}}

    def _take(self, who, mine, donor, step, versions):
        self.advance(donor, step)
        params, moments, count = self.states[donor, step]
        mine |= {"params": dict(params), "moments": moments, "count": count}
        mine["versions"] = dict(enumerate(versions))
        mine |= {"coming": mine["incoming"], "incoming": {}}
        assert who != donor

    def _step(self, who, mine, number, recorded, last):
        if "params" not in mine:
            zero = {name: np.zeros(leaf.shape, self.dtype) for name, leaf in self.theta.items()}
            mine |= {"params": dict(zero), "moments": (zero, zero), "count": 0}
        if "stream" not in mine:
            index, jobs = int(who.split(".")[0].rpartition("-")[2]), self.job.job
            mine["stream"] = self.task.batches(shard=index, shards=jobs.learners, seed=jobs.seed)
            for _ in range(self.orders[who].skipped):
                mine["stream"].next()
        # A step begins as soon as the one before is done, so what comes later waits for the next.
        for p, version in sorted(mine["coming"].items()):
            if version > mine["versions"].get(p, -1):
                for name, leaf in self.held[p, version].items():
                    mine["params"][name] = leaf.astype(self.dtype)
                mine["versions"][p] = version
        mine["coming"] = {}
        if last:
            mine |= {"coming": mine["incoming"], "incoming": {}}
        mine["count"] += 1
        inner = self.job.inner
        params, moments, loss = adamw(
            self._loss,
            mine["params"],
            mine["moments"],
            mine["stream"].next(),
            mine["count"],
            inner.lr * min(mine["count"] / max(inner.warmup, 1), 1.0),
            inner.clip,
        )
        mine |= {"params": dict(params), "moments": moments, "step": number}
        self.losses[who].append((float(loss), recorded))
        self.states[who, number] = dict(params), moments, mine["count"]
        for p, names in enumerate(self.bins):
            if (who, p, number) in self.given_by:
                copied = {name: np.asarray(params[name], np.float64) for name in names}
                self.copies[who, p, number] = copied, mine["versions"][p]

    def _loss(self, named, batch):
        return self.task.loss(nested(named), batch)

    # The syncer.

    def merge(self, t, p, names):
        """The sync of global step ``t`` (Algorithm 2)."""
        said = {who: self.given[t, who] for who in names}
        for who, each in said.items():
            self.advance(who, each.step)
        weights, moves = [], []
        for who in sorted(names):
            each = said[who]
            theirs, base = self.copies[who, p, each.step]
            assert base == each.base, "it contributed from another version than this one"
            if each.form is not msgspec.UNSET:
                anchor = self.anchors[p, base]
                theirs = {
                    name: anchor[name] + quantized(leaf - self.held[p, base][name], each.form)
                    for name, leaf in theirs.items()
                }
            weights.append(each.tokens * each.tokens / each.steps)
            moves.append({name: self.theta[name] - leaf for name, leaf in theirs.items()})
        outer = self.job.outer
        before = {name: leaf.copy() for name, leaf in self._newest(p).items()}
        merged = []
        for name in self.bins[p]:
            own = [each[name] for each in moves]
            plain = outer.merge == "average" or any(fnmatchcase(name, a) for a in outer.average)
            delta = (mean if plain else radial)(own, weights)
            self.velocity[name] = outer.momentum * self.velocity[name] + delta
            merged.append(delta.ravel())
            step = delta + outer.momentum * self.velocity[name]
            self.theta[name] = self.theta[name] - outer.lr * step
        self.deltas[p].append(np.concatenate(merged))
        self.anchors[p, t] = self._part(p)
        down = self.job.compress.down
        self.held[p, t] = {
            name: before[name] + quantized(self.theta[name] - before[name], down)
            if down != "float32"
            else self.theta[name].copy()
            for name in self.bins[p]
        }

    def _newest(self, p):
        return self.held[p, max(t for q, t in self.held if q == p)]


def mean(moves, weights):
    """The weighted mean."""
    return sum(w * move for w, move in zip(weights, moves, strict=True)) / sum(weights)


def radial(moves, weights):
    """Radial-directional averaging: lengths and directions apart (appendix D.2)."""
    norms = [np.linalg.norm(move) for move in moves]
    units = [move / norm if norm else move for move, norm in zip(moves, norms, strict=True)]
    direction = mean(units, weights)
    length = np.linalg.norm(direction)
    if not length:
        return mean(moves, weights)
    return mean(norms, weights) * direction / length
