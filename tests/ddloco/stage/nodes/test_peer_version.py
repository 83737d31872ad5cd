"""What two versions of ddloco must have in common to work in one job."""

import msgspec
import pytest

from ddloco.job.config import job_from
from ddloco.roles import job_program
from ddloco.roles.job_program import program_of
from ddloco.stage.nodes import peer_version
from ddloco.stage.nodes.peer_version import agreement_of

PLAIN = {"job": {"task": "json:loads", "learners": 3}}


class Said(msgspec.Struct):
    """A message of a protocol beside the links."""

    text: str
    at: dict[str, list[tuple["Place", int] | None]] = {}


class Place(msgspec.Struct):
    """Something within it."""

    path: str


def protocol(kinds):
    """A decoder of these messages."""
    return type("Decoder", (), {"kinds": kinds})


def renamed(name, **fields):
    """A message of that name with other fields."""
    return msgspec.defstruct(name, list(fields.items()))


def test_settings_are_no_part_of_it():
    """They are compared by name."""
    other = {"job": {**PLAIN["job"], "learners": 5}, "sync": {"interval": 48}}
    assert agreement_of(program_of(job_from(PLAIN, "a"))) == agreement_of(
        program_of(job_from(other, "b"))
    )


@pytest.mark.parametrize(
    "kinds",
    [
        renamed("Said", text=str),
        renamed("Told", text=str, at=dict[str, list[tuple[Place, int] | None]]),
        renamed("Said", text=str, at=dict[str, list[tuple[renamed("Place", at=str), int] | None]]),
        tuple[Said, renamed("More", text=str)],
    ],
    ids=["a field less", "another name", "another field within", "a kind more"],
)
def test_a_message_that_changes_changes_it(monkeypatch, kinds):
    """Wherever it is in the types, and without a version number that somebody must raise."""
    program = program_of(job_from(PLAIN, "a"))
    monkeypatch.setattr(peer_version, "BESIDE_LINKS", (protocol(Said),))
    before = agreement_of(program)
    assert before == agreement_of(program)
    monkeypatch.setattr(peer_version, "BESIDE_LINKS", (protocol(kinds),))
    assert before != agreement_of(program)


def test_a_behaviour_that_changes_changes_it(monkeypatch):
    """Its tapes could not be replayed here."""
    program = program_of(job_from(PLAIN, "a"))
    before = agreement_of(program)
    monkeypatch.setattr(job_program, "SEMANTICS", (*program.semantics, "another"))
    assert before != agreement_of(program)
