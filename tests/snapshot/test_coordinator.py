"""Who is in a snapshot, who is not, and why; in whatever order the parts came."""

from itertools import permutations

import snapshot.coordinator as gathering_module
from snapshot.coordinator import cut_disagreement, new_gathering
from snapshot.record import Part


def part(who, *peers, lost=None, clock=None, failed=""):
    """A part of an actor, whose name has no incarnation number unless it matters."""
    return Part(who, 1, clock or {who: 1}, peers, lost or {}, ("state", "flight"), failed)


def gathered(*parts, gone=None):
    """What ``hub`` gathered, the same in every order."""
    outcomes = []
    for order in permutations(parts):
        gathering = new_gathering("hub:1", "hub")
        for who, reason in (gone or {}).items():
            gathering.gone(who, reason)
        for each in order:
            gathering.add(each)
        gathering.give_up("silent")
        outcomes.append(outcome(gathering))
    assert all(outcome == outcomes[0] for outcome in outcomes)
    return outcomes[0]


def outcome(gathering):
    """Who is in, who is not and why, and what is wrong with it."""
    absent = gathering.absent()
    present = gathering.present(absent)
    return list(present), absent, gathering.problem(present)


def test_every_known_actor_is_awaited():
    """Each part names its peers; an actor that left or is lost is not waited for."""
    gathering = new_gathering("hub:1", "hub")
    assert ["hub"] == gathering.awaited()
    gathering.add(part("hub", "a", "b"))
    assert ["a", "b"] == gathering.awaited()
    gathering.add(part("a", "hub", "c", "d", lost={"d": "broken"}))
    assert ["b", "c"] == gathering.awaited()
    gathering.gone("c", "left")
    gathering.gone("a", "left when its part was here")
    gathering.add(part("b", "hub"))
    assert [] == gathering.awaited()
    assert (["a", "b", "hub"], {"c": "left", "d": "broken"}, None) == outcome(gathering)


def test_a_part_that_comes_after_all_counts():
    """Its channel broke, and was opened again before the end."""
    gathering = new_gathering("hub:1", "hub")
    gathering.gone("a", "broken")
    gathering.add(part("a", "hub"))
    gathering.add(part("hub", "a"))
    assert {} == gathering.absent()


def test_an_actor_that_is_silent_or_could_not_write_is_absent():
    """Named with the reason."""
    present, absent, problem = gathered(part("hub", "a", "b"), part("a", "hub", failed="disk full"))
    assert (["hub"], {"a": "disk full", "b": "silent"}, None) == (present, absent, problem)


def test_of_two_whose_channel_is_not_whole_one_goes():
    """Never the initiator; else the one with the most such channels, then whom fewer know."""
    lost = {"hub": "broken"}
    assert (["hub"], {"a": "with hub: broken"}, None) == gathered(
        part("hub", "a"), part("a", "hub", lost=lost)
    )
    shard, one, other = ("hub", "l1", "l2"), ("hub", "shard"), ("hub", "shard")
    present, absent, _ = gathered(
        part("hub", "shard", "l1", "l2"),
        part("shard", *shard, lost={"l1": "broken"}),
        part("l1", *one, lost={"shard": "broken"}),
        part("l2", *other),
    )
    assert (["hub", "l2", "shard"], {"l1": "with shard: broken"}) == (present, absent)
    present, absent, _ = gathered(
        part("hub", "shard", "l1", "l2"),
        part("shard", *shard),
        part("l1", *one, lost={"shard": "broken"}),
        part("l2", *other, lost={"shard": "stalled"}),
    )
    assert (["hub", "l1", "l2"], {"shard": "with l1: broken"}) == (present, absent)


def test_a_channel_between_two_cuts_is_not_whole():
    """What was said over it before the one cut came after the other."""
    assert {"new": "with hub: the channel was opened between their cuts"} == gathered(
        part("hub", "a"), part("a", "hub"), part("new", "hub")
    )[1]


