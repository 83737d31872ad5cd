"""What a bank's ledger says of its snapshots: the truth, which no participant knows."""

from clocks import VectorClock, inconsistencies
from snapshot.participant import UNDER_WAY_MAX, Discard
from tests.snapshot.bank import MONEY


def check(bank):
    """Every snapshot is whole and true, or discarded with a reason; nothing is left of any."""
    for snapshot, who in bank.begun.items():
        outcomes = bank.outcomes.get(snapshot, [])
        lives = who in bank.accounts.values()
        assert len(outcomes) == 1 or (not lives and not outcomes), f"{snapshot}: {outcomes}"
        for outcome in outcomes:
            if isinstance(outcome, Discard):
                check_discard(bank, outcome)
            else:
                check_commit(bank, outcome)
    assert bank.outcomes.keys() <= bank.begun.keys()
    for account in bank.accounts.values():
        participant = account.participant
        assert not participant.recording, "the last recording ended"
        assert {} == participant.own == participant.gatherings
        assert 0 == len(participant.cuts)


def check_discard(bank, discard):
    """It says why; where nothing went wrong, only that there were too many."""
    assert discard.reason
    if bank.calm:
        assert f"{UNDER_WAY_MAX} snapshots are under way already" == discard.reason


def check_commit(bank, commit):
    """Cut, channels, states and names of one snapshot."""
    parts = {part.who: part for part in commit.parts}
    cuts = {name: bank.everyone[name].cuts[commit.snapshot] for name in parts}
    assert cuts == {name: part.number for name, part in parts.items()}
    assert [] == inconsistencies({name: VectorClock(part.clock) for name, part in parts.items()})
    assert not parts.keys() & commit.absent.keys()
    assert all(commit.absent.values()), "each absent actor has a reason"
    named = {peer for part in parts.values() for peer in part.peers}
    assert named <= parts.keys() | commit.absent.keys()
    assert all(len(part.contents) == 2 and not part.failed for part in parts.values())
    actors = [name.rpartition(".")[0] for name in parts]
    assert len(set(actors)) == len(actors), "one incarnation of each"
    check_channels(bank, commit.snapshot, cuts)
    check_states(bank, commit.snapshot, cuts)
    if bank.calm and not any("under way already" in why for why in commit.absent.values()):
        assert not commit.absent
        assert parts.keys() == bank.everyone.keys()


def check_channels(bank, snapshot, cuts):
    """In flight between the present is what was sent before the one cut and came after the other;
    nothing that came before a cut was sent after one."""
    flying = {}
    for line in bank.ledger:
        if line.sender not in cuts or line.receiver not in cuts or line.received is None:
            continue
        before = line.sent <= cuts[line.sender]
        came_before = line.received <= cuts[line.receiver]
        assert before or not came_before, f"{line} crosses the cut {snapshot} backwards"
        if before and not came_before:
            flying.setdefault((line.receiver, (line.sender, line.lane)), []).append(line.id)
    recorded = {
        (name, channel): [line.id for line in said]
        for name in cuts
        for channel, said in bank.everyone[name].flights[snapshot]
        if channel[0] in cuts
    }
    assert flying == recorded, "what was in flight, and what was recorded"


def check_states(bank, snapshot, cuts):
    """Money is what the present had at their cuts, tokens are in one place each; where all that
    ever was is present and nothing broke, none is missing."""
    states = {name: bank.everyone[name].states[snapshot] for name in cuts}
    for name, (money, made, merged) in states.items():
        sent = [each for each in bank.ledger if each.sender == name and each.sent <= cuts[name]]
        came = [
            each
            for each in bank.ledger
            if each.receiver == name and each.received and each.received <= cuts[name]
        ]
        spent, earned = sum(each.amount for each in sent), sum(each.amount for each in came)
        assert money == MONEY - spent + earned
        assert {*made} == {each.id for each in sent}
        assert sorted(merged) == sorted(each.id for each in came)
    flights = [
        line
        for name in cuts
        for (peer, _), said in bank.everyone[name].flights[snapshot]
        if peer in cuts
        for line in said
    ]
    whole = cuts.keys() == bank.everyone.keys() and not bank.faults
    if whole:
        total = sum(money for money, *_ in states.values()) + sum(line.amount for line in flights)
        assert MONEY * len(cuts) == total, "money is neither made nor lost"
    counted = [number for *_, merged in states.values() for number in merged]
    counted += [line.id for line in flights]
    assert len(set(counted)) == len(counted), "tokens count once"
    made = {number for _, numbers, _ in states.values() for number in numbers}
    if whole:
        assert made == {*counted}, "tokens are in flight, or merged"
