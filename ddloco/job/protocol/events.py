"""The events of learners and syncers that are no results of work, and all that a tape holds."""

from typing import Union

from msgspec import Struct

from ddloco.job.protocol.fragment_plan import Leaf
from ddloco.job.protocol.messages import JobBody
from ddloco.job.protocol.timers import JobTimer
from ddloco.job.protocol.work import RESULTS
from ddloco.stage.actors.effects import Observe
from ddloco.stage.actors.events import HappensToAll
from ddloco.stage.actors.timers import TimerOfAll
from transport import Event, MessageArrived, TimerFired


class OwnState(Struct, frozen=True, array_like=True):
    """A learner's own state from a snapshot, in a job that continued without it: its worker's state
    under ``handle``, after step ``copy`` and with fragment ``versions``; ``digest`` covers it all.
    """

    snapshot: str
    copy: int
    versions: tuple[int, ...]
    handle: str
    digest: bytes


class Started(Event, frozen=True):
    """The actor's first event: the parameters' leaves, as its worker describes them. A learner that
    ``tells`` reports the losses of its steps. One that ``copies`` copies single fragments to the
    host when they are asked for; another one copies all parameters after each step."""

    incarnation: str
    leaves: tuple[Leaf, ...]
    state: OwnState | None = None
    tells: bool = False
    copies: bool = False


class WorkerBusy(Event, frozen=True):
    """The worker has been in one ``call`` for so many seconds, for example in ``next()``."""

    call: str
    for_s: float

    @property
    def words(self) -> str:
        return f"{self.call} for {self.for_s:.0f} s"

    def observed(self) -> Observe:
        return Observe("worker busy", {"level": "warning", "call": self.call, "for_s": self.for_s})


Happened = Union[
    (
        HappensToAll,
        TimerFired[TimerOfAll | JobTimer],
        MessageArrived[JobBody],
        Started,
        WorkerBusy,
        *RESULTS,
    )
]
