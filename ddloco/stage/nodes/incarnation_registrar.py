"""Grants incarnation numbers, and describes what runs: a part of the leading syncer, below its
driver. Numbers are in a file of the run folder, written before the answer is sent, so that a
restarted syncer grants none twice; tapes in the folder count as well."""

import fcntl
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import trio

from clocks import (
    MonotonicTime,
    TimeSource,
    actor_of,
    is_incarnation,
    number_of,
    open_to_append,
    read_regular,
    replace_file,
)
from ddloco.stage.actors.observations import APART, CODE_DIFFERS, TASK_DIFFERS
from ddloco.stage.files.run_folder import KEPT
from ddloco.stage.nodes.incarnation_grants import (
    AHEAD_MAX,
    DIFFERENCES_MAX,
    LANE,
    NUMBER_MAX,
    VERSION,
    Denied,
    Describe,
    Described,
    Granted,
    Known,
    Want,
    decode_described,
    decode_question,
    differences,
    shared_settings,
)
from ddloco.stage.nodes.lease import Lease
from ddloco.stage.nodes.peer_version import agreement_of
from ddloco.stage.nodes.runnable import Runnable
from ddloco.stage.process.code_version import code_version
from ddloco.stage.process.run_identity import DDLOCO, SOURCE, apart, changes, identity_here
from ddloco.stage.process.side_protocol import Inbox, Refusals, SideProtocolError, encode, tell
from replay.tape import SUFFIX
from replay.tape_files import whose
from transport import Allowances, Arrival, Endpoint

TOGETHER = "update all hosts of a job together"

ITS_OWN = frozenset({"python"})
"""Entries of an identity in which hosts may well differ."""

RECORD = "incarnations.json"
"""In the folder of kept merges: for each actor the newest number that was granted."""

WAITING_MAX = 256
"""Requests that may wait; others are dropped, and repeated by their senders a second later."""

ROUTES_MAX = 4096
"""Routes whose answers are remembered: four for each learner that a job may have."""

NUMBERS_AT_ONCE, NUMBERS_PER_S = 16.0, 0.1
"""New numbers of one actor: so many at once, then so many a second. A scheduler that restarts a
failing learner every second is slowed to one start in ten seconds, and so is a peer that asks under
another actor's name, which ends that actor's link."""

DESCRIPTIONS_AT_ONCE, DESCRIPTIONS_PER_S = 4.0, 0.1
"""Descriptions of what runs for one actor: so many at once, then so many a second."""

SHARDS_S = 10.0
"""How long, in seconds, a lead that knows no learner waits for its shards before it grants numbers
to learners: it may have lost its folder, and then the shards know what was granted."""

_decode = msgspec.json.Decoder(dict[str, int]).decode


class RecordError(Exception):
    """The file of granted numbers cannot be read; the text names it."""


def newest_on_tape(tapes: Path, name: str) -> int:
    there = (whose(path)[0] for path in tapes.glob(f"{name}.*{SUFFIX}"))
    return max((number_of(each) for each in there if actor_of(each) == name), default=0)


class NumberRecord:
    """The newest number of each actor, in a file; ``RecordError`` if it exists and cannot be
    read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / KEPT / RECORD
        self._tapes = folder / "tapes"
        self._newest = self._read()

    def _read(self) -> dict[str, int]:
        try:
            return _decode(read_regular(self._path))
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            said = f"{self._path}: not a record of incarnations: {error}; remove it"
            raise RecordError(said) from None

    def newest(self, name: str) -> int:
        return max(self._newest.get(name, 0), newest_on_tape(self._tapes, name))

    def note(self, name: str, number: int) -> None:
        """Record an actor's new number; it is on disk when this returns. Other processes that have
        this folder may record theirs at the same time."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open_to_append(self._path.with_name(f".{RECORD}.lock")) as lock:
            with suppress(OSError):  # Some network file systems have no locks.
                fcntl.flock(lock, fcntl.LOCK_EX)
            # If it was damaged or removed since, what is known is written again.
            said = dict(self._newest)
            with suppress(RecordError):
                said |= self._read()
            said[name] = number
            data = msgspec.json.encode(dict(sorted(said.items())))
            replace_file(self._path, [data], durable=True)
        self._newest = said


