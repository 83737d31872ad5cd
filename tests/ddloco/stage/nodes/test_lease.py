"""At most one process acts as an actor, whatever is stopped for however long."""

import contextlib
import io
import os
import random
import signal
import subprocess
import sys

import pytest

from ddloco.stage.nodes.lease import (
    BEAT_S,
    HOLD_S,
    LOOK_S,
    SIGNS_KEPT,
    SILENT_S,
    Lease,
    LeaseLostError,
    LeaseTakenError,
)
from snapshot import StorageError, open_place
from tests.bucket import LOST, found_by_fsspec
from tests.seeds import seeds


class Clock:
    """Time that goes on when somebody says so."""

    def __init__(self):
        self.now = 100.0

    def sleep(self, seconds):
        """Let time pass."""
        self.now += seconds


@pytest.fixture
def clock():
    """Time by hand."""
    return Clock()


def look(lease, sleep, **how):
    """Look until the last holder acts no more; returns how many times it did."""
    looks = 0
    while lease.look(**how) is not None:
        looks += 1
        sleep(LOOK_S)
    return looks


@pytest.fixture
def new(tmp_path, clock):
    """Makes leases of the syncer in one folder, by default of processes of different hosts."""

    def make(boot="", locks=None, sleep=None, **how):
        made = Lease(open_place(tmp_path), "syncer", locks, now=lambda: clock.now, boot=boot)
        look(made, sleep or clock.sleep, **how)
        return made

    return make


def taken(new, incarnation, **more):
    """A lease that is held."""
    held = new(**more)
    held.take(incarnation)
    return held


def test_the_holder_holds_it_while_it_renews(new, clock):
    """For HOLD_S after the last renewal, and for as long as it renews."""
    held = taken(new, "syncer.1")
    for _ in range(20):
        clock.now += BEAT_S
        held.renew()
    clock.now += HOLD_S
    assert held.holds()
    clock.now += 0.001
    assert not held.holds()


def test_a_second_one_is_refused_while_the_first_lives(new, clock):
    """The error names the one that lives."""
    held = taken(new, "syncer.1")

    def sleep(seconds):
        clock.now += seconds
        held.renew()

    with pytest.raises(LeaseTakenError, match=r"syncer\.1 on .*, process \d+ acts in "):
        new(sleep=sleep)


def test_a_standby_waits_for_as_long_as_the_holder_lives(new, clock):
    """It takes over as soon as a successor may that was started just then."""
    held, until = taken(new, "syncer.1"), clock.now + 100

    def sleep(seconds):
        clock.now += seconds
        if clock.now < until:
            held.renew()

    assert 1 == new(sleep=sleep, standby=True).predecessor
    assert until + SILENT_S - LOOK_S <= clock.now <= until + SILENT_S + 2 * LOOK_S


def test_a_silent_holder_is_waited_for_and_then_succeeded(new, clock):
    """The successor knows its number; the older one is told, and stays lost."""
    old, before = taken(new, "syncer.4"), clock.now
    found = new()
    assert SILENT_S <= clock.now - before < SILENT_S + 1
    assert 4 == found.predecessor
    found.take("syncer.5")
    for act in (old.confirm, old.renew, old.confirm):
        with pytest.raises(LeaseLostError, match=r"^syncer\.5 on .* acts as syncer now$"):
            act()
    assert not old.holds()
    assert found.holds()


def test_one_that_was_stopped_goes_on_if_nobody_took_its_place(new, clock):
    """It claims the next number itself, so that whoever waits sees that it lives."""
    held = taken(new, "syncer.1")
    clock.now += 100
    assert not held.holds()
    held.confirm()
    assert held.holds()
    clock.now += 100
    held.renew()
    assert held.holds()


def test_an_end_is_not_waited_for(new, clock):
    """Neither one that was said, nor that of a process of this host."""
    taken(new, "syncer.1").close()
    before = clock.now
    assert 1 == new().predecessor
    assert before == clock.now


CHILD = """
import sys
from pathlib import Path
from ddloco.stage.nodes.lease import Lease
from snapshot import open_place
held = Lease(open_place(sys.argv[1]), "syncer", Path(sys.argv[1]))
assert held.look() is None
held.take("syncer.7")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_killed_process_of_this_host_is_succeeded_at_once(tmp_path):
    """The kernel knows that it has ended; of a stopped one it knows that it has not."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    assert b"held\n" == child.stdout.readline()
    os.kill(child.pid, signal.SIGSTOP)
    stopped = Lease(open_place(tmp_path), "syncer", tmp_path, now=lambda: 0.0)
    assert stopped.look().process == child.pid
    assert stopped.look().process == child.pid
    child.kill()
    child.communicate()
    next_one = Lease(open_place(tmp_path), "syncer", tmp_path)
    assert next_one.look() is None
    assert 7 == next_one.predecessor
    next_one.take("syncer.8")
    assert 1 == len(list((tmp_path / "syncer").glob("*.lock")))
    next_one.close()
    assert [] == list((tmp_path / "syncer").glob("*.lock"))


