"""What the versions of ddloco on two hosts of a job must have in common: the behaviours that their
tapes name, and the messages that they say to each other. Other differences are worth a warning."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from ddloco.stage.nodes.incarnation_grants import (
    SHORT_MAX,
    WORD_BYTES_MAX,
    Want,
    decode_granted,
    decode_question,
    shared_settings,
)
from ddloco.stage.nodes.runnable import Runnable
from ddloco.stage.observers.observer_protocol import decode_ask, decode_told
from ddloco.stage.process.run_identity import DDLOCO, identity_here
from ddloco.stage.process.side_protocol import encode
from ddloco.stage.tapes.shipping_protocol import decode_answer, decode_sent
from transport.message import PROTOCOL_VERSION

BESIDE_LINKS = (
    decode_question,
    decode_granted,
    decode_ask,
    decode_told,
    decode_sent,
    decode_answer,
)


def want_of(
    program: Runnable, known: int, exact: int = 0, folder: Path | None = None, name: str = ""
) -> Want:
    settings, agreement = shared_settings(program), agreement_of(program)
    here = {**identity_here(program.sources(folder)), **program.flags(name)}
    identity = {key: value for key, value in here.items() if len(key) <= SHORT_MAX}
    want = Want(known, program.id, settings, identity, exact, agreement)
    for less in ({"settings": {}}, {"identity": {DDLOCO: identity[DDLOCO]}}):
        if len(encode(want)) > WORD_BYTES_MAX:
            want = msgspec.structs.replace(want, **less)
    return want


def agreement_of(program: Runnable) -> str:
    """Return the digest of what all hosts of a program must have in common: the names of messages,
    events and their fields, and not their types, whose spelling depends on the versions of Python
    and msgspec."""
    said = [*program.semantics, f"links {PROTOCOL_VERSION}"]
    for kinds in (program.events, *(each.kinds for each in BESIDE_LINKS)):
        said += sorted(set(_structs_in(msgspec.inspect.type_info(kinds))))
    return hashlib.sha256("\n".join(said).encode()).hexdigest()


def _structs_in(found: Any) -> Iterator[str]:
    if isinstance(found, msgspec.inspect.StructType):
        yield f"{found.cls.__name__}({', '.join(each.name for each in found.fields)})"
        within = [each.type for each in found.fields]
    elif isinstance(found, msgspec.inspect.UnionType):
        within = [*found.types]
    elif isinstance(found, msgspec.inspect.TupleType):
        within = [*found.item_types]
    elif isinstance(found, msgspec.inspect.CollectionType | msgspec.inspect.VarTupleType):
        within = [found.item_type]
    elif isinstance(found, msgspec.inspect.DictType):
        within = [found.value_type]
    else:
        within = []
    for each in within:
        yield from _structs_in(each)
