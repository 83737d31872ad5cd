"""The syncs in flight of a syncer: what each has pulled, received, and merges."""

from typing import Any

from msgspec import UNSET, Struct

from ddloco.job.config import Compress, Job, WeightRule
from ddloco.job.protocol.messages import Contribution, SumWanted, WantedShare
from ddloco.job.protocol.work import (
    Differences,
    FragmentMerged,
    MergeFragment,
    MergeTokens,
    Share,
    ShareSum,
)
from ddloco.machines.outer.weights import merge_weight
from ddloco.machines.syncer.accounts import LATE
from ddloco.machines.syncer.global_fragments import Global, names, sent_names
from ddloco.machines.syncer.membership import Membership
from ddloco.machines.syncer.outlier_history import OutlierHistory
from ddloco.machines.syncer.pacing import NextSync
from ddloco.machines.syncer.sites import ReceivedSum


class ReceivedContribution(Struct, forbid_unknown_fields=True):
    """A received contribution of an incarnation.

    Attributes:
        handle: its payload; empty if a relay has that.
        anchor: the handle of the parameters that a compressed contribution is a difference to.
    """

    incarnation: str
    said: Contribution
    handle: str
    anchor: str = ""
    relay: str = ""

    def handles(self) -> list[str]:
        return [each for each in (self.handle, self.anchor) if each]


class Sync(Struct, forbid_unknown_fields=True):
    """A sync in flight: it collects contributions until it is closed, then the sums of relays that
    have some of them, and then it merges."""

    t: int
    fragment: int
    pulled: tuple[str, ...]
    waited: NextSync
    launched_at: float
    deadline: float
    awaited: dict[str, None]
    """Learners that were pulled and have not answered."""
    spoken: dict[str, int] = {}
    """How often each pulled learner had spoken at the launch."""
    parts: dict[str, ReceivedContribution] = {}
    refused: dict[str, None] = {}
    """Learners whose contributions were refused before the merge."""
    work: int = 0
    sums_wanted: int = 0
    """The number of the request for relays' sums; 0 before that, or if none has to be asked."""
    sums_awaited: dict[str, None] = {}
    """The relays that were asked for a sum and have not answered, by peer."""
    sums: dict[str, ReceivedSum] = {}
    adopts: bool = False
    """Whether the merge starts from the learners' version, because this syncer has lost its own."""

    @property
    def closed(self) -> bool:
        return self.work > 0 or self.sums_wanted > 0

    @property
    def unanswered(self) -> int:
        """How many of the pulled learners have not answered, or came too late."""
        return sum(peer not in self.parts and peer not in self.refused for peer in self.pulled)

    def objection(self, peer: str, said: Contribution, handle: str) -> str | None:
        """Return why a contribution of ``peer`` does not answer this sync, or None if it does."""
        if self.closed or not (peer in self.awaited or peer in self.parts):  # Or it was not pulled.
            return LATE
        here = bool(handle) != (said.relay is not UNSET)
        if said.fragment != self.fragment or peer in self.parts or not here:
            return "it does not answer the pull"
        return None

    def relayed(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for peer, part in sorted(self.parts.items(), key=lambda item: item[0].encode()):
            if part.relay:
                found.setdefault(part.relay, []).append(peer)
        return dict(sorted(found.items()))

    def handles(self) -> list[str]:
        parts = (handle for part in self.parts.values() for handle in part.handles())
        return [*parts, *(each.handle for each in self.sums.values())]

    def share(self, peer: str, outliers: OutlierHistory, version: int, weight: WeightRule) -> Share:
        part, p = self.parts[peer], self.fragment
        said = part.said
        return Share(
            peer,
            self.sums[part.relay].handle if part.relay in self.sums else part.handle,
            merge_weight(said.tokens, said.steps, weight),
            said.base,
            said.steps,
            outliers.norm(p, said.steps),
            outliers.moved(p, said.base, version),
        )

    def sum_wanted(
        self, peers: list[str], outliers: OutlierHistory, version: int, job: Job, within_s: float
    ) -> SumWanted:
        shares = [self.share(peer, outliers, version, job.outer.weight) for peer in peers]
        wanted = tuple(
            WantedShare(each.name, each.weight, each.base, each.steps, each.usual, each.moved)
            for each in shares
        )
        cosine = outliers.cosine(self.fragment)
        where = self.t, self.fragment, self.sums_wanted, version
        return SumWanted(*where, wanted, within_s, job.sync.band, cosine)

    def behind(self, version: int) -> list[str]:
        """Return the learners whose contributions are too old: if a learner holds a newer version
        than the syncer's own ``version``, the merge starts from that one. Empty if the syncer's own
        is the newest."""
        newest = max((part.said.base for part in self.parts.values()), default=version)
        self.adopts = newest > version
        old = (peer for peer, part in self.parts.items() if part.said.base < newest)
        return list(old) if self.adopts else []

    def merge(
        self,
        theirs: Global,
        membership: Membership,
        outliers: OutlierHistory,
        band: float,
        compress: Compress,
        *,
        tokens: int | None = None,
        weight: WeightRule = "rate",
    ) -> MergeFragment:
        """Return the work that merges the received contributions, sorted by name as bytes, so that
        the order of arrival has no effect. ``tokens`` were merged into the fragment before; None if
        not counted."""
        p, out = self.fragment, names(self.fragment, self.t)
        differences = self._differences(theirs, compress) if compress.differences else None
        peers = sorted(self.parts, key=str.encode)
        shares = tuple(self.share(peer, outliers, theirs.version, weight) for peer in peers)
        sums = {
            each.handle: ShareSum(each.said.lengths, each.said.form, each.said.measured)
            for each in self.sums.values()
        }
        counted = {peer: part.said.tokens for peer, part in sorted(self.parts.items())}
        return MergeFragment(
            work=self.work,
            t=self.t,
            fragment=p,
            theta=theirs.theta,
            state=theirs.state,
            shares=shares,
            spent=membership.spent(p),
            batches=membership.drawn(),
            out=out,
            band=0.0 if self.adopts else band,
            cosine=outliers.cosine(p),
            adopt=self.adopts,
            differences=differences,
            tokens=MergeTokens(counted, tokens) if tokens is not None else None,
            sums=sums,
        )

    def _differences(self, theirs: Global, compress: Compress) -> Differences:
        parts = sorted(self.parts.items())
        anchors = {peer: part.anchor for peer, part in parts if part.anchor}
        if compress.down == "float32" or theirs.held is None:
            return Differences(anchors)
        return Differences(anchors, theirs.held, sent_names(self.fragment, self.t))

    def learned(self, merged: FragmentMerged, version: int, outliers: OutlierHistory) -> None:
        if self.adopts:
            return
        outliers.learn(merged, {peer: part.said for peer, part in self.parts.items()}, version)

    def seen(self, merged: FragmentMerged, sync_s: float) -> dict[str, Any]:
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
