"""What can be checked of tapes without executing them, and that each check can fail."""

from pathlib import Path

import msgspec
import pytest

from replay import Receipt, Tape, TapeWriter, tape, verify

HEADER = tape.TapeHeader("a.1", "job", {}, "code", {})


def write(folder: Path, me: str, events: list[dict], closed: bool = True) -> Tape:
    """A tape of plain events; ``learned`` overrides what the clock is said to have learned."""
    writer = TapeWriter(folder / f"{me}.tape", msgspec.structs.replace(HEADER, incarnation=me))
    for n, event in enumerate(events, start=1):
        learned = event.pop("learned", {k: v for k, v in event.get("clock", {}).items() if k != me})
        silent = event.pop("silent", False)
        raw = msgspec.Raw(msgspec.msgpack.encode(event))
        writer.append(tape.Event(n, float(n), raw, learned))
        if not silent:
            writer.append(tape.Effects(n, 0, b"\0" * 16))
    if closed:
        writer.append(tape.Closed(len(events), "done"))
    writer.close()
    return Tape(folder / f"{me}.tape")


def receipt_of(event: dict) -> Receipt | None:
    """Events with a sender are receipts."""
    if "sender" not in event:
        return None
    return Receipt(event["sender"], (event["sender"],), event["seq"], event["clock"])


def message(sender: str, seq: int, **clock: int) -> dict:
    """An arrival; dots in names are written as underscores."""
    return {
        "sender": sender,
        "seq": seq,
        "clock": {name.replace("_", "."): count for name, count in clock.items()},
    }


def problems(*tapes: Tape) -> list[str]:
    """Everything that was found."""
    verdicts, between = verify(tapes, receipt_of)
    return [problem for verdict in verdicts for problem in verdict.problems] + between


def test_good_tapes_hold(tmp_path):
    """Two actors that talk to each other: nothing is found, and everything is counted."""
    one = write(tmp_path, "a.1", [{}, message("b.1", 0, b_1=1), message("b.1", 1, b_1=2)])
    other = write(tmp_path, "b.1", [{}, message("a.1", 0, a_1=2)])
    verdicts, between = verify([one, other], receipt_of)

    assert problems(one, other) == []
    assert between == []
    assert [(3, 2, "done"), (2, 1, "done")] == [(v.events, v.messages, v.ends) for v in verdicts]


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([{}, message("b.1", 0, b_1=1, a_1=5)], "knows a.1:5, not yet happened"),
        ([{}, message("b.1", 0, c_1=1)], "without its own count"),
        ([message("b.1", 0, b_1=4), message("b.1", 1, b_1=3) | {"learned": {}}], "older than"),
        (
            [message("b.1", 0, b_1=4) | {"learned": {}}, message("b.1", 1, b_1=5)],
            "message 1 follows one that taught nothing",
        ),
        ([message("b.1", 0, b_1=4, c_1=1) | {"learned": {"b.1": 4}}], "the clock grew by {'b.1'"),
        ([{"learned": {"c.1": 3}}], "the clock grew by {'c.1': 3}"),
        ([{"silent": True}, {}], "event 1: no record of its effects"),
    ],
)
def test_every_check_can_fail(tmp_path, events, said):
    """Each kind of false clock or missing record is named with its event."""
    (found,) = problems(write(tmp_path, "a.1", events))

    assert said in found


NEWER = message("b.2", 0, b_2=1, c_2=4)


@pytest.mark.parametrize(
    ("heard", "learned", "holds"),
    [
        ({"b.2": 2, "c.1": 9}, {"b.2": 2}, True),
        ({"b.2": 2, "c.1": 9}, {"b.2": 2, "c.1": 9}, True),
        ({"b.2": 2, "c.3": 1}, {"b.2": 2}, False),
        ({"b.2": 2, "d.1": 9}, {"b.2": 2}, False),
        ({"b.2": 2, "c.10": 9}, {"b.2": 2}, False),
        ({"b.2": 2, "c.1": 9, "c.2": 5}, {"b.2": 2, "c.2": 5}, True),
    ],
)
def test_only_the_retired_may_be_left_out(tmp_path, heard, learned, holds):
    """Whose actor is known under a higher number is retired, and need not be learned."""
    events = [dict(NEWER), message("b.2", 1) | {"clock": heard, "learned": learned}]
    found = problems(write(tmp_path, "a.1", events))

    assert holds is (found == [])
    assert holds or "the clock grew by" in found[0]


def test_a_message_may_bring_the_newer_and_name_the_older(tmp_path):
    """The message that announces a new incarnation may still name the former one in its clock."""
    event = message("b.1", 0, b_1=1, c_1=3, c_2=1) | {"learned": {"b.1": 1, "c.2": 1}}

    assert problems(write(tmp_path, "a.1", [event])) == []


def test_an_effect_before_its_cause_is_found_between_tapes(tmp_path):
    """A message of an event that its sender's tape does not have."""
    one = write(tmp_path, "a.1", [message("b.1", 0, b_1=9)])
    other = write(tmp_path, "b.1", [{}])

    assert problems(one, other) == [
        "a.1:1 follows from b.1:9, which never happened (b.1 has 1 events)"
    ]


def test_a_lost_end_is_a_gap_and_no_contradiction(tmp_path):
    """Of a tape that was not closed others may have heard more."""
    one = write(tmp_path, "a.1", [message("b.1", 0, b_1=9)])
    other = write(tmp_path, "b.1", [{}], closed=False)
    verdicts, between = verify([one, other], receipt_of)

    assert [] == between
    assert [[], []] == [verdict.problems for verdict in verdicts]


def test_a_killed_actor_may_lack_its_last_effects(tmp_path):
    """The last event of a tape that was not closed needs no record of its effects."""
    cut = write(tmp_path, "a.1", [{}, {"silent": True}], closed=False)
    verdicts, _ = verify([cut], receipt_of)

    assert problems(cut) == []
    assert verdicts[0].ends == "not closed, after event 2"
