"""Which learner has which data shard."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ddloco.machines.syncer.data_assignment import assign, home_of

NAMES = tuple(f"learner-{n}" for n in range(6))


def homes(shards):
    """Who has the shards at the beginning."""
    return [home_of(shard, NAMES) for shard in range(shards)]


def test_while_all_are_there_nothing_moves():
    """Each has the shards of its number."""
    assert assign(homes(9), NAMES, NAMES, NAMES) == homes(9)
    assert homes(8) == [*NAMES, "learner-0", "learner-1"]


def test_one_that_is_gone_loses_its_shards_to_those_who_have_the_fewest():
    """The others keep theirs."""
    owners = assign(homes(8), NAMES[1:], NAMES[1:], NAMES)
    assert owners == ["learner-2", *NAMES[1:], "learner-3", "learner-1"]


def test_one_that_comes_gets_its_own_back():
    """And no other shard moves."""
    without = assign(homes(8), NAMES[1:], NAMES[1:], NAMES)
    assert assign(without, NAMES, NAMES, NAMES)[0] == "learner-0"
    moved = [a != b for a, b in zip(without, assign(without, NAMES, NAMES, NAMES), strict=True)]
    assert sum(moved) == 1


def test_nobody_is_given_what_he_could_not_be_told():
    """One that is away keeps its shards until it is gone; with nobody there nothing changes."""
    assert assign(homes(6), NAMES, (), NAMES) == homes(6)
    assert assign(homes(6), NAMES[:2], NAMES[:1], NAMES).count("learner-1") == 1


@given(st.data(), st.integers(6, 40))
def test_it_is_balanced_with_as_few_moves_as_possible(data, shards):
    """Whoever is there, and whatever was before; the same question has the same answer."""
    owners = data.draw(st.lists(st.sampled_from(NAMES), min_size=shards, max_size=shards))
    chosen = data.draw(st.sets(st.sampled_from(NAMES), min_size=1))
    sharing = [name for name in NAMES if name in chosen]
    found = assign(owners, sharing, sharing, NAMES)
    counts = Counter(found)
    assert set(counts) <= chosen
    assert max(counts.values()) - min(counts[name] for name in sharing) <= 1
    floor, extra = divmod(shards, len(sharing))
    held = sorted((Counter(owners)[name] for name in sharing), reverse=True)
    kept = sum(min(n, floor + (at < extra)) for at, n in enumerate(held))
    assert sum(a == b for a, b in zip(owners, found, strict=True)) == kept
    assert assign(owners, sharing, sharing, NAMES) == found
