"""Bugs to be planted, each with the invariant that must object to it.

Every one changes a machine, a link, the clock, the merging kernel or simulated work as a
programming mistake would. ``seeds`` are hostile worlds in which it is known to be noticed; where
machines have changed since, others are tried.
"""

import itertools
from collections.abc import Callable
from copy import copy
from dataclasses import replace as changed
from typing import NamedTuple

import numpy as np
from msgspec import UNSET
from msgspec.structs import replace

from clocks import ActorClock, actor_of
from ddloco.job.config import Outer, job_from
from ddloco.job.protocol.messages import GlobalFragment, Pull
from ddloco.job.protocol.work import FragmentMerged, RunStep, StepFinished, SumContributions
from ddloco.machines.learner.data_turns import DataTurns
from ddloco.machines.learner.host_copies import HostCopies
from ddloco.machines.learner.lockstep import Lockstep
from ddloco.machines.learner.machine import Learner
from ddloco.machines.learner.state_donor import StateDonor
from ddloco.machines.learner.state_recovery import StateRecovery
from ddloco.machines.outer import merge as merging
from ddloco.machines.outer import outlier_test
from ddloco.machines.outer.block_kernel import NumpyKernel
from ddloco.machines.outer.optimizers.optimizer import STEPS
from ddloco.machines.relay.machine import Relay
from ddloco.machines.syncer import machine, members, pacing, rounds, syncs
from ddloco.machines.syncer.data_roster import DataRoster, DataShard
from ddloco.machines.syncer.global_fragments import GlobalFragments
from ddloco.machines.syncer.members import Member
from ddloco.machines.syncer.membership import Membership
from ddloco.machines.syncer.outlier_history import OutlierHistory
from ddloco.machines.syncer.pacing import Pacing
from ddloco.machines.syncer.rounds import Rounds
from ddloco.machines.syncer.schedule import Schedule
from ddloco.machines.syncer.shards import Shards
from ddloco.machines.syncer.shutdown import JobShutdown
from ddloco.machines.syncer.state_relay import StateRelay
from ddloco.simulation.node import Pace
from ddloco.simulation.physics import Physics
from ddloco.simulation.world import World
from ddloco.stage.actors.actor import Actor
from ddloco.stage.actors.effects import Finish
from ddloco.stage.files.faults import SYNCER, Fault
from ddloco.stage.nodes import lease
from ddloco.stage.nodes.lease import Lease
from ddloco.workers.simulated import work as simulated_work
from ddloco.workers.simulated.work import SimulatedWork, leaves_of
from tests.lab.hostile_world import Hostile
from transport import (
    BULK,
    CONTROL,
    Drop,
    Hangup,
    MessageArrived,
    PeerJoined,
    Redial,
    Send,
    TimerFired,
)
from transport import link as links
from transport.flow_control import Outbox
from transport.link import Links
from transport.refcounts import Handles
from transport.sending import LinkSender


class Mutation(NamedTuple):
    """A bug: what must object, the worlds where it is noticed, and how it is planted."""

    name: str
    invariant: str
    worlds: tuple[int | Hostile, ...]
    plant: Callable[..., None]


MUTATIONS: list[Mutation] = []


def bug(invariant, *worlds):
    """Note a function that plants a bug with pytest's ``monkeypatch``."""

    def note(plant):
        MUTATIONS.append(Mutation(plant.__name__.replace("_", " "), invariant, worlds, plant))
        return plant

    return note


def made(
    *faults, learners=2, fragment_bytes=0.0, poisoned=(), wrong=(), heal_at=40.0, tensors=4, **sync
):
    """A world made by hand, for what seeds seldom bring together."""
    table = {"fragments": 1, "interval": 2, "overlap": 1, "staleness": 30, **sync}
    job = {"task": "simulated:tensors", "steps": 120, "learners": learners}
    plain = {"task": {"tensors": tensors}, "job": job, "sync": table}
    physics = Physics(leaves_of(tensors), fragment_bytes=fragment_bytes, arithmetic=True)
    return Hostile(-1, job_from(plain, "by hand"), physics, faults, poisoned, wrong, heal_at)


def slow(direction, at_s, mbit):
    """What learner-0 sends, or is sent, takes a while, if it is large."""
    return Fault("bandwidth", "learner-0", at_s, 8.0, mbit=mbit, direction=direction)


LARGE = 4e5
RESTARTED = made(
    slow("from-syncer", 1.3, 0.4), Fault("crash", SYNCER, 7.3, 1.0), fragment_bytes=LARGE
)
"""What is new reaches a learner after 8 s; meanwhile the syncer dies, and comes back."""

REBORN, REBORN_FRESH = (
    made(
        slow("to-syncer", 0.5, 0.8),
        Fault("crash", "learner-0", 3.5, 0.2),
        fragment_bytes=LARGE,
        pull=pull,
    )
    for pull in ("unmerged", "fresh")
)
"""What a learner said arrives when it has died, and come back."""

