"""The running clock against the vector clock, of which it is the same thing in place."""

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from clocks import ActorClock, VectorClock, actor_clock
from tests.clocks.deltas import changed

ME = "me.1"
NAMES = ["a.1", "a.2", "b.1", "c.1"]
heard_st = st.dictionaries(st.sampled_from([ME, *NAMES]), st.integers(0, 5), max_size=4)
ticks_st = st.tuples(st.just("tick"), heard_st, st.sampled_from(["x", "y", ""]))
forgets_st = st.tuples(st.just("forget"), st.sets(st.sampled_from([*NAMES, "nobody.1"])))
stories_st = st.lists(st.one_of(ticks_st, ticks_st, ticks_st, forgets_st), max_size=12)
few_st = st.sampled_from([0, actor_clock.FEW])


class Model:
    """What the clock was after every event, as values, and who raised each entry last."""

    def __init__(self):
        self.history = [VectorClock()]
        self.sources = {}

    @property
    def now(self):
        return self.history[-1]

    def tick(self, heard, source):
        theirs = {name: count for name, count in heard.items() if name != ME}
        before, after = self.now, self.now.merge(theirs).tick(ME)
        learned = {name: n for name, n in changed(after, before).items() if name != ME}
        self.sources |= dict.fromkeys(learned, source)
        self.history.append(after)
        return learned

    def forget(self, names):
        self.history = [
            VectorClock({name: each[name] for name in each if name not in names})
            for each in self.history
        ]

    def since(self, number, reader=None):
        news = changed(self.now, self.history[number])
        taught = [n for n in self.now if n != ME and self.sources[n] == reader]
        left_out = taught if len(taught) > 1 or len(taught) == len(self.now) - 1 else []
        told = {n: c for n, c in news.items() if n not in left_out}
        return {**told, ME: self.now[ME]}


@given(stories_st, few_st)
def test_it_is_the_vector_clock_in_place(story, few):
    """Entries, number, length and what is learned are those of a vector clock, event for event."""
    with patch.object(actor_clock, "FEW", few):
        clock, model = ActorClock(ME), Model()
        for verb, *arguments in story:
            expected = getattr(model, verb)(*arguments)
            assert getattr(clock, verb)(*arguments) == expected
            assert clock.frozen() == model.now
            assert (clock.wire(), len(clock)) == (model.now.wire(), len(model.now))
            assert clock.number == clock[ME] == model.now[ME]
            assert [clock[name] for name in NAMES] == [model.now[name] for name in NAMES]
            assert sorted(clock.others()) == sorted(set(model.now) - {ME})


@given(stories_st, few_st)
def test_a_delta_is_what_changed_since(story, few):
    """From any event on: what a vector clock says has changed, and always one's own entry."""
    with patch.object(actor_clock, "FEW", few):
        clock, model = ActorClock(ME), Model()
        for verb, *arguments in story:
            getattr(clock, verb)(*arguments)
            getattr(model, verb)(*arguments)
            for number in range(clock.number + 1):
                assert clock.since(number) == model.since(number)
                for reader in ("x", "y", "z"):
                    assert clock.since(number, reader) == model.since(number, reader)


@given(stories_st)
def test_deltas_teach_everything(story):
    """A reader of every delta, which itself supplied what is left out of them, knows all
    entries."""
    clock, told = ActorClock(ME), 0
    heard, mine = VectorClock(), VectorClock()
    for verb, *arguments in story:
        if verb != "tick":
            continue
        clock.tick(*arguments)
        if arguments[1] == "x":
            mine = mine.merge({n: c for n, c in arguments[0].items() if n != ME})
        heard = heard.merge(mine).merge(clock.since(told, "x"))
        told = clock.number
        assert heard == clock.frozen().merge(mine)


def test_ones_own_entry_is_the_number_of_events():
    """A false message about oneself moves nothing, and teaches nothing."""
    clock = ActorClock(ME)
    assert clock.tick({ME: 99}) == {}
    assert (clock.number, clock.wire()) == (1, {ME: 1})