def test_of_two_successors_one_wins(new, clock):
    """Both have waited; the claim is made only once."""
    taken(new, "syncer.1")
    one, other = new(), new()
    one.take("syncer.2")
    with pytest.raises(LeaseTakenError, match=r"syncer\.2 on"):
        other.take("syncer.2")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("answer", [None, LOST])
def test_a_lease_in_an_object_store(tmp_path, clock, answer):
    """Of two successors one wins, also if the answer to its claim is lost and it asks again."""
    with found_by_fsspec(tmp_path / "bucket") as bucket:
        seen = set()

        def judge(_who, name):
            first = name not in seen and "beat" not in name
            seen.add(name)
            return answer if first else None

        bucket.judge = judge
        place = open_place("s3://bucket/run/lease")
        old, new, late = (
            Lease(place, "syncer", now=lambda: clock.now, boot=str(n)) for n in range(3)
        )
        assert old.look() is None
        old.take("syncer.1")
        assert old.holds()
        look(new, clock.sleep)
        look(late, clock.sleep)
        new.take("syncer.2")
        with pytest.raises(LeaseTakenError, match=r"syncer\.2 on"):
            late.take("syncer.2")
        with pytest.raises(LeaseLostError, match=r"syncer\.2 on"):
            old.confirm()


@pytest.mark.parametrize("damage", [b"", b"{}", b"\xff\x00", b'{"incarnation":1}'])
def test_a_damaged_claim_is_named(new, tmp_path, damage):
    """One line, with the file."""
    taken(new, "syncer.1")
    (tmp_path / "syncer" / "00000001.json").write_bytes(damage)
    with pytest.raises(StorageError, match=r"00000001\.json: no claim of a lease"):
        new()


def test_a_full_disk_ends_nobody(new, clock, monkeypatch):
    """Where a beat cannot be written, no claim can be."""
    held = taken(new, "syncer.1")

    def full(*_):
        error = StorageError("beat.json: cannot be written: No space left on device")
        error.errno = 28
        raise error

    monkeypatch.setattr(held._place, "put", full)
    for _ in range(10):
        clock.now += BEAT_S
        held.renew()
    assert held.holds()


def test_of_a_place_that_cannot_be_reached_nobody_knows_who_acts(new, clock, monkeypatch):
    """That is not that another one does: once it can be reached, the holder goes on."""
    held = taken(new, "syncer.1")

    def away(*_, **__):
        raise StorageError("beat.json: cannot be read: Input/output error")

    for method in ("put", "stat", "create"):
        monkeypatch.setattr(held._place, method, away)
    clock.now += BEAT_S
    with pytest.raises(StorageError):
        held.renew()
    held.confirm()
    clock.now += HOLD_S
    with pytest.raises(StorageError, match="beat"):
        held.confirm()
    monkeypatch.undo()
    held.confirm()
    assert held.holds()


class Place:
    """A place in memory, before and after each access to which something may happen."""

    def __init__(self, files, meanwhile):
        self._files, self._meanwhile = files, meanwhile

    def _access(self, call):
        self._meanwhile()
        found = call()
        self._meanwhile()
        return found

    def path(self, name):
        """For people."""
        return name

    def create(self, name, data, *, exclusive):
        """Only if it is not there."""
        return self._access(lambda: self._files.setdefault(name, data) is data)

    def remove(self, name):
        """It is not there any more."""
        self._access(lambda: self._files.pop(name, None))

    def put(self, name, data):
        """In place of what was there."""
        self._access(lambda: self._files.__setitem__(name, data))

    def stat(self, name):
        """Whether it is there."""
        return self._access(lambda: self._files.get(name))

    def files(self, folder):
        """All names."""
        return self._access(lambda: [name for name in self._files if name.startswith(folder)])

    def open(self, name):
        """A file with the contents."""

        def found():
            if name not in self._files:
                raise FileNotFoundError(name)
            return io.BytesIO(self._files[name])

        return self._access(found)


class Adversary:
    """Processes of which each may be stopped before and after any access to the place, while
    others go on; a stopped one stands on the stack below those that run meanwhile."""

    def __init__(self, clock, seed):
        self.clock, self.rng = clock, random.Random(seed)
        self.running, self.held, self.files = set(), {}, {}
        self.claims = 0

    def sleep(self, seconds):
        """A successor that waits: others go on."""
        self.clock.now += seconds
        self.meanwhile()

    def meanwhile(self):
        """Perhaps this process is stopped here for a while, in which others act."""
        self.check()
        if len(self.running) < 3 and self.rng.random() < 0.03:
            for _ in range(self.rng.randrange(12)):
                self.clock.now += self.rng.choice([0.1, 1.0, 2.0])
                self.act()
        elif self.rng.random() < 0.05:
            self.clock.now += self.rng.choice([3.0, 7.0, 30.0])
        self.check()

    def check(self):
        """At most one may act."""
        holding = [who for who, each in self.held.items() if each.holds()]
        assert len(holding) <= 1, holding

    def act(self):
        """One process that is not stopped does something."""
        who = self.rng.randrange(4)
        if who in self.running:
            return
        self.running.add(who)
        try:
            held = self.held.get(who)
            if held is None:
                made = Lease(
                    Place(self.files, self.meanwhile), "syncer", now=lambda: self.clock.now, boot=""
                )
                look(made, self.sleep, standby=self.rng.random() < 0.3)
                self.held[who] = made
                made.take(f"syncer.{made.predecessor + 1}")
                self.claims += 1
            elif self.rng.random() < 0.1:
                self.held.pop(who)  # Killed.
            else:
                self.rng.choice([held.renew, held.renew, held.confirm])()
        except (LeaseLostError, LeaseTakenError):
            self.held.pop(who, None)
        finally:
            self.running.discard(who)
        self.check()