COLD = made(Fault("crash", SYNCER, 0.528, 1.0))
"""The syncer dies between a learner's handshake and its first parameters."""

SPOILED = made(learners=1, poisoned=(("learner-0", 5.2, 8.2),))
RESET_FRESH = made(Fault("reset", "learner-0", 5.2), pull="fresh")


def wrap(patch, owner, name, around):
    """Replace a function by one that is given the old one first."""
    before = getattr(owner, name)

    def wrapped(*arguments, **more):
        return around(before, *arguments, **more)

    patch.setattr(owner, name, wrapped)


def after(patch, owner, name, change):
    """Let ``change`` make something else of what a method returns; it is given the object too."""
    wrap(patch, owner, name, lambda old, self, *more: change(self, old(self, *more)))


def always(patch, owner, name, value):
    """A function that always says the same."""
    patch.setattr(owner, name, lambda *_, **__: copy(value))


# Merging.


@bug("merge-once", 0)
def tokens_are_pulled_and_taken_again(patch):
    patch.setattr(Member, "may_contribute", lambda self, fragment, oldest, merged: bool(
        self.fresh and self.progress.steps[fragment] and self.progress.versions[fragment] >= oldest
    ))  # fmt: skip
    always(patch, Member, "objection", None)


@bug("merge-once", 27, 36)
def a_new_link_forgets_what_was_merged(patch):
    def merged(self, name):
        self.merged[name] = [-1] * self.fragments
        return self.merged[name]

    patch.setattr(Membership, "_merged", merged)


@bug("merge-once", RESTARTED)
def a_new_syncer_forgets_what_was_spent(patch):
    always(patch, Membership, "recover", None)


@bug("merge-once", RESTARTED)
def a_merge_keeps_only_what_it_spent_itself(patch):
    always(patch, Membership, "spent", {})


@bug("merge-once", RESTARTED)
def a_merge_keeps_nothing_of_what_was_spent(patch):
    def settle(old, self, result):
        old(self, result)
        for p, (kept, *arrays) in self._fragment_memory.kept.items():
            self._fragment_memory.kept[p] = (replace(kept, spent={}), *arrays)

    wrap(patch, SimulatedWork, "settle", settle)


def counters(patch, **changes):
    """Contributions say something else; each change is told learner and body."""

    def answer(self, effects):
        if self.work.newest in self.answers:
            answered = self.answers[self.work.newest]
            for field, change in changes.items():
                answered.body = replace(answered.body, **{field: change(self, answered.body)})
        return effects

    after(patch, Learner, "_answer", answer)


@bug("token-conservation", 0)
def tokens_are_counted_from_the_start(patch):
    counters(patch, tokens=lambda self, _: self.tokens)


@bug("token-conservation", 21)
def the_step_that_runs_is_counted_too(patch):
    counters(patch, steps=lambda _, body: body.steps + 1, tokens=lambda _, body: body.tokens + 8)


@bug("token-conservation", 5)
def a_contribution_names_the_version_that_waits(patch):
    counters(patch, base=lambda self, body: self._newest(body.fragment))


@bug("token-conservation", 0)
def a_contribution_names_the_step_that_runs(patch):
    counters(patch, step=lambda _, body: body.step + 1)


@bug("token-conservation", 8)
def counters_do_not_start_again(patch):
    def finished(old, self, at, event):
        before = list(self.step_at), list(self.tokens_at)
        effects = old(self, at, event)
        if event.step > 1:
            self.step_at, self.tokens_at = before
        return effects

    wrap(patch, Learner, "_step_finished", finished)


@bug("token-conservation", 0)
def a_contribution_is_of_the_step_before(patch):
    def encode(old, self, work, contents):
        event = old(self, work, contents)
        p, version, steps, step = contents[work.out].what
        contents[work.out] = changed(contents[work.out], what=(p, version, steps - 1, step - 1))
        return event

    wrap(patch, SimulatedWork, "_encode", encode)


@bug("outer-monotone", 13)
def a_learner_goes_back_to_an_older_version(patch):
    patch.setattr(Learner, "_newest", lambda self, p: -2 if self.step else self.versions[p])


def replace_unasked(self, fragment, newer, _compress):
    """As it is, without its assertion."""
    older, self.newest_of[fragment] = self.newest_of[fragment], newer
    self.versions = self._versions()
    return [Drop(handle) for handle in older.handles() if handle not in newer.handles()]


@bug("heal-progress", 255)
def a_difference_is_sent_to_learners_at_the_version_before(patch):
    def tell(old, self, at, peer, p, *, instead=False):
        peer.member.sent[p] = peer.member.holds(p)
        return old(self, at, peer, p, instead=instead)

    wrap(patch, GlobalFragments, "tell", tell)


