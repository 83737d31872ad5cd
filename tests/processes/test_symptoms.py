"""Each row of the table from symptom to command is typed for recorded runs, and says what the table
promises."""

import io
import re
import shlex

import pytest

from tests.commands import here
from tests.installed import CHECKOUT, WORK

PAGE = (CHECKOUT / "docs" / "debugging.md").read_text()
ROWS = re.findall(r"^\| ([^|]+) \| `(ddloco [^`]+)` \| ([^|]+) \|$", PAGE, re.MULTILINE)

SAYS = {
    "nothing, or anything": "looked at: losses, finite numbers",
    "a loss that rose": "loss",
    "a loss that is no number": "every number on the tapes is finite: ",
    "one step that looks odd": r"^inner step 5 of learner-1\.1 ",
    "nothing goes on": "^the job has ended: .*; nothing is stuck$",
    "a merge, a fragment, a message": r"merge \d+ of fragment \d+ is launched",
    "how it is going": r"^http://127\.0\.0\.1:\d+/",
    "it is slow": "^all learners: .*% computing",
    "a learner that does not count": r"learner-1\S* (is|was) in ",
    "a learner that came back, or stood still": "first step|steps 1 to",
    "a merge that came late": "quorum|grace|launch",
    "it is slower than yesterday": r"time of learner-\d\S*: a step .* ms|^DIFFERENT ",
    "it came out otherwise than yesterday": "^DIFFERENT |everything that both have is equal",
    "it computes what it should not": "state of its worker after the step",
    "a tensor that grows, or is no number": "it never held, after ",
    "a replay that differs": "^identical: ",
}


def interrupted(*_):
    """Ctrl-C, as soon as a page is served."""
    raise KeyboardInterrupt


def test_the_table_is_there():
    """What each row says is looked for below."""
    assert {symptom for symptom, *_ in ROWS} == {*SAYS}


@pytest.mark.parametrize("row", ROWS, ids=[symptom for symptom, *_ in ROWS])
def test_a_row_says_what_it_promises(finished, pictured, row, monkeypatch):
    """With the names of this run in place of the page's; whoever types leaves the prompt."""
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.setattr("http.server.ThreadingHTTPServer.serve_forever", interrupted)
    symptom, command, _ = row
    merge = finished.merges()[-1]["t"]
    runs = {"RUN": finished, "RUN_A": finished, "RUN_B": pictured}
    words = [str(runs[word].run_folder) if word in runs else word for word in shlex.split(command)]
    there = {"learner-2": "learner-1", "84": str(merge), "step:learner-1:31": "step:learner-1:5"}
    there |= {"120": "5", "merge:84": f"merge:{merge}"}
    found = here(*(there.get(word, word) for word in words[1:]), cwd=WORK)
    said = found.stdout + found.stderr
    assert "Traceback" not in said
    assert found.returncode in {0, 1}, said
    assert re.search(SAYS[symptom], said, re.MULTILINE), said
