"""A toy counter, recorded and played: equal runs are equal, each difference is found where it is.

The counter hears ``Said`` with a number from a friend, adds it, and asks for ``Say`` with the sum.
"""

import msgspec
import pytest
from msgspec import Struct

from clocks import ActorClock
from replay import Divergence, Player, Recorder, Tape, TapeError, TapeHeader, TapeWriter, event_line
from replay.divergence import CONTEXT_EVENTS
from replay.tape import Effects, Raised

ME, FRIEND = "counter.1", "friend.1"


class Said(Struct, frozen=True, tag=True):
    number: int
    friend: int


class Say(Struct, frozen=True, tag=True):
    total: int


class Counter:
    """A machine at its door; ``faults`` plants what goes wrong at which event."""

    def __init__(self, faults=None):
        self.clock, self.total, self.faults = ActorClock(ME), 0, faults or {}
        self.learned = {}

    def handle(self, at, event):
        fault = self.faults.get(self.clock.number + 1, "")
        heard = event.friend + (fault == "clock")
        self.learned = self.clock.tick({FRIEND: heard} if fault != "deaf" else {})
        if fault == "tick":
            self.clock.tick()
        if fault.startswith("raise"):
            raise ValueError(fault)
        self.total += event.number + (fault == "sum")
        return [Say(self.total)] * (2 if fault == "twice" else 0 if fault == "silent" else 1)


EVENTS = [Said(number, friend) for friend, number in enumerate([5, 7, 1, 0, 3, 3, 8], start=1)]


def record(path, faults=None, events=EVENTS):
    """Write the tape of a counter that hears these events."""
    counter, known = Counter(faults), ActorClock(ME)
    recorder = Recorder(TapeWriter(path, TapeHeader(ME, "job-1", {}, "0", {})))
    for number, event in enumerate(events, start=1):
        recorder.event(number, number / 2, known.tick({FRIEND: event.friend}), event)
        try:
            effects = counter.handle(number / 2, event)
        except ValueError as error:
            recorder.raised(number, error)
        else:
            recorder.effects(number, effects)
    recorder.close(len(events), "done")
    return path


def play(path, faults=None, counter=None):
    """Play a tape to its end, or to the first difference."""
    player = Player(Tape(path), Said, counter or Counter(faults))
    for moment in player.moments():
        player.play(*moment)
    return player


@pytest.fixture
def path(tmp_path):
    """Give the tape of a run in which all went well."""
    return record(tmp_path / "counter.tape")


def test_an_equal_run_is_found_equal(path):
    """The same machine does the same, event for event."""
    counter = Counter()

    player = play(path, counter=counter)

    assert player.played == len(EVENTS)
    assert counter.total == sum(event.number for event in EVENTS)


def test_playing_gives_the_effects_again(path):
    """The caller of the player gets the effects of the machine."""
    player = Player(Tape(path), Said, Counter())

    effects = [player.play(*moment) for moment in player.moments()]

    assert effects[:3] == [[Say(5)], [Say(12)], [Say(13)]]


@pytest.mark.parametrize("number", range(1, len(EVENTS) + 1))
@pytest.mark.parametrize(
    ("fault", "aspect", "says"),
    [
        ("sum", "effects", ("1 effects, digest ", "1 effects, digest ")),
        ("twice", "effects", ("1 effects, digest ", "2 effects, digest ")),
        ("silent", "effects", ("1 effects, digest ", "0 effects, digest ")),
        ("clock", "clock", ("{'friend.1': %d}", "{'friend.1': %d}")),
        ("tick", "clock", ("{'friend.1': %d}", "{'friend.1': ")),
        ("deaf", "clock", ("{'friend.1': %d}", "{}")),
        ("raise now", "exception", ("no exception", "ValueError: raise now")),
    ],
)
def test_a_planted_difference_is_named_at_its_event(path, number, fault, aspect, says):
    """What differs is found at exactly the event at which it was planted, and said both ways."""
    with pytest.raises(Divergence) as caught:
        play(path, {number: fault})

    found = caught.value
    recorded, replayed = says
    assert (found.actor, found.number, found.aspect) == (ME, number, aspect)
    assert found.expected.startswith(recorded.replace("%d", str(number)))
    assert found.actual.startswith(replayed.replace("%d", str(number + 1)))
    assert found.expected != found.actual or fault == "tick"
    assert found.event == repr(EVENTS[number - 1])
    assert found.clock[ME] >= number
    first = max(1, number - CONTEXT_EVENTS)
    expected = [f"{ME}:{n} {EVENTS[n - 1]!r}" for n in range(first, number)]
    assert list(found.context) == expected


