"""Actors that read like their algorithm: how long arrays live, and what methods are told."""

import numpy as np
import pytest

from ddloco.stage import Array, Body, UserActor, computation
from ddloco.stage.actors.actor import new_actor
from ddloco.stage.actors.effects import Calculation, Finish, Observe
from ddloco.stage.actors.events import Begun, StopRequested, WorkFailed
from ddloco.stage.actors.timers import Named
from ddloco.stage.programs.user_actor import (
    END_S,
    Call,
    Done,
    EndDeadline,
    Over,
    PendingCall,
    Returned,
    array_field,
    compute_call,
    handler_of,
    needs_array,
)
from snapshot.attributes import machine_from, plain_state
from snapshot.states import StateError
from transport import (
    BULK,
    Dial,
    Free,
    Hangup,
    Listen,
    MessageArrived,
    PeerJoined,
    PeerLost,
    Send,
    SetTimer,
    TimerFired,
)

PEER = "anna.1"


class Note(Body, frozen=True):
    """Something to say, which may carry an array."""

    array: Array | None = None


class Numbers(Body, frozen=True):
    """What always carries an array."""

    first: Array


class TwoArrays(Body, frozen=True):
    """More than a message can carry."""

    first: Array
    second: Array


@computation
def double(array, *, by=2):
    """Twice, or more."""
    return array * by, by


class Keeper(UserActor):
    """Keeps what it is told to keep, and remembers what it was told."""

    def __init__(self):
        self.told: list[str | int | tuple[str, str]] = []
        self.kept: dict[str, list[tuple[Array]]] = {}

    def begin(self):
        self.told.append("begin")

    def joined(self, peer):
        self.told.append(("joined", peer))

    def lost(self, peer, reason):
        self.told.append(("lost", peer))

    def on_note(self, peer, message: Note):
        if message.array is None:
            self.kept.clear()
        else:
            self.kept.setdefault("deep", []).append((message.array,))
            self.call(double, message.array, then=self.doubled, by=3)

    def doubled(self, array, by):
        self.told.append(by)
        self.send("anna", Note(array))

    def timer(self, name):
        self.told.append(name)


@pytest.fixture
def begun():
    """A keeper that has begun, and has a peer."""
    keeper = Keeper()
    keeper.link(("bert",), listens=True)
    said = [keeper.handle(0.0, Begun("keeper.1")), keeper.handle(1.0, PeerJoined(PEER, PEER))]
    return keeper, said


def arrived(number, handle=""):
    """A message of the peer's."""
    body = Note(Array("")) if handle else Note()  # As it travels, its array is the payload.
    return MessageArrived(PEER, BULK, PEER, 1, number, {PEER: number + 1}, body, b"", handle)


def kinds(effects):
    """The names of effects, with the handles that they have."""
    return [(type(each).__name__, getattr(each, "handle", "")) for each in effects]


def test_methods_are_told_by_names(begun):
    """Peers have the names of actors, whatever their incarnation, and whichever side dialled."""
    keeper, (first, _) = begun
    assert [Listen({}), Dial("bert", {})] == first
    keeper.handle(2.0, PeerJoined("anna.2", "anna.2"))
    keeper.handle(3.0, PeerLost(PEER, "a newer one is there"))
    assert ["anna"] == keeper.peers
    keeper.handle(4.0, PeerLost("anna.2", "gone"))
    keeper.handle(5.0, TimerFired(Named("tea")))
    joined = ("joined", "anna")
    assert ["begin", joined, joined, ("lost", "anna"), "tea"] == keeper.told
    assert ("keeper", [], 5.0) == (keeper.name, keeper.peers, keeper.at)


def test_an_array_lives_while_something_refers_to_it(begun):
    """It is kept when an attribute, or a call, refers to it, and dropped when none does."""
    keeper, _ = begun
    came = keeper.handle(2.0, arrived(0, "in/3"))
    assert [("Keep", "call/1"), ("Keep", "in/3"), ("Call", "")] == kinds(came)
    done = keeper.handle(3.0, Returned(1, value=3))
    assert [("Send", ""), ("Drop", "call/1")] == kinds(done)
    assert [("Drop", "in/3")] == kinds(keeper.handle(4.0, arrived(1)))
    assert [] == keeper.handle(5.0, arrived(2))


