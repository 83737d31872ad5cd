"""What a learner remembers in order to send and receive compressed differences (paper section 5).

A contribution is the difference to the version that the learner trained from, and a new version may
be the difference to the one before. So the learner keeps the version of every fragment that it has
installed. With error feedback it also keeps, for each fragment, what compression has lost.
"""

from dataclasses import dataclass

from msgspec import UNSET

from ddloco.job.config import Compress
from ddloco.job.protocol.effects import DecodeFragment, EncodeFragment
from ddloco.job.protocol.events import FragmentDecoded
from ddloco.job.protocol.messages import Contribution, GlobalFragment
from transport import Drop, Effect, Keep


@dataclass(slots=True)
class Incoming:
    """A global fragment that will be installed at the next step boundary, or is installed."""

    version: int
    handle: str


@dataclass(slots=True)
class _Lost:
    """What the compression of a fragment has lost: in contributions from versions before ``base``,
    and with the contribution from that one, to the sync of global step ``t``. Handles, empty for
    zeros."""

    base: int
    t: int
    before: str
    after: str


@dataclass(slots=True)
class _Encoding:
    """A contribution that is being compressed."""

    fragment: int
    t: int
    base: Incoming
    error: str
    error_out: str
    wrong: bool = False


@dataclass(slots=True)
class _Decoding:
    """A version that is being made from a difference."""

    fragment: int
    version: int
    base: str
    source: str
    out: str


class LearnerCompression:
    """The versions that differences are taken to, and what compression has lost.

    Args:
        settings: the job's ``[compress]``.
    """

    def __init__(self, settings: Compress) -> None:
        self._settings = settings
        self._installed: dict[int, Incoming] = {}
        self._lost: dict[int, _Lost] = {}
        self._encoding: dict[int, _Encoding] = {}
        self._decoding: dict[int, _Decoding] = {}

    def install(self, fragment: int, version: int, handle: str) -> list[Effect]:
        """A version was installed, or is the one that a donor's state holds: keep it, in place of
        the one before. The caller passes its reference to the handle on."""
        if not self._settings.differences:
            return [Drop(handle)]
        before = self._installed.get(fragment)
        self._installed[fragment] = Incoming(version, handle)
        return [] if before is None else [Drop(before.handle)]

    def complete(self, said: GlobalFragment, version: int, handle: str) -> list[Effect]:
        """A version arrived that is installed already: keep it if only a donor's state had it.

        Args:
            said: the message.
            version: the installed version.
            handle: the payload of the message.
        """
        held = self._installed.get(said.fragment)
        known = held is not None and held.version == version
        if not self._settings.differences or said.version != version or known:
            return []
        if said.form is not UNSET:
            return []
        return [Keep(handle), *self.install(said.fragment, version, handle)]

    # Contributions.

    def encode(
        self, work: int, said: Contribution, source: str, out: str
    ) -> tuple[EncodeFragment, list[Effect]] | None:
        """Return the work that compresses a contribution, and the references that it needs; None if
        the version that it was trained from is not at hand.

        Args:
            work: the number of the work.
            said: the contribution.
            source: the host copy.
            out: the handle of the payload.
        """
        fragment, version = said.fragment, said.base
        base = self._installed.get(fragment)
        if not self._settings.differences or base is None or base.version != version:
            return None
        error = error_out = ""
        if self._settings.feedback:
            lost = self._lost.get(fragment)
            error_out = f"error/{fragment}/{work}"
            if lost is not None:
                # A second contribution from one version takes the place of the first.
                error = lost.before if lost.base == version else lost.after
        self._encoding[work] = _Encoding(fragment, said.t, base, error, error_out)
        needed = (each for each in (base.handle, error, error_out) if each)
        encode = EncodeFragment(work, fragment, source, out, base.handle, error, error_out)
        return encode, [Keep(handle) for handle in needed]

    def forget(self, fragment: int) -> list[Effect]:
        """A contribution was rejected as wrong: what its compression has lost is wrong as well."""
        for encoding in self._encoding.values():
            encoding.wrong = encoding.wrong or encoding.fragment == fragment
        lost = self._lost.pop(fragment, None)
        if lost is None:
            return []
        return [Drop(handle) for handle in (lost.before, lost.after) if handle]

    def settle(self, said: GlobalFragment) -> list[Effect]:
        """The sync of the last contribution is over. If that was not merged, because it was late or
        lost, what its compression has lost is not missing in the global fragment either."""
        lost = self._lost.get(said.fragment)
        if said.spent is UNSET or lost is None or said.version < lost.t:
            return []
        if lost.base <= said.spent:
            return []
        del self._lost[said.fragment]
        if lost.before:
            self._lost[said.fragment] = _Lost(-1, 0, "", lost.before)
        return [Drop(lost.after)]

    def encoded(self, work: int) -> list[Effect]:
        """A contribution was encoded: release what that needed, and remember what was lost."""
        done = self._encoding.pop(work, None)
        if done is None:
            return []
        effects: list[Effect] = [Drop(done.base.handle)]
        if done.error:
            effects.append(Drop(done.error))
        if not done.error_out:
            return effects
        version, lost = done.base.version, self._lost.get(done.fragment)
        if done.wrong:
            effects.append(Drop(done.error_out))
        elif lost is None:
            self._lost[done.fragment] = _Lost(version, done.t, "", done.error_out)
        elif lost.base == version:
            effects.append(Drop(lost.after))
            lost.after, lost.t = done.error_out, done.t
        elif lost.base < version:
            if lost.before:
                effects.append(Drop(lost.before))
            self._lost[done.fragment] = _Lost(version, done.t, lost.after, done.error_out)
        else:
            effects.append(Drop(done.error_out))
        return effects

    # Global fragments.

    def decode(
        self, work: int, said: GlobalFragment, handle: str, newest: Incoming | None
    ) -> list[Effect] | None:
        """Return the effects that make a version from a difference; None if the version that it is
        a difference to is not at hand, or the format is another than the job's.

        Args:
            work: the number of the work.
            said: the message.
            handle: its payload.
            newest: the version that waits to be installed, or is being installed, if there is one.
        """
        base = newest or self._installed.get(said.fragment)
        if base is None or base.version != said.base or said.form != self._settings.down:
            return None
        out = f"global/{said.fragment}/{said.version}"
        self._decoding[work] = _Decoding(said.fragment, said.version, base.handle, handle, out)
        kept = [Keep(each) for each in (base.handle, handle, out)]
        return [*kept, DecodeFragment(work, said.fragment, base.handle, handle, out)]

    def decoded(self, event: FragmentDecoded) -> tuple[int, Incoming, list[Effect]]:
        """A version was made: its fragment, what to install, and the references released. The
        caller owns the reference to the new handle."""
        done = self._decoding.pop(event.work)
        released: list[Effect] = [Drop(done.base), Drop(done.source)]
        return done.fragment, Incoming(done.version, done.out), released

    def held(self) -> int:
        """The number of references to arrays."""
        lost = sum(bool(each.before) + bool(each.after) for each in self._lost.values())
        encoding = self._encoding.values()
        references = sum(1 + bool(each.error) + bool(each.error_out) for each in encoding)
        return len(self._installed) + lost + references + 3 * len(self._decoding)

    def under_way(self, fragment: int) -> int:
        """The newest version of a fragment that is being made; -1 if there is none."""
        versions = (e.version for e in self._decoding.values() if e.fragment == fragment)
        return max(versions, default=-1)
