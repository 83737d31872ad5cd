"""States whose structure is kept and whose content is absurd, drawn from seeds.

They are made from the states of hostile worlds, each with the events that its actor handled next.
What is read of them handles these events. Meanwhile everything that opens, starts, connects or
deletes is noted by an audit hook, and reading calls nothing but the reader.
"""

import random
import signal
import sys
from collections import defaultdict
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import msgspec

import ddloco.cli.parser  # noqa: F401, what is imported could be named
from ddloco.machines.registry import states_for
from ddloco.simulation.world import World
from snapshot import StateError, write_state
from tests.lab import hostile_world
from tests.lab.hostile_world import draw, happen
from transport import MessageArrived

SEEDS = (3, 7, 24, 36, 45, 141)
EVERY = 41
"""Events between two states of the corpus."""

FOLLOWING = 8
"""Events that what was read of a state handles."""

LIMIT_S = 20.0
"""A state that keeps its reader or its actor busy for so many seconds has no bound."""

WATCHED = ("open", "os.", "subprocess.", "socket.", "shutil.", "ctypes.", "signal.", "pty.",
           "tempfile.", "mmap.", "fcntl.", "_thread.", "code.__new__", "pathlib.")  # fmt: skip

READERS = ("snapshot/states.py", "ddloco/stage/actors/actor.py")
"""The files whose functions may be called while a state is read."""

NAMES = (
    *("Syncer", "Learner", "Coordinator", "Replica", "RunStep", "MergeFragment", "CaptureState"),
    *("Hello", "Progress", "Contribution", "SnapshotPart", "MessageArrived", "TimerFired"),
    *("Redial", "PullDeadline", "MarkerDeadline"),
    *(
        "subprocess:Popen",
        "os:_Environ",
        "builtins:eval",
        "ddloco.stage.driver.driver:Driver",
        "",
        ":",
    ),
)
FIELDS = (
    *("handle", "_advance", "__class__", "__dict__", "__reduce__", "__init__", "type", "machine"),
    *("schedule", "kept", "get", "job", "plan", "clock", "x", "", "a b", "__del__", "links"),
)
NUMBERS = (0, 1, -1, 2, 7, 2**31, 2**63 - 1, -(2**63), 2**64 - 1, 0.5, -0.0, 1e308, -1e308)
ATOMS = (
    *(None, True, False, float("nan"), float("inf"), "", "learner-0.1", "x" * 5000, b"", b"\0"),
    *([], {}, {"a": 1}, [[]], msgspec.msgpack.Ext(-1, bytes(8)), msgspec.msgpack.Ext(5, b"x")),
)

noted: list[str] = []
watching: list[bool] = []


def _note(event, args):
    if watching and event.startswith(WATCHED):
        noted.append(f"{event} {args!r}"[:300])


@cache
def hooked():
    """The audit hook, which Python cannot remove."""
    sys.addaudithook(_note)


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
            states = states_for(self.job, node.incarnation)
            self.corpus.append((states, node.actor.write(), following[-1], self.job))


@cache
def corpus():
    """States of hostile worlds: each with its reader, the events that follow and its job."""
    found = []
    before, hostile_world.World, Kept.corpus = hostile_world.World, Kept, found
    try:
        for seed in SEEDS:
            assert happen(draw(seed)).violation is None
    finally:
        hostile_world.World = before
    for states, data, _, _ in found:
        states.read(data)  # The decoder of each type is made once.
    return found


def absurd(rng):
    """A state of the corpus with a few absurd changes, with what belongs to it."""
    states, data, events, job = rng.choice(corpus())
    for _ in range(rng.choice([1, 1, 1, 2, 4, 16])):
        if rng.random() < 0.1:
            data = damaged(rng, data)
            continue
        try:
            plain = msgspec.msgpack.decode(data)
            rng.choice(CHANGES)(rng, [*holders_of(plain)])
            data = msgspec.msgpack.encode(plain)
        except (IndexError, TypeError, ValueError, RecursionError):  # It was damaged before.
            data = damaged(rng, data)
    return states, data, events, job


def damaged(rng, data):
    """Bytes of a state that were changed, cut, or are there twice."""
    at, to = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    return rng.choice(
        [
            data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :],
            data[:at],
            data[:to] + data[at:],
            data[:at] + b"\x91" * rng.choice([50, 5000]) + data[at:],
        ]
    )


def holders_of(plain):
    """Every list and dict that holds anything."""
    if isinstance(plain, dict | list) and plain:
        yield plain
        for each in plain.values() if isinstance(plain, dict) else plain:
            yield from holders_of(each)


