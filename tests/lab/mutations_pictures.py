"""Bugs to be planted in how snapshots are taken, each with the invariant that must object to it."""

from dataclasses import replace as changed

from msgspec.structs import replace

from ddloco.job.config import job_from
from ddloco.machines.learner.machine import Learner
from ddloco.machines.registry import states_for
from ddloco.stage.actors.actor import Actor
from ddloco.stage.actors.snapshot_adapter import SnapshotAdapter
from ddloco.workers.simulated.snapshot_sink import SnapshotCapture, SnapshotMemory
from snapshot import Participant, StateError, coordinator, participant
from tests.lab.mutations import Mutation, after, always, wrap
from transport import BULK, CONTROL, SetTimer
from transport.link import Links

PICTURES: list[Mutation] = []
"""A list of their own: tapes alone show none of them."""


def bug(invariant, *worlds):
    """Note a function that plants a bug with pytest's ``monkeypatch``."""

    def note(plant):
        PICTURES.append(Mutation(plant.__name__.replace("_", " "), invariant, worlds, plant))
        return plant

    return note


SYNCERS = states_for(job_from({"job": {"task": "json:loads"}}, "any"), "syncer.1")


@bug("channel-complete", 18)
def the_second_marker_is_early_enough(patch):
    def marker(old, self, at, snapshot, channel, now):
        peer, lane = channel
        if not self.cuts.new(snapshot):
            return old(self, at, snapshot, channel, now)
        if lane == CONTROL:
            return []
        asked = old(self, at, snapshot, channel, now)
        return asked + old(self, at, snapshot, (peer, CONTROL), now)

    wrap(patch, Participant, "marker", marker)
    always(patch, coordinator, "cut_disagreement", None)


@bug("cut-consistent", 2)
def a_part_names_the_event_before(patch):
    after(patch, Actor, "_moment", lambda _self, now: changed(now, number=now.number - 1))


@bug("channel-complete", 1)
def a_marker_counts_for_both_lanes(patch):
    def marker(old, self, at, snapshot, channel, now):
        peer, _ = channel
        return [each for lane in (CONTROL, BULK)
                for each in old(self, at, snapshot, (peer, lane), now)]  # fmt: skip

    wrap(patch, Participant, "marker", marker)


@bug("channel-complete", 1)
def nothing_is_ever_in_flight(patch):
    always(patch, SnapshotAdapter, "hears", [])


@bug("channel-complete", 2)
def only_one_of_several_cuts_hears_what_is_in_flight(patch):
    def heard(old, self, channel, message):
        whole = self.open
        self.open = dict(list(whole.items())[:1])
        times = old(self, channel, message)
        self.open = whole
        return times

    wrap(patch, participant.ChannelRecorder, "heard", heard)


@bug("channel-complete", 1)
def what_messages_brought_is_not_written(patch):
    after(patch, SnapshotAdapter, "_record_flight", lambda _self, work: replace(work, handles=()))


@bug("snapshot-terminates", 1)
def it_is_not_checked_whether_markers_are_late(patch):
    after(patch, SnapshotAdapter, "mark", lambda _self, effects: [
        each for each in effects if not isinstance(each, SetTimer)
    ])  # fmt: skip


@bug("snapshot-terminates", 2)
def a_marker_of_who_is_gone_is_awaited(patch):
    wrap(
        patch,
        SnapshotAdapter,
        "lost",
        lambda _old, self, peer, _reason: self.links_up.pop(peer, []) and [],
    )


@bug("snapshot-terminates", 1)
def bulk_has_no_markers(patch):
    def mark(old, self, peer, snapshot):
        link = self.links.get(peer)
        if link is None or not link.up:
            return []
        effects = old(self, peer, snapshot)
        return [each for each in effects if each.lane == CONTROL]

    wrap(patch, Links, "_mark", mark)


@bug("concurrent-snapshots", 18)
def there_may_be_any_number_at_once(patch):
    always(patch, Participant, "_busy", False)


@bug("concurrent-snapshots", 2)
def two_at_once_are_too_many(patch):
    patch.setattr(participant, "UNDER_WAY_MAX", 2)


@bug("data-cursor", 48)
def batches_of_former_selves_count_before_the_first_step(patch):
    patch.setattr(Learner, "drawn", property(lambda self: (
        (self.recovery.batches or 0) + self.step + (self.running is not None)
    )))  # fmt: skip


@bug("data-cursor", 1)
def a_worker_is_written_before_its_step_is_done(patch):
    def begin(old, self, work, contents, state):
        self._running = False
        old(self, work, contents, state)

    wrap(patch, SnapshotCapture, "begin", begin)


@bug("optimizer-with-params", 1)
def an_outer_state_is_that_of_the_merge_before(patch):
    def write(old, self, part):
        held = {
            handle: changed(content, what=(content.what[0], content.what[1] - 1, 0, 0))
            if handle.startswith("outer") else content
            for handle, content in part.contents.items()
        }  # fmt: skip
        return old(self, changed(part, contents=held))

    wrap(patch, SnapshotMemory, "write", write)


@bug("merge-once", 1)
def a_picture_does_not_say_what_is_spent(patch):
    def state(old, self, work, contents):
        try:
            actor = SYNCERS.read(work.state)
        except StateError:
            return old(self, work, contents)
        if actor.machine.rounds:
            for bases in actor.machine.rounds.membership.merged.values():
                bases[:] = [-1] * len(bases)
        return old(self, replace(work, state=actor.write()), contents)

    wrap(patch, SnapshotCapture, "state", state)
