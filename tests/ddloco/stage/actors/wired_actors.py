"""A few actors wired in memory, whose messages and work wait until told."""

from collections import defaultdict

from ddloco.job.protocol.messages import JobBody
from ddloco.job.protocol.timers import JobTimer
from ddloco.job.protocol.work import Asked
from ddloco.stage.actors.actor import ActorStates, new_actor
from ddloco.stage.actors.effects import CommitSnapshot, Observe, Work
from ddloco.stage.actors.events import (
    Captured,
    Committed,
    HappensToAll,
    SnapshotSettled,
    StopRequested,
)
from ddloco.stage.actors.messages import ActorBody
from transport import (
    Dial,
    Free,
    LaneAdvanced,
    Listen,
    MessageArrived,
    PeerJoined,
    PeerLost,
    PeerRefused,
    SetTimer,
    Transmit,
)

HUB, ANNA, BERT = "hub.1", "anna.1", "bert.1"


HEARD = (
    HappensToAll
    | MessageArrived[JobBody | ActorBody]
    | LaneAdvanced
    | PeerJoined
    | PeerLost
    | PeerRefused
    | SnapshotSettled
)


class Script:
    """A machine that does what a test asks for, and writes down what it hears."""

    heard: list[HEARD]

    def __init__(self):
        self.heard, self.asked = [], []

    def handle(self, at, event):
        self.heard.append(event)
        asked, self.asked = self.asked, []
        return asked


STATES = ActorStates(Script(), JobBody | ActorBody, Asked, JobTimer)


class WiredActors:
    """A hub and those who dial it. Messages wait in one queue for each lane and direction."""

    def __init__(self, *spokes):
        self.actors = {}
        self.queues = defaultdict(list)
        self.works, self.seen, self.freed, self.timers = [], [], [], {}
        self.add(HUB, Listen({}))
        for spoke in spokes:
            self.add(spoke, Dial("hub", {}))
        self.run()

    def add(self, name, first):
        """Add an actor."""
        self.actors[name] = new_actor(name, Script())
        self.ask(name, first)

    def ask(self, name, *effects):
        """Its machine asks for something, at an event of no meaning."""
        self.actors[name].machine.asked = list(effects)
        return self.tell(name, StopRequested("now"))

    def tell(self, name, event, at=1.0):
        """An event happens; its effects, which are done."""
        effects = self.actors[name].handle(at, event)
        for effect in effects:
            if isinstance(effect, Transmit):
                to = HUB if effect.peer == "hub" else effect.peer
                self.queues[name, to, effect.lane].append(effect)
            elif isinstance(effect, Work):
                self.works.append((name, effect))
            elif isinstance(effect, Observe):
                self.seen.append((effect.event, effect.fields))
            elif isinstance(effect, Free):
                self.freed.append((name, effect.handle))
            elif isinstance(effect, SetTimer):
                self.timers[name, effect.timer] = effect.at
        return effects

    def bodies(self, sender, receiver, lane):
        """What is on its way."""
        return [said.body for said in self.queues[sender, receiver, lane]]

    def deliver(self, sender, receiver, lane, count=1):
        """The next messages of a lane arrive."""
        for _ in range(count):
            said = self.queues[sender, receiver, lane].pop(0)
            actor = self.actors[receiver]
            handle = f"in/{actor.number + 1}" if said.payload else ""
            digest = said.payload.encode().ljust(16) if said.payload else b""
            peer = "hub" if sender == HUB else sender
            head = (peer, lane, sender, said.session, said.seq, said.clock)
            self.tell(receiver, MessageArrived(*head, said.body, digest, handle))

    def run(self):
        """All that is said arrives, and whatever it leads to."""
        while waiting := [key for key, said in self.queues.items() if said]:
            self.deliver(*waiting[0])

    def do(self, kind=Work, failed="", whose=""):
        """Work of a kind is done, or fails; that of one actor, or of all."""
        works = [each for each in self.works if isinstance(each[1], kind)]
        works = [each for each in works if whose in {"", each[0]}]
        self.works = [each for each in self.works if each not in works]
        for name, work in works:
            if isinstance(work, CommitSnapshot):
                self.tell(name, Committed(work.work, failed))
            else:
                content = f"{name} {type(work).__name__}"
                self.tell(name, Captured(work.work, "" if failed else content, failed))

    def finish(self):
        """Everything arrives and is written."""
        while self.works or any(self.queues.values()):
            self.run()
            self.do()

    def work(self, kind, name):
        """The one piece of work of a kind that an actor asked for."""
        (found,) = [work for who, work in self.works if who == name and isinstance(work, kind)]
        return found

    def of(self, what):
        """What was seen of a kind."""
        return [fields for event, fields in self.seen if event == what]