def test_what_a_call_reads_stays_until_it_is_done(begun):
    """Also when nothing else refers to it any more."""
    keeper, _ = begun
    keeper.handle(2.0, arrived(0, "in/3"))
    assert [] == keeper.handle(3.0, arrived(1))
    assert {("Drop", "in/3"), ("Drop", "call/1")} < set(
        kinds(keeper.handle(4.0, Returned(1, value=3)))
    )


def test_arrays_are_counted_by_the_actor():
    """Behind the door every array that came is freed once, and not before its time."""
    actor = new_actor("keeper.1", Keeper())
    actor.handle(0.0, Begun("keeper.1"))
    actor.machine._routes["anna"] = PEER
    keeper = actor.machine
    actor.handles.hold("in/9")
    for effect in keeper.handle(1.0, arrived(0, "in/9")):
        actor._do(1.0, effect, [])
    assert [] == actor.handles.release("in/9")
    effects = []
    for event in (arrived(1), Returned(1, value=3)):
        for effect in keeper.handle(2.0, event):
            actor._do(2.0, effect, effects)
    assert {"in/9", "call/1"} == {each.handle for each in effects if isinstance(each, Free)}


def test_a_state_is_read_back_as_it_was(begun):
    """Snapshots hold such an actor, with its calls under way."""
    keeper, _ = begun
    keeper.handle(2.0, arrived(0, "in/3"))
    again = machine_from(Keeper(), plain_state(keeper))
    assert kinds(again.handle(3.0, Returned(1, value=3))) == kinds(
        keeper.handle(3.0, Returned(1, value=3))
    )
    assert again.told == keeper.told


def test_an_attribute_that_is_new_is_missed_in_a_state():
    """Also one with a default that no event has changed: the actor would go on with another value
    than the one that its run had."""

    class Old(UserActor):
        count: int = 0
        names: list[str] = []

    class Newer(Old):
        limit: int = 7

    state = plain_state(Old())
    assert {"count": 0, "names": []}.items() <= state.items()
    assert machine_from(Old(), state).count == 0
    with pytest.raises(StateError, match="Newer has limit, which the snapshot lacks"):
        machine_from(Newer(), state)


def test_a_call_computes():
    """Lone arrays are numpy arrays, several are a dict; plain data comes back beside."""
    name = f"{double.__module__}.{double.__qualname__}"
    call = Call(4, ("a",), ("b",), name, {"by": 3})
    assert isinstance(call, Calculation)
    returned, [made] = compute_call(call, [{"array": np.arange(3)}])
    assert (4, 3, [0, 3, 6]) == (returned.work, returned.value, made["array"].tolist())


def test_what_is_not_marked_is_not_called(begun):
    """One line says how to mark it."""
    keeper, _ = begun
    keeper._asked = []
    with pytest.raises(ValueError, match=r"kinds is not a computation; mark it with @computation"):
        keeper.call(kinds, then=keeper.doubled)


def test_failures_and_stops_end_it(begun):
    """Unless it is overridden what to do."""
    keeper, _ = begun
    keeper.handle(2.0, arrived(0, "in/3"))
    *_, failed = [
        each
        for each in keeper.handle(3.0, WorkFailed(1, "task", "no luck"))
        if isinstance(each, Finish)
    ]
    assert Finish("failed", "no luck") == failed
    assert [Finish("stopped", "enough")] == keeper.handle(4.0, StopRequested("enough"))


def test_who_finishes_says_goodbye():
    """So that the others hear of it at once, and do not wait; nobody dials this one."""
    actor = UserActor()
    actor.handle(0.0, Begun("leaf.1"))
    actor.handle(1.0, PeerJoined(PEER, PEER))
    stopped = [Hangup(PEER, "enough"), Finish("stopped", "enough")]
    assert stopped == actor.handle(2.0, StopRequested("enough"))
    assert [] == actor.peers


def test_nothing_is_sent_without_a_receiver(begun):
    """A message to an actor that is not linked is dropped."""
    keeper, _ = begun
    keeper._asked = []
    keeper.send("bert", Note(Array("x")))
    keeper.log("seen", what=1)
    assert [Observe("seen", {"what": 1})] == keeper._asked
    assert not any(isinstance(each, Send) for each in keeper._asked)


