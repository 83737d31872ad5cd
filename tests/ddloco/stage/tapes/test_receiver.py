"""Where tapes arrive: whole, in order, under their own names; everything else is refused."""

import errno

import msgspec
import pytest
import trio

from ddloco.stage.files.settings import TapeTable
from ddloco.stage.process.side_protocol import encode
from ddloco.stage.tapes import receiver as receiver_module
from ddloco.stage.tapes import sender as sender_module
from ddloco.stage.tapes.receiver import MARKS, TapeReceiver
from ddloco.stage.tapes.sender import NOT_SHIPPED, TapeSender
from ddloco.stage.tapes.shipping_protocol import (
    SEGMENT_BYTES_MAX,
    VERSION,
    AskLength,
    Declined,
    Has,
    Segment,
    Whole,
    decode_answer,
    digest_of,
)
from ddloco.stage.tapes.side_channel import SideChannel
from replay import TapeHeader, TapeWriter, tape
from transport import Arrival

NAMES = ("learner-0", "learner-1")
ROUTE = "learner-0.1/tape"
HEADER = TapeHeader("learner-0.1", "job-1", {}, "code", {})


def tape_bytes(folder, events=20, **header):
    """The bytes of a tape, closed."""
    path = folder / "made.tape"
    path.unlink(missing_ok=True)
    writer = TapeWriter(path, msgspec.structs.replace(HEADER, **header))
    for n in range(1, events + 1):
        writer.append(tape.Event(n, float(n), msgspec.Raw(msgspec.msgpack.encode({"type": "x"}))))
    writer.append(tape.Closed(events, "done"))
    writer.close()
    return path.read_bytes()


class Stand:
    """A receiver, and a client that sends to it."""

    def __init__(self, folder):
        self.folder, self.notes, self.answers, self.n = folder / "tapes", [], [], 0
        self.again()

    def again(self):
        """A syncer that starts again in the same folder."""
        note = lambda event, fields: self.notes.append((event, fields))  # noqa: E731
        self.receiver = TapeReceiver(self.folder, NAMES, ("job-1", {}), self, note)

    def send_nowait(self, route, frames):
        """What an endpoint does."""
        self.answers.append((route, decode_answer(frames)))

    async def say(self, word, *data, route=ROUTE):
        """Say a word; its answer, None if there is none."""
        self.answers.clear()
        self.n += 1
        said = encode(msgspec.structs.replace(word, n=self.n)) if word is not None else b"\xc1"
        await self.receiver._handle(Arrival(route, (said, *data)))
        assert all(to == route and each.n in {0, self.n} for to, each in self.answers)
        return self.answers[0][1] if self.answers else None

    async def ship(self, data, offset=0, route=ROUTE, digest=None):
        """One segment."""
        return await self.say(Segment(0, offset, digest or digest_of(data)), data, route=route)

    @property
    def files(self):
        """Everything in the folder of tapes and around it."""
        around = self.folder.parent.rglob("*")
        return sorted(each.name for each in around if each.is_file() and each.name != "made.tape")


@pytest.fixture
def stand(tmp_path):
    """A receiver that has nothing yet."""
    return Stand(tmp_path)


@pytest.fixture
def whole(tmp_path):
    """A tape to be shipped."""
    return tape_bytes(tmp_path)


async def test_a_tape_arrives_in_segments(stand, whole):
    """Each is answered with what is there; a syncer that starts again knows it, and continues."""
    assert Has(1, 0, digest_of(b"")) == await stand.say(AskLength(0))
    assert Has(2, 300) == await stand.ship(whole[:300])
    stand.again()
    assert Has(3, 300, digest_of(whole[:300])) == await stand.say(AskLength(0))
    assert Has(4, len(whole)) == await stand.ship(whole[300:], 300)
    assert Has(5, len(whole)) == await stand.say(Whole(0, len(whole)))
    assert whole == (stand.folder / "learner-0.1.tape").read_bytes()
    assert (0, []) == (stand.receiver.refusals.count, stand.notes)


