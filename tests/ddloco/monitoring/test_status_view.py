"""A status as people read it: who waits for whom, since when, until when."""

import io

import pytest
from rich.console import Console

from ddloco.job.protocol.status import MemberStatus, Numbers, status_from
from ddloco.monitoring.status_view import (
    goodput_in_words,
    members,
    picture,
    ranges,
    seconds,
    sync_in_words,
    waiting_in_words,
)


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        (Numbers(), "-"),
        (Numbers(goodput=0.934), "93.4%"),
        (Numbers(goodput=0.934, restarted=True), "93.4% since the syncer's restart"),
    ],
)
def test_goodput_says_since_when_it_is_counted(numbers, said):
    """From the job's start, unless its syncer has started again."""
    assert said == goodput_in_words(numbers)


def test_data_shards_are_shown_where_they_move():
    """As ranges; without ``job.shards`` there is no such column."""
    assert ranges((0, 1, 2, 3, 7, 9, 10)) == "0-3, 7, 9-10"
    assert ranges(()) == "-"
    some = [MemberStatus("learner-0.1", data_shards=(4, 5)), MemberStatus("learner-1.1")]
    assert [str(cell) for cell in members(some).columns[-1].cells] == ["4-5", "-"]
    assert members(some[1:]).columns[-1].header == "refused"


MEMBERS = [
    {
        "learner": "learner-0.1",
        "step": 40,
        "step_s": 0.5,
        "heard_s": 0.2,
        "fresh": True,
        "loss": 1.25,
        "tokens_per_s": 800.0,
        "metrics": {"accuracy": 0.5},
    },
    {"learner": "learner-1.3", "step": 21, "step_s": None, "heard_s": 75.0, "silent": True},
    {
        "learner": "learner-2.1",
        "step": 38,
        "heard_s": 1.0,
        "versions_behind": 2,
        "refused": 3,
        "refused_for": "norm 9, 1 at most",
    },
    {"learner": "learner-3.1", "step": 40, "heard_s": 1.0},
]

FULL = {
    "address": "tcp://127.0.0.1:5555",
    "name": "small",
    "job": "small-1",
    "incarnation": "syncer.1",
    "uptime_s": 3725.0,
    "steps": 500,
    "t": 42,
    "merges": 21,
    "quorum": 2,
    "goodput": 0.934,
    "live": 4,
    "taking_part": 3,
    "averaged": 2,
    "tape_bytes": 3 * 2**19,
    "events": 1234,
    "versions": [40, 42],
    "waiting": {
        "t": 44,
        "fragment": 1,
        "for": "a quorum: 1 of 2",
        "missing": ["learner-1.3", "learner-2.1"],
        "since_s": 3.25,
        "until_s": None,
    },
    "in_flight": [
        {
            "t": 42,
            "fragment": 0,
            "pulled": ["learner-0", "learner-2"],
            "arrived": ["learner-0"],
            "since_s": 0.5,
            "until_s": 2.0,
            "merging": False,
        }
    ],
    "members": MEMBERS,
    "recovering": [
        {"learner": "learner-4.2", "donor": "learner-0.1", "since_s": 0.5, "until_s": 9.5}
    ],
    "refused_frames": {"learner-2": 7},
}


def drawn(plain):
    """A status as text."""
    console = Console(file=io.StringIO(), width=120)
    console.print(picture(status_from(plain)))
    return console.file.getvalue()


def test_everything_is_there():
    """Job and progress, the three counts apart, every member, syncs, waits, refusals."""
    text = drawn(FULL)

    header, counts, *_ = text.splitlines()
    assert "small at tcp://127.0.0.1:5555  global step 42/500  21 merges  quorum 2" in header
    assert "goodput 93.4%  up 1 h 2 min" in header
    assert "learners: 4 live / 3 taking part / 2 averaged" in counts
    assert "syncer.1: 1,234 events, 1.5 MiB tape" in counts
    assert "learner-2: 7 messages refused" in text
    told = "learner-4.2: waits for the state of learner-0.1, since 500 ms, for 9.5 s more"
    assert told in text
    assert "learner-2.1: 3 refused, the last: norm 9, 1 at most" in text
    assert (
        "global step 42, fragment 0: 1 of 2 have answered, waits for learner-2, since 500 ms, "
        "for 2.0 s more"
    ) in text
    assert (
        "global step 44, fragment 1: waits for a quorum: 1 of 2 (learner-1.3, learner-2.1 "
        "missing), since 3.2 s,"
    ) in text.replace("\n", " ")