class Registrar:
    """Answers actors that request incarnation numbers; one that is repeated under the same route
    gets the same number."""

    def __init__(
        self,
        program: Runnable,
        record: NumberRecord,
        endpoint: Endpoint,
        note: Callable[[str, dict[str, Any]], None],
        time: TimeSource | None = None,
        *,
        lease: Lease | None = None,
    ) -> None:
        self._names = frozenset(program.names) - {program.lead}
        self._program = program
        self._settings = shared_settings(program)
        self._identity = identity_here(program.sources(record.folder))
        self._agreement = agreement_of(program)
        self._record = record
        self._endpoint = endpoint
        self._note = note
        self._lease = lease
        self._time = time or MonotonicTime()
        self._allowances = Allowances(NUMBERS_AT_ONCE, NUMBERS_PER_S)
        self._descriptions = Allowances(DESCRIPTIONS_AT_ONCE, DESCRIPTIONS_PER_S)
        self._newest: dict[str, int] = {}
        self._learners = frozenset(program.followers)
        self._shards: dict[str, str] = {}
        self._begun = self._time.now()
        self._shard_names = program.listeners[1:]
        self._new = bool(self._shard_names) and not any(map(record.newest, self._learners))
        """Whether the shards may know of learners that the record does not."""
        self._refusals = Refusals("number refused", note)
        self._source: Mapping[str, str] | None = None
        self._given: dict[str, Granted] = {}
        self._flags: dict[str, dict[str, str]] = {}
        self._inbox = Inbox[Arrival](WAITING_MAX)

    def know_source(self, texts: Mapping[str, str]) -> None:
        """Take the user's source files, by name; until then nobody is told what runs."""
        self._source = texts

    def take(self, arrival: Arrival) -> None:
        self._inbox.put(arrival)

    def heeds(self, route: str) -> bool:
        """Whether messages of the incarnation that a route names are accepted: if it was granted.
        If nothing is known of an actor, the lead may have lost its folder, and any number up to
        ``AHEAD_MAX`` is accepted."""
        peer = route.rpartition("/")[0]
        name, number = actor_of(peer), number_of(peer)
        if name not in self._names or not is_incarnation(peer):
            return True  # The driver validates it.
        newest = self._newest_of(name)
        if number <= newest:
            return True
        if newest or number > AHEAD_MAX:
            self._refuse(name, f"{peer} was never given; the newest of {name} is {newest}")
            return False
        self._newest[name] = number
        return True

    async def run(self) -> None:
        async for arrival in self._inbox.waiting:
            answer = await trio.to_thread.run_sync(self.answer, arrival)
            if answer is None:
                continue
            tell(self._endpoint, arrival.route, answer)
            if isinstance(answer, Granted):
                for route in self._shards.values():
                    tell(self._endpoint, route, self._known())

    def _known(self) -> Known:
        numbers = {name: self._newest_of(name) for name in sorted(self._learners)}
        return Known({name: number for name, number in numbers.items() if number})

    def _newest_of(self, name: str) -> int:
        if name not in self._newest:
            self._newest[name] = self._record.newest(name)
        return self._newest[name]

    def _heard_of_shard(self, route: str, name: str, known: Known) -> Known | None:
        if name not in self._shard_names:
            return self._refuse(name, "it is no shard")
        for learner in sorted(self._learners & known.numbers.keys()):
            number, newest = known.numbers[learner], self._newest_of(learner)
            if newest < number <= newest + AHEAD_MAX:
                self._newest[learner] = number
        self._shards[name] = route
        return self._known()

    def _waits_for_shards(self) -> bool:
        self._new = (
            self._new
            and len(self._shards) < len(self._shard_names)
            and self._time.now() - self._begun < SHARDS_S
        )
        return self._new

    def answer(self, arrival: Arrival) -> Granted | Described | Denied | Known | None:
        """The answer to a request; None if it is invalid, or cannot be answered yet."""
        route = arrival.route
        name = actor_of(route.removesuffix(f"/{LANE}"))
        try:
            want = decode_question(arrival.frames)
        except SideProtocolError as error:
            return self._refuse(name, str(error))
        if isinstance(want, Known):
            return self._heard_of_shard(route, name, want)
        if name not in self._names:
            refused = f"{name[:64]} is no actor of this job"
        elif want.version != VERSION:
            refused = (
                f"its ddloco asks in version {want.version} of this protocol, here is version "
                f"{VERSION} ({code_version()}); {TOGETHER}"
            )
        elif isinstance(want, Describe):
            return self._describe(name)
        elif want.agreement != self._agreement:
            refused = (
                f"it runs {want.identity.get(DDLOCO, 'another ddloco')}, whose messages or "
                f"recordings are not those of {code_version()} here; {TOGETHER}"
            )
        elif want.job != self._program.id:
            said = differences(self._settings, want.settings) if want.settings else ""
            ours, what = self._program.id, self._program.settings_name
            refused = f"its {what} differs: {said or f'{ours} here, {want.job} there'}"
        elif name in self._learners and self._waits_for_shards():
            return None
        else:
            return self._given.get(route) or self._give(route, name, want)
        self._refuse(name, refused)
        return Denied(refused[:1000])

    def _describe(self, name: str) -> Described | Denied | None:
        """The settings and the source, once this actor's own worker has read that."""
        if self._source is None:
            return None
        if not self._descriptions.take(name, self._time.now()):
            return self._refuse(name, "it asks for the settings too often")
        described = Described(self._program.as_plain(), dict(self._source))
        try:
            decode_described([encode(described)])
        except SideProtocolError as error:
            refused = (
                f"the source of {self._program.source_name} cannot be sent ({error}); copy it and "
                f"the {self._program.settings_name} to that host"
            )
            self._refuse(name, refused)
            return Denied(refused[:1000])
        return described

    def _give(self, route: str, name: str, want: Want) -> Granted | Denied | None:
        if not self._allowances.take(name, self._time.now()):
            return self._refuse(name, "it asks for new numbers too often")
        newest = max(self._record.newest(name), self._newest.get(name, 0))
        number = want.exact if want.exact > newest else max(newest, want.known) + 1
        if number > min(newest + AHEAD_MAX, NUMBER_MAX):
            refused = f"{number} is too far from {newest}, the newest number of {name} here"
            self._refuse(name, refused)
            return Denied(refused)
        try:
            if self._lease is not None:
                self._lease.confirm()
            self._record.note(name, number)
        except OSError as error:
            return self._refuse(name, f"its number cannot be written down: {error.strerror}")
        self._newest[name] = number
        differs = self._differs(name, want)
        for event, reason in differs.items():
            self._note(event, {"learner": f"{name}.{number}", "reason": reason})
        for line in self._flags_apart(name, want):
            self._note(APART, {"learner": f"{name}.{number}", "reason": line})
        granted = self._given[route] = Granted(number, "; ".join(differs.values())[:1000])
        while len(self._given) > ROUTES_MAX:
            del self._given[next(iter(self._given))]
        return granted

    def _differs(self, name: str, want: Want) -> dict[str, str]:
        """What is different there and no reason to refuse, by the event of the log."""
        lead, found = self._program.lead, {}
        ours = {key: value for key, value in self._identity.items() if key not in ITS_OWN}
        for each in islice(changes(ours, want.identity, shared=True), DIFFERENCES_MAX):
            is_source = each.key.startswith(SOURCE)
            event = TASK_DIFFERS if is_source else CODE_DIFFERS
            what = f"{self._program.source_name} differs: " if is_source else ""
            before = f"{found[event]}; " if event in found else what
            found[event] = f"{before}{each.what} is {each.then} at {lead}, {each.now} at {name}"
        return found

    def _flags_apart(self, name: str, want: Want) -> list[str]:
        """In which variables the learner that has come differs from most, in words."""
        if name in self._learners:
            known = self._program.flags(name)
            self._flags[name] = {key: v for key, v in want.identity.items() if key in known}
        return [line for who, line in apart(self._flags) if name in who][:DIFFERENCES_MAX]

    def _refuse(self, name: str, reason: str) -> None:
        self._refusals.add(name, reason)