def test_the_actual_effects_are_shown(path):
    """A difference in effects shows what the replay asked for, not only a digest."""
    with pytest.raises(Divergence) as caught:
        play(path, {3: "sum"})

    assert "Say(total=14)" in caught.value.actual


def test_an_equal_exception_is_no_difference(tmp_path):
    """A failure that was recorded is expected again."""
    path = record(tmp_path / "x.tape", {2: "raise a"})

    assert play(path, {2: "raise a"}).played == len(EVENTS)


@pytest.mark.parametrize(
    ("faults", "actual"), [({2: "raise b"}, "ValueError: raise b"), ({}, "no exception")]
)
def test_another_exception_and_a_missing_one_are_differences(tmp_path, faults, actual):
    """A recorded failure that comes otherwise, or not at all, is named."""
    path = record(tmp_path / "x.tape", {2: "raise a"})

    with pytest.raises(Divergence) as caught:
        play(path, faults)

    found = caught.value
    assert (found.number, found.aspect) == (2, "exception")
    assert (found.expected, found.actual) == ("ValueError: raise a", actual)


def test_a_changed_recording_is_a_difference_too(tmp_path):
    """It does not matter which side changed: the recording's fault is found at its event."""
    path = record(tmp_path / "x.tape", {4: "sum"})

    with pytest.raises(Divergence) as caught:
        play(path)

    assert (caught.value.number, caught.value.aspect) == (4, "effects")


@pytest.mark.parametrize("faults", [{}, {7: "sum"}, {7: "raise late"}])
def test_a_tape_that_ends_after_an_event_still_plays_it(path, faults):
    """Where the process died in ``handle`` the event is played, and nothing can be compared."""
    *_, last = [r for r in Tape(path).records() if isinstance(r, Effects)]
    data = path.read_bytes()
    keep = data.rindex(b"effects") if last.n == 7 else 0
    path.write_bytes(data[: keep + 3])

    player = Player(Tape(path), Said, Counter(faults))
    moments = list(player.moments())

    assert [outcome is None for *_, outcome in moments] == [False] * 6 + [True]
    for moment in moments:
        player.play(*moment)
    assert player.played == 7
    assert player.tape.truncated_at is not None


def test_an_event_without_outcome_in_the_middle_is_passed_on_as_such(tmp_path):
    """A tape whose effects are missing for one event says so for that one alone."""
    path = tmp_path / "x.tape"
    recorder = Recorder(TapeWriter(path, TapeHeader(ME, "job-1", {}, "0", {})))
    for number in (1, 2):
        recorder.event(number, 0.0, {FRIEND: number}, EVENTS[number - 1])
    recorder.raised(2, ValueError("x"))
    recorder.close(2, "x")

    outcomes = [outcome for *_, outcome in Player(Tape(path), Said, Counter()).moments()]

    assert outcomes == [None, Raised(2, "ValueError: x")]


@pytest.mark.parametrize(
    "body", [b"\x80", b"\xc0", b"\x81\xa4type\xa4Sang", b"\x81\xa4type\xa2\xff\xff"]
)
def test_an_event_that_this_program_does_not_know_is_a_tape_error(tmp_path, body):
    """An event of another program is refused by number, never skipped."""
    path = tmp_path / "x.tape"
    recorder = Recorder(TapeWriter(path, TapeHeader(ME, "job-1", {}, "0", {})))
    recorder.event(1, 0.0, {}, msgspec.Raw(body))
    recorder.close(1, "x")

    with pytest.raises(TapeError, match="event 1 is unknown to this version"):
        list(Player(Tape(path), Said, Counter()).moments())


def test_an_empty_tape_plays(tmp_path):
    """An actor that was killed before its first event differs in nothing."""
    path = record(tmp_path / "x.tape", events=[])

    assert play(path).played == 0


def test_a_long_event_is_shortened():
    """A description is one line of at most 200 characters."""
    assert event_line("x" * 198) == repr("x" * 198)
    assert event_line("x" * 199) == f"'{'x' * 196}..."
    assert len(event_line("x" * 9999)) == 200
