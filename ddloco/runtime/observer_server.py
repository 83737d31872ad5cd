"""The window: where observers look at an actor while it runs, without being noticed by it.

It stands below the door. What an observer asks never becomes an event, but for a snapshot, so that
tapes are the same with and without observers, and it is answered at once or not at all: whatever an
observer has not yet taken in is held against it, and a slow one loses news instead of holding
anything up. Of the fragments only the newest version matters, so a slow observer skips versions.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ddloco.runtime.array_table import Arrays
from ddloco.runtime.observer_protocol import (
    NOTICE_BYTES_MAX,
    VERSION,
    Ask,
    Fragment,
    News,
    Notice,
    NoticeError,
    Request,
    Sorry,
    Told,
    cut,
    decode_ask,
    encode,
)
from transport import Arrival, Endpoint, LaneFull, Payload, PeerGone
from transport.endpoint import Buffer

OBSERVERS_MAX = 64
"""Observers at once; beyond that whoever only asked for something, or has not spoken lately, makes
room. Whoever asks for a status, a snapshot or the end needs no place: observers lock nobody out."""

ATTENTIVE_S = 5.0
"""Who follows says every second what it has taken in; after so long it may be elsewhere."""

SNAPSHOT_ASKS_S_MIN = 1.0
"""Snapshots are begun for observers at most this often, however many ask."""

NEWS_AWAY_MAX = 256
"""Notices that an observer need not yet have taken in: a second's worth of a fast job."""

BYTES_AWAY_MAX = 64 * 2**20
"""The same in bytes; one fragment may be larger, if it is alone."""

SILENCE_S_MAX = 30.0
"""An observer says every second what it has taken in. One that is silent for so long is forgotten,
and what it follows is begun anew when it speaks again."""

STATUS_S_MIN = 0.1
"""A status is made at most this often, however many ask for it."""


@dataclass(slots=True)
class Watcher:
    """One observer, as the window sees it."""

    heard_at: float
    seq: int
    follows: bool = False
    payloads: bool = False
    pending: dict[int, int] = field(default_factory=dict[int, int])
    """Fragments whose newest version it has not been sent, and that version."""
    away: deque[tuple[int, int]] = field(default_factory=deque[tuple[int, int]])
    """(seq, bytes) of what it has not said to have taken in."""
    away_bytes: int = 0
    lost: int = 0
    """Notices that it was too slow for."""

    def took(self, seq: int) -> None:
        """It has taken in everything up to ``seq``."""
        while self.away and self.away[0][0] <= seq:
            self.away_bytes -= self.away.popleft()[1]

    def has_room(self, nbytes: int) -> bool:
        """Whether so many bytes more may be on their way to it."""
        within = self.away_bytes + nbytes <= BYTES_AWAY_MAX
        return not self.away or (len(self.away) < NEWS_AWAY_MAX and within)


class Window:
    """Answers the observers of one actor.

    Args:
        endpoint: carries the answers, as it carries the actor's own messages.
        arrays: where the global fragments are, under ``wire/FRAGMENT/T``.
        now: seconds since the actor's start.
        status: what is to be told of it, plain data.
        refuse: told why a frame was refused.
        request: called when an observer asks for a snapshot, or for the end of the job: these
            alone go on to the door.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        arrays: Arrays,
        now: Callable[[], float],
        status: Callable[[], dict[str, Any]],
        refuse: Callable[[str], None],
        *,
        request: Callable[[Request], None],
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
        """When a snapshot may be begun for an observer again."""
        self._told: tuple[float, dict[str, Any]] | None = None

    def take(self, arrival: Arrival) -> None:
        """Answer what an observer asks; what is no ask is refused."""
        route = arrival.route
        try:
            ask = decode_ask(arrival.frames)
        except NoticeError as error:
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
            watcher = Watcher(self._now(), ask.taken)  # Answered, and forgotten.
        watcher.heard_at = self._now()
        watcher.took(ask.taken)
        if ask.what == "status":
            self._tell(route, watcher)
        elif ask.what == "snapshot" and self._now() < self._snapshots_from:
            wait = f"at most one each {SNAPSHOT_ASKS_S_MIN:g} s; ask again"
            self._decline(route, f"a snapshot was asked for just now, {wait}")
        elif ask.what in ("snapshot", "stop"):
            if ask.what == "snapshot":
                self._snapshots_from = self._now() + SNAPSHOT_ASKS_S_MIN
            self._request(ask.what)
        else:
            self._follow(watcher, ask)
        self._hand_over(route, watcher)

    def news(self, event: str, at: float, ref: str, fields: dict[str, Any]) -> None:
        """Something was observed: tell whoever follows. Must not block, and does not."""
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
        """Who looks, and what each was too slow for."""
        return [
            {"observer": route, "follows": each.follows, "lost": each.lost, "away": len(each.away)}
            for route, each in self._watchers.items()
        ]

    def _note(self, event: str, fields: dict[str, Any]) -> None:
        """Keep in mind which version of each fragment is the newest."""
        match event, fields:
            case "listening", {"fragments": int(fragments)}:
                # A syncer that has recovered begins with later versions than 0.
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
        """The status, made anew if the last one is old; whatever fails in it harms nobody."""
        now = self._now()
        if self._told is None or now - self._told[0] >= STATUS_S_MIN:
            try:
                facts = self._status()
                encode(facts)
            except Exception as error:  # noqa: BLE001, the job goes on without being described
                facts = {"problem": f"this is a bug; no status: {type(error).__name__}: {error}"}
            self._told = now, facts
        return self._told[1]

    # Observers come and go.

    def _watcher(self, route: str, taken: int) -> Watcher | None:
        """The observer of this route, an old one or a new one; None if there is no place."""
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
        # One that was forgotten goes on counting from what it has.
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

    # What is said to one of them.

    def _tell(self, route: str, watcher: Watcher) -> None:
        facts = {**self._facts(), "observers": self.observers()}
        self._say(route, watcher, Told(watcher.seq + 1, facts))

    def _say(self, route: str, watcher: Watcher, said: Notice) -> None:
        """One notice of a single frame, or one more that was lost."""
        frame = encode(said)
        if len(frame) > NOTICE_BYTES_MAX or not watcher.has_room(len(frame)):
            watcher.lost += 1
            return
        self._send(route, watcher, [[frame]], len(frame))

    def _hand_over(self, route: str, watcher: Watcher) -> None:
        """Send newest fragments while there is room; the rest when it has taken these in."""
        for fragment, t in list(watcher.pending.items()):
            handle = f"wire/{fragment}/{t}"
            if not self._arrays.known(handle):
                del watcher.pending[fragment]  # A newer one is about to be told of.
                continue
            payload: Payload = self._arrays.get(handle)
            if not watcher.has_room(len(payload.data)):
                return
            said = Fragment(watcher.seq + 1, fragment, t, payload.tensors)
            if not self._send(route, watcher, cut(said, payload.data), len(payload.data)):
                return
            del watcher.pending[fragment]

    def _send(self, route: str, watcher: Watcher, messages: Any, nbytes: int) -> bool:
        """Send the messages of one notice; whoever is gone is forgotten."""
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
        frames: list[Buffer] = [encode(Sorry(reason))]
        try:
            self._endpoint.send_nowait(route, frames)
        except (LaneFull, PeerGone):
            return
