"""A state as bytes: the same again, the same bytes again, and garbage is refused."""

import math
import os
import random
import subprocess
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshot import FreezeError, StateTypes, freeze, thaw
from snapshot.freeze import DEPTH_MAX, FORMAT
from tests.snapshot import plain
from tests.snapshot.plain import (
    ALLOWED,
    Base,
    Colour,
    Counted,
    Derived,
    Eager,
    Fact,
    Key,
    Loud,
    Mode,
    Open,
    Pair,
    Slotted,
    Tally,
    Wide,
    Words,
)

ROOT = Path(__file__).parents[2]
writing, reading = sys.modules["snapshot.freeze"], sys.modules["snapshot.thaw"]

ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=2**62, max_value=2**200),
    st.floats(allow_nan=False),
    st.text(max_size=4),
    st.binary(max_size=4),
    st.sampled_from([*Colour, Mode.READ]),
)
HASHABLE = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple),
        st.frozensets(inner, max_size=3),
        st.builds(Key, inner, st.frozensets(inner, max_size=2)),
        st.builds(Fact, inner),
    ),
    max_leaves=4,
)
STATES = st.recursive(
    HASHABLE,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(HASHABLE, inner, max_size=3),
        st.sets(HASHABLE, max_size=4),
        st.builds(deque, st.lists(inner, max_size=3), st.sampled_from([None, 2])),
        st.builds(Fact, inner, st.lists(inner, max_size=2).map(tuple)),
        st.builds(Tally, inner, st.lists(inner, max_size=2)),
        st.builds(Slotted, inner, inner),
        st.builds(Open, inner),
    ),
    max_leaves=12,
)


def again(thing):
    """Written, read, and found to be written the same way."""
    data = freeze(thing, ALLOWED)
    back = thaw(data, ALLOWED)
    assert data == freeze(back, ALLOWED)
    return back


@settings(max_examples=150, deadline=None)
@given(STATES)
def test_what_is_read_is_what_was_written(state):
    """Equal, of the same types, and the same bytes again."""
    back = again(state)
    assert type(state) is type(back)
    assert state == back
    assert repr(state) == repr(back) or "{" in repr(state)


def test_numbers_that_are_none():
    """NaN, infinities, minus zero: bit for bit."""
    back = again([math.nan, math.inf, -math.inf, -0.0])
    assert math.isnan(back[0])
    assert [math.inf, -math.inf] == back[1:3]
    assert -1.0 == math.copysign(1.0, back[3])


def test_what_is_shared_is_one_object_again():
    """Lists, structs and objects, in whatever stands between."""
    shared, fact = Slotted([1]), Fact("x", (2,))
    one, other, facts, (inside,) = again([shared, Open(shared), [fact, Fact(fact)], (shared,)])
    assert one is other.a is inside
    assert facts[0] is facts[1].what


def test_a_state_may_lead_back_to_itself():
    """By lists, dicts, deques and objects, also by those that a struct or a set holds."""
    ring = Slotted([])
    ring.a.append({"ring": Open(deque([Fact(ring)])), "key": {Key(1): ring}})
    back = again(ring)
    within = back.a[0]
    assert within["ring"].a[0].what is back is within["key"][Key(1)]
    keyed = Slotted({})
    keyed.a = {Key("k", frozenset({Key("in")})): keyed, Key(1): {Key("k", frozenset({Key("in")}))}}
    back = again(keyed)
    assert back.a[Key("k", frozenset({Key("in")}))] is back


def test_members_of_sets_are_whole_before_they_are_sorted():
    """Where a hash depends on what stands elsewhere in the state."""
    clocks = [Counted({"a": n}) for n in range(3)]
    sets, facts, again_clocks = again([set(clocks), {Fact((c,)): c for c in clocks}, clocks])
    assert sets == set(clocks)
    assert all(each in sets for each in again_clocks)
    assert all(facts[Fact((each,))] is each for each in again_clocks)


def test_private_names_of_each_class_are_its_own():
    """``__x`` of a base and of what is derived from it; what was never set stays so."""
    back = again(Derived(1, 2))
    assert (1, 2) == (back.x(), back.y())
    assert not hasattr(back, "unset")


