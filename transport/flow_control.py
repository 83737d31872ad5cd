"""What waits to be sent in one lane: credit, order, and the newest version of each statement.

Machine state. A send never blocks: without credit a message waits here, and where a newer one with
the same key comes, the newer takes the older one's place. So a peer that is stopped for ever costs
at most one message per key, and gets the newest when it comes back.
"""

from dataclasses import dataclass, field

from transport.message import BULK, CONTROL, Body, Lane

WINDOW_MESSAGES: dict[Lane, int] = {CONTROL: 256, BULK: 4}
"""Messages that may be on their way without the receiver having taken them in: enough control
messages for seconds of steps; bulk messages are whole fragments, and four cover two overlapping
synchronisations in full while bounding what a frozen peer holds in queues."""

OWED_SHARE, OWED_SHARE_MAX = 0.5, 0.75
"""Of a window that was taken in: from the first on credit is owed, and leaves with whatever is said
next; a crowd that has answered is then told all together, of the same clock. From the second on it
leaves at once, since it may be that nothing is said; the rest of the window is on its way then."""

WAITING_MAX = 4096
"""Messages that may wait in one lane; beyond that the link is given up, not the memory."""


class OutboxFullError(Exception):
    """More messages wait than a lane may hold."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message before it has a sequence number and a clock."""

    body: Body
    payload: str = ""
    key: str = ""
    free_of_charge: bool = False


@dataclass(slots=True)
class Outbox:
    """One lane's queue and credit, since the last handshake."""

    window: int
    sent: int = 0
    taken: int = 0
    waiting: list[Waiting] = field(default_factory=list[Waiting])

    def pass_through(self) -> bool:
        """Whether a message may leave at once; then it is counted as sent."""
        if self.waiting or self.sent - self.taken >= self.window:
            return False
        self.sent += 1
        return True

    def put(self, message: Waiting) -> Waiting | None:
        """Queue a message; returns the older one that it replaced, if any.

        Raises:
            OutboxFullError: the lane holds ``WAITING_MAX`` messages already.
        """
        if message.key:
            for index in range(len(self.waiting) - 1, -1, -1):
                older = self.waiting[index]
                if older.key == message.key:
                    self.waiting[index] = message
                    return older
        if len(self.waiting) >= WAITING_MAX:
            raise OutboxFullError(f"{WAITING_MAX} messages wait for credit")
        self.waiting.append(message)
        return None

    def put_first(self, message: Waiting) -> None:
        """Queue what costs no credit before everything else.

        Two sides that both wait for credit would wait for ever if word of it queued behind them.
        """
        assert message.free_of_charge, "whatever costs credit waits its turn"
        self.waiting.insert(0, message)

    def credited(self, taken: int) -> None:
        """The receiver has taken in ``taken`` messages in all; the newest word counts."""
        self.taken = max(self.taken, taken)

    def release(self) -> list[Waiting]:
        """The messages that credit lets go now, in order."""
        released: list[Waiting] = []
        while self.waiting and (
            self.waiting[0].free_of_charge or self.sent - self.taken < self.window
        ):
            message = self.waiting.pop(0)
            self.sent += not message.free_of_charge
            released.append(message)
        return released
