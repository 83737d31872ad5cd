"""Bugs to be planted in the snapshot machine, each of which some small bank must notice.

Every one changes it as a programming mistake would.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from snapshot import coordinator, participant
from snapshot.channel_recorder import ChannelRecorder
from snapshot.coordinator import SnapshotCoordinator
from snapshot.participant import Capture, Own, Participant, RecordFlight, SendMarkers
from snapshot.record import Part
from tests.snapshot.bank import Bank


class Mutation(NamedTuple):
    """A bug, the first bank to look at, and how it is planted."""

    name: str
    first: int
    plant: Callable[..., None]


MUTATIONS: list[Mutation] = []


def bug(plant, first=0):
    """Note a function that plants a bug with pytest's ``monkeypatch``."""
    MUTATIONS.append(Mutation(plant.__name__.replace("_", " "), first, plant))
    return plant


def rare(first):
    """A bug that few banks notice; ``first`` is one of them."""
    return lambda plant: bug(plant, first)


def wrap(patch, owner, name, around):
    """Replace a function by one that is given the old one first."""
    before = getattr(owner, name)
    patch.setattr(owner, name, lambda *told, **more: around(before, *told, **more))


# The cut.


@bug
def no_marker_is_sent_on_one_lane(patch):
    def mark(old, bank, account, peer, snapshot):
        lanes, bank.lanes = bank.lanes, bank.lanes[:1]
        old(bank, account, peer, snapshot)
        bank.lanes = lanes

    wrap(patch, Bank, "mark", mark)


@bug
def no_marker_is_sent_to_one_peer(patch):
    wrap(patch, Participant, "_cut", lambda old, *told: [
        Capture(ask.snapshot, ask.peers[1:], ask.until) if isinstance(ask, Capture) else ask
        for ask in old(*told)
    ])  # fmt: skip


@bug
def what_follows_a_marker_is_recorded(patch):
    patch.setattr(ChannelRecorder, "heard", lambda self, channel, message: sum(
        cut.in_flight.setdefault(channel, []).append(message) is None
        for cut in self.open.values()
        if channel in cut.awaited or channel in cut.in_flight
    ))  # fmt: skip


@bug
def the_first_message_after_the_cut_is_not_recorded(patch):
    def heard(old, self, channel, message):
        late = [cut for cut in self.open.values() if not getattr(cut.in_flight, "begun", False)]
        for cut in late:
            cut.in_flight = Begun(cut.in_flight)
        return 0 if late else old(self, channel, message)

    wrap(patch, ChannelRecorder, "heard", heard)


class Begun(dict):
    """Recording that has begun, one event late."""

    begun = True


@bug
def only_the_oldest_cut_records(patch):
    def heard(self, channel, message):
        for cut in self.open.values():
            if channel in cut.awaited:
                cut.in_flight.setdefault(channel, []).append(message)
                return 1
        return 0

    patch.setattr(ChannelRecorder, "heard", heard)


@bug
def one_lanes_marker_speaks_for_all(patch):
    def marked(old, self, snapshot, channel):
        cut = self.open.get(snapshot)
        for each in list(cut.awaited) if cut else []:
            if each[0] == channel[0]:
                old(self, snapshot, each)

    wrap(patch, ChannelRecorder, "marked", marked)


@bug
def a_second_marker_cuts_again(patch):
    patch.setattr(ChannelRecorder, "new", lambda self, snapshot: snapshot not in self.open)


@bug
def the_cut_is_only_made_when_all_markers_are_in(patch):
    def perform(old, bank, account, asks):
        states = account.state()
        old(bank, account, asks)
        for ask in asks:
            if isinstance(ask, RecordFlight):
                account.states[ask.snapshot] = states

    wrap(patch, Bank, "perform", perform)


@bug
def the_marker_leaves_before_the_state_is_recorded(patch):
    wrap(patch, Participant, "marker", lambda old, self, at, snapshot, channel, now: old(
        self, at, snapshot, channel, lambda: replace(now(), number=now().number - 1)
    ))  # fmt: skip


# Who is told what.


@bug
def a_part_is_sent_before_what_was_in_flight_is_known(patch):
    patch.setattr(Own, "whole", property(lambda self: len(self.contents) >= 1))


@bug
def a_part_that_failed_is_taken_as_whole(patch):
    def add(old, self, part):
        old(self, Part(part.who, part.number, part.clock, part.peers, part.lost, part.contents))

    wrap(patch, SnapshotCoordinator, "add", add)


@bug
def parts_are_not_handed_on(patch):
    wrap(patch, Participant, "told", lambda old, self, snapshot, part: (
        old(self, snapshot, part) if part.who == self.me or snapshot in self.gatherings else []
    ))  # fmt: skip


# Who is absent.


@bug
def a_broken_channel_is_waited_for_for_ever(patch):
    patch.setattr(ChannelRecorder, "broken", lambda *_: None)
    patch.setattr(ChannelRecorder, "give_up", lambda *_: None)


@bug
def markers_that_were_not_waited_for_are_forgotten(patch):
    def give_up(self, snapshot, reason):
        cut = self.open.get(snapshot)
        if cut is not None:
            cut.awaited.clear()

    patch.setattr(ChannelRecorder, "give_up", give_up)


@rare(1193)
def a_channel_that_broke_before_the_cut_is_forgotten(patch):
    def gone(old, self, peer, reason):
        asks = old(self, peer, reason)
        self.parted.clear()
        return asks

    wrap(patch, Participant, "gone", gone)


@bug
def an_unknown_peer_is_forgotten(patch):
    wrap(patch, coordinator, "_problems", lambda old, *parts: (
        each for each in old(*parts) if "opened" not in each
    ))  # fmt: skip


@bug
def who_is_at_odds_is_ignored(patch):
    patch.setattr(SnapshotCoordinator, "_odds", lambda self, whole: {})


@bug
def only_direct_peers_are_expected(patch):
    wrap(patch, SnapshotCoordinator, "_expect", lambda old, self, part: (
        old(self, part) if part.who == self.initiator else self.awaiting.pop(part.who, None)
    ))  # fmt: skip


@bug
def a_silent_actor_is_waited_for_for_ever(patch):
    patch.setattr(Participant, "overdue", lambda *_: [])


@bug
def the_clocks_are_not_looked_at(patch):
    patch.setattr(coordinator, "cut_disagreement", lambda _: None)


# Memory.


@bug
def a_settled_snapshot_is_kept(patch):
    def captured(old, self, snapshot, content):
        own = self.own.get(snapshot)
        asks = old(self, snapshot, content)
        if own is not None:
            self.own[snapshot] = own
        return asks

    wrap(patch, Participant, "captured", captured)


@bug
def any_number_is_under_way(patch):
    patch.setattr(Participant, "_busy", lambda self: len(self.own) > participant.UNDER_WAY_MAX)


@bug
def who_was_refused_cuts_at_the_next_marker(patch):
    def pass_on(old, self, at, snapshot, now, towards):
        before = dict(self.cuts.newest)
        asks = old(self, at, snapshot, now, towards)
        self.cuts.newest = before
        return asks

    wrap(patch, Participant, "_pass_on", pass_on)


@rare(1183)
def who_is_refused_does_not_pass_markers_on(patch):
    wrap(patch, Participant, "_pass_on", lambda old, *told: [
        ask for ask in old(*told) if not isinstance(ask, SendMarkers)
    ])  # fmt: skip
