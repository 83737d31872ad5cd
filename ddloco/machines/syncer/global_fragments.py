"""What the syncer holds of each fragment, and of each synchronisation under way."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ddloco.machines.syncer.members import Member
from ddloco.machines.syncer.membership import Membership
from ddloco.machines.syncer.outlier_history import Bands
from ddloco.outer.weights import merge_weight
from ddloco.protocol.effects import MergeFragment, Share
from ddloco.protocol.events import FragmentMerged
from ddloco.protocol.messages import Contribution, GlobalFragment, Progress
from transport import BULK, Drop, Effect, Keep, Send

LATE = "it came after its sync was closed"


@dataclass(slots=True)
class Global:
    """A fragment as the syncer owns it: version, and handles of its arrays."""

    version: int
    theta: str
    momentum: str
    wire: str

    def handles(self) -> list[str]:
        """All of them; before the first merge there is no momentum."""
        return [each for each in (self.theta, self.momentum, self.wire) if each]


@dataclass(slots=True)
class Part:
    """A contribution that arrived; ``merged`` is its learner's, as ``Member`` has it."""

    said: Contribution
    handle: str
    merged: list[int]


@dataclass(slots=True)
class Sync:
    """A sync under way: launched, then merging once ``work`` is set."""

    t: int
    fragment: int
    pulled: tuple[str, ...]
    grace_s: float
    launched_at: float
    deadline: float
    awaited: dict[str, None]
    """Who was pulled and has not answered."""
    parts: dict[str, Part] = field(default_factory=dict[str, Part])
    work: int = 0
    adopts: bool = False
    """Whether it goes on from what learners hold, since this syncer has lost what it had merged."""

    def objection(self, peer: str, said: Contribution, handle: str) -> str | None:
        """Why a contribution of ``peer`` is no answer that is still waited for."""
        if self.work or not (peer in self.awaited or peer in self.parts):  # Never pulled, then.
            return LATE
        if said.fragment != self.fragment or peer in self.parts or not handle:
            return "it does not answer the pull"
        return None

    def behind(self, version: int) -> list[str]:
        """Contributions that a merge from the newest version that learners hold leaves out, because
        they started from an older one; nobody where the syncer's own ``version`` is the newest."""
        newest = max((part.said.base for part in self.parts.values()), default=version)
        self.adopts = newest > version
        old = (peer for peer, part in self.parts.items() if part.said.base < newest)
        return list(old) if self.adopts else []

    def merge(self, theirs: Global, membership: Membership, bands: Bands) -> MergeFragment:
        """The work of merging what has arrived, in order of names as bytes, whoever came first."""
        p, out = self.fragment, names(self.fragment, self.t)
        shares = tuple(
            Share(
                peer,
                part.handle,
                merge_weight(part.said.tokens, part.said.steps),
                part.said.base,
                part.said.steps,
                bands.norm(p, part.said.steps),
                bands.moved(p, part.said.base, theirs.version),
            )
            for peer, part in sorted(self.parts.items(), key=lambda item: item[0].encode())
        )
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
            band=0.0 if self.adopts else bands.band,
            cosine=bands.cosine(p),
            adopt=self.adopts,
        )

    def learned(self, merged: FragmentMerged, version: int, bands: Bands) -> None:
        """Its merge into ``version`` is done: what was accepted is what is usual."""
        if self.adopts:
            return
        bands.learn(merged, {peer: part.said for peer, part in self.parts.items()}, version)

    def seen(self, merged: FragmentMerged, live: int, sync_s: float) -> dict[str, Any]:
        """What people see of its merge: learners live, taking part, averaged, and the rest."""
        return {
            "t": self.t,
            "fragment": self.fragment,
            "learners": list(merged.accepted),
            "weights": [round(weight, 6) for weight in merged.weights],
            "grace_s": round(self.grace_s, 6),
            "live": live,
            "taking_part": len(self.pulled),
            "averaged": len(merged.accepted),
            "sync_s": round(sync_s, 6),
        }