@bug("heal-progress", 38)
def a_new_syncer_begins_its_schedule_again(patch):
    patch.setattr(Schedule, "recover", lambda _self, _t: None)
    patch.setattr(GlobalFragments, "replace", replace_unasked)


@bug("outer-monotone", 0)
def a_step_is_numbered_twice(patch):
    def finished(self, effects):
        return [replace(e, step=e.step - 1) if isinstance(e, RunStep) and e.step == 4 else e
                for e in effects]  # fmt: skip

    after(patch, Learner, "_step_finished", finished)


@bug("weights-valid", 0)
def weights_are_tokens_only(patch):
    patch.setattr(syncs, "merge_weight", lambda tokens, steps, rule: float(tokens))


@bug("weights-valid", 0)
def weights_are_all_the_same(patch):
    patch.setattr(syncs, "merge_weight", lambda tokens, steps, rule: 1.0)


@bug("weights-valid", 0)
def weights_are_not_normalised(patch):
    def merge(old, *arguments, **more):
        result = old(*arguments, **more)
        return result._replace(weights=tuple(2 * each for each in result.weights))

    wrap(patch, simulated_work, "merge_fragment", merge)


@bug("staleness-bound", 57)
def whatever_is_stale_is_taken(patch):
    always(patch, GlobalFragments, "oldest", -1)


@bug("staleness-bound", 57)
def the_lag_is_twice_what_was_asked(patch):
    def initial(old, count, owned, lag):
        return old(count, owned, 2 * lag)

    wrap(patch, machine, "initial_globals", initial)


@bug("merge-order-canonical", 0)
def contributions_are_summed_as_they_came(patch):
    patch.setattr(syncs, "sorted", lambda items, key=None: list(items), raising=False)


@bug("merge-order-canonical", 0)
def learners_are_sorted_by_weight(patch):
    def merge(old, self, sync, shared):
        return [
            replace(e, shares=tuple(sorted(e.shares, key=lambda s: (-s.weight, s.name[::-1]))))
            if hasattr(e, "shares") else e
            for e in old(self, sync, shared)
        ]  # fmt: skip

    wrap(patch, Rounds, "_merge", merge)


@bug("data-cursor", 0)
def data_goes_on_where_it_never_was(patch):
    def note(old, self, actor, count, cursor=b""):
        old(self, actor, count + 1, cursor)

    wrap(patch, Membership, "note_batches", note)


@bug("data-order", 50)
def a_shard_is_given_away_while_somebody_draws_from_it(patch):
    def settle(_self, effects):
        for index in list(_self.moving):
            _self._free(index)
            _self.changed = True
        return effects

    after(patch, DataRoster, "settle", settle)


@bug("data-order", 16)
def what_is_reported_of_shards_is_forgotten(patch):
    patch.setattr(DataShard, "came", lambda _self, _place: None)


@bug("data-order", 15)
def a_shard_begins_one_batch_too_late(patch):
    def skip(_self, place):
        return place[0] + 1, b""

    held = DataTurns.skip.fget
    patch.setattr(DataTurns, "skip", property(lambda self: skip(self, held(self))))


@bug("data-order", 271)
def a_shard_that_was_given_back_is_drawn_from(patch):
    def follow(old, self, said):
        kept = [each for each in self.held if each.shard not in {p.shard for p in said.places}]
        old(self, said)
        self.held += kept

    wrap(patch, DataTurns, "_follow", follow)


@bug("one-lead", 44)
def a_lease_is_held_for_longer_than_a_successor_waits(patch):
    patch.setattr(lease, "HOLD_S", 20.0)


@bug("one-lead", 40)
def whoever_wakes_up_acts_once_more(patch):
    patch.setattr(Lease, "confirm", lambda _self: None)


@bug("heal-progress", 0)
def a_donor_that_has_not_begun_is_good_enough(patch):
    patch.setattr(StateRelay, "_suits", lambda _self, _at, _handover, _member, _rounds: True)


@bug("bounded-memory", 0)
def a_state_that_was_taken_over_is_kept(patch):
    after(patch, StateRecovery, "drop", lambda _self, _effects: [])


@bug("bounded-memory", 0)
def a_lent_copy_is_never_let_go(patch):
    after(patch, StateDonor, "encoded", lambda _self, effects: effects[:1])


@bug("bounded-memory", 0)
def what_is_passed_on_is_kept(patch):
    after(patch, StateRelay, "encoded", lambda _self, effects: effects[:-1])


@bug("model-whole", 2)
def fragments_change_places_in_the_model(patch):
    after(patch, Shards, "whole", lambda _self, whole: whole[::-1])


@bug("model-whole", 0)
def the_lead_leaves_before_the_model_is_kept(patch):
    def leave(old, self, members):
        return [replace(e) for e in old(self, members)] or [Finish(self.status, self.reason)]

    wrap(patch, JobShutdown, "leave", leave)


