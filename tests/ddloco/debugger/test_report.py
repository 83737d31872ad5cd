"""``ddloco report``: what it says is what the tapes say, in one file that needs nothing else."""

import json
import re
import shutil
from html.parser import HTMLParser
from itertools import accumulate

import pytest

from clocks import actor_of
from ddloco.cli.debug import report
from ddloco.cli.parser import parser
from ddloco.debugger import report_data as data_module
from ddloco.debugger import report_lanes, report_merges
from ddloco.debugger.recorded_job import open_job
from ddloco.debugger.report import MARK, page_of
from ddloco.debugger.report_data import Fact, report_data
from ddloco.debugger.report_lanes import RawStep, _mean_loss
from ddloco.debugger.timeline import clock_offsets
from tests.browser import CHROMIUM, Browser
from tests.hostile_text import CONTROL, PRINTABLE

HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"><!-- <script> \u2028 & ']]>"


@pytest.fixture(scope="module")
def data(folder):
    """What the report of the run shows."""
    return report_data(open_job(folder))


@pytest.fixture
def ask(capsys):
    """Asks for a report in this process: exit code, standard output, standard error."""

    def asked(*words):
        code = report(parser().parse_args(["report", *map(str, words)]))
        said = capsys.readouterr()
        return code, said.out, said.err

    return asked


@pytest.fixture
def copied(folder, tmp_path):
    """A copy of the run that may be harmed."""
    return shutil.copytree(folder, tmp_path / "copy")


def test_every_merge_is_a_bar_with_its_time_and_its_wait(run, data):
    """Merges are all there, with step, event, moment and what held the launch."""
    [shown] = data.runs
    bars, unit = shown.bars, shown.unit_s
    merges = list(run.merges())
    assert bars.of == len(merges)
    assert list(accumulate(bars.t)) == [each.t for each in merges]
    assert list(accumulate(bars.n)) == [each.number for each in merges]
    offsets = clock_offsets(run.tapes.values())
    begin = min(record.at + offsets[who] for who in run.tapes for record, _ in run.events(who))
    for i, (since, merge) in enumerate(zip(accumulate(bars.since), merges, strict=True)):
        held = (bars.floor[i], bars.quorum[i], bars.grace[i])
        assert (since + sum(held) + bars.flight[i]) * unit + begin == pytest.approx(
            merge.at, abs=5 * unit
        )
        wait = merge.wait
        assert [each * unit for each in held] == pytest.approx(
            [wait.floor_s, wait.quorum_s, wait.grace_s], abs=unit
        )


def test_every_learner_of_every_merge_is_a_cell(run, data):
    """The matrix has who was merged with which weight and norm, and the reason of who was not."""
    [shown] = data.runs
    matrix = shown.matrix
    assert [column.event for column in matrix.columns] == [each.event for each in run.merges()]
    absences = 0
    for i, merge in enumerate(run.merges()):
        cells = {row: matrix.cells[r][i] for r, row in enumerate(matrix.rows)}
        for each in merge.contributions:
            cell = cells[actor_of(each.learner)]
            assert cell.state == 1
            assert shown.names[cell.who] == each.learner
            assert cell.weight == pytest.approx(each.weight, rel=1e-5)
            assert cell.norm == pytest.approx(each.norm, rel=1e-5)
            assert (cell.base, cell.steps, cell.tokens) == (each.base, each.steps, each.tokens)
        for each in merge.absent:
            cell = cells[actor_of(each.learner)]
            assert cell.state == 3
            assert matrix.reasons[cell.reason] == each.reason
            assert cell.event == each.event
            absences += 1
    assert absences > 10


def test_a_merge_has_the_clock_of_its_event(run, data):
    """What the syncer knew at a merge is in its column."""
    [shown] = data.runs
    for column in shown.matrix.columns[::20]:
        who, _, n = column.event.rpartition(":")
        pairs = zip(column.clock[::2], column.clock[1::2], strict=True)
        assert {shown.names[who]: n for who, n in pairs} == run.clock(who, int(n)).wire()


def test_every_loss_is_there(run, data):
    """Blocks of single steps and curves have each step's event and loss."""
    [shown] = data.runs
    steps = {
        part.incarnation: part.steps for lane in shown.lanes for part in lane.segments if part.steps
    }
    assert sorted(steps) == run.learners
    for learner, found in steps.items():
        recorded = list(run.steps_of(learner))
        assert found.size == 1
        assert list(accumulate(found.n)) == [record.n for record, *_ in recorded]
        assert list(accumulate(found.step)) == [step for _, step, _ in recorded]
        assert found.loss == pytest.approx([event.loss for *_, event in recorded], rel=1e-5)
    for curve in shown.curves:
        own = [each for each in run.learners if actor_of(each) == curve.learner]
        losses = [event.loss for who in own for *_, event in run.steps_of(who)]
        assert curve.loss == pytest.approx(losses, rel=1e-5)


