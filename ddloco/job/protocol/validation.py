"""Checks that a message of a job carries the right tensors, which needs the fragment plan."""

from collections.abc import Callable
from functools import cache
from typing import Any

from msgspec import UNSET, UnsetType

from ddloco.job.protocol.compression import Format, compressed_layout
from ddloco.job.protocol.fragment_plan import FragmentPlan, wire_layout
from ddloco.job.protocol.messages import Contribution, ContributionSum, GlobalFragment, StatePiece
from ddloco.job.protocol.state_layout import piece_layout, pieces_of
from transport import Header, RemoteProtocolError

Layout = tuple[tuple[str, tuple[int, ...], str], ...]


def admission(
    plan: FragmentPlan,
    state_bytes: int,
    up: Format = "float32",
    down: Format = "float32",
    *,
    relays: bool = False,
) -> Callable[[Header[Any]], None]:
    """Return a check that raises unless a message carries the tensors that its body requires.

    ``relays``: whether the receiver is a relay, which is sent payloads of which a syncer is only
    told.
    """
    layouts = Layouts(plan, state_bytes, up, down, relays=relays)

    def admits(header: Header[Any]) -> None:
        wanted = layouts.of(header.body)
        if wanted is None:
            if header.tensors:
                raise RemoteProtocolError("$.tensors: this message carries none")
            return
        got = tuple((meta.name, meta.shape, meta.dtype) for meta in header.tensors)
        if got != wanted:
            raise RemoteProtocolError(f"$.tensors: {_difference(wanted, got)}")

    return admits


class Layouts:
    """The tensors that a body of a job must bring."""

    def __init__(
        self, plan: FragmentPlan, state_bytes: int, up: Format, down: Format, *, relays: bool
    ) -> None:
        self._plan, self._state_bytes, self._relays = plan, state_bytes, relays
        self._up: Format = up
        self._down: Format = down
        self._whole = cache(lambda fragment: wire_layout(plan, fragment))
        self._compressed = cache(lambda fragment, form: compressed_layout(plan, fragment, form))

    def of(self, body: Any) -> Layout | None:
        """Return the tensors of a body; None if it has none."""
        if isinstance(body, StatePiece) and body.pieces:
            return _expected_piece(body, self._state_bytes)
        if not isinstance(body, GlobalFragment | Contribution | ContributionSum):
            return None
        p, fragments = body.fragment, self._plan.fragments
        if p >= len(fragments):
            said = f"{p}, the plan has {len(fragments)} fragments"
            raise RemoteProtocolError(f"$.body.fragment: {said}")
        if isinstance(body, GlobalFragment):
            return self._in_form(p, body.form, self._down)
        if isinstance(body, Contribution):
            elsewhere = body.relay is not UNSET and not self._relays
            return None if elsewhere else self._in_form(p, body.form, self._up)
        if not body.names:
            return None
        if len(body.lengths) != len(fragments[p]):
            said = f"{len(body.lengths)}, the fragment has {len(fragments[p])} tensors"
            raise RemoteProtocolError(f"$.body.lengths: {said}")
        return self._in_form(p, body.form, self._up)

    def _in_form(self, fragment: int, form: Format | UnsetType, wanted: Format) -> Layout:
        if form is UNSET:
            return self._whole(fragment)
        if form != wanted:
            raise RemoteProtocolError(f"$.body.form: {form}, this job has {wanted}")
        return self._compressed(fragment, form)


def _expected_piece(body: StatePiece, state_bytes: int) -> Layout:
    layout = piece_layout(body.piece, body.pieces, state_bytes)
    if layout is None:
        raise RemoteProtocolError(
            f"$.body: piece {body.piece} of {body.pieces}, a state here has "
            f"{pieces_of(state_bytes)} pieces"
        )
    return layout


def _difference(expected: tuple[Any, ...], got: tuple[Any, ...]) -> str:
    if len(expected) != len(got):
        return f"{len(got)} tensors, the fragment has {len(expected)}"
    index = next(i for i, (a, b) in enumerate(zip(expected, got, strict=True)) if a != b)
    return f"tensor {index} is {got[index]}, the plan says {expected[index]}"
