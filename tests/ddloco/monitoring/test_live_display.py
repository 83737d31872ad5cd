"""The picture of a job is drawn from its log alone."""

import io
import json

import pytest
import trio
from rich.console import Console

from ddloco.job.config import job_from
from ddloco.monitoring.live_display import OF_NUMBERS, Board, follow_log, show_live
from ddloco.stage.process.log_tail import LogTail

JOB = job_from({"job": {"task": "x:y", "steps": 100, "learners": 2}}, "test")


def step(learner: int, number: int, at: float) -> dict:
    """A finished step of half a second."""
    return {
        "event": "step",
        "actor": f"learner-{learner}",
        "at": at,
        "step": number,
        "loss": 2.0 + learner,
        "tokens": 64,
        "step_s": 0.5,
    }


def merge(t: int, fragment: int, **numbers) -> dict:
    """A merge of both learners."""
    counts = {"live": 2, "taking_part": 2, "averaged": 1, **numbers}
    return {"event": "merge", "actor": "syncer", "t": t, "fragment": fragment, **counts}


def test_board_keeps_the_newest_of_everything():
    """Steps, losses, rates, fragments and the three counts come from the lines."""
    board = Board(JOB)
    for line in (step(0, 1, 1.0), step(0, 2, 2.0), step(1, 1, 1.0), merge(4, 0), merge(6, 1)):
        board.take(line)

    assert [2, 1] == [view.step for view in board.learners.values()]
    assert board.fragments == {0: 4, 1: 6}
    assert board.t == 6
    assert board.counts() == "2 live / 2 taking part / 1 averaged"
    assert "global step 6/100" in board.line()
    assert "3 inner steps" in board.line()


def test_a_loss_that_is_no_number_is_passed_over():
    """In the log it is null; the picture continues with those that are numbers."""
    board = Board(JOB)
    for line in (step(0, 1, 1.0), step(0, 2, 2.0)):
        board.take({**line, "loss": None if line["step"] == 2 else 0.5})
    assert (2, 0.5) == (board.learners["learner-0"].step, board.learners["learner-0"].loss)
    assert "global step" in board.line()


def test_the_task_s_own_metrics_are_on_the_line():
    """Their means over the learners that have them, and nothing of one that nobody has."""
    board = Board(JOB)
    board.take({**step(0, 1, 1.0), "metrics": {"accuracy": 0.5, "none": None}})
    board.take({**step(1, 1, 1.0), "metrics": {"accuracy": 0.75, "none": None}})
    assert "loss 2.500  accuracy 0.625  2 inner steps" in board.line()


def test_a_syncer_that_goes_on_is_not_at_the_beginning():
    """It says from which global step it goes on before it merges again."""
    board = Board(JOB)
    board.take({"event": "recovered", "actor": "syncer", "t": 40, "fragments": 2})
    assert board.line().startswith("global step 40/100  ")


async def test_a_line_of_a_log_has_what_people_read(tmp_path, autojump_clock):
    """Neither dates nor the job's numbers, nor events that are nothing else; an actor of one's own
    may give its events and fields those names."""
    of_job = {"computing_s": 1.23456789, "goodput": 0.5, "live": 2, "date": "today"}
    told = [
        {"event": "joined", "learner": "learner-0.1", **of_job},
        {"event": "traffic", "sent_bytes": 3},
        {"event": "mine", "goodput": 0.123456, "of": ["a", "b"]},
    ]
    log, shown = tmp_path / "log.jsonl", {}
    for unshown in (OF_NUMBERS, ()):
        log.write_text("")
        console = Console(record=True, force_terminal=False, width=200, file=io.StringIO())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow_log, tmp_path, "a", console, unshown)
            await trio.sleep(0.1)
            lines = [json.dumps({**each, "actor": "a", "at": 1.0}) + "\n" for each in told]
            log.write_text("".join(lines))
            await trio.sleep(1.0)
            nursery.cancel_scope.cancel()
        shown[unshown] = [line.strip() for line in console.export_text().splitlines()]
    joined, mine = shown[OF_NUMBERS]
    assert joined == "1.0 s  a  joined  learner learner-0.1, live 2"
    assert mine == "1.0 s  a  mine  goodput 0.1235, of a b"
    assert shown[()] == [joined, "1.0 s  a  traffic  sent_bytes 3", mine]


@pytest.mark.parametrize("at", [{}, {"at": None}, {"at": "soon"}, {"at": []}])
async def test_a_line_without_a_time_is_shown(tmp_path, autojump_clock, at):
    """Of another hand: it ends no display."""
    console = Console(record=True, force_terminal=False, width=200, file=io.StringIO())
    (tmp_path / "log.jsonl").write_text("")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow_log, tmp_path, "a", console)
        await trio.sleep(0.1)
        line = {"event": "odd", "actor": "a", "why": "x", **at}
        (tmp_path / "log.jsonl").write_text(json.dumps(line) + "\n")
        await trio.sleep(1.0)
        nursery.cancel_scope.cancel()
    assert console.export_text().strip() == "-  a  odd  why x"


def test_last_merges_are_not_steps():
    """With ``sync.final_merges`` they count on, and the job does not."""
    board = Board(JOB)
    board.take(merge(104, 0))
    assert "global step 100/100, last merges" in board.line()
    assert (100, 100, "global step") == board.stage()


