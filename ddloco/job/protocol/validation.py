"""Checks that a message of a job carries the right tensors, which needs the fragment plan."""

from collections.abc import Callable
from functools import cache
from typing import Any

from msgspec import UNSET, UnsetType

from ddloco.job.protocol.compression import Format, compressed_layout
from ddloco.job.protocol.fragment_plan import FragmentPlan, wire_layout
from ddloco.job.protocol.messages import Contribution, GlobalFragment, StatePiece
from ddloco.job.protocol.state_layout import piece_layout, pieces_of
from transport import Header, RemoteProtocolError

Layout = tuple[tuple[str, tuple[int, ...], str], ...]
"""Name, shape and dtype of every tensor."""


def admission(
    plan: FragmentPlan, state_bytes: int, up: Format = "float32", down: Format = "float32"
) -> Callable[[Header[Any]], None]:
    """Return a check that raises unless a message carries the tensors that its body requires.

    Args:
        plan: how the parameters are split into fragments.
        state_bytes: size of a learner's whole state.
        up: the format of compressed contributions.
        down: the format of compressed global fragments.
    """
    whole = cache(lambda fragment: wire_layout(plan, fragment))
    compressed = cache(lambda fragment, form: compressed_layout(plan, fragment, form))

    def layout(fragment: int, form: Format | UnsetType, wanted: Format) -> Layout:
        if form is UNSET:
            return whole(fragment)
        if form != wanted:
            raise RemoteProtocolError(f"$.body.form: {form}, this job has {wanted}")
        return compressed(fragment, form)

    def expected(body: Any) -> Layout | None:
        if isinstance(body, StatePiece) and body.pieces:
            return _expected_piece(body, state_bytes)
        if not isinstance(body, GlobalFragment | Contribution):
            return None
        if body.fragment >= len(plan.fragments):
            raise RemoteProtocolError(
                f"$.body.fragment: {body.fragment}, the plan has {len(plan.fragments)} fragments"
            )
        return layout(body.fragment, body.form, up if isinstance(body, Contribution) else down)

    def admits(header: Header[Any]) -> None:
        wanted = expected(header.body)
        if wanted is None:
            if header.tensors:
                raise RemoteProtocolError("$.tensors: this message carries none")
            return
        got = tuple((meta.name, meta.shape, meta.dtype) for meta in header.tensors)
        if got != wanted:
            raise RemoteProtocolError(f"$.tensors: {_difference(wanted, got)}")

    return admits


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
