"""States whose structure is kept and whose content is absurd, drawn from seeds.

They are made from the states of hostile worlds, each with the events that its actor handled next.
What is read of them handles these events. Meanwhile everything that opens, starts, connects or
deletes is noted by an audit hook, and reading calls nothing but the readers.
"""

import importlib
import random
import signal
import sys
from collections import defaultdict
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import msgspec

import ddloco.cli.parser  # noqa: F401, what is imported could be named
from ddloco.roles.resume import settings
from ddloco.simulation import fuzz
from ddloco.simulation.fuzz import draw, happen
from ddloco.simulation.world import World
from ddloco.stage.actors.actor import Actor
from ddloco.stage.actors.state_types import JOB_STATES, LISTED
from snapshot import FreezeError, freeze, thaw
from snapshot.state_types import attribute_names

SEEDS = (3, 7, 24, 36, 45, 141)
EVERY = 41
"""Events between two states of the corpus."""

FOLLOWING = 8
"""Events that what was read of a state handles."""

LIMIT_S = 20.0
"""A state that keeps its reader or its actor busy for so many seconds has no bound."""

WATCHED = ("open", "os.", "subprocess.", "socket.", "shutil.", "ctypes.", "signal.", "pty.",
           "tempfile.", "mmap.", "fcntl.", "_thread.", "code.__new__", "pathlib.")  # fmt: skip

READERS = tuple(f"snapshot/{name}.py" for name in ("freeze", "thaw", "state_types"))
"""The files whose functions may be called while a state is read; ``<string>`` is the generated code
of dataclasses, which compares and hashes what is a key."""

STRANGERS = (
    *("subprocess:Popen", "os:_Environ", "pathlib:Path", "builtins:eval", "threading:Thread"),
    *("ddloco.workers.forking:ForkServerProcess", "ddloco.stage.driver.driver:Driver"),
    *("transport.zeromq:ZeromqEndpoint", "snapshot.store:Store", "functools:partial", "", ":", "a"),
)
METHODS = (
    *("handle", "_advance", "__class__", "__dict__", "__reduce__", "__init__", "perform", "tick"),
    *("schedule", "kept", "get", "append", "machine", "_job", "_plan", "x", "", "a b", "__del__"),
)
NUMBERS = (0, 1, -1, 2, 7, 2**31, 2**63 - 1, -(2**63), 2**64 - 1, 0.5, -0.0, 1e308, -1e308)
ATOMS = (None, True, False, float("nan"), float("inf"), "", "learner-0.1", "x" * 5000, b"", b"\0")

noted: list[str] = []
watching: list[bool] = []


def _note(event, args):
    if watching and event.startswith(WATCHED):
        noted.append(f"{event} {args!r}"[:300])


@cache
def hooked():
    """The audit hook, which Python cannot remove; and every declared attribute, read beforehand."""
    sys.addaudithook(_note)
    for module, names in LISTED.items():
        for each in [*vars(importlib.import_module(module)).values()]:
            if isinstance(each, type) and (each.__name__ in names or "*" in names):
                attribute_names(each)


class Kept(World):
    """A world that keeps states, and what their actors handled next."""

    corpus = ()

    def admit(self, node, event):
        self.coming = getattr(self, "coming", defaultdict(list))
        following = self.coming[node.actor.incarnation]
        super().admit(node, event)
        for each in following:
            each.append((node.at, event))
        following[:] = [each for each in following if len(each) < FOLLOWING]
        if self.events % EVERY == 0:
            following.append([])
            state = freeze(node.actor, JOB_STATES)
            self.corpus.append((state, following[-1], settings(self.job)))


@cache
def corpus():
    """States of hostile worlds, each with the events that follow and its job's settings, which are
    never those of the state."""
    found = []
    before, fuzz.World, Kept.corpus = fuzz.World, Kept, found
    try:
        for seed in SEEDS:
            assert happen(draw(seed)).violation is None
    finally:
        fuzz.World = before
    return found


def absurd(rng):
    """A state of the corpus with a few absurd changes, its events and its settings."""
    data, events, given = rng.choice(corpus())
    version, nodes, root = msgspec.msgpack.decode(data)
    for _ in range(rng.choice([1, 1, 1, 2, 4, 16])):
        rng.choice(CHANGES)(rng, nodes)
    return msgspec.msgpack.encode([version, nodes, root]), events, given


def value(rng, nodes):
    """Anything that may stand in a state, and some that may not."""
    number = rng.randrange(len(nodes))
    return rng.choice(
        [
            rng.choice(NUMBERS),
            rng.choice(ATOMS),
            rng.choice(METHODS),
            ["r", number],
            ["r", rng.choice([-1, len(nodes), 2**63, "0", None])],
            ["m", ["r", number], rng.choice(METHODS)],
            ["e", rng.choice([*NAMES, *STRANGERS]), rng.choice(METHODS)],
            ["i", rng.choice(["0x1" + "0" * 200, "-0x1" + "f" * 900, "1" * 3000, "0x", 5])],
            ["t", *[["r", number]] * rng.randrange(3)],
            ["f", *[["r", number]] * rng.randrange(2)],
            ["u"],
            [],
            {"a": 1},
        ]
    )


NAMES = tuple(
    f"{module}:{name}" for module, names in LISTED.items() for name in names if name != "*"
)


def fields(rng, nodes):
    """A node of an object, and its attributes; both may be of an earlier change."""
    node = rng.choice(nodes)
    while len(node) < 3 or not isinstance(node[2], dict):
        node = rng.choice(nodes)
    return node, node[2]


