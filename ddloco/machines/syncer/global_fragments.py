"""The global fragments that a syncer owns, and its syncs in flight."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import UNSET

from ddloco.job.config import Compress
from ddloco.job.protocol.compression import Format
from ddloco.job.protocol.effects import Differences, MergeFragment, MergeTokens, Share
from ddloco.job.protocol.events import FragmentMerged
from ddloco.job.protocol.messages import Contribution, GlobalFragment, Progress
from ddloco.machines.outer.weights import merge_weight
from ddloco.machines.syncer.accounts import LATE
from ddloco.machines.syncer.members import Member
from ddloco.machines.syncer.membership import Membership
from ddloco.machines.syncer.outlier_history import OutlierHistory
from ddloco.machines.syncer.pacing import Waiting
from transport import BULK, Drop, Effect, Keep, Send


@dataclass(slots=True)
class Global:
    """The newest version of a global fragment, with the handles of its arrays.

    Where it is sent as a compressed difference, that is under ``difference`` and is to version
    ``base``. Learners then hold what is under ``held``, which is not quite the same as ``wire``;
    None if they may hold either of them, because this incarnation has not made the version.
    """

    version: int
    theta: str
    momentum: str
    wire: str
    held: str | None = None
    difference: str = ""
    base: int = -1
    form: Format = "float32"
    """The format of the difference: a run that continues from a snapshot may have another one."""

    def handles(self) -> list[str]:
        """Return the handles of all its arrays; before the first merge there is no momentum."""
        own = [self.theta, self.momentum, self.wire, self.difference]
        if self.held != self.wire:
            own.append(self.held or "")
        return [each for each in own if each]


@dataclass(slots=True)
class Part:
    """A received contribution; ``merged`` is the list of the same name of its ``Member``."""

    said: Contribution
    handle: str
    merged: list[int]
    anchor: str = ""
    """The handle of the parameters that a compressed contribution is a difference to."""

    def handles(self) -> list[str]:
        """Return the handles that are needed until the merge is done."""
        return [self.handle, self.anchor] if self.anchor else [self.handle]


@dataclass(slots=True)
class Sync:
    """A sync in flight: it collects contributions until ``work`` is set, and then merges."""

    t: int
    fragment: int
    pulled: tuple[str, ...]
    waited: Waiting
    """What the launch waited for."""
    launched_at: float
    deadline: float
    awaited: dict[str, None]
    """Learners that were pulled and have not answered."""
    spoken: dict[str, int] = field(default_factory=dict[str, int])
    """How often each pulled learner had spoken at the launch."""
    parts: dict[str, Part] = field(default_factory=dict[str, Part])
    refused: dict[str, None] = field(default_factory=dict[str, None])
    """Learners whose contributions were refused before the merge."""
    work: int = 0
    adopts: bool = False
    """Whether the merge starts from the learners' version, because this syncer has lost its own."""

    @property
    def unanswered(self) -> int:
        """How many of the pulled learners have not answered, or came too late."""
        return sum(peer not in self.parts and peer not in self.refused for peer in self.pulled)

    def objection(self, peer: str, said: Contribution, handle: str) -> str | None:
        """Return why a contribution of ``peer`` does not answer this sync, or None if it does."""
        if self.work or not (peer in self.awaited or peer in self.parts):  # Or it was not pulled.
            return LATE
        if said.fragment != self.fragment or peer in self.parts or not handle:
            return "it does not answer the pull"
        return None

    def behind(self, version: int) -> list[str]:
        """Return the learners whose contributions are too old when the syncer has lost merges.

        If a learner holds a newer version than the syncer's own ``version``, the merge starts from
        that one, and contributions that started from an older version are left out. The list is
        empty if the syncer's own version is the newest.
        """
        newest = max((part.said.base for part in self.parts.values()), default=version)
        self.adopts = newest > version
        old = (peer for peer, part in self.parts.items() if part.said.base < newest)
        return list(old) if self.adopts else []

    def merge(
        self,
        theirs: Global,
        membership: Membership,
        outliers: OutlierHistory,
        compress: Compress,
        tokens: int | None = None,
    ) -> MergeFragment:
        """Return the work that merges the received contributions.

        They are sorted by name, as bytes, so that the order of arrival has no effect. ``tokens``
        were merged into the fragment before; None if that is not counted.
        """
        p, out = self.fragment, names(self.fragment, self.t)
        differences = self._differences(theirs, compress) if compress.differences else None
        shares = tuple(
            Share(
                peer,
                part.handle,
                merge_weight(part.said.tokens, part.said.steps),
                part.said.base,
                part.said.steps,
                outliers.norm(p, part.said.steps),
                outliers.moved(p, part.said.base, theirs.version),
            )
            for peer, part in sorted(self.parts.items(), key=lambda item: item[0].encode())
        )
        counted = {peer: part.said.tokens for peer, part in sorted(self.parts.items())}
        return MergeFragment(
            work=self.work,
            t=self.t,
            fragment=p,
            theta=theirs.theta,
            momentum=theirs.momentum,
            shares=shares,
            spent=membership.spent(p),
            batches=dict(membership.batches),
            out=out,
            band=0.0 if self.adopts else outliers.band,
            cosine=outliers.cosine(p),
            adopt=self.adopts,
            differences=differences,
            tokens=MergeTokens(counted, tokens) if tokens is not None else None,
        )

    def _differences(self, theirs: Global, compress: Compress) -> Differences:
        parts = sorted(self.parts.items())
        anchors = {peer: part.anchor for peer, part in parts if part.anchor}
        if compress.down == "float32" or theirs.held is None:
            return Differences(anchors)
        return Differences(anchors, theirs.held, sent_names(self.fragment, self.t))

    def learned(self, merged: FragmentMerged, version: int, outliers: OutlierHistory) -> None:
        """Update the outlier history from the finished merge into ``version``."""
        if self.adopts:
            return
        outliers.learn(merged, {peer: part.said for peer, part in self.parts.items()}, version)

    def seen(self, merged: FragmentMerged, sync_s: float) -> dict[str, Any]:
        """Return the fields of the log event of the finished merge.

        Args:
            merged: the result of the merge.
            sync_s: the duration of a sync, the median of the newest, in seconds.
        """
        return {
            "t": self.t,
            "fragment": self.fragment,
            "learners": list(merged.accepted),
            "weights": [round(weight, 6) for weight in merged.weights],
            "grace_s": round(self.waited.grace_s, 6),
            "taking_part": len(self.pulled),
            "averaged": len(merged.accepted),
            "sync_s": round(sync_s, 6),
        }


