"""What a learner remembers in order to send and receive compressed differences (paper section 5):
the version of every fragment that it has installed, to which a contribution or a new version is the
difference; and with error feedback what the compression of each fragment has lost."""

from msgspec import UNSET, Struct

from ddloco.job.config import Compress
from ddloco.job.protocol.messages import Contribution, GlobalFragment
from ddloco.job.protocol.work import DecodeFragment, EncodeFragment, FragmentDecoded, Overwrite
from transport import Drop, Effect, Keep


class Lost(Struct, forbid_unknown_fields=True):
    """What the compression of a fragment has lost: in contributions from versions before ``base``,
    and with the contribution from that one, to the sync of global step ``t``. Handles, empty for
    zeros."""

    base: int
    t: int
    before: str
    after: str


class Encoding(Struct, forbid_unknown_fields=True):
    fragment: int
    t: int
    base: Overwrite
    error: str
    error_out: str
    wrong: bool = False


class Decoding(Struct, forbid_unknown_fields=True):
    fragment: int
    version: int
    base: str
    source: str
    out: str


class LearnerCompression(Struct, forbid_unknown_fields=True):
    installed: dict[int, Overwrite] = {}
    lost: dict[int, Lost] = {}
    encoding: dict[int, Encoding] = {}
    decoding: dict[int, Decoding] = {}

    def install(self, fragment: int, version: int, handle: str, settings: Compress) -> list[Effect]:
        """Keep a version that was installed, or that a donor's state holds, in place of the one
        before. The caller passes its reference to the handle on."""
        if not settings.differences:
            return [Drop(handle)]
        before = self.installed.get(fragment)
        self.installed[fragment] = Overwrite(fragment, version, handle)
        return [] if before is None else [Drop(before.handle)]

    def complete(
        self, said: GlobalFragment, version: int, handle: str, settings: Compress
    ) -> list[Effect]:
        """Keep a version that is installed already, if only a donor's state had it."""
        held = self.installed.get(said.fragment)
        known = held is not None and held.version == version
        if not settings.differences or said.version != version or known:
            return []
        if said.form is not UNSET:
            return []
        return [Keep(handle), *self.install(said.fragment, version, handle, settings)]

    # Contributions.

    def encode(
        self, work: int, said: Contribution, *, source: str, out: str, settings: Compress
    ) -> tuple[EncodeFragment, list[Effect]] | None:
        """Return the work that compresses a contribution, and the references that it needs; None if
        the version that it was trained from is not at hand."""
        fragment, version = said.fragment, said.base
        base = self.installed.get(fragment)
        if not settings.differences or base is None or base.version != version:
            return None
        error = error_out = ""
        if settings.feedback:
            lost = self.lost.get(fragment)
            error_out = f"error/{fragment}/{work}"
            if lost is not None:
                # A second contribution from one version takes the place of the first.
                error = lost.before if lost.base == version else lost.after
        self.encoding[work] = Encoding(fragment, said.t, base, error, error_out)
        needed = (each for each in (base.handle, error, error_out) if each)
        encode = EncodeFragment(work, fragment, source, out, base.handle, error, error_out)
        return encode, [Keep(handle) for handle in needed]

    def forget(self, fragment: int) -> list[Effect]:
        """A contribution was rejected as wrong: what its compression has lost is wrong as well."""
        for encoding in self.encoding.values():
            encoding.wrong = encoding.wrong or encoding.fragment == fragment
        lost = self.lost.pop(fragment, None)
        if lost is None:
            return []
        return [Drop(handle) for handle in (lost.before, lost.after) if handle]

    def settle(self, said: GlobalFragment) -> list[Effect]:
        """The sync of the last contribution is over. If that was not merged, because it was late or
        lost, what its compression has lost is not missing in the global fragment either."""
        lost = self.lost.get(said.fragment)
        if said.spent is UNSET or lost is None or said.version < lost.t:
            return []
        if lost.base <= said.spent:
            return []
        del self.lost[said.fragment]
        if lost.before:
            self.lost[said.fragment] = Lost(-1, 0, "", lost.before)
        return [Drop(lost.after)]

    def encoded(self, work: int) -> list[Effect]:
        done = self.encoding.pop(work, None)
        if done is None:
            return []
        effects: list[Effect] = [Drop(done.base.handle)]
        if done.error:
            effects.append(Drop(done.error))
        if not done.error_out:
            return effects
        version, lost = done.base.version, self.lost.get(done.fragment)
        if done.wrong:
            effects.append(Drop(done.error_out))
        elif lost is None:
            self.lost[done.fragment] = Lost(version, done.t, "", done.error_out)
        elif lost.base == version:
            effects.append(Drop(lost.after))
            lost.after, lost.t = done.error_out, done.t
        elif lost.base < version:
            if lost.before:
                effects.append(Drop(lost.before))
            self.lost[done.fragment] = Lost(version, done.t, lost.after, done.error_out)
        else:
            effects.append(Drop(done.error_out))
        return effects

    # Global fragments.

    def decode(
        self,
        work: int,
        said: GlobalFragment,
        handle: str,
        newest: Overwrite | None,
        settings: Compress,
    ) -> list[Effect] | None:
        """Return the effects that make a version from a difference to ``newest`` (it waits or is
        being installed) or to the installed one; None if that is another, or the format is not the
        job's."""
        base = newest or self.installed.get(said.fragment)
        if base is None or base.version != said.base or said.form != settings.down:
            return None
        out = f"global/{said.fragment}/{said.version}"
        self.decoding[work] = Decoding(said.fragment, said.version, base.handle, handle, out)
        kept = [Keep(each) for each in (base.handle, handle, out)]
        return [*kept, DecodeFragment(work, said.fragment, base.handle, handle, out)]

    def decoded(self, event: FragmentDecoded) -> tuple[Overwrite, list[Effect]]:
        """Return what to install, whose reference the caller owns, and the references released."""
        done = self.decoding.pop(event.work)
        released: list[Effect] = [Drop(done.base), Drop(done.source)]
        return Overwrite(done.fragment, done.version, done.out), released

    def held(self) -> int:
        lost = sum(bool(each.before) + bool(each.after) for each in self.lost.values())
        encoding = self.encoding.values()
        references = sum(1 + bool(each.error) + bool(each.error_out) for each in encoding)
        return len(self.installed) + lost + references + 3 * len(self.decoding)

    def under_way(self, fragment: int) -> int:
        """The newest version of a fragment that is being made; -1 if there is none."""
        versions = (e.version for e in self.decoding.values() if e.fragment == fragment)
        return max(versions, default=-1)