def an_item(rng, nodes):
    """One value of a node becomes another."""
    node = rng.choice(nodes)
    if len(node) > 2 and isinstance(node[2], dict) and node[2]:
        node[2][rng.choice([*node[2]])] = value(rng, nodes)
    elif len(node) > 1:
        node[rng.randrange(1, len(node))] = value(rng, nodes)


def a_number(rng, nodes):
    """One number of a node becomes another: the type stays what it was."""
    node = rng.choice(nodes)
    holder = node[2] if len(node) > 2 and isinstance(node[2], dict) else node
    places = holder if isinstance(holder, dict) else range(1, len(holder))
    numbers = [at for at in places if type(holder[at]) in {int, float}]
    if numbers:
        at = rng.choice(numbers)
        holder[at] = type(holder[at])(rng.choice([*NUMBERS[:9]]))


def alike(rng, nodes):
    """A text or a reference becomes another of its kind: the type stays what it was."""
    _, mine = fields(rng, nodes)
    for name in rng.sample([*mine], len(mine)):
        held = mine[name]
        if type(held) is str:
            mine[name] = rng.choice([*METHODS, *STRANGERS, "learner-0.1", "syncer.1", "bulk"])
            return
        if isinstance(held, list) and held[:1] == ["r"] and held[1] in range(len(nodes)):
            kind = nodes[held[1]][:2]
            fit = [at for at, each in enumerate(nodes) if each[:2] == kind or each[0] == "d"]
            mine[name] = ["r", rng.choice(fit or [0])]
            return


def a_class(rng, nodes):
    """An object is of another class, listed or not."""
    fields(rng, nodes)[0][1] = rng.choice(rng.choice([NAMES, STRANGERS]))


def a_name(rng, nodes):
    """An attribute has another name."""
    (_, mine), (_, others) = fields(rng, nodes), fields(rng, nodes)
    if mine:
        mine[rng.choice([*METHODS, *others])] = mine.pop(rng.choice([*mine]))


def another_name(rng, nodes):
    """An object has one attribute more, or one less."""
    _, mine = fields(rng, nodes)
    if rng.random() < 0.5:
        mine[rng.choice(METHODS)] = value(rng, nodes)
    elif mine:
        del mine[rng.choice([*mine])]


def two_nodes(rng, nodes):
    """Two objects stand in each other's place."""
    one, other = rng.randrange(len(nodes)), rng.randrange(len(nodes))
    nodes[one], nodes[other] = nodes[other], nodes[one]


def a_reference(rng, nodes):
    """A node is the same as another, so that a state may lead back to itself."""
    node = rng.choice(nodes)
    if len(node) > 2 and isinstance(node[2], dict) and node[2]:
        node[2][rng.choice([*node[2]])] = ["r", rng.randrange(len(nodes))]
    else:
        node.append(["r", rng.randrange(len(nodes))])


def a_kind(rng, nodes):
    """A container is of another kind."""
    rng.choice(nodes)[0] = rng.choice(["l", "d", "s", "q", "o", "S", "m", "", None])


CHANGES = (
    *(
        an_item,
        a_number,
        a_number,
        a_number,
        alike,
        alike,
        alike,
        a_class,
        a_name,
        another_name,
        two_nodes,
    ),
    *(a_reference, a_kind),
)


class Busy(BaseException):
    """What ends a state that keeps its reader or its actor busy."""


@contextmanager
def ended_after(seconds):
    """End what takes longer than this."""

    def late(_, frame):
        raise Busy(f"still busy after {seconds} s: {frame.f_code.co_qualname}")

    former = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


@contextmanager
def watched():
    """Note what is opened or started."""
    hooked()
    noted.clear()
    watching.append(True)
    try:
        yield
    finally:
        watching.clear()


def called_by(data, given):
    """The functions outside of the readers that are called while a state is read."""
    called = set()

    def profile(frame, event, _):
        code = frame.f_code
        if event == "call" and not code.co_filename.endswith(READERS):
            called.add((code.co_filename, code.co_qualname))

    sys.setprofile(profile)
    try:
        thaw(data, JOB_STATES, given)
    except FreezeError:
        pass
    finally:
        sys.setprofile(None)
    repository = str(Path(__file__).parents[2])
    return {
        name
        for file, name in called
        if file.startswith(repository) and "/.venv/" not in file and file != __file__
    }


def try_states(seed, count, *, profiled):
    """Read so many absurd states and let their actors go on; returns how many were refused, and
    how many actors handled everything, raised, or could not be read."""
    rng, outcomes = random.Random(seed), defaultdict(int)
    for _ in range(count):
        data, events, given = absurd(rng)
        if profiled:
            called = called_by(data, given)
            assert not called - MAY_BE_CALLED, called
        with watched():
            outcomes[_outcome(data, events, given)] += 1
        assert not noted, noted
    return outcomes


MAY_BE_CALLED = {"RunningClock.__eq__", "RunningClock.__hash__", "RunningClock.__len__"}


def _outcome(data, events, given):
    try:
        with ended_after(LIMIT_S):
            actor = thaw(data, JOB_STATES, given)
    except FreezeError:
        return "refused"
    if not isinstance(actor, Actor):
        return "no actor"
    try:
        with ended_after(LIMIT_S):
            for at, event in events:
                actor.handle(at, event)
    except Exception:  # noqa: BLE001, a player takes any for a divergence
        return "raised"
    return "handled"
