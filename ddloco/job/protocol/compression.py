"""The formats in which fragments are compressed on the wire, and their sizes (paper section 5).

What is compressed is a difference: a learner's parameters minus the version that it trained from,
or a new global version minus the one before. A tensor is cut into blocks of ``BLOCK`` elements, the
last one filled up with zeros. Every block has one float32 scale; its codes are packed without gaps.

Task state, such as batch statistics, is not a difference and is never rounded: its values are in
the payload as float32. Variances of very different sizes would share a scale, and come back
negative.
"""

from typing import Literal

from ddloco.job.protocol.fragment_plan import FragmentPlan, is_state

Format = Literal["float32", "bfloat16", "int8", "int4", "e3m0", "int2", "int1"]

Rounding = Literal["nearest", "stochastic"]

BLOCK = 256
"""Elements that share a scale: with 4 bits the scales add 1/8 bit to each element."""

BITS: dict[Format, int] = {
    "float32": 32,
    "bfloat16": 16,
    "int8": 8,
    "int4": 4,
    "e3m0": 4,
    "int2": 2,
    "int1": 1,
}

SCALE_BYTES = 4

UNSCALED = frozenset({"float32", "bfloat16"})
"""Formats without blocks: their elements take the place of scales, and there are no codes."""


def blocks_of(elements: int) -> int:
    return -(-elements // BLOCK)


def encoded_bytes(elements: int, form: Format) -> int:
    """The bytes of a compressed tensor: all scales, then all codes."""
    if form in UNSCALED:
        return elements * BITS[form] // 8
    return blocks_of(elements) * (SCALE_BYTES + BLOCK * BITS[form] // 8)


def relative_size(form: Format) -> float:
    """The size of a large compressed tensor relative to float32."""
    return encoded_bytes(BLOCK, form) / (4 * BLOCK)


def compressed_layout(
    plan: FragmentPlan, fragment: int, form: Format
) -> tuple[tuple[str, tuple[int, ...], str], ...]:
    """(name, shape, dtype) of a compressed fragment's tensors; every tensor is a row of bytes."""
    leaves = plan.fragments[fragment]
    return tuple(
        (
            leaf.name,
            (encoded_bytes(leaf.size, "float32" if is_state(leaf.name) else form),),
            "uint8",
        )
        for leaf in leaves
    )
