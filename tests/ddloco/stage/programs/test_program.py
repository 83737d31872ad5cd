"""What a user's function must return, and what is said where it does not."""

from typing import get_args

import pytest
from msgspec import defstruct

from ddloco.stage import Array, UserActor, star
from ddloco.stage.actors.effects import Calculation
from ddloco.stage.actors.events import Computed
from ddloco.stage.process.entry_point import NamedError
from ddloco.stage.programs.program import LoadedProgram, Program, Role, load_program
from ddloco.stage.programs.user_actor import Done, Over, Returned
from transport import PROTOCOL_VERSION, Body, Header, RemoteProtocolError, TensorMeta
from transport.message import Bye, Hello

HERE = "tests.ddloco.stage.programs.test_program"


class Sum(Body, frozen=True):
    """Carries an array."""

    values: Array


class Quiet:
    """Decides nothing."""

    def handle(self, at, event):
        """Nothing is asked for."""
        return []


def good(who="server"):
    """Two actors."""
    roles = {who: Role(Quiet), "client": Role(Quiet, dials=(who,))}
    return Program(roles, said=Hello | Bye, happened=Hello, payload_bytes_max=100)


def other():
    """No program."""
    return {"roles": ()}


def empty():
    """A program without actors."""
    return Program({}, said=Hello | Bye, happened=Hello)


def strange():
    """Dials whom there is not."""
    return Program({"a": Role(Quiet, dials=("b",))}, said=Hello | Bye, happened=Hello)


OURS = ("Hello", "Welcome", "Refused", "Reset", "Credit", "Bye", "Marker", "SnapshotPart")


def named(kind, name):
    """With a message or a result that has a name of ddloco's."""
    base = {"said": Body, "happened": Computed, "asked": Calculation}[kind]
    own = defstruct(name, [], bases=(base,), frozen=True, tag=True)
    return Program({"a": Role(Quiet)}, **{"said": Hello | Bye, "happened": Returned, kind: own})


def broken():
    """Fails."""
    raise RuntimeError("no\nluck")


@pytest.mark.parametrize(
    ("spec", "options", "said"),
    [
        ("good", {}, "is not of the form module:function"),
        ("tests.nowhere:good", {}, "cannot import tests.nowhere"),
        (f"{HERE}:best", {}, "has no function best"),
        (f"{HERE}:good", {"many": 3}, "takes no many; it takes who$"),
        (f"{HERE}:broken", {}, "broken failed: RuntimeError: no luck$"),
        (f"{HERE}:other", {}, "returns dict, want a ddloco.stage.Program"),
        (f"{HERE}:empty", {}, "it has no actors"),
        (f"{HERE}:strange", {}, "a dials b, which is not another actor"),
        *(
            (f"{HERE}:named", {"kind": "said", "name": each}, f"message {each}: ddloco has one")
            for each in OURS
        ),
        (f"{HERE}:named", {"kind": "happened", "name": "TimerFired"}, "result TimerFired: ddloco"),
        (f"{HERE}:named", {"kind": "asked", "name": "CaptureState"}, "work CaptureState: ddloco"),
        (f"{HERE}:good", {"who": "a.b"}, "'a.b' is not an actor's name"),
    ],
)
def test_one_line_says_what_is_wrong(spec, options, said):
    """And names the program."""
    with pytest.raises(NamedError, match=rf"^program '{spec}'.*{said}") as caught:
        load_program(spec, options)
    assert "\n" not in str(caught.value)


def test_a_production_is_found_again():
    """From a tape's header; other options are another run."""
    loaded = load_program(f"{HERE}:good", {"who": "master"})
    plain = loaded.as_plain()
    again = load_program(plain["program"], plain["options"])
    assert (again.id, again.digests) == (loaded.id, loaded.digests)
    assert loaded.id.startswith("good-")
    assert loaded.id != load_program(f"{HERE}:good", {}).id
    assert loaded.listeners == ("master",)
    assert set(again.program.roles) == {"master", "client"}


def test_a_message_that_brings_too_much_is_refused():
    """What is announced would be allocated."""
    loaded = LoadedProgram("m:f", {}, good())

    def header(size):
        tensors = (TensorMeta("w", (size,), "uint8", 8, b"0" * 16),)
        return Header(PROTOCOL_VERSION, "j", "s.1", 1, 1, {}, Sum(Array("")), tensors)

    loaded.admits(header(64))
    with pytest.raises(RemoteProtocolError, match="128 bytes; this program takes 100"):
        loaded.admits(header(65))


def test_an_array_comes_with_the_messages_that_have_one():
    """Tensors beside another message are refused, and so is a message that lacks its own."""
    loaded = LoadedProgram("m:f", {}, good())

    def header(body, *tensors):
        return Header(PROTOCOL_VERSION, "j", "s.1", 1, 1, {}, body, tensors)

    loaded.admits(header(Bye("x")))
    with pytest.raises(RemoteProtocolError, match="a Bye carries no array"):
        loaded.admits(header(Bye("x"), TensorMeta("w", (1,), "uint8", 8, b"0" * 16)))
    with pytest.raises(RemoteProtocolError, match="a Sum carries an array"):
        loaded.admits(header(Sum(Array(""))))


class Adder(UserActor):
    """Has a method for a message."""

    def on_sum(self, peer, message: Sum):
        """A sum has arrived."""


class Misnamed(UserActor):
    """Its method has another name than its message."""

    def on_total(self, peer, message: Sum):
        """A sum never arrives here."""


class Bare(UserActor):
    """Its method does not say for which message it is."""

    def on_sum(self, peer, message):
        """What is it?"""


def adders(kind="Adder"):
    """A program that does not list its messages."""
    return star("hub", globals()[kind], leaf=[Adder, Adder])


def test_the_messages_are_those_that_actors_have_methods_for():
    """What is wrong with a method is one line."""
    loaded = load_program(f"{HERE}:adders", {})
    assert loaded.names == ("hub", "leaf-0", "leaf-1")
    assert loaded.listeners == ("hub",)
    assert set(get_args(loaded.program.said)) == {Over, Done, Sum}
    with pytest.raises(NamedError, match="on_total: takes Sum, which arrives at on_sum"):
        load_program(f"{HERE}:adders", {"kind": "Misnamed"})
    with pytest.raises(NamedError, match="on_sum: annotate message with its class"):
        load_program(f"{HERE}:adders", {"kind": "Bare"})
