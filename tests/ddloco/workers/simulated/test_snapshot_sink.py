"""What simulated actors write: pictures by digest, the worker as it is when its step is done."""

import pytest

from ddloco.actors.effects import CaptureFlight, CaptureState, CommitSnapshot
from ddloco.actors.events import Captured, Committed
from ddloco.protocol.effects import RunStep
from ddloco.workers.simulated.snapshot_sink import Album, Photographer, Picture
from ddloco.workers.simulated.work import Content

THETA = Content((0, 3, 0, 0))
NAME = "syncer.1:7"


@pytest.fixture
def photographer():
    """One actor's, with an album of its own."""
    return Photographer(Album())


def capture(work=-1, handles=()):
    """A picture of a state is asked for."""
    return CaptureState(work, NAME, b"frozen", handles)


def test_a_picture_is_named_by_all_of_it():
    """Bytes, contents, handles and worker each make it another; the same is the same."""
    pictures = [
        Picture(b"frozen", {"theta/0/3": THETA}, (1,)),
        Picture(b"other", {"theta/0/3": THETA}, (1,)),
        Picture(b"frozen", {"theta/0/4": THETA}, (1,)),
        Picture(b"frozen", {"theta/0/3": Content((0, 4, 0, 0))}, (1,)),
        Picture(b"frozen", {"theta/0/3": THETA}, (2,)),
        Picture(b"frozen", {"theta/0/3": THETA}),
    ]
    assert len(pictures) == len({each.name for each in pictures})
    assert pictures[0].name == Picture(b"frozen", {"theta/0/3": THETA}, (1,)).name


def test_a_state_is_written_with_what_it_holds(photographer):
    """As it is now, where no step runs."""
    work = capture(handles=("theta/0/3",))
    photographer.begin(work, lambda: (5,))
    assert photographer.ready(work)
    done = photographer.do(work, {"theta/0/3": THETA, "other": THETA})
    picture = photographer.album.pictures[done.content]
    assert Picture(b"frozen", {"theta/0/3": THETA}, (5,)) == picture
    assert Captured(-1, picture.name) == done


def test_a_step_that_runs_is_waited_for(photographer):
    """The state is the one after it, and before the next."""
    photographer.begin(RunStep(1, 1, (), "host/1"), lambda: (0,))
    work = capture()
    photographer.begin(work, lambda: (0,))
    assert not photographer.ready(work)
    photographer.stepped((1,))
    photographer.begin(RunStep(2, 2, (), "host/2"), lambda: (1,))
    photographer.stepped((2,))
    assert photographer.ready(work)
    content = photographer.do(work, {}).content
    assert (1,) == photographer.album.pictures[content].worker


def test_what_was_in_flight_has_no_worker(photographer):
    """Nobody waits with it."""
    work = CaptureFlight(-2, NAME, b"messages", ("in/4",))
    photographer.begin(RunStep(1, 1, (), "host/1"), lambda: (0,))
    photographer.begin(work, lambda: (0,))
    assert photographer.ready(work)
    content = photographer.do(work, {"in/4": THETA}).content
    picture = photographer.album.pictures[content]
    assert (b"messages", {"in/4": THETA}, None) == (
        picture.frozen,
        picture.contents,
        picture.worker,
    )


def test_a_snapshot_that_is_committed_stands(photographer):
    """By its name."""
    work = CommitSnapshot(-3, NAME, (), {})
    photographer.begin(work, tuple)
    assert Committed(-3) == photographer.do(work, {})
    assert {NAME: work} == photographer.album.committed