class Globals:
    """The global fragments of one syncer.

    Args:
        count: the number of fragments of the model.
        owned: the fragments that this syncer owns.
        lag: the most global steps that a contribution's base version may be behind the newest.
        compress: how fragments are compressed.

    Attributes:
        versions: for each fragment, the newest version; -1 if another syncer owns the fragment.
    """

    def __init__(
        self, count: int, owned: Sequence[int], lag: int, compress: Compress | None = None
    ) -> None:
        self._lag = lag
        self._compress: Compress = compress or Compress()
        self._past: dict[int, dict[int, str]] = {p: {} for p in owned}
        """Per fragment the parameters of older versions, to which compressed contributions may be
        differences."""
        self.owned: tuple[int, ...] = tuple(owned)
        self._all: dict[int, Global] = {p: _initial(p) for p in owned}
        self._merged_here: set[int] = set()
        self.versions: tuple[int, ...] = tuple(0 if p in self._all else -1 for p in range(count))

    def _versions(self) -> tuple[int, ...]:
        mine = self._all
        return tuple(mine[p].version if p in mine else -1 for p in range(len(self)))

    @property
    def merged(self) -> bool:
        """Whether every fragment of this syncer has been merged at least once."""
        return all(each.version > 0 for each in self._all.values())

    def __getitem__(self, fragment: int) -> Global:
        return self._all[fragment]

    def __len__(self) -> int:
        return len(self.versions)

    def recover(self, fragment: int, version: int) -> None:
        """Take over a version that an earlier incarnation saved.

        Learners that already have this version may hold what a compressed difference made of it.
        """
        self._all[fragment] = Global(version, *names(fragment, version))
        self.versions = self._versions()

    def newest(self, fragment: int, held: int) -> int:
        """Return the newest version of ``fragment`` that may exist if a learner reports ``held``.

        Until this incarnation has merged the fragment, a learner's report counts as much as the
        saved version, which may be missing or older.
        """
        mine = self._all[fragment].version
        return mine if fragment in self._merged_here else max(mine, held)

    def ahead(self, versions: Sequence[int]) -> int:
        """Return the newest of ``versions`` that this syncer may have lost; 0 if there is none."""
        newer = (
            versions[p]
            for p, mine in self._all.items()
            if versions[p] > mine.version and p not in self._merged_here
        )
        return max(newer, default=0)

    def merge(self, fragment: int, newer: Global) -> list[Effect]:
        """Install a version merged by this incarnation; no learner can hold a newer one."""
        self._merged_here.add(fragment)
        return self.replace(fragment, newer)

    def replace(self, fragment: int, newer: Global) -> list[Effect]:
        """Replace the version of a fragment and release the arrays of the older one."""
        older, self._all[fragment] = self._all[fragment], newer
        assert newer.version > older.version, "versions only grow"
        self.versions = self._versions()
        dropped = older.handles()
        if self._compress.differences:
            past = self._past[fragment]
            past[older.version] = older.theta
            dropped.remove(older.theta)
            for version in [each for each in past if each < self.oldest(fragment)]:
                dropped.append(past.pop(version))
        return [Drop(handle) for handle in dropped]

    def anchor(self, fragment: int, version: int) -> str:
        """Return the handle of the parameters of a version; empty if this syncer lacks them."""
        mine = self._all[fragment]
        if mine.version == version:
            return mine.theta
        return self._past[fragment].get(version, "")

    def keep(self) -> list[Effect]:
        """Take one reference to every array."""
        return [Keep(handle) for each in self._all.values() for handle in each.handles()]

    def tell(
        self, at: float, member: Member, p: int, *, instead: bool = False
    ) -> Send[GlobalFragment]:
        """Send a learner the newest version of a fragment."""
        each = self._all[p]
        # A learner that has its parameters from a donor holds a version that it was never sent, and
        # a version that is sent again may have been a difference that was of no use.
        knows = member.holds(p) == member.sent[p] == each.base
        member.tell(at, p, each.version)
        key = f"global/{p}"
        usable = each.difference and each.form == self._compress.down
        spent = member.merged[p] if self._compress.feedback else UNSET
        if usable and knows and not instead:
            said = GlobalFragment(p, each.version, form=each.form, base=each.base, spent=spent)
            return Send(member.peer, BULK, said, each.difference, key)
        said = GlobalFragment(p, each.version, instead, spent=spent)
        return Send(member.peer, BULK, said, each.held or each.wire, key)

    def send_replacements(self, at: float, member: Member, p: int, *, whole: bool) -> list[Effect]:
        """Replace a learner's fragment, which would be refused again, by the global fragment.

        Args:
            at: the current time, in seconds.
            member: the learner.
            p: the fragment.
            whole: whether to replace every fragment, so that the learner starts over.
        """
        parts = self.owned if whole else (p,)
        return [self.tell(at, member, each, instead=True) for each in parts]

    def tell_newer(self, at: float, member: Member, progress: Progress) -> list[Effect]:
        """Send a learner every fragment newer than it reports, unless that is in flight."""
        if progress.versions == self.versions:
            return []
        behind = enumerate(zip(progress.versions, self.versions, strict=True))
        return [
            self.tell(at, member, p)
            for p, (held, newest) in behind
            if held < newest and member.lacks(at, p, newest)
        ]

    def oldest(self, fragment: int) -> int:
        """Return the oldest base version of a contribution to ``fragment`` that is accepted."""
        return self._all[fragment].version - self._lag

    def held(self) -> int:
        """Return the number of references to arrays."""
        past = sum(len(versions) for versions in self._past.values())
        return past + sum(len(each.handles()) for each in self._all.values())

    def thetas(self) -> tuple[str, ...]:
        """Return the handle of each fragment's parameters; empty if another syncer owns it."""
        mine = self._all
        return tuple(mine[p].theta if p in mine else "" for p in range(len(self)))

    def finals(self, peer: str) -> list[Effect]:
        """Send a peer every fragment of this syncer, at its last version."""
        return [
            Send(peer, BULK, GlobalFragment(p, each.version), each.wire, key=f"final/{p}")
            for p, each in self._all.items()
        ]


def _initial(p: int) -> Global:
    """A fragment before its first merge; the same initial values are made by every incarnation."""
    wire = f"wire/{p}/0"
    return Global(0, f"theta/{p}/0", "", wire, held=wire)


WIRE = "wire/"


def names(fragment: int, t: int) -> tuple[str, str, str]:
    """Return the handles of the results of a merge: parameters, momentum, payload."""
    return f"theta/{fragment}/{t}", f"momentum/{fragment}/{t}", f"wire/{fragment}/{t}"


def sent_names(fragment: int, t: int) -> tuple[str, str]:
    """Return the handles of a version as learners will hold it, and of the difference to it."""
    return f"held/{fragment}/{t}", f"difference/{fragment}/{t}"
