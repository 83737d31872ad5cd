"""Who draws from which data shard: handed over once, taken over when somebody is gone."""

from ddloco.job.protocol.messages import DataPlace, DataShards, Progress
from ddloco.machines.syncer.data_roster import TERMS_MAX, new_roster
from ddloco.machines.syncer.members import new_member
from ddloco.stage.actors.effects import Observe
from transport import Send

NAMES = ("learner-0", "learner-1", "learner-2")


class Lead:
    """A roster of three learners and six shards, and what learners tell it."""

    def __init__(self, number=1, kept=None):
        self.roster = new_roster(NAMES, 6, 10.0, number)
        self.roster.recover(kept or {})
        self.roster.begin(0.0)
        self.members = {}

    def join(self, at, incarnation):
        """A learner is linked."""
        member = self.members[incarnation] = new_member(incarnation, incarnation, 1, at)
        self.roster.joined(at, member)

    def hear(self, at, incarnation, step=0, follows=0, drawing=(), returned=()):
        """A report; returns what is said to whom."""
        places = [tuple(DataPlace(*each) for each in said) for said in (drawing, returned)]
        progress = Progress(step, 1.0, (0,), (0,), (0,), 0, b"", None, 0)
        progress = Progress(
            step, 1.0, (0,), (0,), (0,), follows=follows, drawing=places[0], returned=places[1]
        )
        self.members[incarnation].progress = progress
        self.roster.report(at, self.members[incarnation], progress)
        return told(self.roster.settle(self.members.values()))

    def look(self, at):
        """The timer has expired; returns what is said to whom, and who is gone."""
        effects = self.roster.look(at, self.members.values())
        gone = [each.fields["learner"] for each in effects if isinstance(each, Observe)]
        return told(self.roster.settle(self.members.values())), gone


def told(effects):
    """Of each message the shards with their used batches, by peer."""
    sent = [each for each in effects if isinstance(each, Send)]
    assert all(isinstance(each.body, DataShards) for each in sent)
    return {each.peer: {p.shard: p.batches for p in each.body.places} for each in sent}


def place(lead, shard, batches):
    """A report of a shard as it was given away."""
    return shard, lead.roster.shards[shard].term, batches


def begun():
    """Three learners that draw from two shards each."""
    lead = Lead()
    for n, name in enumerate(NAMES):
        lead.join(0.0, f"{name}.1")
        assert lead.hear(0.0, f"{name}.1")[f"{name}.1"] == {n: 0, n + 3: 0}
    for n, name in enumerate(NAMES):
        there = [place(lead, n, 4), place(lead, n + 3, 3)]
        assert lead.hear(1.0, f"{name}.1", 7, lead.roster.number, there) == {}
    return lead


def test_each_has_the_shards_of_its_number():
    """Told at the first report, and again to one that has not begun; not to others."""
    lead = begun()
    assert [each.owner for each in lead.roster.shards] == [*NAMES, *NAMES]
    assert lead.hear(2.0, "learner-0.1", 8, lead.roster.number) == {}


def test_one_that_is_gone_is_taken_over_at_its_last_place():
    """After ten seconds without a word, and not before; a link that is up makes it longer."""
    lead = begun()
    lead.roster.lost(2.0, lead.members.pop("learner-2.1"))
    lead.hear(11.0, "learner-0.1", 8, lead.roster.number)
    lead.hear(11.0, "learner-1.1", 8, lead.roster.number)
    assert lead.look(11.9) == ({}, [])
    said, gone = lead.look(12.0)
    assert gone == ["learner-2"]
    assert said == {"learner-0.1": {0: 4, 2: 4, 3: 3}, "learner-1.1": {1: 4, 4: 3, 5: 3}}


def test_a_shard_moves_once_its_drawer_says_that_it_draws_no_more():
    """Two have all; the third comes, and is told only of what was given back, at its last place."""
    lead = Lead()
    for name in NAMES[:2]:
        lead.join(0.0, f"{name}.1")
        lead.hear(0.0, f"{name}.1")
    for name in NAMES[:2]:
        lead.hear(11.0, f"{name}.1", 5, lead.roster.number)
    assert lead.look(11.0)[1] == ["learner-2"]
    lead.join(12.0, "learner-2.1")
    said = lead.hear(12.0, "learner-2.1")
    assert said["learner-2.1"] == {}
    assert said["learner-0.1"].keys() == {0, 3}
    number = lead.roster.number
    assert lead.hear(13.0, "learner-0.1", 6, number - 1, [place(lead, 2, 5)]) == {}
    said = lead.hear(14.0, "learner-0.1", 7, number, [], [place(lead, 2, 6)])
    assert said["learner-2.1"] == {2: 6}
    said = lead.hear(14.0, "learner-1.1", 7, number, [], [place(lead, 5, 1)])
    assert said["learner-2.1"] == {2: 6, 5: 1}


