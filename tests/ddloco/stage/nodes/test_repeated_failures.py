"""Failures that an actor comes back from, and one that it does not."""

import pytest

from ddloco.stage.actors.effects import Finish
from ddloco.stage.nodes.repeated_failures import LASTING, unless_lasting

AWAY = Finish("failed", "the store is away, at batch 7", again=True)


def test_the_same_in_a_row_ends_it_for_good(tmp_path):
    """And then it may be started again by a person who has mended it: it counts from one."""
    for _ in range(2):
        for _ in range(LASTING - 1):
            assert AWAY == unless_lasting(tmp_path, "a", AWAY)
        ended = unless_lasting(tmp_path, "a", AWAY)
        assert ("failed", False) == (ended.status, ended.again)
        said = f"{AWAY.reason}; {LASTING} incarnations in a row have ended with this"
        assert said == ended.reason


def test_another_failure_or_another_actor_counts_anew(tmp_path):
    """An outage that lets it train a little is none that lasts."""
    for batch in range(3 * LASTING):
        gone = Finish("failed", f"the store is away, at batch {batch}", again=True)
        assert gone == unless_lasting(tmp_path, "a", gone)
        assert AWAY == unless_lasting(tmp_path, f"b{batch}", AWAY)


def test_other_ends_are_as_they_are(tmp_path):
    """Nothing is written of them."""
    for finish in (Finish("done", "over"), Finish("failed", "a bug"), Finish("left", "asked")):
        assert finish == unless_lasting(tmp_path, "a", finish)
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("found", [b"", b"{}", b"[1]", b"\xff"])
def test_a_damaged_record_is_none(tmp_path, found):
    """It counts from one."""
    unless_lasting(tmp_path, "a", AWAY)
    (tmp_path / "tracebacks" / "a.json").write_bytes(found)
    for _ in range(LASTING - 1):
        assert AWAY == unless_lasting(tmp_path, "a", AWAY)
    assert not unless_lasting(tmp_path, "a", AWAY).again