class Forgotten(dict):
    """What was merged of each incarnation; of one that was forgotten, nothing."""

    def __missing__(self, name):
        return [-1] * 64


@bug("no-zombie", REBORN)
def an_older_self_stays_a_member(patch):
    def join(old, self, at, peer, incarnation):
        members = dict(self.members)
        member, effects = old(self, at, peer, incarnation)
        self.members, self.merged = {**members, **self.members}, Forgotten(self.merged)
        olds = [each for each in members if actor_of(each) == actor_of(peer) and each != peer]
        told = [e for e in effects if isinstance(e, Send | Hangup) and e.peer in olds]
        return member, [effect for effect in effects if effect not in told]

    wrap(patch, Membership, "join", join)
    always(patch, StateRelay, "_suits", False)  # A donor that is dead is found out at once.


# Launching.


@bug("quorum-or-grace", 0)
def one_learner_is_quorum_enough(patch):
    def wait(old, self, at, waiting, sync, *, able, missing):
        return old(self, at, waiting, sync, able=99 if able else 0, missing=missing)

    wrap(patch, Pacing, "wait_until", wait)


@bug("quorum-or-grace", 22)
def the_grace_timer_is_not_set(patch):
    always(patch, Rounds, "_look_again", [])


@bug("quorum-or-grace", 1)
def the_grace_window_is_ten_times_as_long(patch):
    wrap(patch, pacing, "grace_window", lambda old, **more: 10 * old(**more))


@bug("quorum-or-grace", 1)
def the_grace_window_has_no_end_of_steps(patch):
    def window(old, **more):
        return old(**{**more, "steps_max": 1e9, "overlap": 9})

    wrap(patch, pacing, "grace_window", window)


@bug("quorum-or-grace", 22)
def no_learner_is_waited_for(patch):
    always(patch, Membership, "missing", False)


@bug("unmerged-pulled", 16)
def only_who_has_finished_a_step_is_pulled(patch):
    def unmerged(self, p, oldest):
        members = self.members.values()
        able = (each for each in members if self.may_be_pulled(each, p, oldest))
        return [each for each in able if each.fresh]

    patch.setattr(Membership, "unmerged", unmerged)


@bug("unmerged-pulled", 35)
def who_left_one_pull_unanswered_is_never_pulled_again(patch):
    patch.setattr(Member, "speak", lambda self: setattr(self, "spoken", self.spoken + 1))


@bug("quorum-or-grace", 1)
def the_launch_floor_is_ignored(patch):
    def wait(old, self, at, t, fragment):
        waiting = old(self, at, t, fragment)
        waiting.floor_at = at
        return waiting

    wrap(patch, Pacing, "await_sync", wait)


@bug("quorum-or-grace", 4)
def fresh_is_not_reset_by_a_launch(patch):
    def launch(old, self, at, waiting, able, compress):
        fresh = [each for each in self.membership.members.values() if each.fresh]
        effects = old(self, at, waiting, able, compress)
        for member in fresh:
            member.fresh = True
        return effects

    wrap(patch, Rounds, "_launch", launch)


@bug("quorum-or-grace", 0)
def one_is_pulled_twice(patch):
    after(patch, Membership, "unmerged", lambda self, able: [*able, *able[:1]])


@bug("quorum-or-grace", 4, 15)
def a_sync_is_not_closed_by_its_deadline(patch):
    always(patch, Rounds, "late", [])


@bug("overlap", 19, 14)
def more_syncs_are_under_way_than_may_be(patch):
    def choose(old, self, at, job, plan):
        sync = replace(job.sync, overlap=job.sync.overlap + 1)
        return old(self, at, replace(job, sync=sync), plan)

    wrap(patch, Rounds, "_choose", choose)


@bug("overlap", 15, 2)
def a_fragment_may_be_under_way_twice(patch):
    def choose(old, self, at, job, plan):
        if self.stopping or len(self.syncs) >= job.sync.overlap:
            return False
        under_way, self.syncs = self.syncs, {}
        try:
            return old(self, at, job, plan)
        finally:
            self.syncs = under_way

    wrap(patch, Rounds, "_choose", choose)


# Learners.


@bug("no-learner-waits-on-learner", 0)
def a_learner_begins_with_its_timer(patch):
    def receive(old, self, at, peer, said, handle):
        with patch.context() as idle:
            always(idle, Learner, "_run", [])
            return old(self, at, peer, said, handle)

    def handle(old, self, at, event):
        effects = old(self, at, event)
        whole = len(self.incoming) == len(self.versions)
        if isinstance(event, TimerFired) and not self.step and self.running is None and whole:
            effects = [*effects, *self._run(at)]
        return effects

    wrap(patch, Learner, "_receive", receive)
    wrap(patch, Learner, "handle", handle)


