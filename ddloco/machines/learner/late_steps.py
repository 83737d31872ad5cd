"""What becomes of the steps between a contribution and its answer (``sync.late``): "overwrite"
drops them (paper: Algorithm 1, line 16), "blend" is Streaming DiLoCo's alpha (arXiv 2501.18512),
"carry" takes the difference to the contribution, whose copy is kept, on top of the new version."""

from msgspec import Struct

from ddloco.job.protocol.work import Overwrite
from transport import Drop, Effect, Keep


class Contributed(Struct, forbid_unknown_fields=True):
    """What was contributed: for which global step, the handle of the copy that it was encoded from,
    and the steps and tokens until then."""

    t: int
    handle: str
    step: int
    tokens: int


class LateSteps(Struct, forbid_unknown_fields=True):
    """The last contribution of each fragment, until a version replaces it."""

    contributed: dict[int, Contributed] = {}

    def contribute(self, fragment: int, given: Contributed) -> list[Effect]:
        return [Keep(given.handle), *self._replace(fragment, given)]

    def carry(self, newer: Overwrite) -> Contributed | None:
        """Return the contribution to a version, from which steps are carried over; None if it has
        none of this learner. The caller takes over the reference to the copy."""
        given = self.contributed.get(newer.fragment)
        if given is None or given.t != newer.version:
            return None
        return self.contributed.pop(newer.fragment)

    def outdated(self, newer: Overwrite) -> list[Effect]:
        """Forget a contribution to an older version than the one that is installed."""
        given = self.contributed.get(newer.fragment)
        return self.forget(newer.fragment) if given and given.t < newer.version else []

    def forget(self, fragment: int) -> list[Effect]:
        return self._replace(fragment, None)

    def held(self) -> int:
        return len(self.contributed)

    def _replace(self, fragment: int, given: Contributed | None) -> list[Effect]:
        former = self.contributed.pop(fragment, None)
        if given is not None:
            self.contributed[fragment] = given
        return [Drop(former.handle)] if former is not None else []
