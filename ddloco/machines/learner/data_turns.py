"""The data shards that a learner draws from, one step each in turn, as the lead's newest message
says from the next step boundary on; see ``machines/syncer/data_roster``. It begins new shards at
the place in the message, and reports how far it came in those that it gives back."""

from msgspec import Struct

from ddloco.job.protocol.messages import DataPlace, DataShards, within_budget
from ddloco.job.protocol.work import FromShard


class Held(Struct, forbid_unknown_fields=True):
    """A shard that a learner draws from.

    Attributes:
        term: the number of the message that gave it to the learner.
        batches: how many of its batches were used, by all learners.
        cursor: the position of its stream after them; empty if unknown.
        opened: the worker has the stream at this place.
        returned: the number of the message by which it was given back; 0 if it was not.
    """

    shard: int
    term: int
    batches: int
    cursor: bytes
    opened: bool = False
    returned: int = 0

    @property
    def place(self) -> DataPlace:
        return DataPlace(self.shard, self.term, self.batches, self.cursor)


class DataTurns(Struct, forbid_unknown_fields=True):
    """What a learner draws from.

    Attributes:
        held: its shards, in the order of their turns; the first one is the running step's, or the
            next one's between two steps.
        returned: the shards that it has given back, until the lead is known to have heard.
        coming: the newest message, to be followed from the next step boundary on.
    """

    follows: int = 0
    held: list[Held] = []
    returned: list[Held] = []
    coming: DataShards | None = None

    @property
    def known(self) -> bool:
        return bool(self.held) or (self.coming is not None and bool(self.coming.places))

    def hear(self, said: DataShards) -> None:
        """Take the lead's message, to be followed from the next step boundary on. One without
        shards is followed only while there are none: a learner never waits for data."""
        newest = self.coming.number if self.coming is not None else self.follows
        if said.number > newest and (said.places or not self.known):
            self.coming = said

    def take_turn(self) -> FromShard:
        """At a step boundary: follow the newest message; return where the next step draws from."""
        said, self.coming = self.coming, None
        if said is not None:
            self._follow(said)
        first = self.held[0]
        opens, first.opened = not first.opened, True
        return FromShard(tuple(each.shard for each in self.held), opens=opens)

    def _follow(self, said: DataShards) -> None:
        mine = {(each.shard, each.term): each for each in self.held}
        wanted = {(each.shard, each.term): each for each in said.places}
        kept = [each for key, each in mine.items() if key in wanted]
        new = [self._begun(each) for key, each in wanted.items() if key not in mine]
        for key, each in mine.items():
            if key not in wanted:
                each.returned = said.number
                self.returned.append(each)
        self.returned = [each for each in self.returned if each.returned > said.settled]
        self.follows, self.held = said.number, [*kept, *new]

    def _begun(self, place: DataPlace) -> Held:
        """A shard that it has not drawn from in this term. If it was farther in it before than the
        lead knew, it goes on there."""
        own = [each for each in (*self.held, *self.returned) if each.shard == place.shard]
        far = max(own, key=lambda each: each.batches, default=None)
        if far is None or far.batches <= place.batches:
            return Held(place.shard, place.term, place.batches, place.cursor)
        return Held(place.shard, place.term, far.batches, far.cursor)

    @property
    def skip(self) -> tuple[int, bytes]:
        return self.held[0].batches, self.held[0].cursor

    def drew(self, cursor: bytes) -> None:
        """Note that a step is finished, with the stream's position after its batch."""
        first, *others = self.held
        first.batches, first.cursor = first.batches + 1, cursor
        self.held = [*others, first]

    def drawing(self) -> tuple[DataPlace, ...]:
        return within_budget(each.place for each in self.held)

    def given_back(self) -> tuple[DataPlace, ...]:
        return within_budget(each.place for each in self.returned)

    def after(self, *, runs: bool) -> tuple[tuple[int, int, bytes], ...]:
        """Shard, used batches and cursor of each, once the running step is done, if one runs; then
        the worker has the cursor of its shard, which comes first."""
        return tuple(
            (each.shard, each.batches + (runs and at == 0), each.cursor)
            for at, each in enumerate(self.held)
        )
