"""Who still needs an array: counts of holders, kept by machines as plain data.

Arrays pass through machines as opaque names, *handles*; what a handle points to is never changed.
The machine that names an array holds it; a message that waits in an outbox holds it too. When the
last holder lets go the array is freed, in the same event, live as in every replay.
"""

from transport.effects import Free


class Handles:
    """Counts of holders by handle."""

    def __init__(self) -> None:
        self._holders: dict[str, int] = {}

    def hold(self, handle: str) -> str:
        """One more holder; returns the handle."""
        self._holders[handle] = self._holders.get(handle, 0) + 1
        return handle

    def release(self, handle: str) -> list[Free]:
        """One holder less; the effect that frees the array if that was the last one."""
        left = self._holders[handle] - 1
        if left:
            self._holders[handle] = left
            return []
        del self._holders[handle]
        return [Free(handle)]

    def names(self) -> set[str]:
        """Every handle that somebody holds."""
        return set(self._holders)

    def held(self) -> dict[str, int]:
        """How many hold each handle."""
        return dict(self._holders)

    def __len__(self) -> int:
        return len(self._holders)