class Globals:
    """The global fragments, as the syncer owns them.

    Args:
        count: how many there are.
        owned: those that are this syncer's.
        lag: global steps that a contribution may have started behind the newest version.

    Attributes:
        versions: per fragment the newest version, -1 for one that another syncer owns.
    """

    def __init__(self, count: int, owned: Sequence[int], lag: int) -> None:
        self._lag = lag
        self.owned = tuple(owned)
        self._all = {p: Global(0, f"theta/{p}/0", "", f"wire/{p}/0") for p in owned}
        self._count = count
        self._merged_here: set[int] = set()
        self.versions = self._versions()

    def _versions(self) -> tuple[int, ...]:
        mine = self._all
        return tuple(mine[p].version if p in mine else -1 for p in range(self._count))

    @property
    def merged(self) -> bool:
        """Whether every fragment of one's own has been merged at least once."""
        return all(each.version > 0 for each in self._all.values())

    def __getitem__(self, fragment: int) -> Global:
        return self._all[fragment]

    def __len__(self) -> int:
        return self._count

    def recover(self, fragment: int, version: int) -> None:
        """A version that an earlier incarnation kept."""
        self.replace(fragment, Global(version, *names(fragment, version)))

    def newest(self, fragment: int, held: int) -> int:
        """The newest version of ``fragment`` that is believed to exist, where a learner says that
        it holds ``held``.

        Until this incarnation has merged the fragment itself, what learners hold counts as much as
        what was kept: that may be lost, or older than they are.
        """
        mine = self._all[fragment].version
        return mine if fragment in self._merged_here else max(mine, held)

    def ahead(self, versions: Sequence[int]) -> int:
        """The newest version that a learner may hold and this syncer does not; 0 for none."""
        newer = (
            versions[p]
            for p, mine in self._all.items()
            if versions[p] > mine.version and p not in self._merged_here
        )
        return max(newer, default=0)

    def merge(self, fragment: int, newer: Global) -> list[Effect]:
        """A fragment was merged here, so nobody else can hold anything newer."""
        self._merged_here.add(fragment)
        return self.replace(fragment, newer)

    def replace(self, fragment: int, newer: Global) -> list[Effect]:
        """A newer version takes the place of an older one, whose arrays nobody needs any more."""
        older, self._all[fragment] = self._all[fragment], newer
        assert newer.version > older.version, "versions only grow"
        self.versions = self._versions()
        return [Drop(handle) for handle in older.handles()]

    def keep(self) -> list[Effect]:
        """One holder for everything."""
        return [Keep(handle) for each in self._all.values() for handle in each.handles()]

    def tell(
        self, at: float, member: Member, p: int, *, instead: bool = False
    ) -> Send[GlobalFragment]:
        """Send a learner the newest version of a fragment."""
        each = self._all[p]
        member.tell(at, p, each.version)
        said = GlobalFragment(p, each.version, instead)
        return Send(member.peer, BULK, said, each.wire, key=f"global/{p}")

    def heal(self, at: float, member: Member, p: int, *, whole: bool) -> list[Effect]:
        """What it trained would be refused for ever: it takes the global fragment instead, or, to
        start over, all of them."""
        parts = self.owned if whole else (p,)
        return [self.tell(at, member, each, instead=True) for each in parts]

    def tell_newer(self, at: float, member: Member, progress: Progress) -> list[Effect]:
        """Send a learner whatever is newer than what it reports, unless it is on its way."""
        if progress.versions == self.versions:
            return []
        behind = enumerate(zip(progress.versions, self.versions, strict=True))
        return [
            self.tell(at, member, p)
            for p, (held, newest) in behind
            if held < newest and member.lacks(at, p, newest)
        ]

    def oldest(self, fragment: int) -> int:
        """The oldest version from which a contribution to ``fragment`` is still taken."""
        return self._all[fragment].version - self._lag

    def thetas(self) -> tuple[str, ...]:
        """The parameters, fragment by fragment; empty for what another syncer owns."""
        mine = self._all
        return tuple(mine[p].theta if p in mine else "" for p in range(self._count))

    def finals(self, peer: str) -> list[Effect]:
        """Send somebody all of one's own as they are."""
        return [
            Send(peer, BULK, GlobalFragment(p, each.version), each.wire, key=f"final/{p}")
            for p, each in self._all.items()
        ]


WIRE = "wire/"


def names(fragment: int, t: int) -> tuple[str, str, str]:
    """Handles of what the merge of global step ``t`` makes: parameters, momentum, payload."""
    return f"theta/{fragment}/{t}", f"momentum/{fragment}/{t}", f"wire/{fragment}/{t}"
