"""The send queue of one lane: credit, order, and replacement of outdated messages.

This is machine state. Sending never blocks: without credit a message waits here, and a newer
message with the same key replaces it. So a peer that stays stopped costs at most one message per
key, and receives the newest ones when it returns.
"""

from typing import Generic

from msgspec import Struct

from transport.message import BULK, CONTROL, B, Lane

WINDOW_MESSAGES: dict[Lane, int] = {CONTROL: 256, BULK: 4}
"""Messages that may be in flight before the receiver has taken them in. The control window covers
seconds of steps. Bulk messages are whole fragments: four cover two overlapping synchronisations and
limit how many fragments wait in queues for a stopped peer."""

OWED_SHARE, OWED_SHARE_MAX = 0.5, 0.75
"""Fractions of a window that the receiver has taken in without returning credit. From the first
fraction on, credit is owed and is sent with the next message; so peers that have all answered
receive their credit together, with the same clock. From the second fraction on it is sent at once,
since there may be no next message; the rest of the window covers that delay."""

WAITING_MAX = 4096
"""Messages that may be queued on one lane; beyond that the link is given up to limit memory."""


class OutboxFullError(Exception):
    """More messages are queued than a lane may hold."""


class QueuedMessage(Struct, Generic[B], frozen=True, forbid_unknown_fields=True):
    """A queued message, before it has a sequence number and a clock."""

    body: B
    payload: str = ""
    key: str = ""
    free_of_charge: bool = False


class Outbox(Struct, Generic[B], forbid_unknown_fields=True):
    window: int
    sent: int = 0
    taken: int = 0
    waiting: list[QueuedMessage[B]] = []

    def pass_through(self) -> bool:
        """Whether a message may be sent at once; if so, it is counted as sent."""
        if self.waiting or self.sent - self.taken >= self.window:
            return False
        self.sent += 1
        return True

    def put(self, message: QueuedMessage) -> QueuedMessage | None:
        """Queue a message; returns the older one that it replaced, if any."""
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

    def put_first(self, message: QueuedMessage) -> None:
        """Queue a message that needs no credit before everything else: if credit messages queued
        behind others, two sides that both wait for credit would wait for ever."""
        assert message.free_of_charge, "whatever costs credit waits its turn"
        self.waiting.insert(0, message)

    def credited(self, taken: int) -> None:
        """The receiver has taken in ``taken`` messages in total; the largest report counts."""
        self.taken = max(self.taken, taken)

    def release(self) -> list[QueuedMessage]:
        released: list[QueuedMessage] = []
        while self.waiting and (
            self.waiting[0].free_of_charge or self.sent - self.taken < self.window
        ):
            message = self.waiting.pop(0)
            self.sent += not message.free_of_charge
            released.append(message)
        return released