def test_a_name_that_nobody_has_is_an_error(begun):
    """The program knows all names; the line has those with which there are links."""
    keeper, _ = begun
    keeper.link(("bert",), listens=True, linked=("ada", "bert"))
    keeper.send("bert", Note(Array("x")))
    with pytest.raises(LookupError, match=r"sends Note to 'bret', .* it has links with ada, bert"):
        keeper.send("bret", Note(Array("x")))


class Odd(Keeper):
    """Defines names that are no methods of its own to call."""

    told_of = "text"

    @property
    def trap(self):
        raise AssertionError("asked")

    def __call__(self, *given):
        raise AssertionError("called")

    def ownly(self, *given):
        self.given = given


@pytest.mark.parametrize(
    "name",
    ["finish", "handle", "call", "_hear", "__call__", "__init__", "__class__", "told_of", "trap",
     "kept", "nothing", "", "ownly.__globals__"],
)  # fmt: skip
def test_what_is_called_then_is_a_method_that_the_users_class_defines(name):
    """The name may come from a snapshot: none of the base class, of Python, and no attribute."""
    with pytest.raises(ValueError, match="is no method of Odd itself"):
        PendingCall(name, (), Array("a")).method_of(Odd())


def test_methods_of_its_own_and_of_its_bases_are_called_then():
    """Those of the class, and of the classes of the user's that it is derived from."""
    odd = Odd()
    PendingCall("ownly", (), Array("a")).method_of(odd)(1)
    assert (1,) == odd.given
    assert PendingCall("doubled", (), Array("a")).method_of(odd) == odd.doubled


def test_then_is_a_method_of_the_same_actor():
    """Of another one, or a function: refused when it is given."""
    keeper, other = Keeper(), Keeper()
    keeper.handle(0.0, Begun(PEER))
    for then in (other.doubled, print, lambda _: None, Keeper.doubled):
        with pytest.raises(ValueError, match="method"):
            keeper.call(double, then=then)


def test_an_array_in_a_message_travels_as_its_payload(begun):
    """The message on its way has none; the array is where it was again when it arrives."""
    keeper, _ = begun
    keeper._asked = []
    keeper.send("anna", Note(Array("mine")))
    assert [Send(PEER, BULK, Note(Array("")), "mine")] == keeper._asked
    keeper.handle(2.0, arrived(0, "in/3"))
    assert [(Array("in/3"),)] == keeper.kept["deep"]


def test_a_message_carries_one_array():
    """Which may consist of several by name; more are refused when the program is loaded."""
    assert ("array", "first", "") == (array_field(Note), array_field(Numbers), array_field(Over))
    assert (False, True) == (needs_array(Note), needs_array(Numbers))
    with pytest.raises(TypeError, match="first and second are arrays; a message carries one"):
        array_field(TwoArrays)


def test_a_message_without_a_method_is_named(begun):
    """With the method that is missing."""
    keeper, _ = begun
    with pytest.raises(
        NotImplementedError, match=r"Keeper has no method on_numbers\(peer, message"
    ):
        keeper.received("anna", Numbers(Array("x")))
    assert handler_of(TwoArrays) == "on_two_arrays"


def test_who_ends_the_program_finishes_last(begun):
    """All others are told; this actor finishes when its links are gone, and so do newcomers."""
    keeper, _ = begun
    keeper._asked = []
    keeper.end("done")
    assert [Over("done")] == [each.body for each in keeper._asked if isinstance(each, Send)]
    joined = keeper.handle(2.0, PeerJoined("bert.1", "bert.1"))
    assert [("bert.1", Over("done"))] == [(each.peer, each.body) for each in joined]
    told = [*keeper.told]
    assert [] == keeper.handle(2.0, arrived(0, "in/3"))
    assert [] == keeper.handle(3.0, PeerLost(PEER, "done"))
    assert told == keeper.told
    assert [Finish("done", "done")] == keeper.handle(4.0, PeerLost("bert.1", "done"))


def test_a_stop_of_who_listens_ends_the_program(begun):
    """All others finish first."""
    keeper, _ = begun
    wait, over = keeper.handle(2.0, StopRequested("enough"))
    assert (wait, over.body) == (SetTimer(EndDeadline(), 2.0 + END_S), Over("enough"))
    assert [Finish("stopped", "enough")] == keeper.handle(3.0, PeerLost(PEER, "gone"))