def test_board_says_who_is_gone_and_what_went_wrong():
    """Losses and refusals are shown with their reason; unknown lines are passed over."""
    board = Board(JOB)
    board.take({"event": "joined", "actor": "syncer", "learner": "learner-1.1"})
    board.take({"event": "lost", "actor": "syncer", "learner": "learner-1.1", "reason": "killed"})
    board.take({"event": "refused", "actor": "syncer", "learner": "learner-0.1", "reason": "NaN"})
    over = {"learner": "learner-0.1", "reason": "3 in a row refused"}
    board.take({"event": "starts over", "actor": "syncer", **over})
    board.take({"event": "something else", "actor": "syncer"})

    assert board.learners["learner-1"].state == "gone: killed"
    assert board.troubles == [
        "learner-0.1: refused, NaN",
        "learner-0.1: starts over, 3 in a row refused",
    ]


def test_board_says_what_a_return_has_lost():
    """Whose state a learner goes on with, or that it has none; nothing of one that is new, or that
    goes on with its own."""
    board = Board(JOB)
    taken = {"event": "state taken over", "actor": "learner-1", "copy": 3}
    board.take({**taken, "from": "learner-0.1", "batches": 0})
    board.take({**taken, "from": "syncer.1-7", "batches": 8})
    assert board.news == []
    board.take({**taken, "from": "learner-0.1", "batches": 8})
    board.take({"event": "state lost", "actor": "learner-1", "batches": 8})
    one, other = board.news
    assert one.startswith("learner-1 goes on with the state of learner-0.1, after batch 8;")
    assert other.startswith("learner-1 goes on after batch 8 without the optimizer's state")


def test_board_says_what_is_not_finite():
    """Of whom, and at which step."""
    board = Board(JOB)
    line = {"event": "not finite", "actor": "learner-1", "step": 48, "what": "optimizer:/1"}
    board.take(line)
    assert board.news == ["learner-1: optimizer:/1 is not finite at inner step 48"]


@pytest.mark.parametrize("event", ["apart", "code differs", "task differs"])
def test_board_says_who_differs_from_the_others(event):
    """In the words of the line."""
    board = Board(JOB)
    board.take({"event": event, "actor": "syncer", "learner": "learner-1.1", "reason": "it is x"})
    assert board.news == ["learner-1.1: it is x"]


def test_board_compares_the_held_out_loss():
    """With those of training; nothing is said of a sound one, or of none."""
    for held_out, said in ((9.0, 1), (2.6, 0), (None, 0)):
        board = Board(JOB)
        for line in (step(0, 1, 1.0), step(1, 1, 1.0)):
            board.take(line)
        board.take({"event": "result", "actor": "syncer", "held_out_loss": held_out, "t": 100})
        assert len(board.news) == said
    assert board.news == []


def test_board_shows_faults():
    """A fault is a trouble while the newest of them are shown, with its duration if it has one."""
    board = Board(JOB)
    for what, for_s in (("crash", None), ("cut", 2.25)):
        fault = {"event": "fault", "actor": "chaos", "what": what, "who": "learner-1"}
        board.take({**fault, "for_s": for_s})

    assert board.troubles == ["learner-1: crash", "learner-1: cut for 2.2 s"]


def test_the_numbers_are_those_that_the_syncer_counts():
    """Those of the newest line that has them, whatever was logged of steps; until then unknown."""
    board = Board(JOB)
    for line in (step(0, 1, 1.0), step(1, 1, 1.0)):
        board.take(line)
    assert board.goodput is None
    assert "goodput -" in board.line()
    numbers = {"goodput": 0.75, "inner_steps": 9, "merged_tokens": 64, "computing_s": 4.5}
    board.take(merge(4, 0, **numbers))
    assert (0.75, 9, 64) == (board.goodput, board.inner_steps, board.numbers.merged_tokens)
    assert "9 inner steps" in board.line()
    assert "goodput 75.0%" in board.line()
    lost = {"event": "lost", "actor": "syncer", "learner": "learner-0.1", "reason": "dead"}
    board.take({**lost, **numbers, "goodput": 0.0})
    assert board.goodput == 0.0


def test_a_learner_s_lives_add_up():
    """A new incarnation's clock begins again; the rate is of the time alive."""
    board = Board(JOB)
    for line in (step(0, 1, 1.0), step(0, 2, 2.0), step(0, 1, 0.5), step(0, 2, 1.5)):
        board.take(line)

    assert board.learners["learner-0"].alive_s == 3.0


async def test_lines_where_there_is_no_terminal(tmp_path, autojump_clock):
    """Without a terminal the end is one plain line; the board has it all, as at a terminal."""
    lines = [step(0, 1, 1.0), merge(8, 0), {"event": "result", "actor": "syncer"}]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = trio.Event()
    done.set()
    console = Console(record=True, force_terminal=False, width=200)
    board = Board(JOB)
    await show_live(LogTail(tmp_path), board, console, done)

    assert board.result == lines[-1]
    at_a_terminal = Console(record=True, force_terminal=True, width=120)
    board = Board(JOB)
    await show_live(LogTail(tmp_path), board, at_a_terminal, done)
    assert board.t == 8


def test_losses_are_placed_by_global_step():
    """The figure and the sparklines are drawn from the same lines of the log."""
    board = Board(JOB)
    for number in range(1, 9):
        board.take({**step(0, number, number), "loss": 9.0 - number})
        board.take(merge(10 * number, 0))
    board.take({"event": "result", "actor": "syncer", "t": 80, "held_out_loss": 0.5})

    assert board.learners["learner-0"].curve.points()[1] == (10.0, 7.0)
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(board.tables())
    assert "█▇▆▅▄▃▂▁" in console.export_text()
    assert "held out: 0.5000" in board.losses()
