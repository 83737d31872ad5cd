"""Memory shared with a worker: regions that do not overlap, are used again, and are seen."""

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddloco.stage.arrays.array_table import ArrayTable, HostCopy
from ddloco.stage.arrays.shared_memory import (
    FILE_OFFSETS,
    KEPT_FREE,
    MEMORY_FOLDER,
    PAGE,
    ArenaView,
    SharedMemory,
)
from transport import Payload

CHILD = """
import sys
from ddloco.stage.arrays.shared_memory import ArenaView

view = ArenaView([*map(int, sys.argv[1].split(","))])
first, second = [view.region(int(offset), 5000) for offset in sys.argv[2:]]
assert set(first) == {7} and set(second) == {9}, (set(first), set(second))
second[:] = 11
"""


@pytest.fixture
def arena():
    """Give an arena that is closed at the end."""
    arena = SharedMemory()
    yield arena
    arena.close()


def test_a_child_process_sees_what_was_written_and_is_seen(arena):
    """Both sides look at the same bytes, through nothing but the descriptor and an offset."""
    first, second = arena.allocate(5000), arena.allocate(5000)
    first.data[:], second.data[:] = 7, 9
    shared = arena.filenos()
    command = [sys.executable, "-c", CHILD, ",".join(map(str, shared))]

    subprocess.run([*command, str(first.offset), str(second.offset)], pass_fds=shared, check=True)

    assert set(second.data) == {11}
    assert set(first.data) == {7}


def test_a_view_maps_each_region_once(arena):
    """The worker's side gives the same array for the same region, also after the file grew."""
    one = arena.allocate(100)
    view = ArenaView(arena.filenos())
    seen = view.region(one.offset, 100)
    other = arena.allocate(3 * PAGE + 1)
    other.data[:] = 5

    one.data[:] = 3

    assert view.region(one.offset, 100) is seen
    assert set(seen) == {3}
    assert set(view.region(other.offset, 3 * PAGE + 1)) == {5}


@pytest.mark.parametrize("nbytes", [0, 1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE])
def test_a_region_has_the_length_asked_for(arena, nbytes):
    """Regions start at pages and are as long as asked, zero included."""
    region = arena.allocate(nbytes)

    assert len(region.data) == nbytes
    assert region.offset % PAGE == 0
    assert arena.find(region.data) is region


def test_a_freed_region_is_used_again(arena):
    """The same length comes from what was freed; another length, or none freed, is new."""
    one = arena.allocate(100)
    two = arena.allocate(100)
    arena.free(one)

    assert arena.allocate(200).offset not in {one.offset, two.offset}
    assert arena.allocate(100) is one
    assert arena.allocate(100).offset not in {one.offset, two.offset}


def held(arena):
    """The bytes that the arena's files take."""
    return sum(os.fstat(each).st_blocks * 512 for each in arena.filenos() if each >= 0)


def test_memory_that_is_not_needed_soon_is_given_back(arena):
    """A model that passes through in ten fragments leaves the memory of some, not of all."""
    regions = [arena.allocate(2**20) for _ in range(10)]
    for region in regions:
        region.data[:] = 1
    view = ArenaView(arena.filenos())
    seen = view.region(regions[0].offset, 2**20)
    assert held(arena) == 10 * 2**20

    for region in regions:
        arena.free(region)

    assert held(arena) == KEPT_FREE * 2**20
    again = [arena.allocate(2**20) for _ in range(10)]
    assert {each.offset for each in again} == {each.offset for each in regions}
    assert held(arena) == 10 * 2**20, "reserved before it is used"
    regions[0].data[:] = 7
    assert set(seen) == {7}
    assert arena.find(regions[0].data) is regions[0]


def test_small_regions_keep_their_memory(arena):
    """Giving it back would cost more than it is worth."""
    regions = [arena.allocate(PAGE) for _ in range(10)]
    for region in regions:
        arena.free(region)

    assert held(arena) == 10 * PAGE


def test_memory_that_cannot_be_taken_again_is_looked_for_elsewhere(arena, monkeypatch):
    """The file system has become full in the meantime: the other file has room, or nothing has."""
    regions = [arena.allocate(2**20) for _ in range(KEPT_FREE + 1)]
    for region in regions:
        arena.free(region)
    for _ in range(KEPT_FREE):
        arena.allocate(2**20)
    full, reserve = arena.filenos()[0], os.posix_fallocate

    def filled(file, offset, length):
        if file == full:
            raise OSError(errno.ENOSPC, "No space left on device")
        reserve(file, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", filled)

    assert arena.allocate(2**20).offset >= FILE_OFFSETS


def test_what_lies_elsewhere_is_not_found(arena):
    """Only a whole region is one: not other memory, and not a part."""
    region = arena.allocate(100)

    assert arena.find(np.zeros(100, np.uint8)) is None
    assert arena.find(region.data[:50]) is None
    assert arena.find(region.data[1:]) is None


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.sampled_from([0, 1, 64, PAGE, PAGE + 1])), max_size=20))
def test_regions_in_use_never_overlap(steps):
    """However regions are allocated and freed, no two overlap."""
    arena, used = SharedMemory(), []
    for number, (take, nbytes) in enumerate(steps):
        if take or not used:
            region = arena.allocate(nbytes)
            region.data[:] = number
            used.append((region, number))
        else:
            arena.free(used.pop(nbytes % len(used))[0])

    assert len({region.offset for region, _ in used}) == len(used)
    for region, number in used:
        assert set(region.data) <= {number}
    arena.close()