def test_a_new_incarnation_goes_on_where_the_old_one_was():
    """Nobody waits for the old one."""
    lead = begun()
    del lead.members["learner-1.1"]
    lead.join(5.0, "learner-1.2")
    assert lead.hear(5.0, "learner-1.2")["learner-1.2"] == {1: 4, 4: 3}


def test_one_that_was_gone_and_comes_back_goes_on_if_nobody_has_its_shards():
    """Its own last place counts, in the same term."""
    lead = begun()
    for name in NAMES:
        lead.roster.lost(2.0, lead.members[f"{name}.1"])
    kept = lead.members.pop("learner-1.1")
    lead.members.clear()
    assert lead.look(12.0) == ({}, list(NAMES))
    lead.members["learner-1.1"] = kept
    lead.roster.joined(13.0, kept)
    term = lead.roster.shards[1].term
    there = [(1, term, 9), (4, term, 8)]
    said = lead.hear(13.0, "learner-1.1", 17, lead.roster.number, there)
    assert said["learner-1.1"] == {0: 4, 1: 9, 2: 4, 3: 3, 4: 8, 5: 3}
    assert lead.roster.shards[1].term == term


def test_a_restarted_lead_knows_what_was_kept_and_believes_later_terms():
    """A shard that moved after the last merge is whose who draws from it; numbers never repeat."""
    kept = begun().roster.kept()
    lead = Lead(number=2, kept=kept)
    assert lead.roster.number == 2 * TERMS_MAX
    assert [each.owner for each in lead.roster.shards] == [*NAMES, *NAMES]
    lead.join(0.0, "learner-0.1")
    later = TERMS_MAX + 9
    lead.hear(0.0, "learner-0.1", 9, later, [(0, lead.roster.shards[0].term, 6), (1, later, 8)])
    assert lead.roster.shards[0].batches == 6
    assert lead.roster.shards[1].drawer == "learner-0.1"
    assert lead.roster.shards[1].batches == 8
    assert lead.roster.number > 2 * TERMS_MAX


def test_a_report_of_nonsense_changes_nothing():
    """A shard that there is not, terms that were never given, and batches that nobody can have
    used."""
    lead = begun()
    before = [(each.term, each.batches) for each in lead.roster.shards]
    strange = [(77, 1, 1), (1, 5 * TERMS_MAX, 0), (2, 5, 0), (4, before[4][0], 3 + 9)]
    lead.hear(2.0, "learner-0.1", 8, lead.roster.number, strange)
    assert [(each.term, each.batches) for each in lead.roster.shards] == before


def test_nobody_speaks_of_the_batches_of_others():
    """Neither of a shard of the present drawer, in any term, nor of one that it had before and has
    drawn from since; nor of more batches than anybody draws between two reports."""
    lead = begun()
    lead.hear(1.0, "learner-0.1", step=5, drawing=[place(lead, 0, 6), place(lead, 3, 5)])
    term = lead.roster.shards[0].term
    for said in (0, term, term + 1):
        lead.hear(2.0, "learner-2.1", step=10**9, drawing=[(0, said, 10**9), (3, said, 7)])
    assert [lead.roster.shards[index].batches for index in (0, 3)] == [6, 5]
    lead.hear(3.0, "learner-0.1", step=10**9, drawing=[(0, term, 10**9)])
    assert lead.roster.shards[0].batches == 6
    lead.hear(3.0, "learner-0.1", step=7, drawing=[(0, term, 9)])
    assert lead.roster.shards[0].batches == 9


def test_a_job_may_go_on_with_more_learners():
    """The new one gets its share, as the job's settings are now."""
    lead = begun()
    lead.roster.adopt((*NAMES, "learner-3"), 20.0)
    lead.join(2.0, "learner-3.1")
    assert lead.hear(2.0, "learner-3.1")["learner-3.1"] == {}
    [moving] = lead.roster.moving
    who = lead.roster.shards[moving].drawer
    back = [place(lead, moving, 5)]
    told_now = lead.hear(3.0, who, 8, lead.roster.number, [], back)
    assert told_now["learner-3.1"] == {moving: 5}