def test_the_clock_of_a_step_is_what_was_learned_up_to_it(run, data):
    """The entries of the blocks up to a step add up to its clock."""
    [shown] = data.runs
    part = next(each for lane in shown.lanes for each in lane.segments if each.steps)
    known = {}
    for n, entries in zip(accumulate(part.steps.n), part.steps.clock, strict=True):
        pairs = zip(entries[::2], entries[1::2], strict=True)
        known.update({shown.names[who]: number for who, number in pairs})
        assert {**known, part.incarnation: n} == run.clock(part.incarnation, n).wire()


def test_kills_returns_and_goodput_are_in_the_summary(data):
    """A learner that was killed for a minute is said to be, and its time is missing."""
    [shown] = data.runs
    facts = {fact.label: fact for fact in shown.facts}
    assert facts["Learners"].note == "1 killed, 1 returned"
    assert 0.9 < sum(shown.goodput) / len(shown.goodput) < 0.95
    killed = [part for lane in shown.lanes for part in lane.segments if part.killed]
    assert [part.incarnation for part in killed] == ["learner-1.1"]
    assert facts["Merges"].value == str(shown.bars.of)


def test_bytes_per_link_count_every_payload(run, data):
    """What each learner sent up is as many payloads as arrived at the syncer."""
    [shown] = data.runs
    sent = {each.learner: each.up for each in shown.links}
    answers = [e for each in run.merges() for e in (*each.contributions, *each.refused)]
    for learner, count in sent.items():
        assert count >= sum(actor_of(each.learner) == learner for each in answers)
    assert all(each.up_bytes == each.up * 256 for each in shown.links)


def test_long_runs_are_thinned_and_the_page_is_told(folder, monkeypatch):
    """Blocks, marks, columns and points stay below their limits; their totals are kept."""
    monkeypatch.setattr(report_lanes, "BLOCKS_MAX", 100)
    monkeypatch.setattr(report_lanes, "MARKS_MAX", 100)
    monkeypatch.setattr(report_lanes, "CLOCK_NUMBERS_MAX", 10)
    monkeypatch.setattr(report_merges, "BARS_MAX", 7)
    monkeypatch.setattr(report_merges, "COLUMNS_MAX", 9)
    monkeypatch.setattr(data_module, "POINTS_MAX", 80)
    [shown] = report_data(open_job(folder)).runs
    assert (len(shown.bars.t), len(shown.matrix.columns)) == (7, 9)
    assert shown.bars.of == shown.matrix.of == 60
    for lane in shown.lanes:
        for part in lane.segments:
            assert all(len(m.at) <= 20 for m in part.marks.values())
            if part.steps:
                assert len(part.steps.end) <= 20
                assert part.steps.clock is None
                assert part.steps.count <= part.steps.size * len(part.steps.end)
    assert all(len(curve.loss) <= 22 < curve.of for curve in shown.curves)
    absent = [row[i].state == 3 for row in shown.matrix.cells for i in range(9)]
    assert any(absent), "of adjacent merges the one with most absences is shown"


def thin(monkeypatch, blocks, finer):
    """Let reports hold few blocks of steps."""
    monkeypatch.setattr(report_lanes, "BLOCKS_MAX", blocks)
    monkeypatch.setattr(report_lanes, "FINER_MAX", finer)
    monkeypatch.setattr(data_module, "POINTS_MAX", blocks)


@pytest.mark.parametrize(
    ("blocks", "finer", "levels"), [(60, 10**6, 2), (400, 10**6, 1), (60, 400, 1), (60, 60, 0)]
)
def test_thinned_steps_are_there_in_finer_levels(run, monkeypatch, blocks, finer, levels):
    """Each level has every block's last step, its event, its time and its mean loss; the finest one
    is as fine as the file may hold."""
    thin(monkeypatch, blocks, finer)
    [shown] = report_data(run).runs
    most = 0
    for lane in shown.lanes:
        for part in lane.segments:
            if part.steps is None:
                continue
            recorded = list(run.steps_of(part.incarnation))
            sizes = [part.steps.size, *(each.size for each in part.steps.finer)]
            most = max(most, len(sizes) - 1)
            assert sizes == sorted(set(sizes), reverse=True)
            assert len(recorded) / sizes[-1] <= max(finer, blocks) / len(run.learners) + 1
            for each in part.steps.finer:
                lasts = [*recorded[each.size - 1 :: each.size]]
                lasts += [recorded[-1]] if len(recorded) % each.size else []
                assert list(accumulate(each.n)) == [record.n for record, *_ in lasts]
                assert list(accumulate(each.step)) == [step for _, step, _ in lasts]
                losses = [event.loss for *_, event in recorded]
                groups = [losses[i : i + each.size] for i in range(0, len(losses), each.size)]
                means = [sum(group) / len(group) for group in groups]
                assert each.loss == pytest.approx(means, rel=1e-5)
                assert sum(each.end) == sum(part.steps.end)
    assert most == levels