@pytest.mark.parametrize(
    "route",
    ["syncer.1/tape", "learner-2.1/tape", "learner-0/tape", "learner-0.0/tape", "learner-0.x/tape",
     "../learner-0.1/tape", "learner-0.1/../../x/tape", "learner-0.1\n/tape", "/tape", "a/tape"],
)  # fmt: skip
async def test_who_is_no_learner_leaves_nothing(stand, whole, route):
    """A name that is no incarnation of this job's learners is refused, and no file is made."""
    answer = await stand.ship(whole, route=route)
    assert isinstance(answer, Declined)
    assert [] == stand.files
    assert "is not an incarnation of a learner of this job" in stand.notes[0][1]["reason"]


async def test_no_sender_writes_in_anothers_name(stand, tmp_path):
    """A tape that says it is another's, or another job's, is none of this sender's."""
    for header in ({"incarnation": "learner-1.1"}, {"incarnation": "syncer.1"}, {"job_id": "x"}):
        answer = await stand.ship(tape_bytes(tmp_path, **header))
        assert isinstance(answer, Declined)
        assert answer.reason.startswith("a tape of ")
    assert isinstance(await stand.ship(b"no tape at all, but some bytes"), Declined)
    assert (4, []) == (stand.receiver.refusals.count, stand.files)


async def test_a_tape_that_is_here_is_left_alone(stand, whole):
    """Sharing a folder is no error: nothing is taken, nothing is refused."""
    stand.folder.mkdir()
    (stand.folder / "learner-0.1.tape").write_bytes(whole[:100])
    for answer in (await stand.say(AskLength(0)), await stand.ship(whole[100:], 100)):
        assert isinstance(answer, Declined)
        assert answer.shared
    assert whole[:100] == (stand.folder / "learner-0.1.tape").read_bytes()
    assert 0 == stand.receiver.refusals.count


async def test_wrong_segments_are_refused_and_counted(stand, whole):
    """At another byte, with another digest, twice: nothing is written, what is there is said."""
    await stand.ship(whole[:300])
    assert Has(2, 300) == await stand.ship(whole[300:400], 301)
    assert Has(3, 300) == await stand.ship(whole[300:400], 300, digest=b"\0" * 16)
    assert Has(4, 300) == await stand.ship(whole[:300])
    assert 3 == stand.receiver.refusals.count
    assert [1, 2, 3] == [fields["count"] for _, fields in stand.notes]
    assert whole[:300] == (stand.folder / "learner-0.1.tape").read_bytes()


async def test_what_is_too_large_is_refused(stand, whole, monkeypatch):
    """A segment, and a tape; what was there stays."""
    await stand.ship(whole[:300])
    assert await stand.ship(b"x" * (SEGMENT_BYTES_MAX + 1), 300) is None
    monkeypatch.setattr(receiver_module, "TAPE_BYTES_MAX", 400)
    answer = await stand.ship(whole[300:500], 300)
    assert "a tape of more than 400 bytes" == answer.reason
    monkeypatch.undo()
    monkeypatch.setattr(receiver_module, "TAPES_MAX", 1)
    answer = await stand.ship(whole, route="learner-1.1/tape")
    assert "more than 1 tapes" == answer.reason
    assert 3 == stand.receiver.refusals.count
    assert ["learner-0.1", "learner-0.1.tape"] == stand.files
    assert ["learner-0.1"] == [each.name for each in (stand.folder / MARKS).iterdir()]


async def test_garbage_is_refused(stand):
    """No word, a word with parts that it has not, a segment without bytes, another version."""
    assert await stand.say(None) is None
    assert await stand.say(AskLength(0), b"more") is None
    assert await stand.say(Segment(0, 0, b"")) is None
    assert await stand.say(Has(0, 0)) is None
    assert f"in version {VERSION}, not" in (await stand.say(AskLength(0, VERSION + 1))).reason
    assert (5, []) == (stand.receiver.refusals.count, stand.files)


async def test_a_full_disk_is_waited_for(stand, whole, monkeypatch):
    """The log says it; what was there stays a tape, and continues once there is room."""
    await stand.ship(whole[:300])
    real = receiver_module.os.pwrite
    with monkeypatch.context() as full:
        full.setattr(receiver_module.os, "pwrite", lambda fd, data, at: real(fd, data[:10], at))
        assert await stand.ship(whole[300:], 300) is None
    assert whole[:300] == (stand.folder / "learner-0.1.tape").read_bytes()
    [(event, fields)] = stand.notes
    reason = "cannot be written here: No space left on device"
    assert ("segment refused", reason) == (event, fields["reason"])
    assert Has(3, len(whole)) == await stand.ship(whole[300:], 300)