def _place(rng, holder):
    return rng.choice([*holder] if isinstance(holder, dict) else range(len(holder)))


def value(rng, holders):
    """Anything that may stand in a state, and some that may not."""
    choices = [NUMBERS, ATOMS, NAMES, FIELDS, holders]
    found = rng.choice(rng.choice(choices))
    return msgspec.msgpack.decode(msgspec.msgpack.encode(found)) if found in holders else found


def an_item(rng, holders):
    """One value becomes another."""
    holder = rng.choice(holders)
    holder[_place(rng, holder)] = value(rng, holders)


def alike(rng, holders):
    """One number or text becomes another: the type stays what it was."""
    for holder in rng.sample(holders, len(holders)):
        at = _place(rng, holder)
        kind = type(holder[at])
        if kind in {int, float}:
            holder[at] = kind(rng.choice(NUMBERS[:9]))
            return
        if kind is str:
            holder[at] = rng.choice([*NAMES, *FIELDS, "learner-0.1", "syncer.1", "bulk"])
            return


def a_key(rng, holders):
    """A field or a key has another name, is there once more, or is gone."""
    holder = rng.choice([each for each in holders if isinstance(each, dict)])
    at = _place(rng, holder)
    new = rng.choice([*FIELDS, *NUMBERS[:8], *(key for each in holders[:9] for key in each
                                              if isinstance(key, str | int))])  # fmt: skip
    how = rng.randrange(3)
    if how:
        holder[new] = holder[at]
    if how < 2:
        holder.pop(at, None)


def two_values(rng, holders):
    """Two values stand in each other's place."""
    one, other = rng.choice(holders), rng.choice(holders)
    here, there = _place(rng, one), _place(rng, other)
    one[here], other[there] = (
        msgspec.msgpack.decode(msgspec.msgpack.encode(each)) for each in (other[there], one[here])
    )


def a_length(rng, holders):
    """A list is longer or shorter."""
    lists = [each for each in holders if isinstance(each, list)]
    found = rng.choice(lists)
    found[:] = rng.choice([found[:-1], found * 2, found[::-1], [*found, value(rng, holders)]])


CHANGES = (an_item, alike, alike, alike, alike, a_key, two_values, a_length)


def absurd_flight(rng):
    """Messages in flight with absurd changes, and the reader of their receiver's states."""
    states, _, events, _ = rng.choice(corpus())
    arrived = [event for _, event in events if isinstance(event, MessageArrived)]
    plain = msgspec.msgpack.decode(write_state(arrived))
    for _ in range(rng.choice([1, 2, 4])):
        try:
            rng.choice(CHANGES)(rng, [*holders_of(plain)])
        except (IndexError, TypeError):
            break
    return states, msgspec.msgpack.encode(plain)


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


DEFAULTS = {"new_lanes", "new_lanes.<locals>.<dictcomp>"}
"""Functions that make the value of a field that a state lacks; they are declared with the field."""


def called_by(states, data):
    """The functions outside of the reader that are called while a state is read."""
    called = set()

    def profile(frame, event, _):
        code = frame.f_code
        if event == "call" and not code.co_filename.endswith(READERS):
            called.add((code.co_filename, code.co_qualname))

    sys.setprofile(profile)
    try:
        states.read(data)
    except StateError:
        pass
    finally:
        sys.setprofile(None)
    repository = str(Path(__file__).parents[2])
    return {
        name
        for file, name in called
        if file.startswith(repository) and "/.venv/" not in file and file != __file__
        if not (name in DEFAULTS and file.endswith("transport/link_state.py"))
    }


def try_states(seed, count, *, profiled):
    """Read so many absurd states and let their actors go on; returns how many were refused, and
    how many actors handled everything, or raised."""
    rng, outcomes = random.Random(seed), defaultdict(int)
    corpus()
    for _ in range(count):
        states, data, events, job = absurd(rng)
        if profiled:
            called = called_by(states, data)
            assert not called, called
        with watched():
            outcomes[_outcome(states, data, events, job)] += 1
        assert not noted, noted
    return outcomes


def _outcome(states, data, events, job):
    try:
        with ended_after(LIMIT_S):
            actor = states.read(data)
    except StateError as error:
        return "refused" if "\n" not in str(error) else "said in two lines"
    actor.machine.job = job
    try:
        with ended_after(LIMIT_S):
            for at, event in events:
                actor.handle(at, event)
    except Exception:  # noqa: BLE001, a player takes any for a divergence
        return "raised"
    return "handled"
