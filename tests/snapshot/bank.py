"""A bank whose accounts send each other money while snapshots are taken, for tests of the cuts.

A script of bytes decides everything that may go one way or another: who is linked with whom, which
channel delivers next, what breaks, who dies. A link is a session with a handshake, as in
``transport.link``: its ends open and break at different times, and what one end has sent may still
arrive when that end has given up. Clocks are real, and travel whole on every message, handshakes
included. What happens is written in a ledger, which ``ledger.py`` holds against the snapshots.
"""

from collections import deque
from dataclasses import dataclass
from itertools import combinations, pairwise

from clocks import ActorClock, actor_of, number_of
from snapshot.participant import (
    UNDER_WAY_MAX,
    Capture,
    Commit,
    Discard,
    Moment,
    Participant,
    RecordFlight,
    SendMarkers,
    Tell,
)

MONEY = 100
ACCOUNTS_MAX = 7
ENDLESS_S = 10.0
"""Ten thousand events; a bank of a few hundred decisions needs a tenth of them."""


class Script:
    """Decisions, one byte each; when they have run out, the first choice every time."""

    def __init__(self, text):
        self._text, self._next = text, 0

    def __bool__(self):
        return self._next < len(self._text)

    def number(self, below):
        """One of 0 to ``below`` - 1."""
        self._next += 1
        return self._text[self._next - 1] % below if self._next <= len(self._text) else 0

    def among(self, things):
        """One of some things."""
        return things[self.number(len(things))]


@dataclass(eq=False)
class Transfer:
    """Money under way, and some work's tokens with it; the ledger's line."""

    id: int
    sender: str
    receiver: str
    lane: str
    amount: int
    sent: int
    """The sender's event."""
    received: int | None = None
    """The receiver's event."""


class Session:
    """One life of a link: a queue for each direction and lane, and how it looks from each end."""

    def __init__(self, ends, lanes):
        self.ends = ends
        """Who dialled, and who listens."""
        self.queues = {(source, lane): deque() for source in ends for lane in lanes}
        self.up = dict.fromkeys(ends, False)
        """Whether an end has joined; one that has given up is missing."""

    def other(self, end):
        """The other end."""
        return self.ends[self.ends[0] == end]


class Account:
    """One incarnation: a participant, its clock, what it owns, and what it is about to write."""

    def __init__(self, name, lanes):
        self.name = name
        self.clock = ActorClock(name)
        self.participant = Participant(name, lanes)
        self.sessions = {}
        """By peer, those that have joined."""
        self.money, self.made, self.merged = MONEY, [], []
        self.writing, self.late, self.overdue = [], [], []
        self.cuts, self.states, self.flights = {}, {}, {}
        """By snapshot: the event of the cut, and what was recorded."""

    def state(self):
        """What it owns, and which tokens it made and merged."""
        return (self.money, tuple(self.made), tuple(self.merged))

    def moment(self):
        """Where it stands."""
        return Moment(self.clock.number, self.clock.wire(), tuple(sorted(self.sessions)))


