"""Identities of runs: what differs is named, and what cannot be known is not said to differ."""

from pathlib import Path

import pytest

from ddloco.stage.process import run_identity
from ddloco.stage.process.run_identity import (
    GONE,
    WHOLE_BYTES_MAX,
    changes,
    file_digest,
    identity_here,
    said_of_variable,
    sources_in,
)

ONE = {
    "ddloco": "ddloco 1", "jax": "0.10", "source a/b.py": "ab" * 32,
    "file x.txt": "cd" * 16, "task.env.LR": "0.1",
}  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("ddloco", "ddloco 2", "ddloco was ddloco 1, is ddloco 2"),
        ("source a/b.py", "ba" * 32, "the source file a/b.py was abababababab, is babababababa"),
        ("file x.txt", GONE, "the file x.txt, which the task reads, was cdcdcdcdcdcd, is gone"),
        ("task.env.LR", "1", "the variable LR, which the task reads, was 0.1, is 1"),
        ("mesh", "2", "mesh was not set, is 2"),
    ],
)
def test_each_difference_is_named(key, value, said):
    """By what it is, with both values; digests are short."""
    assert [said] == [str(each) for each in changes(ONE, {**ONE, key: value})]


def test_what_one_does_not_know_is_no_difference():
    """If only what both know is asked for; and a file may have another name elsewhere."""
    assert [] == [*changes(ONE, {"jax": "0.10", "cpu": "x"}, shared=True)]
    moved = {k: v for k, v in ONE.items() if k != "file x.txt"} | {"file /y/x.txt": "cd" * 16}
    assert [] == [*changes(ONE, moved)]
    assert [] == [*changes(moved, ONE)]


def test_versions_of_what_is_installed(monkeypatch):
    """And that something is not."""
    found = identity_here({"a.py": "00"})
    assert {"ddloco", "python", "jax", "jaxlib", "numpy", "optax"} < {*found}
    assert sources_in(found) == {"a.py": "00"}
    monkeypatch.setattr(run_identity, "PACKAGES", ("no-such-package",))
    assert identity_here({})["no-such-package"] == "not installed"


def test_values_of_variables():
    """Numbers and switches as they are; what may be a secret by its digest."""
    assert ["not set", "-3e-4", "on"] == list(map(said_of_variable, (None, "-3e-4", "on")))
    assert said_of_variable("hf_secret").startswith("sha256 ")


@pytest.mark.parametrize("size", [5, WHOLE_BYTES_MAX, 4 * WHOLE_BYTES_MAX])
def test_files_have_digests(tmp_path, size):
    """Of the whole, or of a large file's size and parts, both ends among them; none if it cannot be
    read."""
    path = tmp_path / "data"
    path.touch()
    with path.open("r+b") as file:
        file.truncate(size)
        seen = {file_digest(path)}
        for place in (0, size - 1, size):
            file.seek(place)
            file.write(b"1")
            file.flush()
            seen.add(file_digest(path))
    assert len(seen) == 4
    assert GONE == file_digest(tmp_path) == file_digest(Path("/no/such/file"))