def test_what_can_be_computed_again_is_left_out():
    """A cached property has no place in a state, of an object or of a struct."""
    thing, wide = Open(1), Wide(3)
    before = freeze([thing, wide], ALLOWED)
    assert (6, thing.cheap) == (wide.twice, thing.cheap)
    assert before == freeze([thing, wide], ALLOWED)
    assert 6 == again(wide).twice


HASHED = """
import sys
from snapshot.freeze import freeze
from tests.snapshot.plain import ALLOWED, Fact, Key
names = [f"name {n}" for n in range(40)]
state = [{*names}, {Fact((each, Key(each))) for each in names}, frozenset((n,) for n in names)]
sys.stdout.write(freeze(state, ALLOWED).hex())
"""


def test_bytes_do_not_depend_on_hashes():
    """Sets of strings and of structs, in processes that hash strings differently."""
    written = {
        subprocess.run(
            [sys.executable, "-c", HASHED],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert 1 == len(written)
    assert b"" not in written


def refused_things():
    """What is no plain data, by name."""
    dressed = Wide(1)
    dressed.__dict__["more"] = 2
    return {
        "lambda": lambda: None,
        "function": refused_things,
        "builtin": len,
        "class": Open,
        "module": sys,
        "generator": (n for n in ()),
        "array": np.zeros(1),
        "number of numpy": np.float64(1),
        "random": random.Random(1),
        "object": object(),
        "defaultdict": defaultdict(list),
        "ordered dict": OrderedDict(),
        "counter": Counter(),
        "dict of one's own": Words(),
        "named tuple": Pair(1, 2),
        "exception": FreezeError("x"),
        "flags": Mode.READ | Mode.WRITE,
        "method": Loud().go,
        "method of a builtin": [].append,
        "class that is not listed": plain.Closed(),
        "integer without end": 2**5000,
        "struct that does more": Eager(1),
        "dressed struct": dressed,
        "members that are alike": {Base(1), Base(1)},
        "half a character": "\ud800",
        "another package": Path("x"),
    }


@pytest.mark.parametrize("name", refused_things())
def test_what_is_not_plain_is_refused_with_its_path(name):
    """And never half written."""
    thing = refused_things()[name]
    with pytest.raises(FreezeError, match=r"^Slotted\.a > Open\.a: "):
        freeze(Slotted(Open(thing)), ALLOWED)
    with pytest.raises(FreezeError, match=r"^the state itself: "):
        freeze(thing, ALLOWED)


def test_open_files_and_local_classes_are_refused(tmp_path):
    """Also where the package would be trusted."""

    class Local:
        pass

    with (tmp_path / "x").open("w") as file, pytest.raises(FreezeError, match="TextIOWrapper"):
        freeze([file], ALLOWED)
    with pytest.raises(FreezeError, match=r"<locals>\.Local is not plain data"):
        freeze(Local(), ALLOWED)


def test_structs_that_lead_back_to_themselves_are_refused():
    """What they hold is made before them; with a list or an object between it can be."""
    loop = Tally(None)
    loop.count = (Fact(loop),)
    with pytest.raises(FreezeError, match=r"^Tally.count > Fact.what: a struct that leads back"):
        freeze(loop, ALLOWED)
    loop.count = [Fact(loop)]
    back = again(loop)
    assert back.count[0].what is back


def test_classes_are_listed():
    """Both ways; and of modules that are there."""
    data = freeze(Slotted(1), ALLOWED)
    with pytest.raises(FreezeError, match="not plain data"):
        freeze(Slotted(1), StateTypes({plain.__name__: ("Open",)}))
    with pytest.raises(FreezeError, match="not a class that is known here"):
        thaw(data, StateTypes({plain.__name__: ("Open",)}))
    with pytest.raises(FreezeError, match="not a class that is known here"):
        thaw(data.replace(b"plain:Slotted", b"paint:Slotted"), ALLOWED)


def test_the_depth_is_limited_by_name():
    """As deep as it may be is fine, one more is not."""
    deep = []
    for _ in range(DEPTH_MAX - 1):
        deep = [deep]
    assert deep == again(deep)
    with pytest.raises(FreezeError, match=f"nested more than {DEPTH_MAX} deep"):
        freeze([deep], ALLOWED)


def garbage(root, *nodes, version=FORMAT):
    """Bytes that freeze did not write."""
    return msgspec.msgpack.encode([version, list(nodes), root])


HERE = "tests.snapshot.plain:"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x93",
        garbage(None, version=FORMAT + 1),
        garbage(["r", 7]),
        garbage(["x"]),
        garbage(["x"], ["x"]),
        garbage(["i", "9" * 5000 + "x"]),
        garbage(["r", 0], ["d", 1]),
        garbage(["r", 0], ["s", ["r", 0]]),
        garbage(["r", 0], ["q", 2**64 - 1]),
        garbage(["r", 0], ["o", HERE + "Words", {}]),
        garbage(["r", 0], ["o", HERE + "Colour", {}]),
        garbage(["r", 0], ["o", HERE + "msgspec", {}]),
        garbage(["r", 0], ["o", HERE + "Slotted", {"c": 1}]),
        garbage(["r", 0], ["o", HERE + "Slotted", {"__class__": 1}]),
        garbage(["r", 0], ["o", "os:_Environ", {}]),
        garbage(["r", 0], ["S", HERE + "Open", {}]),
        garbage(["r", 0], ["S", HERE + "Eager", {"n": 1}]),
        garbage(["r", 0], ["S", HERE + "Fact", {}]),
        garbage(["e", HERE + "Open", "a"]),
        garbage(["m", ["r", 0], "go"], ["o", HERE + "Loud", {}]),
        garbage(["r", 0], ["o", HERE + "Closed", {}]),
        garbage(["r", 0], ["o", HERE + "", {}]),
        garbage(["r", 0], ["o", HERE + "Loud", {"strange": 1}]),
        garbage(["r", 0], ["o", HERE + "Loud", {"go": 1}]),
        garbage(["r", 0], ["o", HERE + "Loud", {"trap": 1}]),
        garbage(["r", 0], ["o", HERE + "Loud", {"shared": 1}]),
        garbage(["r", 0], ["o", HERE + "Loud", {"__class__": 1}]),
        garbage(["r", 0], ["o", HERE + "Loud", {"__dict__": ["r", 1]}], ["d"]),
        garbage(["r", 0], ["o", HERE + "Loud", {"word": 1}]),
        garbage(["r", 0], ["o", HERE + "Loud", {"many": ["r", 1]}], ["l", 1, "x"]),
        garbage(["r", 0], ["o", HERE + "Loud", {"owner": ["r", 1]}], ["o", HERE + "Base", {}]),
        garbage(["r", 0], "l"),
        garbage(["r", -1], ["l"]),
        garbage({"a": 1}),
        garbage(msgspec.msgpack.Ext(-1, bytes(4))),
        garbage(["i", "1" * 2000]),
        b"\x93\x03\x91" + b"\x91" * 5000,
    ],
)
def test_garbage_is_refused(data):
    """With one error, whatever it is; no property is asked, no class made that is none of these."""
    with pytest.raises(FreezeError):
        thaw(data, ALLOWED)


