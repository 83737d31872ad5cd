"""The shutdown of a job: stop the learners, evaluate and save the model, wait for the learners to
hang up, exit. Part of the syncer machine."""

from collections.abc import Sequence
from math import isfinite

from msgspec import Struct
from msgspec.structs import asdict

from ddloco.job.protocol.messages import Stop
from ddloco.job.protocol.status import Numbers
from ddloco.job.protocol.timers import ShutdownDeadline
from ddloco.job.protocol.work import Evaluate, SaveModel
from ddloco.stage.actors.effects import Finish, Observe, Status
from ddloco.stage.actors.observations import DISREGARDED
from transport import CONTROL, CancelTimer, Effect, Hangup, Send, SetTimer

SHUTDOWN_STEPS = 10
SHUTDOWN_S_MIN = 3.0
SHUTDOWN_S_MAX = 60.0
"""How long the syncer waits at the end for learners to finish their step and hang up: ten steps of
the median learner, within these bounds in seconds. It does not wait for slower learners."""

LATE_S = 30.0
"""Seconds that a syncer stays if its job had already ended when it started, to tell the learners
that have not been told. They dial at least every eight seconds, or are being started."""

ENDED_WELL = frozenset({"done", "stopped"})

DIVERGED = "diverged"
"""The status of the result of a job whose final model has no finite held-out loss."""


class JobShutdown(Struct, forbid_unknown_fields=True):
    """The shutdown of a job at global step ``t``, and its progress."""

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
    """Whether learners may still connect that were not told that the job has ended."""
    disregarded: dict[str, str] = {}
    """Whose work was of no use to the job, in words; see ``Accounts.disregarded``."""

    def begin(
        self,
        at: float,
        peers: Sequence[str],
        fragments: tuple[str, ...],
        saving: int,
        report_s: float | None,
    ) -> list[Effect]:
        """Begin the shutdown once no sync is in flight: stop the learners, evaluate, save."""
        return [
            *(self.stop(peer) for peer in peers),
            Observe("evaluating", {"t": self.t}),
            Evaluate(self.evaluating, fragments),
            SaveModel(saving, fragments),
            SetTimer(ShutdownDeadline(), at + self._patience(report_s)),
        ]

    def _patience(self, report_s: float | None) -> float:
        patience = min(SHUTDOWN_STEPS * (report_s or SHUTDOWN_S_MAX), SHUTDOWN_S_MAX)
        return max(patience, LATE_S if self.lingers else SHUTDOWN_S_MIN)

    def follow(self, at: float, report_s: float | None, lead: str = "") -> list[Effect]:
        """Wait for the peers to hang up; ``lead``, another shard, evaluates and saves the model."""
        self.lead = lead
        self.evaluated = self.saved = True
        return [SetTimer(ShutdownDeadline(), at + self._patience(report_s))]

    def again(self, at: float, peers: Sequence[str], report_s: float | None) -> list[Effect]:
        """Begin the shutdown of a job that was done before: its model is saved already."""
        stops = [self.stop(peer) for peer in peers]
        return [Observe("done before", {"t": self.t}), *stops, *self.follow(at, report_s)]

    def without(
        self, at: float, peers: Sequence[str], reason: str, report_s: float | None
    ) -> list[Effect]:
        """Begin the shutdown as failed, because the model is incomplete: do not save it."""
        self.status, self.reason = "failed", reason
        stops = [self.stop(peer) for peer in peers]
        return [Observe("not saved", {"reason": reason}), *stops, *self.follow(at, report_s)]

    def stop(self, peer: str) -> Send[Stop]:
        """Tell a learner that the job has ended."""
        return Send(peer, CONTROL, Stop(self.t, self.reason), key="stop")

    def result(
        self,
        loss: float | None,
        metrics: dict[str, float] | None = None,
        numbers: Numbers | None = None,
    ) -> list[Effect]:
        """Log the result: the held-out loss, None if the model could not be evaluated; the task's
        other metrics; and the job's numbers. A model whose loss is not finite is of no use: its job
        has failed, and the result's status is "diverged"."""
        self.evaluated = True
        status: str = self.status
        if loss is not None and not isfinite(loss) and status in ENDED_WELL:
            status = DIVERGED
            self.status, self.reason = "failed", f"the held-out loss of the final model is {loss}"
        fields = {"held_out_loss": loss, "t": self.t, "merges": self.merges, "status": status}
        fields |= asdict(numbers) if numbers is not None else {}
        fields |= {DISREGARDED: self.disregarded} if self.disregarded else {}
        return [Observe("result", {**fields, "metrics": metrics} if metrics else fields)]

    @property
    def kept(self) -> bool:
        """Whether evaluating and saving the model have ended, with or without success."""
        return self.saved and self.evaluated

    def leave(self, members: int) -> list[Effect]:
        """Exit if the model is saved and no member is left to wait for."""
        if not self.kept or ((members or self.lingers) and self.patient):
            return []
        goodbye = [Hangup(self.lead, self.reason)] if self.lead else []
        return [CancelTimer(ShutdownDeadline()), *goodbye, Finish(self.status, self.reason)]