def test_the_file_needs_nothing_else(folder, ask, tmp_path):
    """One file without any address, and small: nothing is loaded from anywhere."""
    out = tmp_path / "report.html"
    code, said, _ = ask(folder, "--out", out)
    assert (code, said.strip()) == (0, str(out))
    page = out.read_bytes()
    assert page.startswith(MARK)
    assert len(page) < 400_000
    text = page.decode()
    assert not re.search(r"https?:|\bsrc\s*=|\bhref\s*=|@import|url\(|//cdn", text)
    assert "default-src 'none'" in text


class Elements(HTMLParser):
    """The elements of a page, and the text of its data."""

    def __init__(self):
        super().__init__()
        self.names = []
        self.data = ""
        self._inside = False

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self._inside = dict(attrs).get("id") == "data"

    def handle_endtag(self, tag):
        self._inside = False

    def handle_data(self, data):
        self.data += data if self._inside else ""


def planted(data, text=HOSTILE):
    """The same data with a text in it that would be markup if it were not kept from being so."""
    plain = data_module.ReportData([json_copy(each) for each in data.runs])
    [shown] = plain.runs
    shown.name = text
    shown.facts.append(Fact(text, text, text))
    shown.findings.append(text)
    shown.findings.append(text)
    shown.matrix.rows[0] = shown.curves[0].learner = shown.links[0].learner = text
    shown.matrix.reasons[0] = text
    shown.lanes[1].actor = shown.lanes[1].segments[0].how = text
    plain.lines = [text]
    return plain


def json_copy(shown):
    """A copy of what is shown of a run."""
    import msgspec

    return msgspec.json.decode(msgspec.json.encode(shown), type=data_module.RunData)


def test_texts_of_tapes_are_never_markup(data):
    """A name or a reason with tags in it stays text, and is read back as it was."""
    page = page_of(planted(data)).decode()
    assert HOSTILE not in page
    assert "<img" not in page
    elements = Elements()
    elements.feed(page)
    assert "img" not in elements.names
    assert elements.names.count("script") == 2
    [shown] = json.loads(elements.data)["runs"]
    assert shown["facts"][-1]["value"] == HOSTILE
    assert shown["matrix"]["reasons"][0] == HOSTILE
    script = (page_of(data).decode()).rpartition("<script>")[2]
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", script)


@pytest.mark.parametrize("text", [*PRINTABLE, *CONTROL])
def test_every_text_comes_back_as_it_was(data, text):
    """Of the list that terminals and scripts are tried with, too: none adds an element."""
    elements, plain = Elements(), Elements()
    elements.feed(page_of(planted(data, text)).decode())
    plain.feed(page_of(data).decode())
    assert plain.names == elements.names
    [shown] = json.loads(elements.data)["runs"]
    assert [text] * 3 == [shown["name"], shown["facts"][-1]["value"], shown["matrix"]["reasons"][0]]


def test_a_report_replaces_a_report_and_nothing_else(copied, ask):
    """A report in the run folder is written again; any other file is left alone, in one line."""
    for _ in range(2):
        assert ask(copied)[0] == 0
    place = copied / "report.html"
    assert place.read_bytes().startswith(MARK)
    place.write_text("<!doctype html>\nmine")
    code, out, err = ask(copied)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "exists, and is no report" in err
    assert place.read_text() == "<!doctype html>\nmine"
    assert ask(copied, "--out", copied)[0] == 2
    assert ask(copied, "--out", copied / "missing" / "report.html")[0] == 2
    assert [] == list(copied.glob(".report*"))