def test_every_cut_and_every_flipped_byte_is_refused_or_read():
    """No other exception, and nothing is imported."""
    state = [Slotted({Key(1): Open(Fact((1, "x")))}, 2**70), {1.5, b"y"}, Colour.RED, Loud(Loud())]
    data, modules = freeze(state, ALLOWED), {*sys.modules}
    garbled = [data[:n] for n in range(len(data))]
    garbled += [
        data[:n] + bytes([data[n] ^ flip]) + data[n + 1 :]
        for n in range(len(data))
        for flip in (1, 2, 4, 8, 16, 32, 64, 128, 255)
    ]
    refused = 0
    for each in garbled:
        try:
            thaw(each, ALLOWED)
        except FreezeError:
            refused += 1
    assert refused > len(garbled) / 2
    assert modules == {*sys.modules}


def shared_things_are_copied(patch):
    patch.setattr(writing._Writer, "_node", lambda self, thing, kind: (
        self._nodes.append(self._content(thing, kind)) or len(self._nodes) - 1
    ))  # fmt: skip


def sets_keep_their_order(patch):
    patch.setattr(writing._Writer, "_sorted", lambda self, things: [*map(self.put, things)])


def private_names_are_as_they_are_said(patch):
    patch.setattr(writing, "slots", lambda cls: getattr(cls, "__slots__", ()))


