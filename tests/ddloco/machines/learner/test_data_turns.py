"""The data shards that a learner draws from, in turn."""

from ddloco.job.protocol.messages import CURSORS_BYTES_MAX, DataPlace, DataShards, within_budget
from ddloco.machines.learner.data_turns import DataTurns


def said(number, *places, settled=0):
    """A message of the lead."""
    return DataShards(number, tuple(DataPlace(*each) for each in places), settled)


def steps(turns, count):
    """Take so many steps; returns where each drew from, and whether it opened."""
    found = []
    for _ in range(count):
        turn = turns.take_turn()
        found.append((turn.held[0], turn.opens))
        turns.drew(f"{turn.held[0]}/{turns.held[0].batches + 1}".encode())
    return found


def test_shards_have_their_turns():
    """One after the other; each is opened once, where it was told."""
    turns = DataTurns()
    turns.hear(said(3, (4, 3, 7, b"c"), (1, 3, 0)))
    assert turns.known
    turns.take_turn()
    assert turns.skip == (7, b"c")
    turns.drew(b"4/8")
    assert steps(turns, 4) == [(1, True), (4, False), (1, False), (4, False)]
    assert turns.drawing() == (DataPlace(1, 3, 2, b"1/2"), DataPlace(4, 3, 10, b"4/10"))
    assert turns.follows == 3


def test_the_newest_message_is_followed_at_a_boundary():
    """What it keeps goes on; what it gives back is reported until that is known."""
    turns = DataTurns()
    turns.hear(said(1, (0, 1, 0), (1, 1, 0)))
    steps(turns, 3)
    turns.hear(said(2, (0, 1, 9), (2, 2, 5)))
    turns.hear(said(2, (3, 2, 0)))  # An older one, or the same again.
    assert turns.follows == 1
    assert steps(turns, 2) == [(0, False), (2, True)]
    assert [(each.shard, each.batches) for each in turns.held] == [(0, 3), (2, 6)]
    assert [(each.shard, each.batches) for each in turns.given_back()] == [(1, 1)]
    turns.hear(said(3, (0, 1, 9), settled=2))
    steps(turns, 1)
    assert [each.shard for each in turns.given_back()] == [2]


def test_a_shard_of_a_new_term_begins_where_it_is_farthest():
    """The lead may not have heard how far this learner was."""
    turns = DataTurns()
    turns.hear(said(1, (0, 1, 0), (1, 1, 0)))
    steps(turns, 4)
    turns.hear(said(2, (0, 2, 1), (1, 2, 8, b"far")))
    turns.take_turn()
    assert [(each.shard, each.batches, each.cursor) for each in turns.held] == [
        (0, 2, b"0/2"),
        (1, 8, b"far"),
    ]


def test_a_learner_never_waits_for_data():
    """A message without shards is followed only before the first one with some."""
    turns = DataTurns()
    turns.hear(said(1))
    assert not turns.known
    turns.hear(said(2, (0, 2, 0)))
    steps(turns, 1)
    turns.hear(said(3))
    assert steps(turns, 1) == [(0, False)]


def test_shards_that_were_told_of_are_not_taken_back_before_the_first_step():
    """Its parameters may be on their way into the worker, and then it begins."""
    turns = DataTurns()
    turns.hear(said(1, (0, 1, 0)))
    turns.hear(said(2))
    assert turns.known
    assert steps(turns, 1) == [(0, True)]


def test_a_snapshot_has_the_places_after_the_running_step():
    """Its shard comes first; the worker knows the cursor."""
    turns = DataTurns()
    turns.hear(said(1, (0, 1, 2, b"a"), (1, 1, 0)))
    turns.take_turn()
    assert turns.after(runs=True) == ((0, 3, b"a"), (1, 0, b""))
    assert turns.after(runs=False) == ((0, 2, b"a"), (1, 0, b""))


def test_a_message_has_room_for_its_cursors():
    """Those that do not fit are left out; their shards are drawn again from the beginning."""
    places = [DataPlace(n, 1, 1, b"x" * 4096) for n in range(40)]
    fitting = within_budget(places)
    assert sum(len(each.cursor) for each in fitting) <= CURSORS_BYTES_MAX
    assert [each.shard for each in fitting] == list(range(40))
    assert fitting[0].cursor
    assert not fitting[-1].cursor
