"""The end of a job, as the syncer goes through it: tell everybody, score the model, keep it, wait
for the learners' goodbyes, leave. A machine inside the syncer's."""

from collections.abc import Sequence
from dataclasses import dataclass

from ddloco.actors.effects import Finish, Observe, Status
from ddloco.protocol.effects import Evaluate, SaveModel
from ddloco.protocol.messages import Stop
from transport import CONTROL, CancelTimer, Effect, Hangup, Send, SetTimer

FAREWELL_STEPS = 10
FAREWELL_S_MIN = 3.0
FAREWELL_S_MAX = 60.0
"""How long the syncer waits at the end for learners to finish their step and say goodbye: ten
steps of the median learner, within these bounds; whoever is later is left behind."""

LATE_S = 30.0
"""A syncer whose job was through when it started stays so long for those who never heard: they dial
every eight seconds at most, or are being started."""

FAREWELL = "farewell"


@dataclass(slots=True)
class Farewell:
    """A job that ends at global step ``t`` for a reason, and how far its end has got."""

    status: Status
    reason: str
    t: int
    merges: int
    evaluating: int
    patient: bool = True
    evaluated: bool = False
    saved: bool = False
    lead: str = ""
    lingers: bool = False
    """Whether somebody may yet come who has not heard that it is over."""

    def begin(
        self,
        at: float,
        peers: Sequence[str],
        fragments: tuple[str, ...],
        saving: int,
        step_s: float | None,
    ) -> list[Effect]:
        """Nothing is under way any more: tell everybody, score the model, keep it."""
        return [
            *(self.stop(peer) for peer in peers),
            Evaluate(self.evaluating, fragments),
            SaveModel(saving, fragments),
            SetTimer(FAREWELL, at + self._patience(step_s)),
        ]

    def _patience(self, step_s: float | None) -> float:
        patience = min(FAREWELL_STEPS * (step_s or FAREWELL_S_MAX), FAREWELL_S_MAX)
        return max(patience, LATE_S if self.lingers else FAREWELL_S_MIN)

    def follow(self, at: float, step_s: float | None, lead: str = "") -> list[Effect]:
        """``lead`` scores and keeps the model; only the goodbyes are waited for."""
        self.lead = lead
        self.evaluated = self.saved = True
        return [SetTimer(FAREWELL, at + self._patience(step_s))]

    def without(
        self, at: float, peers: Sequence[str], reason: str, step_s: float | None
    ) -> list[Effect]:
        """There is no whole model to score or keep."""
        self.status, self.reason = "failed", reason
        stops = [self.stop(peer) for peer in peers]
        return [Observe("not saved", {"reason": reason}), *stops, *self.follow(at, step_s)]

    def stop(self, peer: str) -> Send[Stop]:
        """Tell a learner that it is over."""
        return Send(peer, CONTROL, Stop(self.t, self.reason), key="stop")

    def result(self, loss: float | None) -> list[Effect]:
        """The model is scored, or cannot be."""
        self.evaluated = True
        fields = {"held_out_loss": loss, "t": self.t, "merges": self.merges, "status": self.status}
        return [Observe("result", fields)]

    @property
    def kept(self) -> bool:
        """Whether the model is scored and kept, as far as it can be."""
        return self.saved and self.evaluated

    def leave(self, members: int) -> list[Effect]:
        """Leave if all is done and nobody is left to wait for."""
        if not self.kept or ((members or self.lingers) and self.patient):
            return []
        goodbye = [Hangup(self.lead, self.reason)] if self.lead else []
        return [CancelTimer(FAREWELL), *goodbye, Finish(self.status, self.reason)]
