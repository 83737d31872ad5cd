"""The state of a machine as bytes, and back: msgpack of the structs that the machine consists of.

A state is read by the declared type of the machine, so nothing else can come out of it: no name in
it chooses a class, a function or a module, and reading calls nothing but constructors of structs.
A state is a tree. Dicts keep their order, since machines depend on it; a struct of state has no
sets, whose order would differ from run to run.
"""

from functools import cache
from typing import TypeVar

import msgspec

FORMAT = 5
"""The format of a state's bytes. Renaming a field or a class of a state changes them."""

BYTES_MAX = 2**25
"""Maximum size of a state. A syncer of a thousand learners needs an eighth of it; arrays and the
payloads of messages are stored apart."""

NODES_MAX = 2**21
"""Maximum number of bytes of a state that may begin a list, a dict or a struct. Each of those takes
some hundred bytes of memory when it is read."""

WORDS_MAX = 300
"""Characters of what is said of a state that is refused; it may quote the state."""

_BEGINNINGS = bytes([*range(0x80, 0xA0), *range(0xDC, 0xE0)])
"""The first bytes of arrays and maps in msgpack. Other values may have these bytes within, so
counting them gives at most too large a number."""

T = TypeVar("T")


class StateError(ValueError):
    """A value cannot be part of a state, or bytes are not a state; names the place in one line."""


def write_state(state: object) -> bytes:
    """Write a state that consists of structs, dataclasses and plain data.

    Raises:
        StateError: a value in it is something else, or it is too large.
    """
    try:
        data = msgspec.msgpack.encode([FORMAT, state])
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise StateError(in_short(error)) from None
    _check_size(data)
    return data


def read_state(data: bytes, kind: type[T]) -> T:
    """Read what ``write_state`` wrote.

    Raises:
        StateError: it is not a valid state of this type, or of another format.
    """
    _check_size(data)
    try:
        version, *rest = msgspec.msgpack.decode(data, type=list[msgspec.Raw])
        found = msgspec.msgpack.decode(version, type=int)
        if found == FORMAT and len(rest) == 1:
            return _decoder(kind).decode(rest[0])
    except (ValueError, RecursionError) as error:  # Also what msgspec raises.
        raise StateError(f"not a state: {in_short(error)}") from None
    raise StateError(f"a state of format {found}, this version reads {FORMAT}")


@cache
def _decoder(kind: type[T]) -> msgspec.msgpack.Decoder[T]:
    return msgspec.msgpack.Decoder(kind)


def _check_size(data: bytes) -> None:
    if len(data) > BYTES_MAX:
        raise StateError(f"a state of {len(data)} bytes; want at most {BYTES_MAX}")
    nodes = len(data) - len(data.translate(None, _BEGINNINGS))
    if nodes > NODES_MAX:
        raise StateError(f"a state of {nodes} lists and structs; want at most {NODES_MAX}")


def in_short(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:WORDS_MAX]