@bug("no-learner-waits-on-learner", 0)
def a_learner_takes_a_step_when_it_is_pulled(patch):
    def answer(old, self, peer, pull):
        effects = old(self, peer, pull)
        return [*effects, *(self._run(0.0) if self.step == 3 and effects else [])]

    wrap(patch, Learner, "_answer", answer)


@bug("in-step", 29, 28, 66)
def a_learner_does_not_wait_for_a_version(patch):
    always(patch, Lockstep, "must_wait", value=False)


@bug("in-step", 176, 213, 361)
def a_learner_installs_a_version_when_it_comes(patch):
    always(patch, Lockstep, "installs", value=True)


@bug("quorum-or-grace", 29, 28, 66)
def a_round_begins_before_its_learners_have_come_to_it(patch):
    patch.setattr(rounds, "not_in_round", lambda *_: None)


@bug("inner-steps-never-block", 0)
def a_learner_waits_to_be_pulled(patch):
    def handle(old, self, at, event):
        ended = isinstance(event, StepFinished) and event.step % 3 == 0
        with patch.context() as idle:
            if ended:
                always(idle, Learner, "_run", [])
            effects = old(self, at, event)
        if isinstance(event, MessageArrived) and isinstance(event.body, Pull):
            effects = [*effects, *([] if self.running else self._run(at))]
        return effects

    wrap(patch, Learner, "handle", handle)


@bug("inner-steps-never-block", 6)
def a_learner_waits_for_its_link(patch):
    def handle(old, self, at, event):
        linked = any(self.linked.values())
        alone = isinstance(event, StepFinished) and not linked and not self.stopping
        with patch.context() as idle:
            if alone:
                always(idle, Learner, "_run", [])
            effects = old(self, at, event)
        if isinstance(event, PeerJoined) and self.step and self.running is None:
            effects = [*effects, *self._run(at)]
        return effects

    wrap(patch, Learner, "handle", handle)


@bug("no-unhealed-donor", 2)
def a_learner_begins_with_the_first_fragment(patch):
    def receive(old, self, at, peer, said, handle):
        effects = old(self, at, peer, said, handle)
        waits = self.step == 0 and self.running is None and self.incoming
        return [*effects, *(self._run(at) if waits else [])]

    wrap(patch, Learner, "_receive", receive)


# Clocks.


@bug("clock-causal", 0)
def timers_are_no_events(patch):
    def witness(old, self, event):
        learned = old(self, event)
        if isinstance(event, TimerFired):
            self.clock.number -= 1
        return learned

    wrap(patch, Actor, "witness", witness)


@bug("clock-causal", 0)
def a_message_moves_ones_own_entry(patch):
    def tick(old, self, heard=None, source=""):
        learned = old(self, heard or {}, source)
        self.number += bool(heard)
        return learned

    wrap(patch, ActorClock, "tick", tick)


@bug("clock-vs-truth", 1)
def the_maximum_is_not_taken(patch):
    def tick(old, self, heard=None, source=""):
        learned = old(self, heard or {}, source)
        for name in set(heard or ()) & set(self._counts) - {self.me}:
            self._counts[name] = heard[name]
        return learned

    def since(self, number, reader=None):
        own = self.number - 1 if self.number % 5 == 0 else self.number
        return {**{name: self._counts[name] for name in self._names}, self.me: own}

    wrap(patch, ActorClock, "tick", tick)
    patch.setattr(ActorClock, "since", since)


@bug("clock-causal", 1)
def nothing_is_learned_of_a_third(patch):
    def tick(old, self, heard=None, source=""):
        return old(self, {n: c for n, c in (heard or {}).items() if n == source}, source)

    wrap(patch, ActorClock, "tick", tick)


@bug("clock-vs-truth", 1)
def only_ones_own_entry_is_told(patch):
    patch.setattr(ActorClock, "since", lambda self, number, reader=None: {self.me: self.number})


@bug("clock-vs-truth", 2)
def a_clock_says_one_more_than_it_knows(patch):
    def since(old, self, number, reader=None):
        return {n: c + (n != self.me) for n, c in old(self, number, reader).items()}

    wrap(patch, ActorClock, "since", since)


@bug("clock-vs-truth", 1)
def what_changed_last_is_not_told(patch):
    def number(old, self, link, lane, state, body, payload=""):
        said = old(self, link, lane, state, body, payload)
        state.told += 3
        return said

    wrap(patch, LinkSender, "number", number)


# Bounds.


@bug("bounded-memory", 0)
def an_array_is_never_freed(patch):
    after(patch, Handles, "release", lambda self, effects: [])


@bug("bounded-memory", 0)
def a_host_copy_is_kept(patch):
    after(patch, HostCopies, "release", lambda self, handles: [])