async def test_a_folder_that_cannot_be_written_is_said(stand, whole, monkeypatch):
    """The sender is told, and does not try for ever."""

    def write(fd, data, at):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(receiver_module.os, "pwrite", write)
    answer = await stand.ship(whole)
    assert "cannot be written here: Permission denied" == answer.reason


# With a sender on the other side.


class Wire:
    """Carries words between a sender and a receiver; loses those that it is told to lose."""

    def __init__(self, stand, path, **table):
        self.stand, self.lose, self.said = stand, 0, 0
        self.notes = []
        note = lambda event, fields: self.notes.append((event, fields))  # noqa: E731
        shipper_table = TapeTable(segment_bytes=4096, segment_s=0.2, **table)
        self.sender = TapeSender(path, "syncer/tape", self, shipper_table, note)
        stand.send_nowait = self.answer

    def send_nowait(self, route, frames):
        """From the sender."""
        assert route == "syncer/tape"
        self.said += 1
        if self.lose:
            self.lose -= 1
        else:
            self.stand.receiver.take(Arrival(ROUTE, tuple(bytes(frame) for frame in frames)))

    def answer(self, route, frames):
        """From the receiver."""
        self.sender.take(Arrival("syncer/tape", tuple(frames)))


async def finished(wire):
    """Let the sender ship the rest."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wire.stand.receiver.run)
        await wire.sender.finish()
        nursery.cancel_scope.cancel()


@pytest.fixture
def virtual(autojump_clock, monkeypatch):
    """Virtual time, which does not wait for threads; so files are read and written without."""

    async def at_once(function, *arguments):
        await trio.lowlevel.checkpoint()
        return function(*arguments)

    monkeypatch.setattr(trio.to_thread, "run_sync", at_once)
    return autojump_clock


@pytest.fixture
def source(tmp_path):
    """A tape of several segments, as its own host has it."""
    path = tmp_path / "source.tape"
    path.write_bytes(tape_bytes(tmp_path, events=400))
    return path


@pytest.mark.parametrize("lose", [0, 1, 2])
async def test_all_of_it_arrives(stand, source, lose, virtual, monkeypatch):
    """Whatever is lost on the way is asked for again."""
    del virtual
    monkeypatch.setattr(sender_module, "FINISH_S", 60.0)
    wire = Wire(stand, source)
    wire.lose = lose
    await finished(wire)
    assert source.read_bytes() == (stand.folder / "learner-0.1.tape").read_bytes()
    assert [] == wire.notes
    assert not stand.receiver._coming()


@pytest.mark.parametrize("asked_before", [False, True])
async def test_a_learner_that_has_not_asked_yet_is_waited_for(stand, virtual, asked_before):
    """It spoke on another lane when the syncer ended, and has shipped nothing to this syncer; one
    that was silent for long, or shares the folder, is not waited for."""
    del virtual
    receiver = stand.receiver
    assert receiver.heeds("learner-0.1/control")
    assert receiver.heeds("an-observer/control")
    if asked_before:
        stand.folder.mkdir()
        (stand.folder / "learner-0.1.tape").write_bytes(b"of this folder")
        await stand.say(AskLength(0))
    begun = trio.current_time()
    await receiver.finish()
    waited_s = 0.0 if asked_before else receiver_module.QUIET_S
    assert trio.current_time() - begun == pytest.approx(waited_s, abs=0.31)


async def test_shipping_goes_on_after_a_full_disk(stand, source, virtual, monkeypatch):
    """For a minute nothing can be written, neither a first segment nor a later one; then all of
    the tape arrives."""
    del virtual
    real, begun = receiver_module.os.pwrite, trio.current_time()

    def write(fd, data, at):
        if 5.0 < trio.current_time() - begun < 65.0:
            return real(fd, data[:10], at)
        return real(fd, data, at)

    monkeypatch.setattr(receiver_module.os, "pwrite", write)
    wire = Wire(stand, source)
    whole = source.read_bytes()
    source.write_bytes(whole[: len(whole) // 2])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stand.receiver.run)
        nursery.start_soon(wire.sender.run)
        await trio.sleep(6.0)
        source.write_bytes(whole)
        await trio.sleep(100.0)
        nursery.cancel_scope.cancel()
    assert whole == (stand.folder / "learner-0.1.tape").read_bytes()
    assert [] == wire.notes


async def test_what_is_missing_is_said(stand, source, virtual):
    """Without an answer: a bounded wait, and one line."""
    del virtual
    wire = Wire(stand, source)
    wire.lose = 10**6
    begun = trio.current_time()
    await finished(wire)
    size = source.stat().st_size
    assert [(NOT_SHIPPED, {"missing_bytes": size, "of_bytes": size})] == wire.notes
    assert sender_module.FINISH_S == pytest.approx(trio.current_time() - begun)


async def test_other_bytes_under_its_name_are_left_alone(stand, source, whole, virtual):
    """A learner that lost its folder and begins at 1 again does not replace what it had shipped."""
    del virtual
    await stand.ship(whole[:300])
    await stand.ship(b"otherwise", 300)
    wire = Wire(stand, source)
    await finished(wire)
    assert [
        (NOT_SHIPPED, {"reason": "the receiver has 309 other bytes under its name"})
    ] == wire.notes
    assert whole[:300] + b"otherwise" == (stand.folder / "learner-0.1.tape").read_bytes()


async def test_a_lane_is_taken_aside():
    """What comes on it never reaches the driver; the rest does."""
    came, aside = [], []

    class Three:
        async def run(self, deliver):
            for route in ("syncer/tape", "syncer/bulk", "learner-0.1/tape"):
                await deliver(Arrival(route, (b"x",)))

    async def deliver(arrival):
        came.append(arrival.route)
        await trio.lowlevel.checkpoint()

    lane = SideChannel(Three(), "tape", lambda arrival: aside.append(arrival.route))
    await lane.run(deliver)
    assert (["syncer/bulk"], ["syncer/tape", "learner-0.1/tape"]) == (came, aside)
    await lane.run_alone()
    assert (1, 4) == (len(came), len(aside))


async def test_early_arrivals_of_one_peer_leave_room_for_those_of_others():
    """A learner in a session of before is answered once the actor runs, and so begins a new one:
    its newest messages wait, whatever others have sent."""
    said = [Arrival(f"learner-{n}.1/control", (b"%d" % k,)) for n in range(3) for k in range(1000)]

    class Busy:
        async def run(self, deliver):
            while said:
                await deliver(said.pop(0))

    came = []

    async def deliver(arrival):
        came.append((arrival.route, *arrival.frames))
        await trio.lowlevel.checkpoint()

    lane = SideChannel(Busy(), "tape", came.append)
    await lane.run_early()
    await lane.run(deliver)
    routes = [f"learner-{n}.1/control" for n in range(3)]
    assert came == [(route, frame) for route in routes for frame in (b"998", b"999")]
    await lane.run(deliver)
    assert len(came) == 6


async def test_no_sender_fills_a_disk(stand, autojump_clock, monkeypatch):
    """Of one actor so much arrives at once and so much a second, under whatever numbers; the rest
    is not answered, and may be said again. Others are not held up."""
    monkeypatch.setattr(receiver_module, "ACTOR_BYTES_AT_ONCE", 3000)
    monkeypatch.setattr(receiver_module, "ACTOR_BYTES_PER_S", 1000)
    stand.again()
    answered = 0
    for number in range(1, 100):
        junk = bytes(500)
        answered += await stand.ship(junk, route=f"learner-0.{number}/tape") is not None
    assert answered == 6
    assert await stand.ship(bytes(500), route="learner-1.1/tape") is not None
    await trio.sleep(1.0)
    assert await stand.ship(bytes(500), route="learner-0.1/tape") is not None
    assert stand.receiver.refusals.count > 90


async def test_a_tape_of_other_settings_is_refused(stand, tmp_path):
    """The id is only text; a replay would call what the settings beside it name."""
    forged = {"job": {"task": "subprocess:getoutput"}, "task": {"cmd": "touch x"}}
    answer = await stand.ship(tape_bytes(tmp_path, job=forged))

    assert isinstance(answer, Declined)
    assert "other settings" in answer.reason
    assert [] == stand.files