def test_a_peer_that_says_no_goodbye_is_not_waited_for(begun):
    """After some seconds the actor that has ended the program finishes all the same."""
    keeper, _ = begun
    keeper.handle(2.0, StopRequested("enough"))
    goodbye = [Hangup(PEER, "enough"), Finish("stopped", "enough")]
    assert goodbye == keeper.handle(2.0 + END_S, TimerFired(EndDeadline()))


def test_who_hears_that_it_is_over_finishes(begun):
    """And tells those that it is linked with."""
    keeper, _ = begun
    over = MessageArrived(PEER, BULK, PEER, 1, 0, {PEER: 1}, Over("enough"), b"", "")
    said = keeper.handle(2.0, over)
    assert [Over("enough")] == [each.body for each in said if isinstance(each, Send)]
    assert Finish("done", "enough") == said[-1]


def heard_done(peer):
    """A peer has done its part."""
    return MessageArrived(peer, BULK, peer, 1, 0, {peer: 1}, Done(), b"", "")


def test_who_has_done_its_part_finishes_when_all_have(begun):
    """Whether it is the first or the last one; who joins or comes back is told and waited for."""
    keeper, _ = begun
    keeper._asked = []
    keeper.done("enough")
    assert [Done()] == [each.body for each in keeper._asked]
    (told,) = keeper.handle(2.0, PeerJoined("bert.1", "bert.1"))
    assert ("bert.1", Done()) == (told.peer, told.body)
    assert [] == keeper.handle(3.0, heard_done(PEER))
    keeper.handle(4.0, PeerJoined("anna.2", "anna.2"))
    assert [] == keeper.handle(5.0, heard_done("bert.1"))
    assert Finish("done", "enough") == keeper.handle(6.0, heard_done("anna.2"))[-1]


def test_who_is_gone_is_not_waited_for(begun):
    """It may have finished, since this actor had said that it is done."""
    keeper, _ = begun
    keeper.handle(2.0, heard_done(PEER))
    keeper.handle(2.0, PeerJoined("bert.1", "bert.1"))
    keeper.done("enough")
    assert [Finish("done", "enough")] == keeper.handle(3.0, PeerLost("bert.1", "gone"))[-1:]


class Idler(UserActor):
    """Computes whenever it may."""

    computed: int = 0

    def when_idle(self):
        self.computed += 1
        if self.computed == 3:
            self.finish("enough")
        else:
            self.call(double, then=self.doubled)

    def doubled(self, array, by):
        pass

    def timer(self, name):
        self.end("over")


def test_an_actor_is_told_when_it_is_idle():
    """After an event that leaves no computation under way; not once it finishes."""
    idler = Idler()
    assert "Call" in [name for name, _ in kinds(idler.handle(0.0, Begun("idler.1")))]
    assert [] == idler.handle(1.0, PeerJoined(PEER, PEER))
    idler.handle(2.0, Returned(1, value=2))
    ended = idler.handle(3.0, Returned(2, value=2))
    assert [Hangup(PEER, "enough"), Finish("done", "enough")] == ended[:2]
    other = Idler()
    other.handle(0.0, Begun("idler.1"))
    other.handle(1.0, TimerFired(Named("tea")))
    assert 1 == other.computed


class Set(UserActor):
    """Has settings."""

    rate: float
    names: list[str] = []
    hidden = 3


def test_settings_are_annotated_attributes():
    """Others are refused by name; a list or dict of the class belongs to each actor alone."""
    one, other = Set(rate=0.1), Set(rate=0.2)
    one.names.append("x")
    assert ([], 0.1, 0.2) == (other.names, one.rate, other.rate)
    with pytest.raises(TypeError, match=r"Set: no attribute 'hidden' is annotated; there"):
        Set(hidden=4)


def test_an_actor_is_idle_while_nothing_is_computed(begun):
    """A call that is under way makes it busy until its result has been handled."""
    keeper, _ = begun
    assert keeper.idle
    keeper.handle(2.0, arrived(0, "in/3"))
    assert not keeper.idle
    keeper.handle(3.0, Returned(1, value=3))
    assert keeper.idle