def test_bad_input_is_one_line(copied, ask, tmp_path):
    """No run, and a damaged tape, are said in one line; salvage reads the tape up to the damage."""
    code, out, err = ask(tmp_path / "nothing")
    assert (code, out, err.count("\n")) == (2, "", 1)
    victim = next((copied / "tapes").rglob("learner-2*"))
    victim = next(victim.rglob("*.tape"), victim) if victim.is_dir() else victim
    harmed = bytearray(victim.read_bytes())
    harmed[len(harmed) // 2] ^= 1
    victim.write_bytes(harmed)
    code, out, err = ask(copied)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "damaged" in err
    assert not (copied / "report.html").exists()
    assert ask(copied, "--salvage")[0] == 0
    assert b"its tape is damaged" in (copied / "report.html").read_bytes()


def test_two_runs_are_compared_at_their_first_difference(simulate, folder, ask, tmp_path):
    """With ``--compare`` both runs are in the file, and where they part is on both axes."""
    other = simulate("sync.quorum=3")
    found = report_data(open_job(folder), open_job(other))
    assert len(found.runs) == 2
    assert not found.same
    first = found.partings[0]
    assert first.what == "merge 4 (fragment 1)"
    assert 0 < first.one.at <= found.runs[0].end
    assert found.lines[0].startswith("DIFFERENT TIMING: merge 4 (fragment 1)")
    assert ask(folder, "--compare", other, "--out", tmp_path / "two.html")[0] == 0
    same = report_data(open_job(folder), open_job(folder))
    assert same.same
    assert same.partings == []


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
@pytest.mark.parametrize("size", [(1280, 800), (2560, 1440)])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_browser_draws_it_without_complaint(simulate, folder, data, tmp_path, size, dark):
    """A report, one of two runs, and one with hostile texts are drawn; no script of a text runs."""
    two = report_data(open_job(folder), open_job(simulate("sync.quorum=3")))
    for name, shown in (("one", data), ("two", two), ("hostile", planted(data))):
        place = tmp_path / f"{name}.html"
        place.write_bytes(page_of(shown))
        with Browser(*size, dark=dark) as page:
            page.go(place.as_uri())
            document = page.value("document.documentElement.outerHTML")
        assert page.complaints == []
        assert document.count("<canvas") >= 5
        assert "<title>owned" not in document
        assert "<img" not in document


def drawn(place, where):
    """What is drawn of a page at some seconds: the largest block of steps, points of losses."""
    with Browser(1280, 800) as page:
        page.go(f"{place.as_uri()}#{where}")
        found = []
        for name in ("steps", "points"):
            canvas = f"document.querySelector('canvas[data-{name}]')"
            page.wait(f"{canvas} !== null")
            found.append(int(page.value(f"{canvas}.dataset.{name}")))
    assert page.complaints == []
    return found


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_zooming_in_shows_the_details_of_that_stretch(run, monkeypatch, tmp_path):
    """Blocks become smaller and losses more, down to single steps."""
    thin(monkeypatch, 60, 10**6)
    page = tmp_path / "thinned.html"
    shown = report_data(run)
    page.write_bytes(page_of(shown))
    end = shown.runs[0].end * shown.runs[0].unit_s
    middle = end / 2
    whole, _ = drawn(page, f"0-{end}")
    near, points = drawn(page, f"{middle}-{middle + 20}")
    assert whole > near == 1
    ends = [
        at * shown.runs[0].unit_s
        for lane in shown.runs[0].lanes
        for part in lane.segments
        if part.steps
        for at in accumulate((part.steps.finer or [part.steps])[-1].end)
    ]
    assert points == sum(middle <= each < middle + 20 for each in ends)
    thinned = [at * shown.runs[0].unit_s for c in shown.runs[0].curves for at in accumulate(c.at)]
    assert points > sum(middle <= each < middle + 20 for each in thinned)


def test_the_refused_and_the_late_are_counted_as_they_are_shown(simulate):
    """The summary's count of refused contributions is that of the red cells."""
    folder = simulate("sync.band=1.05", "sync.grace=0.0", "network.jitter_s=6.0", "job.steps=72")
    run = open_job(folder)
    [shown] = report_data(run).runs
    [said] = [fact.note for fact in shown.facts if fact.label == "Merges"]
    red = sum(cell.state == 2 for row in shown.matrix.cells for cell in row)
    kinds = [each.kind for merge in run.merges() for each in merge.absent]
    assert f"{red} refused, {kinds.count('late')} late" in said
    assert kinds.count("refused") == red
    assert kinds.count("late") > 0


def test_the_mean_loss_of_a_block_counts_every_step():
    """Also of steps that were asked for together, whose loss is their mean."""
    one = RawStep(1.0, 5, 1, 4.0, 8, {})
    three = RawStep(2.0, 9, 4, 2.0, 24, {}, count=3)
    assert _mean_loss([one, three]) == 2.5
