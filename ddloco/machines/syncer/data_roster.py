"""Who draws from which data shard, in a job with ``job.shards``, as the leading syncer decides.

Each shard has an *owner*, whose it is, and a *drawer*, the incarnation that draws from it or may
still draw. A shard that moves between two living learners has no new drawer before the old one has
reported that it draws no more, so none of its batches is used twice. A learner that is gone for
good (``elastic.gone_s`` seconds without a word), or an incarnation that was replaced, is not waited
for: what it has used since its last report is used again.

Numbers of messages grow, over restarts of the syncer too: the upper digits are its incarnation. The
*term* of a shard is the number of the message that gave it to its drawer, which tells apart reports
of somebody who had it before.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from clocks import actor_of, number_of
from ddloco.job.protocol.messages import DataPlace, DataShards, Progress, within_budget
from ddloco.job.protocol.timers import DataLook
from ddloco.machines.syncer.data_assignment import assign, home_of
from ddloco.machines.syncer.members import Member
from ddloco.stage.actors.effects import Observe
from transport import CONTROL, Effect, Send, SetTimer

STEPS, FIRST_STEP = 10.0, 8.0
"""A learner that is linked and silent may be in a long step: it has ten of its steps; or before the
second one, since the first one is compiled, eight times ``gone_s``."""

TERMS_MAX = 2**24
"""Messages of one incarnation of a syncer."""

AHEAD_MAX = 1_000_000
"""Batches by which a report of what was before this syncer may be ahead of what was kept. In a term
of this syncer a learner is ahead by its own steps at most; another report is not believed, since
whoever gets the shard next would leave out what nobody has used."""


class DataShard(Struct, forbid_unknown_fields=True):
    """One part of the data.

    Attributes:
        drawer: the incarnation that draws from it, or was the last one that did; empty if there was
            none, or if that has given it back or was replaced.
        bound: the drawer may draw, so nobody else may.
        asked: the number of the message by which the drawer shall give it back; 0 if it shall not.
        batches: how many of its batches were used, as was reported.
        cursor: the position of its stream after them; empty if unknown.
        given: for each learner the last incarnation that drew from it, and in which term last:
            nobody else is believed about its batches.
    """

    owner: str
    drawer: str = ""
    bound: bool = False
    term: int = 0
    asked: int = 0
    batches: int = 0
    cursor: bytes = b""
    given: dict[str, tuple[str, int]] = {}

    def give(self, incarnation: str, number: int) -> None:
        """Give it to a drawer; one that was the last goes on where it is."""
        self.bound = True
        if self.drawer != incarnation:
            self.drawer, self.term = incarnation, number
        self.given[actor_of(incarnation)] = incarnation, self.term

    def was_given(self, incarnation: str, term: int) -> bool:
        """Whether an incarnation may speak of the batches of a term: it was its drawer, then or, if
        it was given the shard again before it had told of the first time, later."""
        given, newest = self.given.get(actor_of(incarnation), ("", 0))
        return given == incarnation and term <= newest

    def came(self, place: DataPlace) -> None:
        """Take a report of who draws or has drawn from it. Everybody begins where others were, so
        whoever is ahead has left out nothing."""
        if place.batches > self.batches or (place.batches == self.batches and place.cursor):
            self.batches, self.cursor = place.batches, place.cursor


class DataRoster(Struct, forbid_unknown_fields=True):
    """The data shards and the learners that share them.

    Attributes:
        learners: all learners of the job, in their order; empty in a job without ``job.shards``,
            where each learner has a shard of its own.
        heard: for each learner that is not gone, when it was last there, in seconds.
        leaving: the learners that were asked to leave for good.
        moving: the shards whose drawers shall give them back.
        told: for each linked learner, by peer, the newest message that was sent to it.
        changed: something was heard that may move shards.
    """

    learners: tuple[str, ...] = ()
    gone_s: float = 0.0
    shards: list[DataShard] = []
    number: int = 0
    heard: dict[str, float] = {}
    leaving: dict[str, None] = {}
    moving: dict[int, None] = {}
    told: dict[str, DataShards] = {}
    changed: bool = False

    # What outlives the syncer.

    def recover(self, kept: Mapping[str, int]) -> None:
        """Take what was kept with a merge; the records of several merges may come in any order."""
        for said, batches in kept.items():
            index, drawer, term = said.split("/")
            shard = self.shards[int(index)] if int(index) < len(self.shards) else None
            if shard is None or (int(term), batches) < (shard.term, shard.batches):
                continue
            shard.drawer, shard.bound = drawer, bool(drawer)
            shard.term, shard.batches = int(term), batches
            shard.owner = actor_of(drawer) if drawer else shard.owner
            if drawer:
                shard.given[shard.owner] = drawer, shard.term

    def kept(self) -> dict[str, int]:
        """What is kept with every merge: used batches by shard, drawer and term."""
        return {
            f"{index}/{each.drawer if each.bound else ''}/{each.term}": each.batches
            for index, each in enumerate(self.shards)
        }

    def drawers(self) -> dict[str, list[int]]:
        """Return the shards that each incarnation draws from, and is not asked to give back."""
        found: dict[str, list[int]] = {}
        for index, each in enumerate(self.shards):
            if each.bound and not each.asked:
                found.setdefault(each.drawer, []).append(index)
        return found

    # What is heard.

    def begin(self, at: float) -> list[Effect]:
        """Wait from now on for all learners that own a shard."""
        if not self.shards:
            return []
        self.heard = dict.fromkeys(sorted({each.owner for each in self.shards}), at)
        return [SetTimer(DataLook(), at + self.gone_s)]

    def go_on(self, at: float) -> list[Effect]:
        """Continue from a snapshot: all who shared the data are waited for again."""
        self.heard = dict.fromkeys(self.heard, at)
        return [SetTimer(DataLook(), at + self.gone_s)] if self.shards else []

    def adopt(self, learners: tuple[str, ...], gone_s: float) -> None:
        """Take the settings of a job that continues from a snapshot, also with other learners."""
        if self.shards:
            self.learners, self.gone_s, self.changed = learners, gone_s, True

    def joined(self, at: float, member: Member) -> None:
        """Note the new link of a learner, whose earlier incarnations draw no more."""
        if not self.shards:
            return
        self.heard[actor_of(member.incarnation)] = at
        self.told.pop(member.peer, None)
        self.leaving.pop(actor_of(member.incarnation), None)
        self.changed = True
        actor, number = actor_of(member.incarnation), number_of(member.incarnation)
        for index, each in enumerate(self.shards):
            if each.drawer and actor_of(each.drawer) == actor and number_of(each.drawer) < number:
                self._free(index)

    def lost(self, at: float, member: Member) -> None:
        """A link was lost: its learner may still draw, unless it was asked to leave."""
        if self.shards:
            self.heard[actor_of(member.incarnation)] = at
            self.told.pop(member.peer, None)
            if actor_of(member.incarnation) in self.leaving:
                self._forget(actor_of(member.incarnation))

    def dismiss(self, who: str, *, linked: bool) -> None:
        """A learner was asked to leave for good: it is gone once its link is."""
        if self.shards and linked:
            self.leaving[who] = None
        elif self.shards:
            self._forget(who)

    def report(self, at: float, member: Member, progress: Progress) -> None:
        if not self.shards:
            return
        incarnation, actor = member.incarnation, actor_of(member.incarnation)
        new = actor not in self.heard or member.peer not in self.told or not progress.step
        self.changed = self.changed or new or self._owes(member, progress)
        self.heard[actor] = at
        for place in (*progress.returned, *progress.drawing):
            shard = self.shards[place.shard] if place.shard < len(self.shards) else None
            earlier = self._first > TERMS_MAX and place.term < self._first
            ahead = AHEAD_MAX if earlier else min(progress.step, AHEAD_MAX)
            if shard is None or place.batches > shard.batches + ahead:
                continue
            if not earlier and not shard.was_given(incarnation, place.term):
                continue  # Nobody speaks of the batches of others.
            shard.came(place)
            if earlier and place.term > shard.term:
                # An earlier syncer gave it away after its last merge.
                shard.owner, shard.drawer, shard.bound = actor, incarnation, True
                shard.term, shard.asked = place.term, 0
                shard.given[actor] = incarnation, place.term
                self.moving.pop(place.shard, None)
                self.changed = True
        for index in list(self.moving):
            shard = self.shards[index]
            if shard.drawer == incarnation and shard.asked <= progress.follows:
                self._free(index)
                self.changed = True

    def _free(self, index: int) -> None:
        """Nobody draws from a shard."""
        shard = self.shards[index]
        shard.drawer, shard.bound, shard.asked = "", False, 0
        self.moving.pop(index, None)

    def _owes(self, member: Member, progress: Progress) -> bool:
        told = self.told.get(member.peer)
        return bool(progress.returned) and told is not None and progress.follows >= told.number

    @property
    def _first(self) -> int:
        """The smallest number that this incarnation of the syncer may have used."""
        return self.number // TERMS_MAX * TERMS_MAX

    # What follows.

    def look(self, at: float, members: Iterable[Member]) -> list[Effect]:
        linked = {actor_of(each.incarnation): each for each in members}
        gone = [
            who
            for who, heard_at in self.heard.items()
            if at - heard_at >= self._patience_s(linked.get(who))
        ]
        effects: list[Effect] = []
        for who in gone:
            lost = self._forget(who)
            seen = {"learner": who, "for_s": self.gone_s, "data_shards": lost}
            effects += [Observe("gone for good", seen)] if lost else []
        again = min(self.heard.values(), default=at) + self.gone_s
        return [*effects, SetTimer(DataLook(), max(again, at + self.gone_s / 16))]

    def _forget(self, who: str) -> list[int]:
        """Wait no longer for a learner; return the shards that it owned."""
        self.heard.pop(who, None)
        lost = [n for n, each in enumerate(self.shards) if each.owner == who]
        self.changed = self.changed or bool(lost)
        for index, each in enumerate(self.shards):
            if each.drawer and actor_of(each.drawer) == who:
                each.bound, each.asked = False, 0
                self.moving.pop(index, None)
        return lost

    def _patience_s(self, member: Member | None) -> float:
        if member is None:
            return self.gone_s
        if not member.report_s:
            return FIRST_STEP * self.gone_s
        return max(self.gone_s, STEPS * member.report_s)

    def settle(self, members: Iterable[Member]) -> list[Effect]:
        """Move shards if that is needed, and tell the learners that it concerns."""
        if not self.changed:
            return []
        self.changed = False
        there = [
            each
            for each in members
            if each.progress is not None and actor_of(each.incarnation) in self.heard
        ]
        present = {actor_of(each.incarnation): each for each in there}
        owners = {each.owner for each in self.shards}
        sharing = [n for n in self.learners if n in present or (n in self.heard and n in owners)]
        wanted = assign([each.owner for each in self.shards], sharing, present, self.learners)
        number, moved = self.number + 1, list[int]()
        for index, (shard, owner) in enumerate(zip(self.shards, wanted, strict=True)):
            moved += [index] if owner != shard.owner else []
            shard.owner = owner
            if shard.bound and actor_of(shard.drawer) != owner and not shard.asked:
                shard.asked = number
                self.moving[index] = None
            elif not shard.bound and owner in present:
                shard.give(present[owner].incarnation, number)
        effects: list[Effect] = []
        drawers = self.drawers()
        for member in there:
            effects += self._tell(member, drawers.get(member.incarnation, []), number)
        if effects:
            self.number = number
        if moved:
            counts = {who: wanted.count(who) for who in sharing}
            effects.append(Observe("data shards moved", {"data_shards": moved, "now": counts}))
        return effects

    def _tell(self, member: Member, drawn: Sequence[int], number: int) -> list[Effect]:
        told, progress = self.told.get(member.peer), member.progress
        assert progress is not None, "a learner that has reported"
        held = [(index, self.shards[index]) for index in drawn]
        has_begun = progress.step > 0
        if not held and has_begun:
            return []  # It goes on with what it has until there is something else for it.
        known = [(each.shard, each.term) for each in told.places] if told is not None else None
        follows = told is not None and progress.follows >= told.number
        is_new = known != [(index, each.term) for index, each in held]
        if not is_new and (has_begun or follows) and not self._owes(member, progress):
            return []
        places = within_budget(
            DataPlace(index, each.term, each.batches, each.cursor) for index, each in held
        )
        said = DataShards(number, places, settled=progress.follows)
        self.told[member.peer] = said
        return [Send(member.peer, CONTROL, said, key="data")]


def new_roster(
    learners: tuple[str, ...], shards: int | None, gone_s: float, number: int
) -> DataRoster:
    if shards is None:
        return DataRoster()
    parts = [DataShard(home_of(index, learners)) for index in range(shards)]
    return DataRoster(learners, gone_s, parts, number=number * TERMS_MAX)