@bug("bounded-memory", 3)
def a_payload_that_waited_is_kept(patch):
    patch.setitem(links.WINDOW_MESSAGES, BULK, 1)
    always(patch, Links, "_forget_waiting", [])


@bug("bounded-memory", 0)
def a_merged_contribution_is_kept(patch):
    def merged(old, self, at, event, job):
        effects = old(self, at, event, job)
        return effects[1:] if event.accepted else effects

    wrap(patch, Rounds, "merged", merged)


@bug("bounded-memory", 0)
def reports_wait_one_behind_the_other(patch):
    def put(old, self, message):
        return old(self, replace(message, key=""))

    def credit(old, self, link, lane):
        return old(self, link, lane) if lane == BULK else []

    wrap(patch, Outbox, "put", put)
    wrap(patch, LinkSender, "give_credit", credit)
    patch.setitem(links.WINDOW_MESSAGES, CONTROL, 8)


@bug("bounded-memory", 0)
def clocks_keep_who_has_gone(patch):
    always(patch, Actor, "_retire", None)


@bug("bounded-memory", 18)
def old_messages_bring_the_retired_back(patch):
    after(patch, Actor, "_retire", lambda self, _: self.floors.clear())


@bug("bounded-memory", 3)
def a_new_syncer_keeps_who_has_gone(patch):
    always(patch, Membership, "recovered", [])


@bug("control-not-starved", 0)
def whatever_is_said_waits(patch):
    always(patch, Outbox, "pass_through", False)


@bug("control-not-starved", 8)
def credit_lets_nothing_go(patch):
    patch.setitem(links.WINDOW_MESSAGES, CONTROL, 6)

    def pump(old, self, link, lane):
        first = link.lanes[lane].outbox.waiting
        return old(self, link, lane) if first and first[0].free_of_charge else []

    wrap(patch, LinkSender, "pump", pump)


# Durability.


@bug("ack-after-durable", 23)
def a_merge_is_told_before_it_is_kept(patch):
    def settle(old, self, result):
        late, self._late = getattr(self, "_late", None), result
        if isinstance(late, FragmentMerged):
            old(self, late)

    wrap(patch, SimulatedWork, "settle", settle)


@bug("ack-after-durable", 23)
def nothing_is_kept(patch):
    always(patch, SimulatedWork, "settle", None)


@bug("ack-after-durable", 23)
def the_first_merge_is_kept_and_not_the_newest(patch):
    def settle(old, self, result):
        before = dict(self._fragment_memory.kept)
        old(self, result)
        self._fragment_memory.kept.update(before)

    wrap(patch, SimulatedWork, "settle", settle)


@bug("optimizer-with-params", 0)
def an_outer_state_is_forgotten(patch):
    def merge(old, self, sync, shared):
        effects = old(self, sync, shared)
        return [replace(e, state="") if hasattr(e, "shares") else e for e in effects]

    wrap(patch, Rounds, "_merge", merge)


@bug("optimizer-with-params", 23)
def an_older_outer_state_is_kept(patch):
    def settle(old, self, result):
        before = dict(self._fragment_memory.kept)
        old(self, result)
        for p, (kept, theta, state) in self._fragment_memory.kept.items():
            older = before[p][2] if p in before else state
            self._fragment_memory.kept[p] = (kept, theta, older)

    wrap(patch, SimulatedWork, "settle", settle)


@bug("optimizer-with-params", 6)
def a_restarted_syncer_forgets_how_many_steps_it_took(patch):
    def recover(old, self, work, contents):
        for p, (kept, theta, content) in self._fragment_memory.kept.items():
            if content.state is not None:
                state = {**content.state, STEPS: np.zeros(1, np.int64)}
                self._fragment_memory.kept[p] = (kept, theta, changed(content, state=state))
        return old(self, work, contents)

    wrap(patch, SimulatedWork, "_recover", recover)


# The kernel.


@bug("model-oracle", 4)
def every_bias_correction_is_that_of_the_first_step(patch):
    step = merging.OuterStep
    patch.setattr(merging, "OuterStep", lambda outer, _, *more: step(outer, 1, *more))


@bug("model-oracle", 0)
def embeddings_are_averaged_by_direction(patch):
    merged_with(patch, Outer(average=()))


@bug("model-oracle", 0)
def everything_is_averaged_plainly(patch):
    merged_with(patch, Outer(merge="average"))


def merged_with(patch, outer):
    """Tensors are merged by other rules than those of the job."""
    segments = merging.fragment_segments
    patch.setattr(simulated_work, "_segments", lambda plan, p, _: segments(plan, p, outer))


def kernel_step(patch, step):
    """Another outer step: (theta, momentum, delta, lr, mu) to (theta, momentum)."""

    def write(_, theta, momentum, rates, out):
        scale, lr, mu = rates
        out[0][:], out[1][:] = step(theta, momentum, out[0] * np.float32(scale), lr, mu)

    patch.setattr(NumpyKernel, "nesterov", write)