@pytest.mark.parametrize("seed", seeds(10, fast=4))
def test_never_two(clock, seed):
    """Whatever is stopped, and for however long."""
    adversary = Adversary(clock, seed)
    for _ in range(150):
        clock.now += adversary.rng.choice([0.5, 2.0])
        adversary.act()
    assert adversary.claims > 5


class Cached:
    """A place that reads the contents of a known file, and what is in a folder, from a cache for
    ``age_s`` seconds, and remembers as long that a name was not there, as network file systems do.
    """

    def __init__(self, place, clock, age_s):
        self._place, self._clock, self._age_s = place, clock, age_s
        self._kept = {}

    def __getattr__(self, name):
        return getattr(self._place, name)

    def _cached(self, what, name, read):
        at, value = self._kept.get((what, name), (-1e9, None))
        if self._clock.now - at >= self._age_s:
            at, value = self._clock.now, read(name)
            self._kept[what, name] = at, value
        return value

    def open(self, name):
        """A file as it was when the cache read it."""

        def read(name):
            with self._place.open(name) as file:
                data = bytearray(4096)
                return bytes(data[: file.readinto(memoryview(data)) or 0])

        return contextlib.closing(io.BytesIO(self._cached("open", name, read)))

    def stat(self, name):
        """Whether it was there."""
        return self._cached("stat", name, self._place.stat)

    def files(self, folder):
        """What was there."""
        return self._cached("files", folder, self._place.files)


def both_act(place, clock, age_s, dies_at):
    """A holder that renews until it dies, and a standby that sees what a cache has: for how long
    both acted, and when the standby took over."""
    first = Lease(place, "syncer", now=lambda: clock.now, boot="one")
    assert first.look() is None
    first.take("syncer.1")
    cached = Cached(place, clock, age_s)
    second = Lease(cached, "syncer", now=lambda: clock.now, boot="two")
    both, took, begun = 0.0, None, clock.now
    for n in range(int((dies_at + 300) / LOOK_S)):
        clock.now = begun + n * LOOK_S
        if clock.now < begun + dies_at and n % int(BEAT_S / LOOK_S) == 0:
            with contextlib.suppress(LeaseLostError):
                first.renew()
        if took is None and second.look(standby=True) is None:
            second.take("syncer.2")
            took = clock.now - begun
        elif took is not None:
            if clock.now - begun > took + 2 * HOLD_S:
                break
            second.confirm()
            both += LOOK_S * (first.holds() and second.holds())
    return both, took


@pytest.mark.parametrize("age_s", [0.0, 5.0, 9.0, 12.0, 30.0, 60.0])
def test_reads_that_are_a_minute_old_let_no_two_act(tmp_path, clock, age_s, monkeypatch):
    """The standby finds signs of life under names that no cache has; it takes over once there are
    none. Without them it takes over from a living holder."""
    both, took = both_act(open_place(tmp_path / "one"), clock, age_s, dies_at=200.0)
    assert (0.0, True) == (both, took > 200.0)
    assert took <= 200.0 + (SILENT_S + BEAT_S + LOOK_S if not age_s else 60.0 + 8 * SILENT_S)
    if age_s > SILENT_S + BEAT_S:
        monkeypatch.setattr(Lease, "_lives", lambda *_: False)
        both, took = both_act(open_place(tmp_path / "two"), clock, age_s, dies_at=200.0)
        assert took < 100.0, "the bug is planted"


def test_signs_do_not_pile_up(tmp_path, clock):
    """The newest stay; a successor removes those of the one before."""
    place = open_place(tmp_path)
    held = Lease(place, "syncer", now=lambda: clock.now, boot="one")
    assert held.look() is None
    held.take("syncer.1")
    for _ in range(2 * SIGNS_KEPT):
        clock.now += BEAT_S
        held.renew()
    assert SIGNS_KEPT == len(place.files("syncer.signs"))
    held.close()
    other = Lease(place, "syncer", now=lambda: clock.now, boot="two")
    assert other.look() is None
    other.take("syncer.2")
    assert 1 == len(place.files("syncer.signs"))
