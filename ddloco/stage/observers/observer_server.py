"""The observer server: answers observers of a running actor without affecting it. Only requests
become events, so tapes are the same with and without observers. What each has not acknowledged is
limited: a slow one loses news instead of delaying anything, and skips versions of fragments."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ddloco.stage.arrays.array_table import ArrayTable
from ddloco.stage.observers.observer_fragments import cut
from ddloco.stage.observers.observer_protocol import (
    NOTICE_BYTES_MAX,
    OWNER,
    VERSION,
    Ask,
    Fragment,
    News,
    Notice,
    Request,
    Sorry,
    Told,
    decode_ask,
)
from ddloco.stage.process.side_protocol import SideProtocolError, encode, tell
from transport import Arrival, Endpoint, LaneFull, Payload, PeerGone

OBSERVERS_MAX = 64
"""Observers at once. Beyond that, one that does not follow, or has been silent for some seconds, is
removed for a new one. Requests for a status, a snapshot or the end are always answered, so that
observers cannot lock each other out."""

ATTENTIVE_S = 5.0
"""An observer that follows acknowledges every second; one that is silent for this long, in seconds,
may be replaced."""

SNAPSHOT_ASKS_S_MIN = 1.0
"""Minimum interval between snapshots requested by observers, in seconds, however many ask."""

NEWS_AWAY_MAX = 256
"""Notices that may be unacknowledged: a second's worth in a fast job."""

BYTES_AWAY_MAX = 64 * 2**20
"""The same limit in bytes; a single fragment may be larger."""

SILENCE_S_MAX = 30.0
"""An observer acknowledges every second. One that is silent for this long, in seconds, is
forgotten, and starts over when it sends a request again."""

STATUS_S_MIN = 0.1
"""Minimum interval between computations of the status, in seconds, however many ask."""


REQUESTS = {"snapshot": "ask for a snapshot", "stop": "end the job", "leave": "let an actor leave"}
"""What only the owner of the job may ask for, in words."""


@dataclass(slots=True)
class Watcher:
    heard_at: float
    seq: int
    follows: bool = False
    payloads: bool = False
    pending: dict[int, int] = field(default_factory=dict[int, int])
    """Newest versions by fragment that have not been sent to it."""
    away: deque[tuple[int, int]] = field(default_factory=deque[tuple[int, int]])
    """(seq, bytes) of each notice that it has not acknowledged."""
    away_bytes: int = 0
    lost: int = 0
    """Notices that were not sent because it was too slow."""
    dismissed: str = ""
    """The actor that it last asked to leave."""

    def took(self, seq: int) -> None:
        while self.away and self.away[0][0] <= seq:
            self.away_bytes -= self.away.popleft()[1]

    def has_room(self, nbytes: int) -> bool:
        within = self.away_bytes + nbytes <= BYTES_AWAY_MAX
        return not self.away or (len(self.away) < NEWS_AWAY_MAX and within)