def hashes_are_asked_too_early(patch):
    patch.setattr(reading._Reader, "_settle", lambda self, written, depth: 0)


def deques_have_no_end(patch):
    shell = reading._Reader._shell
    patch.setattr(reading._Reader, "_shell", lambda self, node: (
        deque() if node[0] == "q" else shell(self, node)
    ))  # fmt: skip


@pytest.mark.parametrize(
    ("plant", "notices"),
    [
        (shared_things_are_copied, test_what_is_shared_is_one_object_again),
        (private_names_are_as_they_are_said, test_private_names_of_each_class_are_its_own),
        (hashes_are_asked_too_early, test_members_of_sets_are_whole_before_they_are_sorted),
    ],
)
def test_planted_bugs_are_noticed(plant, notices, monkeypatch):
    """Each by the test that is there for it."""
    plant(monkeypatch)
    with pytest.raises((AssertionError, AttributeError)):
        notices()


def test_planted_bugs_of_containers_are_noticed(monkeypatch):
    """A set's order in the bytes; a deque without its length."""
    one, other = {0, 8}, {8, 0}
    assert [*one] != [*other]
    assert freeze(one, ()) == freeze(other, ())
    sets_keep_their_order(monkeypatch)
    assert freeze(one, ()) != freeze(other, ())
    assert 2 == again(deque([1], 2)).maxlen
    deques_have_no_end(monkeypatch)
    with pytest.raises(AssertionError):
        again(deque([1], 2))


def test_an_older_state_names_the_version_that_reads_it():
    """One line says what to continue with."""
    with pytest.raises(FreezeError, match=r"format 1, this version reads 3; ddloco 0\.1 reads it"):
        thaw(garbage(None, version=1), ALLOWED)


def test_an_attribute_that_a_class_has_no_longer_is_refused():
    """A state of another version of a class: one line, also where the class has only slots."""
    data = freeze(Slotted(1, 2), ALLOWED)
    older = data.replace(b"\xa1b", b"\xa1z")
    assert older != data
    with pytest.raises(FreezeError, match="Slotted declares no z"):
        thaw(older, ALLOWED)


@pytest.mark.parametrize(
    "hash_bomb",
    [
        [["t", ["r", n + 1], ["r", n + 1]] for n in range(60)],
        [["f", ["r", n + 1], ["r", n + 1]] for n in range(60)],
    ],
)
def test_what_a_hash_would_meet_is_bounded(hash_bomb):
    """Structs that hold each other twice, sixty deep: refused before anything is hashed."""
    nodes = [["S", HERE + "Fact", {"what": each}] for each in hash_bomb]
    nodes += [["S", HERE + "Fact", {"what": 1}], ["s", ["r", 0]]]
    with pytest.raises(FreezeError):
        thaw(garbage(["r", 61], *nodes), ALLOWED)


def test_what_a_state_may_cost_is_bounded(monkeypatch):
    """By its bytes and by its objects, when it is written and when it is read."""
    data = freeze([[], []], ALLOWED)
    monkeypatch.setattr(writing, "NODES_MAX", 2)
    monkeypatch.setattr(reading, "NODES_MAX", 2)
    with pytest.raises(FreezeError, match="more than 2 lists"):
        freeze([[], []], ALLOWED)
    with pytest.raises(FreezeError, match="a state of 3 objects; want at most 2"):
        thaw(data, ALLOWED)
    monkeypatch.setattr(writing, "BYTES_MAX", 20)
    monkeypatch.setattr(reading, "BYTES_MAX", 20)
    with pytest.raises(FreezeError, match="bytes; want at most 20"):
        freeze("x" * 30, ALLOWED)
    with pytest.raises(FreezeError, match="a state of 30 bytes; want at most 20"):
        thaw(bytes(30), ALLOWED)


def test_a_program_of_ones_own_holds_its_data_and_its_machines():
    """Dataclasses, structs, enums and classes that handle events, of its own package alone."""
    own = StateTypes({}, plain.__name__.partition(".")[0])
    for thing in (Slotted(1), Fact(2), Colour.RED):
        assert thing == thaw(freeze(thing, own), own)
    for thing in (Base(1), plain.Closed(), Path("x"), Words()):
        with pytest.raises(FreezeError, match="want a dataclass, a struct or an enum"):
            freeze(thing, own)