class Bank:
    """All accounts and links, and what happens to them."""

    def __init__(self, text):
        script = self.script = Script(text)
        self.peace = script.among([0, 1, 4, 12, 12])
        """How many things happen for each fault, about; 0 when there are none at all."""
        self.lanes = script.among([("bulk",), ("bulk", "control")])
        self.now = 0.0
        self.accounts, self.former, self.everyone = {}, {}, {}
        """Those that run, by actor; the dead, by actor; and all, by incarnation."""
        self.sessions, self.ledger = [], []
        self.faults = 0
        self.begun, self.outcomes = {}, {}
        """By snapshot: who began it, and what came of it."""
        names = [f"p{i}" for i in range(2 + script.number(ACCOUNTS_MAX - 1))]
        for name in names:
            self.born(name)
        self.pairs = self.topology(names)
        for pair in self.pairs:
            self.dial(*pair)
        if self.calm or script.number(2):
            self.settle()

    @property
    def calm(self):
        """Whether nothing goes wrong here."""
        return not self.peace

    def topology(self, names):
        """A star, a line, a ring, or a random connected graph."""
        shape = self.script.number(4)
        line = list(pairwise(names))
        if shape == 0:
            return [(names[0], each) for each in names[1:]]
        if shape == 1:
            return line
        if shape == 2:
            return [*line, (names[0], names[-1])] if len(names) > 2 else line
        tree = [(names[self.script.number(i)], names[i]) for i in range(1, len(names))]
        more = [each for each in combinations(names, 2) if not self.script.number(3)]
        return tree + [each for each in more if each not in tree]

    # People and links.

    def born(self, actor):
        """The next incarnation of an account."""
        before = self.former.pop(actor, None)
        name = f"{actor}.{number_of(before.name) + 1 if before else 1}"
        self.accounts[actor] = self.everyone[name] = Account(name, self.lanes)

    def crash(self, account):
        """An account dies; the others notice sooner or later."""
        actor = actor_of(account.name)
        self.former[actor] = self.accounts.pop(actor)
        for session in [each for each in self.sessions if account.name in each.up]:
            self.lose(session, account.name, "died")

    def dial(self, one, other):
        """The first of two says hello, unless it has a link or is about to."""
        if one not in self.accounts or other not in self.accounts:
            return
        me, peer = self.accounts[one], self.accounts[other].name
        if any({me.name, peer} == {*each.ends} and me.name in each.up for each in self.sessions):
            return
        session = Session((me.name, peer), self.lanes)
        self.sessions.append(session)
        self.tick(me)
        self.send(me, session, self.lanes[0], "hello", None)

    def join(self, me, session, peer):
        """A session is open, as this end sees it."""
        session.up[me.name] = True
        me.sessions[peer] = session
        if session.ends[0] != me.name:
            for lane in self.lanes:
                self.send(me, session, lane, "welcome", None)
        self.perform(me, me.participant.joined(peer))

    def lose(self, session, end, reason):
        """One end gives a session up; what it has sent may still arrive."""
        peer, me = session.other(end), self.everyone[end]
        joined = session.up.pop(end)
        if not session.up:
            self.sessions.remove(session)
        if joined and self.accounts.get(actor_of(end)) is me:
            del me.sessions[peer]
            self.perform(me, me.participant.gone(peer, reason))

    def supersede(self, me, session):
        """An account that shakes hands again has given up the older session."""
        for old in list(self.sessions):
            if old is not session and {*old.ends} == {*session.ends} and me.name in old.up:
                self.lose(old, me.name, "it shook hands again")

    # Events, and what a participant asks for.

    def tick(self, account, heard=None, source=""):
        """One more event."""
        self.now += 0.001
        assert self.now < ENDLESS_S, "messages beget messages"
        account.clock.tick(heard or {}, source)

    def send(self, account, session, lane, kind, what):
        """A message leaves with the clock of this event."""
        session.queues[account.name, lane].append((kind, what, account.clock.wire()))

    def mark(self, account, peer, snapshot):
        """A marker leaves on every lane."""
        for lane in self.lanes:
            self.send(account, account.sessions[peer], lane, "marker", snapshot)

    def perform(self, account, asks):
        """Do what a participant asks for, in order."""
        for ask in asks:
            match ask:
                case Capture(snapshot, peers, until):
                    assert snapshot not in account.cuts, "one cut for each snapshot"
                    assert until > self.now
                    assert len(account.participant.own) <= UNDER_WAY_MAX
                    account.cuts[snapshot] = account.clock.number
                    account.states[snapshot] = account.state()
                    for peer in peers:
                        self.mark(account, peer, snapshot)
                    account.writing.append((snapshot, "state"))
                    account.late.append(snapshot)
                case SendMarkers(snapshot, peer):
                    self.mark(account, peer, snapshot)
                case RecordFlight(snapshot, in_flight):
                    assert snapshot not in account.flights, "what was in flight is known once"
                    account.flights[snapshot] = in_flight
                    account.writing.append((snapshot, "flight"))
                case Tell(peer, snapshot, part):
                    if peer in account.sessions:
                        session = account.sessions[peer]
                        self.send(account, session, self.lanes[-1], "part", (snapshot, part))
                case Commit(snapshot) | Discard(snapshot):
                    self.outcomes.setdefault(snapshot, []).append(ask)

    def deliver(self, session, source, lane):
        """The oldest message of a channel arrives."""
        kind, what, clock = session.queues[source, lane].popleft()
        me, channel = self.everyone[session.other(source)], (source, lane)
        self.tick(me, clock, source)
        match kind:
            case "hello":
                self.supersede(me, session)
                self.join(me, session, source)
            case "welcome" if not session.up[me.name]:
                self.join(me, session, source)
            case "marker":
                self.perform(me, me.participant.marker(self.now, what, channel, me.moment))
            case "part":
                self.perform(me, me.participant.told(*what))
            case "money":
                what.received = me.clock.number
                me.money += what.amount
                me.merged.append(what.id)
                me.participant.heard(channel, what)

    # What may happen.

    def ready(self):
        """Channels that hold something for an account that listens."""
        return [
            (session, source, lane)
            for session in self.sessions
            for (source, lane), queue in session.queues.items()
            if queue and session.other(source) in session.up
        ]

    def arrive(self):
        """A message arrives, whichever comes first."""
        if ready := self.ready():
            self.deliver(*self.script.among(ready))

    def transfer(self):
        """An account sends money and tokens to a peer."""
        if able := [each for each in self.accounts.values() if each.sessions and each.money]:
            me = self.script.among(able)
            peer, lane = self.script.among(sorted(me.sessions)), self.script.among(self.lanes)
            amount = 1 + self.script.number(min(me.money, 20))
            self.tick(me)
            line = Transfer(len(self.ledger), me.name, peer, lane, amount, me.clock.number)
            self.ledger.append(line)
            me.money -= amount
            me.made.append(line.id)
            self.send(me, me.sessions[peer], lane, "money", line)

    def take(self):
        """An account begins a snapshot."""
        if self.accounts:
            me = self.script.among(list(self.accounts.values()))
            self.tick(me)
            snapshot = f"{me.name}:{me.clock.number}"
            self.begun[snapshot] = me
            me.overdue.append(snapshot)
            self.perform(me, me.participant.take(self.now, me.moment()))

    def write(self, fails=False):
        """An account has written something, or cannot."""
        if busy := [each for each in self.accounts.values() if each.writing]:
            me = self.script.among(busy)
            snapshot, what = me.writing.pop(self.script.number(len(me.writing)))
            self.tick(me)
            self.perform(
                me,
                me.participant.failed(snapshot, "disk full")
                if fails
                else me.participant.captured(snapshot, what),
            )

    def give_up(self, what):
        """A patience has passed somewhere: ``late`` or ``overdue``."""
        if waiting := [each for each in self.accounts.values() if getattr(each, what)]:
            me = self.script.among(waiting)
            snapshot = getattr(me, what).pop(0)
            self.tick(me)
            self.perform(me, getattr(me.participant, what)(snapshot))

    def fault(self):
        """A link breaks, an account dies or comes back, new links are made."""
        script = self.script
        self.faults += 1
        match script.number(8):
            case 0 | 1 | 2 if self.sessions:
                session = script.among(self.sessions)
                self.give_up_end(session, script.among(sorted(session.up)))
            case 3 if self.accounts:
                self.crash(script.among(list(self.accounts.values())))
            case 4 | 5:
                names = sorted({*self.accounts, *self.former})
                if len(names) <= ACCOUNTS_MAX and not script.number(2):
                    self.born(f"p{len(names)}")
                pair = (script.among(names), script.among(sorted(self.accounts) or names))
                if pair[0] != pair[1] and {*pair} not in [{*each} for each in self.pairs]:
                    self.pairs.append(pair)
                    self.dial(*pair)
            case 6:
                self.write(fails=True)
            case 7:
                self.give_up(script.among(["late", "overdue"]))

    def mend(self):
        """An account comes back, or dials."""
        if self.former and self.script.number(2):
            self.born(self.script.among(sorted(self.former)))
        elif self.pairs:
            self.dial(*self.script.among(self.pairs))

    def give_up_end(self, session, end):
        """One end finds that a session is broken."""
        self.tick(self.everyone[end])
        self.lose(session, end, "broken")

    def settle(self):
        """All that is under way arrives, all that broke is noticed, all is written."""
        while True:
            if self.ready():
                self.arrive()
            elif half := [each for each in self.sessions if len(each.up) == 1]:
                self.give_up_end(half[0], *half[0].up)
            elif any(account.writing for account in self.accounts.values()):
                self.write()
            else:
                return

    def live(self):
        """Let the script happen, and then time pass until nothing is left to come."""
        while self.script:
            match self.script.number(16):
                case 0 | 1 | 2 | 3 | 4 | 5 | 6:
                    self.arrive()
                case 7 | 8 | 9 | 10:
                    self.transfer()
                case 11 | 12:
                    self.write()
                case 13 if not self.script.number(3):
                    self.take()
                case 14 if not self.calm:
                    self.mend()
                case 15 if not self.calm and not self.script.number(self.peace):
                    self.fault()
        self.settle()
        for what in ("late", "overdue"):
            while any(getattr(account, what) for account in self.accounts.values()):
                self.give_up(what)
                self.settle()
        return self