class ObserverServer:
    """Answers the observers of one actor. The global fragments are under ``wire/FRAGMENT/T``. Only
    what ``request`` is called for reaches the actor: a snapshot, the end of the job, or that an
    actor leaves it; it returns whether that was taken."""

    def __init__(
        self,
        endpoint: Endpoint,
        arrays: ArrayTable,
        now: Callable[[], float],
        status: Callable[[], dict[str, Any]],
        refuse: Callable[[str], None],
        *,
        request: Callable[[Request, str], bool],
    ) -> None:
        self._endpoint = endpoint
        self._arrays = arrays
        self._now = now
        self._status = status
        self._refuse = refuse
        self._request = request
        self._watchers: dict[str, Watcher] = {}
        self._newest: dict[int, int] = {}
        self._snapshots_from = 0.0
        self._told: tuple[float, dict[str, Any]] | None = None

    def take(self, arrival: Arrival) -> None:
        route = arrival.route
        try:
            ask = decode_ask(arrival.frames)
        except SideProtocolError as error:
            self._refuse(str(error))
            return
        if ask.version != VERSION:
            self._decline(route, f"observers here speak version {VERSION}, not {ask.version}")
            return
        watcher = self._watcher(route, ask.taken)
        if watcher is None and ask.what == "follow":
            self._decline(route, f"{OBSERVERS_MAX} observers follow this syncer already")
            return
        if watcher is None:
            watcher = Watcher(self._now(), ask.taken)  # Answered, but not remembered.
        watcher.heard_at = self._now()
        watcher.took(ask.taken)
        if ask.what == "status":
            self._tell(route, watcher)
        elif ask.what in REQUESTS and not route.startswith(OWNER):
            said = f"an observer may look, not {REQUESTS[ask.what]}; that needs the key owner"
            self._decline(route, said)
        elif ask.what == "snapshot" and self._now() < self._snapshots_from:
            wait = f"at most one each {SNAPSHOT_ASKS_S_MIN:g} s; ask again"
            self._decline(route, f"a snapshot was requested just now, {wait}")
        elif ask.what == "follow":
            self._follow(watcher, ask)
        else:
            if ask.what == "snapshot":
                self._snapshots_from = self._now() + SNAPSHOT_ASKS_S_MIN
            if ask.what != "leave" or ask.who != watcher.dismissed:  # It repeats its request.
                taken = self._request(ask.what, ask.who)
                watcher.dismissed = ask.who if taken else ""
        self._hand_over(route, watcher)

    def news(self, event: str, at: float, ref: str, fields: dict[str, Any]) -> None:
        """Send an observation to the observers that follow; does not block."""
        self._note(event, fields)
        if not self._watchers:
            return
        self._forget_silent()
        for route, watcher in list(self._watchers.items()):
            if not watcher.follows:
                continue
            said = News(watcher.seq + 1, watcher.lost, event, at, ref, fields)
            self._say(route, watcher, said)
            self._hand_over(route, watcher)

    def observers(self) -> list[dict[str, Any]]:
        return [
            {"observer": route, "follows": each.follows, "lost": each.lost, "away": len(each.away)}
            for route, each in self._watchers.items()
        ]

    def _note(self, event: str, fields: dict[str, Any]) -> None:
        match event, fields:
            case "listening", {"fragments": int(fragments)}:
                # A recovered syncer begins with versions above 0.
                self._told = None
                versions = self._facts().get("versions") or [0] * fragments
                self._newest = dict(enumerate(versions))
            case "merge", {"fragment": int(fragment), "t": int(t)}:
                self._newest[fragment] = t
                for watcher in self._watchers.values():
                    if watcher.payloads:
                        watcher.pending[fragment] = t
            case _:
                pass

    def _facts(self) -> dict[str, Any]:
        """The status, computed again if the last one is old; an exception does not stop the job."""
        now = self._now()
        if self._told is None or now - self._told[0] >= STATUS_S_MIN:
            try:
                facts = self._status()
                encode(facts)
            except Exception as error:  # noqa: BLE001, the job continues without a status
                facts = {"problem": f"this is a bug; no status: {type(error).__name__}: {error}"}
            self._told = now, facts
        return self._told[1]

    # Adding and removing observers.

    def _watcher(self, route: str, taken: int) -> Watcher | None:
        """The observer of this route, known or new; None if there is no place for it."""
        if route in self._watchers:
            return self._watchers[route]
        self._forget_silent()
        if len(self._watchers) >= OBSERVERS_MAX:
            lately = self._now() - ATTENTIVE_S
            watchers = self._watchers
            idle = [
                each
                for each in watchers
                if not watchers[each].follows or watchers[each].heard_at < lately
            ]
            if not idle:
                return None
            del self._watchers[min(idle, key=lambda each: self._watchers[each].heard_at)]
        # The numbers of an observer that was forgotten continue where they ended.
        watcher = self._watchers[route] = Watcher(self._now(), taken)
        return watcher

    def _forget_silent(self) -> None:
        oldest = self._now() - SILENCE_S_MAX
        silent = [route for route, each in self._watchers.items() if each.heard_at < oldest]
        for route in silent:
            del self._watchers[route]

    def _follow(self, watcher: Watcher, ask: Ask) -> None:
        watcher.follows = True
        if ask.payloads and not watcher.payloads:
            watcher.pending = dict(self._newest)
        watcher.payloads = ask.payloads

    # Sending to one observer.

    def _tell(self, route: str, watcher: Watcher) -> None:
        facts = {**self._facts(), "observers": self.observers()}
        self._say(route, watcher, Told(watcher.seq + 1, facts))

    def _say(self, route: str, watcher: Watcher, said: Notice) -> None:
        frame = encode(said)
        if len(frame) > NOTICE_BYTES_MAX or not watcher.has_room(len(frame)):
            watcher.lost += 1
            return
        self._send(route, watcher, [[frame]], len(frame))

    def _hand_over(self, route: str, watcher: Watcher) -> None:
        """Send the newest fragments while there is room; others follow after acknowledgements."""
        for fragment, t in list(watcher.pending.items()):
            handle = f"wire/{fragment}/{t}"
            if not self._arrays.known(handle):
                del watcher.pending[fragment]  # A newer version is about to be announced.
                continue
            payload: Payload = self._arrays.get(handle)
            data = payload.data
            if not watcher.has_room(len(data)):
                return
            said = Fragment(watcher.seq + 1, fragment, t, payload.tensors)
            if not self._send(route, watcher, cut(said, data), len(data)):
                return
            del watcher.pending[fragment]

    def _send(self, route: str, watcher: Watcher, messages: Any, nbytes: int) -> bool:
        watcher.seq += 1
        watcher.away.append((watcher.seq, nbytes))
        watcher.away_bytes += nbytes
        try:
            for frames in messages:
                self._endpoint.send_nowait(route, frames)
        except LaneFull:
            watcher.lost += 1
            return False
        except PeerGone:
            self._watchers.pop(route, None)
            return False
        return True

    def _decline(self, route: str, reason: str) -> None:
        tell(self._endpoint, route, Sorry(reason))
