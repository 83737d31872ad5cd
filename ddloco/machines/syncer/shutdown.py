"""The shutdown of a job. Nobody is told that the job has ended before its model is saved: whoever
continues the job of a syncer that is lost before then still finds the learners, and whatever it
lacks itself."""

from collections.abc import Sequence
from math import isfinite

from msgspec import Struct
from msgspec.structs import asdict

from clocks import actor_of
from ddloco.job.protocol.messages import Stop
from ddloco.job.protocol.status import Numbers
from ddloco.job.protocol.timers import ShutdownDeadline
from ddloco.job.protocol.work import Evaluate, SaveModel
from ddloco.stage.actors.effects import Finish, Observe, Status
from ddloco.stage.actors.observations import (
    DISREGARDED,
    NOT_EVALUATED,
    RESULT,
    SNAPSHOTS_FAILED,
    UNUSED,
)
from transport import CONTROL, CancelTimer, Effect, Hangup, Send, SetTimer

SHUTDOWN_STEPS = 10
SHUTDOWN_S_MIN = 3.0
SHUTDOWN_S_MAX = 60.0
"""How long the syncer waits at the end for learners to finish their step and hang up: ten steps of
the median learner, within these bounds in seconds. It does not wait for slower learners."""

LATE_S = 30.0
"""For so many seconds after its start a syncer that is not the first one does not end a job without
the learners and relays that have not come to it yet, so that they are told. They dial at least
every eight seconds, or are being started."""

ENDED_WELL = frozenset({"done", "stopped"})

DIVERGED = "diverged"
"""The status of the result of a job whose final model has no finite held-out loss."""


class JobShutdown(Struct, forbid_unknown_fields=True):
    status: Status
    reason: str
    t: int
    merges: int
    evaluating: int
    patient: bool = True
    fragments: tuple[str, ...] = ()
    evaluated: bool = False
    saved: bool = False
    lead: str = ""
    absent: dict[str, None] = {}
    """Who has not come to this incarnation yet, and may not have been told of the end."""
    disregarded: dict[str, str] = {}
    """Whose work was of no use to the job, in words; see ``Accounts.disregarded``."""
    unused: list[str] = []
    """Whose work was never used; see ``Accounts.unused``."""

    def begin(self, fragments: tuple[str, ...], saving: int) -> list[Effect]:
        self.fragments = fragments
        return [SaveModel(saving, fragments, self.status == "done")]

    def announce(
        self,
        at: float,
        peers: Sequence[str],
        report_s: float | None,
        counters: tuple[int, ...] = (),
    ) -> list[Effect]:
        """Stop the learners, since the model is saved, and evaluate, with these counters of the
        task's state."""
        self.saved = True
        return [
            *(self.stop(peer) for peer in peers),
            Observe("evaluating", {"t": self.t}),
            Evaluate(self.evaluating, self.fragments, counters),
            *self._wait(at, bool(peers), report_s),
        ]

    def _wait(self, at: float, linked: bool, report_s: float | None) -> list[Effect]:
        steps_s = SHUTDOWN_STEPS * (report_s or SHUTDOWN_S_MAX) if linked else 0.0
        wait_s = max(min(steps_s, SHUTDOWN_S_MAX), SHUTDOWN_S_MIN)
        if not self.absent:
            return [SetTimer(ShutdownDeadline(), at + wait_s)]
        wait_s = max(wait_s, LATE_S - at)
        fields = {"for": ", ".join(self.absent), "for_s": round(wait_s, 1)}
        return [Observe("lingers", fields), SetTimer(ShutdownDeadline(), at + wait_s)]

    def follow(
        self, at: float, linked: bool, report_s: float | None, lead: str = ""
    ) -> list[Effect]:
        """Wait for whoever is linked to hang up; ``lead``, another shard, evaluates and saves the
        model."""
        self.lead = lead
        self.evaluated = self.saved = True
        return self._wait(at, linked, report_s)

    def again(self, at: float, peers: Sequence[str], report_s: float | None) -> list[Effect]:
        """Begin the shutdown of a job that was done before: its model is saved already."""
        stops = [self.stop(peer) for peer in peers]
        return [
            Observe("done before", {"t": self.t}),
            *stops,
            *self.follow(at, bool(peers), report_s),
        ]

    def without(
        self, at: float, peers: Sequence[str], reason: str, report_s: float | None
    ) -> list[Effect]:
        """Begin the shutdown as failed, because the model is incomplete: do not save it."""
        self.status, self.reason = "failed", reason
        stops = [self.stop(peer) for peer in peers]
        return [
            Observe("not saved", {"reason": reason}),
            *stops,
            *self.follow(at, bool(peers), report_s),
        ]

    def stop(self, peer: str) -> Send[Stop]:
        return Send(peer, CONTROL, Stop(self.t, self.reason), key="stop")

    def tell(self, peer: str) -> list[Effect]:
        """Tell a peer that has come that the job has ended, unless all are told soon."""
        self.absent.pop(actor_of(peer), None)
        return [self.stop(peer)] if self.saved else []

    def result(
        self,
        loss: float | None,
        metrics: dict[str, float] | None = None,
        numbers: Numbers | None = None,
        snapshots: str = "",
        reason: str = "",
    ) -> list[Effect]:
        """Log the result: the held-out loss, None if the model could not be evaluated, for some
        ``reason``, and which snapshots have failed, in words. A model whose loss is not finite is
        of no use: its job has failed, and the result's status is "diverged"."""
        self.evaluated = True
        status: str = self.status
        if loss is not None and not isfinite(loss) and status in ENDED_WELL:
            status = DIVERGED
            self.status, self.reason = "failed", f"the held-out loss of the final model is {loss}"
        fields = {"held_out_loss": loss, "t": self.t, "merges": self.merges, "status": status}
        fields |= asdict(numbers) if numbers is not None else {}
        fields |= {DISREGARDED: self.disregarded} if self.disregarded else {}
        fields |= {UNUSED: self.unused} if self.unused else {}
        fields |= {SNAPSHOTS_FAILED: snapshots} if snapshots else {}
        fields |= {NOT_EVALUATED: reason} if reason else {}
        return [Observe(RESULT, {**fields, "metrics": metrics} if metrics else fields)]

    def unknown(self, reason: str, numbers: Numbers | None, snapshots: str) -> list[Effect]:
        """Log the result of a model that could not be evaluated, and why not."""
        seen = Observe("not evaluated", {"reason": reason})
        return [seen, *self.result(None, {}, numbers, snapshots, reason)]

    @property
    def kept(self) -> bool:
        return self.saved and self.evaluated

    def leave(self, members: int) -> list[Effect]:
        if not self.kept or ((members or self.absent) and self.patient):
            return []
        goodbye = [Hangup(self.lead, self.reason)] if self.lead else []
        return [CancelTimer(ShutdownDeadline()), *goodbye, Finish(self.status, self.reason)]
