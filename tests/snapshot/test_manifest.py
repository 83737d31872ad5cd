"""Manifests and pieces: equal contents have equal bytes, and no byte changes unnoticed."""

import msgspec
import pytest

from snapshot import Entry, Manifest, SnapshotError, digest_of
from snapshot.manifest import (
    decode_manifest,
    decode_piece,
    encode_manifest,
    encode_piece,
    file_of,
    id_of,
)
from snapshot.record import Part

DIGEST = "ab" * 32
PART = Part("a.1", 3, {"a.1": 3, "b.1": 2}, ("b.1",), {}, (DIGEST,))
MANIFEST = Manifest("a.1:3", 7, {"job": "x", "steps": 5}, (PART,), {"c.1": "gone"}, 99)


def test_a_manifest_comes_back():
    """All that is in a manifest is read again."""
    assert decode_manifest(encode_manifest(MANIFEST), "a.1-3") == MANIFEST


def test_equal_manifests_have_equal_bytes():
    """The order of a mapping is nothing."""
    turned = Part("a.1", 3, {"b.1": 2, "a.1": 3}, ("b.1",), {}, (DIGEST,))
    other = Manifest("a.1:3", 7, {"steps": 5, "job": "x"}, (turned,), {"c.1": "gone"}, 99)

    assert encode_manifest(MANIFEST) == encode_manifest(other)


def test_no_byte_of_a_manifest_changes_unnoticed():
    """Whichever byte is another, dropped or doubled, the manifest is refused."""
    data = encode_manifest(MANIFEST)
    for at in range(len(data)):
        for changed in (
            bytes([data[at] ^ 1]),
            bytes([data[at] ^ 0x20]),
            bytes([data[at] ^ 0x80]),
            b"",
            data[at : at + 1] * 2,
            data[at : at + 1] + b" ",
        ):
            with pytest.raises(SnapshotError):
                decode_manifest(data[:at] + changed + data[at + 1 :], "a.1-3")


def test_a_manifest_of_another_name_is_refused():
    """A manifest that was copied under another name is not that snapshot."""
    with pytest.raises(SnapshotError, match=r"is the manifest of a.1:3"):
        decode_manifest(encode_manifest(MANIFEST), "a.1-4")


@pytest.mark.parametrize("version", [1, 10, "2", None])
def test_another_format_is_refused_by_its_number(version):
    """What a later program wrote is refused as such, sealed as it may be."""
    plain = msgspec.to_builtins(MANIFEST)
    raw = msgspec.json.encode({**plain, "format": version, "new": 1})
    sealed = {"digest": digest_of([memoryview(raw)]), "manifest": msgspec.Raw(raw)}

    with pytest.raises(SnapshotError, match="has another format than 2"):
        decode_manifest(msgspec.json.encode(sealed), "a.1-3")


def test_a_piece_comes_back_whatever_its_order():
    """Entries are sorted, so equal sets of them are one blob."""
    entries = [Entry("state", "b", DIGEST, 1), Entry("array", "x", DIGEST, 2)]

    data = encode_piece(entries)

    assert data == encode_piece(entries[::-1])
    assert decode_piece(data) == tuple(entries[::-1])


def test_two_entries_of_one_name_are_refused():
    """A piece says of each name one thing."""
    with pytest.raises(SnapshotError, match="same kind and name"):
        encode_piece([Entry("state", "x", DIGEST, 1), Entry("state", "x", DIGEST, 2)])


DEEP = b'{"entries":[],"other":' + b"[" * 100_000


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", b'{"entries":[],"format":1}', DEEP])
def test_no_piece_is_refused(data):
    """Other bytes are no piece."""
    with pytest.raises(SnapshotError):
        decode_piece(data)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("syncer.1:1042", "snapshots/syncer.1-1042.json"),
        ("syncer-0.1:7", "snapshots/syncer-0.1-7.json"),
        ("syncer-0.1-7", "snapshots/syncer-0.1-7.json"),
    ],
)
def test_a_name_becomes_a_file(name, file):
    """A snapshot is found by its name and by its id alike."""
    assert file_of(name) == file


@pytest.mark.parametrize(
    "name",
    ["", "latest", "a", "a:", ":1", "a:b", "../x:1", "a/b:1", ".x:1", "a\n:1", "a:1:2", "-1"],
)
def test_what_is_no_name_never_becomes_a_file(name):
    """Names come over the network; no path is made of one that is not plain."""
    with pytest.raises(SnapshotError):
        id_of(name)