def test_bytes_outlive_the_arena():
    """Closing lets go of the file; arrays that are still looked at stay."""
    arena = SharedMemory()
    region = arena.allocate(10)
    region.data[:] = 4

    arena.close()

    assert set(region.data) == {4}


def test_a_freed_handle_gives_its_region_back(arena):
    """Host copies and payloads in the arena are used again once their handle is freed."""
    arrays = ArrayTable(arena)
    copy, wire = arena.allocate(64), arena.allocate(128)
    arrays.put("host/1", HostCopy(copy))
    arrays.put("wire/0/1", Payload((), wire.data))
    arrays.put("elsewhere", Payload((), np.zeros(64, np.uint8)))
    arrays.put("unknown", None)

    assert arrays.known("host/1", "")
    assert not arrays.known("host/1", "unknown")
    for handle in ("host/1", "wire/0/1", "elsewhere", "unknown", "never named"):
        arrays.free(handle)

    assert len(arrays) == 0
    assert arena.allocate(64) is copy
    assert arena.allocate(128) is wire


def test_a_region_is_reused_once_nothing_borrowed_from_it_is_left(arena):
    """A buffer made of a borrowed array holds the region, as ZeroMQ does while it sends, although
    payload and handles are gone; the last one may be dropped in any thread."""
    arrays, region = ArrayTable(arena), arena.allocate(256)
    region.data[:] = 3
    copy = HostCopy(region, start=1000)
    arrays.put("host/1", copy)
    arrays.put("out/1", Payload((), copy.borrowed(arena, 1000, 1256)))
    arrays.put("out/2", Payload((), copy.borrowed(arena, 1064, 1128)))
    sending = [arrays.get("out/1").data.data[:100], arrays.get("out/2").data.data]

    for handle in ("host/1", "out/1", "out/2"):
        arrays.free(handle)
    other = arena.allocate(256)
    other.data[:] = 4

    assert other.offset != region.offset
    assert [set(each) for each in sending] == [{3}, {3}]
    sending.pop()
    assert arena.allocate(256).offset != region.offset, "the other one is still being sent"
    dropper = threading.Thread(target=sending.clear)
    dropper.start()
    dropper.join()
    assert arena.allocate(256) is region
    assert arena.allocate(256) is not region


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (0, 64), (64, 128), (128, 128)])
def test_what_is_borrowed_cannot_be_written(arena, start, stop):
    """The worker may write to a region; nobody writes through what was borrowed from it."""
    region = arena.allocate(128)
    region.data[:] = range(128)

    borrowed = arena.borrow(region, start, stop)

    assert list(range(start, stop)) == borrowed.tolist()
    with pytest.raises(ValueError, match="read-only"):
        borrowed[:] = 1


def test_a_region_whose_loans_are_over_is_freed_as_before(arena):
    """Also where it is borrowed again, and where the loan ends before it is freed."""
    region = arena.allocate(64)
    for _ in range(3):
        arena.borrow(region, 0, 64)
    arena.free(region)
    assert arena.allocate(64) is region
    again = arena.borrow(region, 0, 64)
    arena.free(region)
    assert arena.allocate(64) is not region
    del again
    assert arena.allocate(64) is region


def test_a_handle_is_named_once():
    """Two arrays under one name are a mistake of ours."""
    arrays = ArrayTable()
    arrays.put("x", None)

    with pytest.raises(AssertionError, match="x is named twice"):
        arrays.put("x", None)