@bug("model-oracle", 0)
def the_outer_step_has_no_momentum(patch):
    kernel_step(patch, lambda theta, b, d, lr, mu: (theta - lr * d, mu * b + d))


@bug("model-oracle", 0)
def the_outer_step_does_not_look_ahead(patch):
    kernel_step(patch, lambda theta, b, d, lr, mu: (theta - lr * (mu * b + d), mu * b + d))


@bug("model-oracle", 0)
def the_outer_step_climbs(patch):
    kernel_step(
        patch, lambda theta, b, d, lr, mu: (theta + lr * (d + mu * (mu * b + d)), mu * b + d)
    )


@bug("token-conservation", 0)
def the_last_contribution_is_left_out(patch):
    def merge(old, theta, state, contributions, *arguments, **more):
        some = contributions[: max(len(contributions) - 1, 1)]
        return old(theta, state, some, *arguments, **more)

    wrap(patch, simulated_work, "merge_fragment", merge)


@bug("token-conservation", 6)
def a_contribution_with_a_nan_is_refused_with_the_next(patch):
    def merge(old, theta, state, contributions, *arguments, **more):
        bad = any(not np.isfinite(c.buffer.view(np.float32)).all() for c in contributions)
        return old(theta, state, contributions[:1] if bad else contributions, *arguments, **more)

    wrap(patch, simulated_work, "merge_fragment", merge)


@bug("finite", 6)
def what_is_no_number_is_merged(patch):
    always(patch, merging, "_measure_extreme", (0.0, ""))


# What is believed.


def deluded(how, learners=4, **more):
    """A world in which a learner is wrong from the middle on, when all have joined."""
    return made(learners=learners, tensors=8, wrong=(("learner-1", 20.0, 40.0, how),), **more)


def judged(patch, change):
    """The judge of a merge finds other faults: ``change`` is told the known and the found ones."""

    def call(old, self, candidates, norms, faults):
        return change(list(faults), old(self, candidates, norms, faults))

    wrap(patch, outlier_test.OutlierTest, "__call__", call)


@bug("wrong-refused", deluded("norm"))
def norms_are_not_looked_at(patch):
    judged(patch, lambda known, found: [
        k if f.startswith("norm") else f for k, f in zip(known, found, strict=True)
    ])  # fmt: skip


@bug("wrong-refused", 80, deluded("bit"))
def a_learner_believed_once_is_believed_for_ever(patch):
    after(patch, OutlierHistory, "norm", lambda self, usual: usual and 1e9)
    patch.setattr(outlier_test, "MAJORITY", 99)


@bug("wrong-refused", deluded("sign"))
def directions_are_not_looked_at(patch):
    judged(patch, lambda known, found: [
        k if f.startswith("cosine") else f for k, f in zip(known, found, strict=True)
    ])  # fmt: skip


@bug("wrong-refused", deluded("sign"))
def a_turned_sign_is_the_usual(patch):
    always(patch, OutlierHistory, "cosine", -1.0)


@bug("honest-believed", deluded("norm"))
def the_wrong_one_is_refused(patch):
    def shifted(known, found):
        return found[1:] + found[:1] if known != found else found

    judged(patch, shifted)


@bug("honest-believed", 5)
def what_others_did_is_held_against_who_is_late(patch):
    always(patch, OutlierHistory, "moved", 0.0)


@bug("honest-believed", 0)
def a_band_is_no_wider_than_chance(patch):
    patch.setattr(outlier_test, "COSINE_SLACK", -0.9)
    patch.setattr(outlier_test, "SIGMAS", 0.0)


@bug("honest-believed", 10)
def steps_may_not_go_faster_than_they_went(patch):
    patch.setattr(members, "HASTE", 1.0)
    patch.setattr(members, "HASTE_STEPS", 0)


@bug("honest-believed", 6)
def steps_count_since_the_last_telling(patch):
    def tell(old, self, at, fragment, version):
        old(self, at, fragment, version)
        self.told[fragment] = version, at, self.progress.step if self.progress else 0

    wrap(patch, Member, "tell", tell)


@bug("starts-over", 36, deluded("norm"))
def a_learner_refused_for_ever_is_sent_one_fragment(patch):
    always(patch, Membership, "strike", [])


@bug("starts-over", 36, deluded("norm"))
def refusals_are_forgotten_at_once(patch):
    def strike(old, self, member):
        said = old(self, member)
        member.strikes = 0
        return said

    wrap(patch, Membership, "strike", strike)


# The end.


@bug("heal-progress", 3)
def no_learner_is_told_what_it_lacks(patch):
    always(patch, Member, "lacks", False)


@bug("heal-progress", 1)
def a_link_is_dialled_once(patch):
    def handle(old, self, at, event):
        if isinstance(event, TimerFired) and isinstance(event.timer, Redial):
            return [], []
        return old(self, at, event)

    wrap(patch, Links, "handle", handle)