@pytest.mark.parametrize(
    ("index", "cells"),
    [
        (0, ["learner-0.1", "40", "500 ms", "1.25", "0.5", "800", "200 ms ago", "fresh", "0"]),
        (1, ["learner-1.3", "21", "-", "-", "-", "-", "1 min 15 s ago", "silent", "0"]),
        (2, ["learner-2.1", "38", "-", "-", "-", "-", "1.0 s ago", "reported, 2 behind", "3"]),
        (3, ["learner-3.1", "40", "-", "-", "-", "-", "1.0 s ago", "reported", "0"]),
    ],
)
def test_a_member_is_a_row(index, cells):
    """Incarnation, step, step time, loss, metrics, tokens per second, last contact, state in one
    word, refusals."""
    rows = [line for line in drawn(FULL).splitlines() if "learner-" in line and "│" in line]

    assert cells == [cell.strip() for cell in rows[index].strip("│ ").split("│")]


def test_an_actor_that_says_little_is_shown_all_the_same():
    """What a machine does not say is a dash, and no table stands empty."""
    text = drawn({"address": "a", "job": "small-1", "uptime_s": 0.5, "members": [], "x": 1})

    assert "small-1 at a  goodput -  up 500 ms" in text
    assert "- live / - taking part / - averaged" in text
    assert "learner " not in text


def test_a_problem_is_shown():
    """A status that could not be made says why; brackets in it are text."""
    assert "this is a bug [1]" in drawn({"problem": "this is a bug [1]"})


def test_who_differs_is_shown_while_it_is_there():
    """Whose work is of no use, and whose flags, packages or source differ."""
    differs = {"learner-0.1": "env.XLA_FLAGS is -x; of the others not set", "learner-1.2": "gone"}
    plain = {"members": MEMBERS, "differs": differs, "disregarded": {"learner-2": "was in 0 of 9"}}
    text = drawn(plain)

    assert "learner-0.1: env.XLA_FLAGS is -x; of the others not set" in text
    assert "learner-2 was in 0 of 9" in text
    assert "gone" not in text


def test_relays_and_whom_they_reach_are_shown():
    """And the sums that a sync waits for."""
    sync = {"t": 8, "fragment": 2, "arrived": ["a"], "since_s": 0.1, "sums_of": ["relay-0.1"]}
    reach = {"relay-0.1": ["learner-0.1", "learner-1.1"], "relay-1.2": []}
    text = drawn({"in_flight": [sync], "relays": reach})

    assert "global step 8, fragment 2: waits for sums of relay-0.1, since 100 ms" in text
    assert "relay-0.1: reaches learner-0.1, learner-1.1" in text
    assert "relay-1.2: reaches no learner" in text


def test_words_for_merging_and_windows():
    """A merge that waits for no learner; a window says until when; many names are cut short."""
    merging = {"t": 8, "fragment": 2, "arrived": ["a", "b"], "since_s": 0.1, "merging": True}
    names = [f"learner-{n}.1" for n in range(11)]
    window = {"t": 9, "fragment": 1, "for": "the grace window", "missing": names, "until_s": 0.25}
    status = status_from({"in_flight": [merging], "waiting": window})

    assert "global step 8, fragment 2: merging 2 contributions, since 100 ms" == sync_in_words(
        status.in_flight[0]
    )
    said = waiting_in_words(status.waiting)
    assert "waits for the grace window" in said
    assert "learner-7.1 and 3 more missing" in said
    assert "for 250 ms more" in said


@pytest.mark.parametrize(
    ("duration", "said"),
    [(0.0, "0 ms"), (-1.0, "0 ms"), (0.9, "900 ms"), (59.94, "59.9 s"), (61, "1 min 1 s")],
)
def test_durations(duration, said):
    """Durations have a unit that fits them; a deadline that has just passed is now."""
    assert said == seconds(duration)


def test_of_many_learners_the_remarkable_are_shown():
    """A thousand rows are of no use: the silent, the refused and the late ones are in the table."""
    members = [{"learner": f"learner-{n}.1", "step": n, "heard_s": 0.1} for n in range(1000)]
    members[500] |= {"silent": True, "heard_s": 99.0}
    members[700] |= {"refused": 3, "refused_for": "is not finite"}
    members[900] |= {"versions_behind": 7}
    text = drawn({"address": "a", "job": "large-1", "uptime_s": 0.5, "members": members})

    rows = [line for line in text.splitlines() if "learner-" in line and "│" in line]
    assert 64 == len(rows)
    shown = [line.split()[1] for line in rows]
    assert {"learner-500.1", "learner-700.1", "learner-900.1"} <= set(shown)
    assert shown == [each["learner"] for each in members if each["learner"] in shown]
    assert "and 936 more learners; --json shows all" in text
