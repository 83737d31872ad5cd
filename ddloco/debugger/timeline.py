"""Events of all tapes in one causal order, on one time axis. How far the clocks of two actors are
apart is estimated from the messages between them, assuming that the fastest message each way takes
equally long (as NTP does); an effect is never before its cause. The estimate decides nothing."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgpack
import msgspec

from clocks import VectorClock, causal_sort
from replay import Receipt, Tape, tape


class TimelineArrival(msgspec.Struct, frozen=True, tag="MessageArrived"):
    """The fields of a MessageArrived event that are needed here."""

    peer: str
    lane: str
    session: int
    sender: str
    seq: int
    clock: dict[str, int]


_decode_arrival = msgspec.msgpack.Decoder(TimelineArrival).decode


class TimelineEvent:
    """One event, decoded without a schema, so that tapes of any program can be shown. ``at`` is in
    seconds on the actor's own clock, ``common_at`` on that of the reference actor, as estimated.

    Attributes:
        effects: what the tape says of its handling; None if the actor was killed there.
    """

    __slots__ = ("actor", "at", "clock", "common_at", "effects", "fields", "number")

    def __init__(self, actor: str, record: tape.Event, clock: VectorClock, offset_s: float) -> None:
        self.actor = actor
        self.number = record.n
        self.clock = clock
        self.at = record.at
        self.common_at = record.at + offset_s
        self.fields: dict[str, Any] = msgpack.unpackb(record.event)
        self.effects: tape.Effects | tape.Raised | None = None

    @property
    def kind(self) -> str:
        return str(self.fields.get("type", "?"))

    @property
    def body(self) -> dict[str, Any] | None:
        body = self.fields.get("body")
        return body if isinstance(body, dict) else None

    def as_dict(self) -> dict[str, Any]:
        """Return the event as plain data; bytes are hexadecimal. The clock that a message carried
        is ``message_clock``."""
        plain = _plain(self.fields)
        carried = {"message_clock": plain.pop("clock")} if "clock" in plain else {}
        return {
            "event": f"{self.actor}:{self.number}",
            "at": self.at,
            "common_at": self.common_at,
            "clock": self.clock.wire(),
            **plain,
            **carried,
            "effects": self.effects.count if isinstance(self.effects, tape.Effects) else None,
        }


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value


def timeline(tapes: Sequence[Tape]) -> list[TimelineEvent]:
    """Return all events in one causal order; among concurrent ones the earlier comes first.
    ``CausalityError`` if the tapes cannot be of one run."""
    offsets = clock_offsets(tapes)
    events = {each.incarnation: list(_events_of(each, offsets)) for each in tapes}
    cut_short = [each.incarnation for each in tapes if each.closed is None]
    after = {each.incarnation: each.header.after for each in tapes}
    ordered = causal_sort(events, cut_short, after, rank=lambda event: event.common_at)
    _after_causes(ordered)
    return ordered


def _after_causes(ordered: Sequence[TimelineEvent]) -> None:
    """Move events to no earlier than their causes. One axis with constant offsets has them so,
    unless the actors' clocks drift."""
    newest: dict[str, TimelineEvent] = {}
    times: dict[tuple[str, int], float] = {}
    for event in ordered:
        before = newest.get(event.actor)
        at = max(event.common_at, before.common_at if before is not None else event.common_at)
        sender = event.fields.get("sender") if event.kind == "MessageArrived" else None
        if isinstance(sender, str):
            at = max(at, times.get((sender, sent_at(event, sender)), at))
        event.common_at = times[event.actor, event.number] = at
        newest[event.actor] = event


def sent_at(event: TimelineEvent, sender: str) -> int:
    """Return the number of the sender's event that sent a message; 0 if it does not say."""
    clock = event.fields.get("clock")
    return clock.get(sender, 0) if isinstance(clock, dict) else 0