@pytest.fixture
def small_place(tmp_path):
    """A file system in memory with little room, which only root can make."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_what_has_no_room_in_memory_lies_in_a_file(small_place, tmp_path):
    """Docker gives /dev/shm 64 MB; both sides see what lies in either place, and freed regions are
    used again."""
    arena = SharedMemory([small_place, tmp_path])
    view = ArenaView(arena.filenos())
    small, large = arena.allocate(5000), arena.allocate(2**20)
    small.data[:], large.data[:] = 3, 4
    assert (view.region(small.offset, 5000) == 3).all()
    assert (view.region(large.offset, 2**20) == 4).all()
    assert os.fstat(arena.filenos()[1]).st_size == 2**20
    assert arena.find(large.data) is large
    arena.free(large)
    assert arena.allocate(2**20) is large
    arena.close()


def test_without_room_anywhere_one_line_says_what_helps(small_place):
    """And not a signal; what has room continues."""
    arena = SharedMemory([small_place, small_place])
    with pytest.raises(OSError, match="no room to share 1,048,576 bytes") as raised:
        arena.allocate(2**20)
    assert "--shm-size" in str(raised.value)
    assert raised.value.filename == str(small_place)
    arena.allocate(5000).data[:] = 1
    arena.close()


def test_a_place_that_is_not_there_is_no_matter(tmp_path):
    """A system without /dev/shm; where nothing can be made, the same line says so."""
    arena = SharedMemory([tmp_path / "none", tmp_path])
    arena.allocate(5000).data[:] = 1
    arena.close()
    with pytest.raises(OSError, match="TMPDIR"):
        SharedMemory([tmp_path / "none", tmp_path / "neither"])


def test_an_array_is_memory_of_its_own_until_nobody_has_it(arena):
    """Also of slices and buffers made of it; arrays of about one size use each other's memory."""
    one = arena.array(2**20)
    one[:] = 5
    part = one[100:200].data
    del one
    other = arena.array(2**20)
    other[:] = 6
    assert set(part) == {5}
    del part, other
    regions = len(arena._by_address)
    for nbytes in (2**20, 2**20 + 5000, 2**20 + 2**17 - 1):
        assert len(arena.array(nbytes)) == nbytes
    assert len(arena._by_address) == regions + 1


def test_what_lies_in_the_arena_has_a_place(arena):
    """The file and the offset at which another process finds the same bytes."""
    regions = [arena.allocate(nbytes) for nbytes in (5000, 70000, 5000)]
    for number, region in enumerate(regions, 1):
        region.data[:] = number
    for region in regions:
        part = region.data[8:4000].data
        assert arena.place_of(part) == (0, region.offset + 8)
        assert os.pread(arena.filenos()[0], 3992, region.offset + 8) == part
    assert arena.place_of(np.zeros(100, np.uint8).data) is None
    assert arena.place_of(b"elsewhere") is None


def test_an_array_without_room_in_memory_is_of_this_process(small_place, tmp_path):
    """What others read in place of being sent it is not worth a file on a disk."""
    arena = SharedMemory([small_place, tmp_path])
    data = arena.array(2**20)
    assert arena.place_of(data.data) is None
    assert os.fstat(arena.filenos()[1]).st_size == 0
    arena.close()
    assert arena.filenos() == (-1, -1)


def test_only_so_many_bytes_that_arrived_are_in_memory(tmp_path):
    """Further ones lie in the second file, until some of the others are freed; what is allocated
    for other purposes does not count."""
    places = [tmp_path / "memory", tmp_path / "disk"]
    for place in places:
        place.mkdir()
    arena, mib = SharedMemory(places, arrived_max=2.5 * 2**20), 2**20
    own = arena.allocate(mib)
    arrived = [arena.allocate(mib, arrived=True) for _ in range(4)]
    assert [region.offset // FILE_OFFSETS for region in (own, *arrived)] == [0, 0, 0, 1, 1]
    for number, region in enumerate(arrived):
        region.data[:] = number
        arena.rest(region.data)
    assert [int(region.data.sum()) // mib for region in arrived] == [0, 1, 2, 3]
    arena.free(arrived[0])
    assert arena.allocate(mib, arrived=True) is arrived[0]
    arena.free(arrived[3])
    assert arena.allocate(mib, arrived=True) is arrived[3], "the memory is full again"
    assert arena.allocate(mib).offset < FILE_OFFSETS
    sizes = [os.fstat(number).st_size // mib for number in arena.filenos()]
    assert sizes == [4, 2]
    arena.close()


def test_what_rests_on_a_disk_takes_no_memory_of_the_process(tmp_path):
    """64 arrived fragments, of which four fit: the others are no resident memory once they are
    whole, and every byte is there when it is read."""
    arena, nbytes = SharedMemory([MEMORY_FOLDER, tmp_path], arrived_max=4 * 2**20), 2**20
    before, found = resident(), []
    for number in range(64):
        region = arena.allocate(nbytes, arrived=True)
        region.data[:] = number
        arena.rest(region.data)
        found.append(region)
    assert resident() - before < 8 * nbytes
    for number, region in enumerate(found):
        assert (region.data == number).all()
        arena.rest(region.data)
    assert resident() - before < 8 * nbytes
    arena.close()


def resident():
    """The resident memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