@bug("heal-progress", COLD)
def who_waits_for_parameters_says_so_once(patch):
    always(patch, Learner, "_ask_again", [])


@bug("heal-progress", 37)
def bulk_gets_no_credit(patch):
    def credit(old, self, link, lane):
        return old(self, link, lane) if lane == CONTROL else []

    wrap(patch, LinkSender, "give_credit", credit)


@bug("heal-progress", 4)
def a_sync_without_answers_is_dropped(patch):
    patch.setattr(Schedule, "repeat", lambda _self, _t: None)


@bug("starts-over", SPOILED)
def who_was_refused_is_not_healed(patch):
    def merged(self, effects):
        told = [e for e in effects if isinstance(e, Send) and isinstance(e.body, GlobalFragment)]
        instead = [each for each in told if each.body.instead]
        return [each for each in effects if each not in instead]

    after(patch, Rounds, "merged", merged)


@bug("participation", RESET_FRESH)
def who_was_lost_once_is_never_pulled(patch):
    def lose(old, self, peer):
        member = old(self, peer)
        if member is not None:
            self.newest[f"lost {peer}"] = 1
        return member

    def able(old, self, fragment, oldest):
        return [
            member for member in old(self, fragment, oldest)
            if f"lost {member.peer}" not in self.newest
        ]  # fmt: skip

    wrap(patch, Membership, "lose", lose)
    wrap(patch, Membership, "able", able)


@bug("participation", REBORN_FRESH)
def a_learner_that_has_come_back_is_not_fresh(patch):
    def report(old, self, at, progress):
        problem = old(self, at, progress)
        self.fresh = self.fresh and self.incarnation.endswith(".1")
        return problem

    wrap(patch, Member, "report", report)


# Running again.


@bug("determinism-check", 0)
def a_pace_depends_on_what_ran_before(patch):
    count = itertools.count()

    def step(old, self, now, slow, steps):
        return old(self, now, slow, steps) * (1.0 + next(count) / 1e6)

    wrap(patch, Pace, "step", step)


@bug("record-is-inert", 0)
def who_is_recorded_thinks_longer(patch):
    def begin(old, self, node, work):
        if node.recorder is not None:
            node.slow = 1.001
        return old(self, node, work)

    wrap(patch, World, "_begin_work", begin)


# Steps that are taken together.


@bug("token-conservation", 8, 21, 34)
def steps_that_are_taken_together_count_as_one(patch):
    def finished(old, self, at, event):
        return old(self, at, replace(event, before=()))

    wrap(patch, Learner, "_step_finished", finished)


@bug("quorum-or-grace", 8, 21, 34)
def all_steps_that_are_left_at_a_launch_count_for_the_next(patch):
    def launched(self, steps):
        self.ahead = max(self.ahead - steps, -1)
        self.fresh = self.fresh and self.ahead > 0

    patch.setattr(Member, "launched", launched)


@bug("token-conservation", 8, 21, 34)
def a_worker_takes_only_the_first_of_several_steps(patch):
    def run(old, self, work, contents):
        done = old(self, replace(work, count=1), contents)
        [(_, each)] = done.steps()
        return replace(done, step=work.last, before=(each,) * (work.count - 1))

    wrap(patch, SimulatedWork, "_run_step", run)


# Relays.


@bug("token-conservation", 10)
def a_relay_mixes_its_learners_up(patch):
    def turned(_self, effects):
        return [
            replace(each, shares=tuple(
                replace(share, handle=other.handle)
                for share, other in zip(each.shares, reversed(each.shares), strict=True)
            )) if isinstance(each, SumContributions) else each
            for each in effects
        ]  # fmt: skip

    after(patch, Relay, "_compute", turned)


@bug("model-oracle", 10)
def a_relay_forgets_the_weights(patch):
    def alike(old, anchor, contributions, segments, **more):
        equal = [each._replace(weight=1.0 + index) for index, each in enumerate(contributions)]
        return old(anchor, equal, segments, **more)

    wrap(patch, simulated_work, "sum_contributions", alike)


@bug("bounded-memory", 10)
def a_relay_keeps_what_it_has_summed(patch):
    after(patch, Relay, "_summed", lambda _self, effects: effects[:-1])


@bug("merge-once", 87)
def a_relay_is_asked_for_tokens_that_are_merged(patch):
    patch.setattr(Member, "may_contribute", lambda self, fragment, oldest, merged: bool(
        self.fresh and self.progress.steps[fragment] and self.progress.versions[fragment] >= oldest
    ))  # fmt: skip
    wrap(patch, Member, "objection", lambda old, self, said, *more: (
        None if said.relay is not UNSET else old(self, said, *more)
    ))  # fmt: skip
