"""What a syncer keeps: found again to the bit, or refused by name."""

import os
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from ddloco.job.protocol.work import Kept
from ddloco.machines.outer.optimizers.optimizer import STEPS, state_digest
from ddloco.workers.fragment_store import (
    FragmentFolder,
    FragmentHistory,
    FragmentStoreError,
    StoredFragment,
    theta_digest,
)

JOB = "small-1234"


def found(fragment=0, version=8, start=0.0):
    theta = np.arange(5, dtype=np.float32) + np.float32(start)
    state = {"momentum": theta * np.float32(0.5), STEPS: np.array([7])}
    spent = {"learner-1.2": 4, "learner-0.1": 8}
    return StoredFragment(
        Kept(fragment, version, spent, {}, theta_digest(theta, state)), theta, state
    )


def same(one, other):
    alike = state_digest(one.state) == state_digest(other.state)
    return one.kept == other.kept and one.theta.tobytes() == other.theta.tobytes() and alike


def test_the_newest_of_each_fragment_is_found(tmp_path):
    """In order of fragments; what a later merge replaced is gone."""
    keep = FragmentFolder(tmp_path / "kept", JOB)
    assert list(keep.find()) == []
    for each in (found(11, 4), found(2, 6), found(11, 9, start=3.0)):
        keep.put(each)

    first, second = FragmentFolder(tmp_path / "kept", JOB).find()
    assert same(first, found(2, 6))
    assert same(second, found(11, 9, start=3.0))


def test_counted_tokens_are_kept(tmp_path):
    """With the fragment that they were merged into."""
    keep, one = FragmentFolder(tmp_path, JOB), found()
    keep.put(replace(one, kept=msgspec.structs.replace(one.kept, tokens=2**40)))
    [again] = keep.find()

    assert 2**40 == again.kept.tokens


def test_what_cannot_be_written_leaves_what_was(tmp_path, small_disk):
    """A full disk is an error, and the fragment as it was before is still there."""
    keep = FragmentFolder(tmp_path, JOB)
    keep.put(found())
    with small_disk(100), pytest.raises(OSError, match="cannot be written"):
        keep.put(found(version=9))
    [still] = keep.find()
    assert same(still, found())


def test_every_damaged_byte_is_noticed(tmp_path):
    """No flipped byte of a file is believed: it is refused with the file's name."""
    keep = FragmentFolder(tmp_path, JOB)
    keep.put(found())
    [path] = tmp_path.iterdir()
    whole = path.read_bytes()
    for index in range(len(whole)):
        path.write_bytes(whole[:index] + bytes([whole[index] ^ 1]) + whole[index + 1 :])
        refused = None
        try:
            [read] = keep.find()
        except FragmentStoreError as error:
            refused = str(error)
        # Padding may differ, nothing else.
        assert refused.startswith(str(path)) if refused else same(read, found()), index


def test_fragments_of_another_job_are_refused(tmp_path):
    """A run folder that is used again by mistake is no source of truth."""
    FragmentFolder(tmp_path, "other-1").put(found())
    with pytest.raises(FragmentStoreError, match=r"of job other-1, this is small-1234"):
        FragmentFolder(tmp_path, JOB).find()


def test_it_is_known_that_a_job_was_done(tmp_path):
    """Of this job, not of another one in the same folder, and not before."""
    keep = FragmentFolder(tmp_path, JOB)
    assert not keep.done()
    keep.note_done()
    assert keep.done()
    assert FragmentFolder(tmp_path, JOB).done()
    assert not FragmentFolder(tmp_path, "other-1").done()


def test_a_replay_remembers_what_may_have_been_kept():
    """The newest two merges of a fragment, by version."""
    history = FragmentHistory()
    merges = [found(0, t, start=t) for t in (4, 8, 12)]
    for each in merges:
        history.put(each)

    assert [history.at(0, t) for t in (4, 8, 12)] == [None, *merges[1:]]
    assert history.at(1, 8) is None


def test_of_what_a_snapshot_brought_only_the_merge_is_compared():
    """It was merged before the cut, when data had not gone as far; later ones are compared all."""
    history = FragmentHistory()
    brought, later = found(0, 4), found(0, 8)
    history.put(brought)
    history.bring()
    history.put(later)
    elsewhere = {"batches": {"learner-0": 1234}}

    for each, agrees in ((brought, True), (later, False)):
        assert history.agrees(each.kept)
        assert agrees == history.agrees(msgspec.structs.replace(each.kept, **elsewhere))
        assert not history.agrees(msgspec.structs.replace(each.kept, digest=bytes(32)))
    assert not history.agrees(found(0, 12).kept)


def test_fragments_that_were_swapped_are_refused(tmp_path):
    """Each says which one it is, and so does its file's name."""
    keep = FragmentFolder(tmp_path, JOB)
    keep.put(found(0))
    keep.put(found(1, start=2.0))
    one, other = sorted(tmp_path.iterdir())
    one.rename(tmp_path / "x")
    other.rename(one)
    (tmp_path / "x").rename(other)

    with pytest.raises(FragmentStoreError, match=r"fragment-0000\.safetensors: holds fragment 1"):
        keep.find()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_refused(tmp_path, make):
    """A FIFO is not waited for."""
    make(tmp_path / "fragment-0000.safetensors")

    with pytest.raises(FragmentStoreError, match="not a regular file"):
        FragmentFolder(tmp_path, JOB).find()