def test_before_the_first_event_there_is_nothing():
    """A new clock has no entries; the delta of nothing is nothing but one's own count."""
    clock = ActorClock(ME)
    assert (len(clock), clock["a.1"], clock.others()) == (0, 0, [])
    assert clock.since(0) == {ME: 0}


def test_what_is_forgotten_is_not_told():
    """It is in no delta any more, and is learned again if a message names it again."""
    clock = ActorClock(ME)
    clock.tick({"a.1": 3, "b.1": 1}, "x")
    clock.forget(["a.1", "nobody.1"])
    assert clock.since(0) == {ME: 1, "b.1": 1}
    assert clock.tick({"a.1": 2}, "x") == {"a.1": 2}
    assert clock.since(1) == {ME: 2, "a.1": 2}


def test_a_delta_of_nothing_looks_at_nothing():
    """A peer that knows everything gets only the actor's own count, however many entries there
    are."""
    clock = ActorClock(ME)
    clock.tick({f"n{index}.1": 1 for index in range(1000)}, "x")
    clock.tick()
    clock._names = None
    assert clock.since(1) == {ME: 2}
    assert clock.since(2) == {ME: 2}


def test_all_who_were_told_with_one_event_are_told_the_same():
    """It is computed once for an event, and again after the next event or a forgotten name."""
    clock = ActorClock(ME)
    for name in ("a.1", "b.1", "c.1"):
        clock.tick({name: 1}, name)
    said = clock.since(1, "a.1")
    assert said is clock.since(1, "b.1")
    assert said == {"b.1": 1, "c.1": 1, ME: 3}

    clock.forget(["c.1"])
    assert clock.since(1, "b.1") == {"b.1": 1, ME: 3}
    clock.tick({"b.1": 2}, "b.1")
    assert clock.since(1, "b.1") == {"b.1": 2, ME: 4}
    clock.rest()
    assert clock.since(1, "b.1") == {"b.1": 2, ME: 4}


def test_all_between_whom_nothing_changed_are_told_the_same():
    """Peers that were last told at different events get one delta if nothing changed since."""
    clock = ActorClock(ME)
    clock.tick({"a.1": 1}, "a.1")
    for _ in range(9):
        clock.tick()
    clock.tick({"b.1": 1}, "b.1")
    told = {id(clock.since(number)) for number in range(2, 11)}
    assert len(told) <= 2, "one of the first who asked, one of all others"
    assert clock.since(0) == {"a.1": 1, "b.1": 1, ME: 11}
    assert clock.since(5) == {"b.1": 1, ME: 11}


def test_a_delta_is_in_the_order_of_names_whatever_came_first():
    """Both sides of a link remember the same order."""
    clock = ActorClock("m.1")
    for name in ("z.1", "a.1", "n.1", "b.2"):
        clock.tick({name: 1}, name)
    assert ["a.1", "b.2", "m.1", "n.1", "z.1"] == list(clock.since(0))
    clock.tick({"c.1": 1}, "b.2")
    assert ["a.1", "m.1", "n.1", "z.1"] == list(clock.since(0, "b.2"))


def test_a_delta_is_in_the_order_in_which_it_is_decoded():
    """So a clock that is handed it within a process remembers the same order as one far away."""
    clock = ActorClock(ME)
    for name in ("c.1", "a.1", "b.1"):
        clock.tick({name: 3}, name)
    assert ["a.1", "b.1", "c.1", ME] == list(clock.since(0))
    assert [ME] == list(clock.since(3))


def test_of_an_actor_only_the_newest_incarnations_have_entries():
    """Whatever is made up of incarnations, a clock is bounded by the actors that there are."""
    clock = ActorClock(ME)
    for number in range(1, 1000):
        clock.tick({f"b.{number}": 5, "c.1": number})

    assert {"b.998": 5, "b.999": 5, "c.1": 999} == {n: clock[n] for n in clock.others()}
    assert {} == clock.tick({"b.7": 9, "b.997": 9}), "older ones teach nothing any more"
    assert {"b.998": 6} == clock.tick({"b.998": 6})
    clock.forget(["b.999"])
    assert {"b.7": 1} == clock.tick({"b.7": 1}), "what was forgotten leaves room"