def test_a_channel_that_broke_before_the_cut_may_matter():
    """Its end was there no longer, and the other end had not noticed, or is gone by now."""
    assert ["hub", "b"] != gathered(part("hub", "b"), part("b", "hub", lost={"x": "broken"}))[0]
    present, absent, _ = gathered(
        part("hub", "a", "b"), part("a", "hub"), part("b", "hub", lost={"a": "broken"})
    )
    assert ["b", "hub"] == present
    assert {"a": "with b: broken"} == absent


def test_an_actor_is_in_once():
    """Of two incarnations one came after the other, whatever the clocks can tell."""
    present, absent, _ = gathered(
        part("hub", "a.1", "b"), part("a.1", "hub"), part("b", "hub", "a.2"), part("a.2", "b")
    )
    assert ["a.2", "b", "hub"] == present
    assert {"a.1": "with a.2: one came back as the other"} == absent


def test_without_the_initiator_there_is_none():
    """At once when it could not write; in the end when nothing was heard of its part."""
    gathering = new_gathering("hub:1", "hub")
    gathering.add(part("hub", "a", failed="disk full"))
    assert [] == gathering.awaited()
    assert "hub, who began it: disk full" == outcome(gathering)[2]
    gathering = new_gathering("hub:1", "hub")
    gathering.give_up("silent")
    assert "hub, who began it: silent" == outcome(gathering)[2]


def test_clocks_have_the_last_word():
    """Who has heard of what is after another's cut is named, with both counts."""
    hub = part("hub", "a", "b", clock={"hub": 5, "a": 4})
    a, b = part("a", "hub", clock={"a": 3}), part("b", "hub", clock={"b": 1, "hub": 6})
    problem = "b has heard of hub:6, hub is recorded at 5"
    assert problem == gathered(part("hub", "a", "b", clock={"hub": 5}), a, b)[2]
    assert gathered(hub, a, b)[2].endswith(", and 1 more")
    assert cut_disagreement({"a": {"a": 1}, "b": {"b": 1, "a": 1}}) is None


def test_who_left_without_a_word_is_absent_all_the_same():
    """A reason may be the peer's own words, and empty: it is no key, and ends no actor."""
    gathering = new_gathering("a.1:1", "a.1")
    gathering.add(part("a.1", "b.1"))
    gathering.gone("b.1", "")
    assert [] == gathering.awaited()
    assert {"b.1": ""} == gathering.absent()


def test_only_who_may_be_at_odds_is_looked_at(monkeypatch):
    """A star of many in which one lost its channel: one pair of all, however many there are."""
    looked = []
    problems = gathering_module._problems

    def look(one, other):
        looked.append((one.who, other.who))
        return problems(one, other)

    monkeypatch.setattr(gathering_module, "_problems", look)
    names = [f"n{number}" for number in range(50)]
    gathering = new_gathering("hub:1", "hub")
    gathering.add(part("hub", *names))
    for each in names:
        gathering.add(part(each, "hub", lost={"hub": "broken"} if each == "n7" else None))

    present, absent, problem = outcome(gathering)

    assert [("hub", "n7")] == looked
    assert ({"n7": "with hub: broken"}, None) == (absent, problem)
    assert sorted(["hub", *names]) == sorted([*present, "n7"])


def test_what_an_absent_part_has_heard_is_no_problem():
    """Its clock was looked at when it came, and does not count in the end."""
    early = part("a", "hub", clock={"a": 1, "hub": 9}, failed="disk full")
    assert (["hub"], {"a": "disk full"}, None) == gathered(part("hub", "a"), early)


def test_a_part_that_was_told_again_expects_only_its_new_peers():
    """The former one's are awaited no longer."""
    gathering = new_gathering("hub:1", "hub")
    gathering.add(part("hub", "a", "b"))
    gathering.add(part("hub", "a"))
    assert ["a"] == gathering.awaited()