def _events_of(each: Tape, offsets: Mapping[str, float]) -> Iterator[TimelineEvent]:
    clock = VectorClock(each.header.clock)
    newest: TimelineEvent | None = None
    for record in each.records():
        if isinstance(record, tape.Event):
            clock = clock.merge(record.clock).tick(each.incarnation)
            newest = TimelineEvent(
                each.incarnation, record, clock, offsets.get(each.incarnation, 0.0)
            )
            yield newest
        elif isinstance(record, tape.Effects | tape.Raised) and newest is not None:
            newest.effects = record


def clock_offsets(tapes: Iterable[Tape]) -> dict[str, float]:
    """Return the seconds to add to each actor's times to get those of the reference actor, which
    has exchanged messages with most others: in a job, a syncer. An actor that exchanged none with
    it, directly or through others, gets 0."""
    times, fastest = _delays(tapes)
    links: dict[str, set[str]] = {name: set() for name in times}
    for sender, receiver in fastest:
        links[sender].add(receiver)
        links[receiver].add(sender)
    if not links:
        return {}
    reference = max(sorted(links), key=lambda name: len(links[name]))
    offsets = {reference: 0.0}
    reached = [reference]
    for one in reached:
        for other in sorted(links[one] - offsets.keys()):
            offsets[other] = offsets[one] + _offset(
                fastest.get((one, other)), fastest.get((other, one))
            )
            reached.append(other)
    offsets = {name: offsets.get(name, 0.0) for name in times}
    return _forwards(offsets, fastest)


def _forwards(
    offsets: dict[str, float], fastest: Mapping[tuple[str, str], float]
) -> dict[str, float]:
    """Return offsets under which no message arrives before it was sent. Among three actors, each
    pair's estimate may contradict the other two. If the clocks drift, no offsets do for all
    messages, and this ends after as many rounds as there are actors."""
    for _ in offsets:
        late = {
            (sender, receiver): took_s
            for (sender, receiver), took_s in fastest.items()
            if took_s + offsets[receiver] < offsets[sender]
        }
        if not late:
            break
        for (sender, receiver), took_s in sorted(late.items()):
            offsets[receiver] = max(offsets[receiver], offsets[sender] - took_s)
    return offsets


def _offset(there_s: float | None, back_s: float | None) -> float:
    """Return how far the clock of the other actor is behind, in seconds, from the least differences
    of arrival and departure each way; None if there were no messages."""
    if there_s is not None and back_s is not None:
        return (back_s - there_s) / 2
    if there_s is not None:
        return -there_s
    return back_s if back_s is not None else 0.0


def _delays(tapes: Iterable[Tape]) -> tuple[dict[str, list[float]], dict[tuple[str, str], float]]:
    """Return the times of every actor's events, and per sender and receiver the least difference of
    arrival and departure."""
    opened = list(tapes)
    times: dict[str, list[float]] = {}
    first: dict[str, int] = {}
    arrivals: list[tuple[str, str, int, float]] = []
    for each in opened:
        own = times.setdefault(each.incarnation, [])
        first[each.incarnation] = each.header.after + 1
        for record in each.records():
            if not isinstance(record, tape.Event):
                continue
            own.append(record.at)
            said = _arrival(record.event) if record.clock else None
            if said is not None:
                sent = said.clock.get(said.sender, 0)
                arrivals.append((said.sender, each.incarnation, sent, record.at))
    fastest: dict[tuple[str, str], float] = {}
    for sender, receiver, number, at in arrivals:
        place = number - first.get(sender, 1)
        if sender not in times or not 0 <= place < len(times[sender]):
            continue
        took_s = at - times[sender][place]
        fastest[sender, receiver] = min(took_s, fastest.get((sender, receiver), took_s))
    return times, fastest


def receipt_of(event: dict[str, Any]) -> Receipt | None:
    if event.get("type") != "MessageArrived":
        return None
    said = msgspec.convert(event, TimelineArrival)
    return Receipt(said.sender, (said.peer, said.lane, said.session), said.seq, said.clock)


def _arrival(event: msgspec.Raw) -> TimelineArrival | None:
    try:
        return _decode_arrival(event)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None  # Any other event.
