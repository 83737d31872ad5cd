"""Reference counts of arrays, kept by machines as plain data.

Arrays pass through machines as opaque names, *handles*; an array is never changed. The machine that
names an array holds a reference, and so does a message in an outbox. The last release frees the
array within the same event, in a live run and in every replay alike.
"""

from msgspec import Struct

from transport.effects import Free


class Handles(Struct, forbid_unknown_fields=True):
    """Reference counts by handle."""

    holders: dict[str, int] = {}

    def hold(self, handle: str) -> str:
        """Add a reference; returns the handle."""
        self.holders[handle] = self.holders.get(handle, 0) + 1
        return handle

    def release(self, handle: str) -> list[Free]:
        """Drop a reference; returns the effect that frees the array if it was the last one."""
        left = self.holders[handle] - 1
        if left:
            self.holders[handle] = left
            return []
        del self.holders[handle]
        return [Free(handle)]

    def names(self) -> set[str]:
        """All handles that are referenced."""
        return set(self.holders)

    def held(self) -> dict[str, int]:
        """The count of each handle."""
        return dict(self.holders)

    def __len__(self) -> int:
        return len(self.holders)
