"""The global fragments that a syncer owns."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec import UNSET, Struct

from ddloco.job.config import Compress
from ddloco.job.protocol.compression import Format
from ddloco.job.protocol.messages import GlobalFragment, Progress
from ddloco.machines.syncer.members import Member
from transport import BULK, Drop, Effect, Keep, Send


class Global(Struct, forbid_unknown_fields=True):
    """The newest version of a global fragment, with the handles of its arrays. Sent as a compressed
    difference, it is under ``difference``, to version ``base``, and learners hold what is under
    ``held``, not quite ``wire``; None if it is of an earlier incarnation, then they may hold either
    of the two."""

    version: int
    theta: str
    state: str
    wire: str
    held: str | None = None
    difference: str = ""
    base: int = -1
    form: Format = "float32"
    """The format of the difference: a run that continues from a snapshot may have another one."""

    def handles(self) -> list[str]:
        """Return the handles of all its arrays; before the first merge the optimizer has none."""
        own = [self.theta, self.state, self.wire, self.difference]
        if self.held != self.wire:
            own.append(self.held or "")
        return [each for each in own if each]


class Recipient(NamedTuple):
    """A learner that is sent global fragments.

    Attributes:
        merged: for each fragment, the base version of its last merged contribution.
    """

    member: Member
    merged: list[int]
    compress: Compress


class GlobalFragments(Struct, forbid_unknown_fields=True):
    """The global fragments of one syncer; made by ``initial_globals``.

    Attributes:
        lag: the most global steps that a contribution's base version may be behind the newest.
        versions: for each fragment, the newest version; -1 if another syncer owns the fragment.
        past: for each owned fragment, the handles of the parameters of older versions, to which
            compressed contributions may be differences.
        merged_here: the fragments that this incarnation has merged.
    """

    owned: tuple[int, ...]
    lag: int
    versions: tuple[int, ...]
    newest_of: dict[int, Global]
    past: dict[int, dict[int, str]]
    merged_here: dict[int, None] = {}

    def _versions(self) -> tuple[int, ...]:
        mine = self.newest_of
        return tuple(mine[p].version if p in mine else -1 for p in range(len(self)))

    @property
    def merged(self) -> bool:
        return all(each.version > 0 for each in self.newest_of.values())

    def __getitem__(self, fragment: int) -> Global:
        return self.newest_of[fragment]

    def __len__(self) -> int:
        return len(self.versions)

    def recover(self, fragment: int, version: int) -> None:
        """Take over a version that an earlier incarnation saved. Learners that already have it may
        hold what a compressed difference made of it."""
        self.newest_of[fragment] = Global(version, *names(fragment, version))
        self.versions = self._versions()

    def newest(self, fragment: int, held: int) -> int:
        """Return the newest version of ``fragment`` that may exist if a learner reports ``held``:
        until this incarnation has merged it, a report counts as much as the saved version, which
        may be missing or older."""
        mine = self.newest_of[fragment].version
        return mine if fragment in self.merged_here else max(mine, held)

    def ahead(self, versions: Sequence[int]) -> int:
        """Return the newest of ``versions`` that this syncer may have lost; 0 if there is none."""
        newer = (
            versions[p]
            for p, mine in self.newest_of.items()
            if versions[p] > mine.version and p not in self.merged_here
        )
        return max(newer, default=0)

    def merge(self, fragment: int, newer: Global, compress: Compress) -> list[Effect]:
        """Install a version merged by this incarnation; no learner can hold a newer one."""
        self.merged_here[fragment] = None
        return self.replace(fragment, newer, compress)

    def replace(self, fragment: int, newer: Global, compress: Compress) -> list[Effect]:
        older, self.newest_of[fragment] = self.newest_of[fragment], newer
        assert newer.version > older.version, "versions only grow"
        self.versions = self._versions()
        dropped = older.handles()
        if compress.differences:
            past = self.past[fragment]
            past[older.version] = older.theta
            dropped.remove(older.theta)
            for version in [each for each in past if each < self.oldest(fragment)]:
                dropped.append(past.pop(version))
        return [Drop(handle) for handle in dropped]

    def anchor(self, fragment: int, version: int) -> str:
        """Return the handle of a version's parameters; empty if this syncer lacks them."""
        mine = self.newest_of[fragment]
        if mine.version == version:
            return mine.theta
        return self.past[fragment].get(version, "")

    def keep(self) -> list[Effect]:
        return [Keep(handle) for each in self.newest_of.values() for handle in each.handles()]

    def tell(
        self, at: float, peer: Recipient, p: int, *, instead: bool = False
    ) -> Send[GlobalFragment]:
        member = peer.member
        difference = not instead and self.has_difference(p, peer.compress)
        difference = difference and self.knows_base(member, p)
        member.tell(at, p, self.newest_of[p].version)
        spent = peer.merged[p] if peer.compress.feedback else UNSET
        said, handle = self.said(p, difference=difference, instead=instead, spent=spent)
        return Send(member.peer, BULK, said, handle, f"global/{p}")

    def has_difference(self, p: int, compress: Compress) -> bool:
        each = self.newest_of[p]
        return bool(each.difference) and each.form == compress.down

    def knows_base(self, member: Member, p: int) -> bool:
        """Whether a learner holds the version that the difference is to. One that has its
        parameters from a donor was never sent it; one that was sent it again may have had no use
        for a difference."""
        return member.holds(p) == member.sent[p] == self.newest_of[p].base

    def said(self, p: int, *, difference: bool, **more: Any) -> tuple[GlobalFragment, str]:
        """Return the message with the newest version of a fragment, and the handle of its
        payload."""
        each = self.newest_of[p]
        if difference:
            said = GlobalFragment(p, each.version, form=each.form, base=each.base, **more)
            return said, each.difference
        return GlobalFragment(p, each.version, **more), each.held or each.wire

    def send_replacements(self, at: float, peer: Recipient, p: int, *, whole: bool) -> list[Effect]:
        """Replace a learner's fragment, which would be refused again, by the global fragment; with
        ``whole`` every one, so that the learner starts over."""
        parts = self.owned if whole else (p,)
        return [self.tell(at, peer, each, instead=True) for each in parts]

    def lacking(self, at: float, member: Member, progress: Progress) -> list[int]:
        """Return every fragment newer than a learner reports, unless that is in flight."""
        if progress.versions == self.versions:
            return []
        behind = enumerate(zip(progress.versions, self.versions, strict=True))
        return [p for p, (held, newest) in behind if held < newest and member.lacks(at, p, newest)]

    def oldest(self, fragment: int) -> int:
        """Return the oldest base version of a contribution to ``fragment`` that is accepted."""
        return self.newest_of[fragment].version - self.lag

    def held(self) -> int:
        past = sum(len(versions) for versions in self.past.values())
        return past + sum(len(each.handles()) for each in self.newest_of.values())

    def thetas(self) -> tuple[str, ...]:
        """Return the handle of each fragment's parameters; empty if another syncer owns it."""
        mine = self.newest_of
        return tuple(mine[p].theta if p in mine else "" for p in range(len(self)))

    def finals(self, peer: str) -> list[Effect]:
        return [
            Send(peer, BULK, GlobalFragment(p, each.version), each.wire, key=f"final/{p}")
            for p, each in self.newest_of.items()
        ]


def initial_globals(count: int, owned: Sequence[int], lag: int) -> GlobalFragments:
    versions = tuple(0 if p in owned else -1 for p in range(count))
    newest = {p: _initial(p) for p in owned}
    return GlobalFragments(tuple(owned), lag, versions, newest, past={p: {} for p in owned})


def _initial(p: int) -> Global:
    """A fragment before its first merge; the same initial values are made by every incarnation."""
    wire = f"wire/{p}/0"
    return Global(0, f"theta/{p}/0", "", wire, held=wire)


WIRE = "wire/"
OUTER = "outer/"


def names(fragment: int, t: int) -> tuple[str, str, str]:
    """Return the handles of the results of a merge: parameters, outer state, payload."""
    return f"theta/{fragment}/{t}", f"{OUTER}{fragment}/{t}", f"wire/{fragment}/{t}"


def sent_names(fragment: int, t: int) -> tuple[str, str]:
    """Return the handles of a version as learners will hold it, and of the difference to it."""
    return f"held/{fragment}/{t}", f"difference/{fragment}/{t}"
