"""``ddloco observe ADDRESS --page``: what a syncer on another host tells, as a page."""

import json
from contextlib import asynccontextmanager
from itertools import accumulate

import msgspec
import pytest

from ddloco.cli.observe import observe
from ddloco.cli.parser import parser
from ddloco.debugger import observed_page
from ddloco.debugger.live_page import serving
from ddloco.debugger.observed_page import (
    AGAIN_S,
    LIVES_MAX,
    MERGES_MAX,
    POINTS_MAX,
    ObservedJob,
    ObservedPage,
)
from ddloco.job.protocol.status import MemberStatus, Status, WaitingSync
from ddloco.monitoring.client import UnansweredError
from ddloco.stage.observers.observer_protocol import News, Told
from tests.browser import CHROMIUM, Browser
from tests.ddloco.debugger.test_live_page import WHERE

SYNCER = "syncer.1"


def status(at, learners=3, syncer=SYNCER, **more):
    """What a syncer says of itself after so many seconds."""
    members = tuple(
        MemberStatus(f"learner-{n}.1", step=round(10 * at) + n, loss=4.0 / (1 + at + n))
        for n in range(learners)
    )
    return Status(
        **{
            "address": "tcp://far:5555",
            "name": "small",
            "job": "small-1",
            "incarnation": syncer,
            "uptime_s": at,
            "t": round(at),
            "steps": 40,
            "merges": round(at),
            "live": learners,
            "interval": 8,
            "computing_s": 0.5 * learners * at,
            "goodput": 0.5,
            "members": members,
            **more,
        }
    )


def news(event, at, n, syncer=SYNCER, **fields):
    """One of the syncer's news."""
    return News(n, 0, event, at, f"{syncer}:{n}", fields)


def merged(t, at, learners, syncer=SYNCER, **more):
    """The news of a merge, of all learners alike."""
    weights = [1 / learners] * learners
    names = [f"learner-{n}.1" for n in range(learners)]
    told = {"learners": names, "weights": weights, "grace_s": 0.1, "sync_s": 0.2, "live": learners}
    return news("merge", at, 10 * t, syncer, t=t, fragment=t % 2, **{**told, **more})


def told(learners=3, seconds=20):
    """A job that has been observed for so long."""
    job = ObservedJob()
    for n in range(learners):
        job.take_news(news("joined", 0.1, n + 1, learner=f"learner-{n}.1"))
    for t in range(1, seconds + 1):
        job.take_status(status(t, learners))
        job.take_news(merged(t, t + 0.3, learners))
    return job


def plain(job):
    """The data as a browser gets them."""
    return json.loads(msgspec.json.encode(job.data()))


def test_losses_merges_and_times_are_shown():
    """Of each learner, on one axis."""
    data = plain(told())
    unit = data["unit_s"]
    [syncer, *lanes] = data["lanes"]

    assert [curve["learner"] for curve in data["curves"]] == ["learner-0", "learner-1", "learner-2"]
    steps = list(accumulate(data["curves"][1]["step"]))
    assert steps == [10 * t + 1 for t in range(1, 21)]
    assert data["curves"][0]["loss"][0] == pytest.approx(2.0)
    assert [lane["actor"] for lane in lanes] == ["learner-0", "learner-1", "learner-2"]
    assert list(accumulate(data["bars"]["t"])) == list(range(1, 21))
    assert all(cell[0] == 1 for row in data["matrix"]["cells"] for cell in row)
    shares = [cell[3] for row in data["matrix"]["cells"] for cell in row]
    assert shares == pytest.approx([1 / 3] * 60)
    assert sum(data["goodput"]) / len(data["goodput"]) == pytest.approx(0.5, rel=0.1)
    assert syncer["segments"][0]["end"] * unit == pytest.approx(20.2, abs=0.2)
    assert data["names"][0] == "syncer.1"


def test_who_leaves_and_returns_has_two_lives():
    """And its losses two parts; what the syncer says of it is a note with its event."""
    job = told()
    job.take_news(news("lost", 21.0, 300, learner="learner-1.1", reason="timed out"))
    job.take_news(news("joined", 25.0, 310, learner="learner-1.2"))
    members = [
        msgspec.structs.replace(each, learner=each.learner.replace("learner-1.1", "learner-1.2"))
        for each in status(26).members
    ]
    job.take_status(status(26, members=tuple(members)))
    data = plain(job)

    lane = next(each for each in data["lanes"] if each["actor"] == "learner-1")
    first, second = lane["segments"]
    assert (first["incarnation"], first["how"]) == ("learner-1.1", "gone: timed out")
    assert second["incarnation"] == "learner-1.2"
    assert first["end"] < second["begin"] < second["end"]
    assert data["curves"][1]["parts"] == [0, 20]
    assert [each["n"] for each in data["lanes"][0]["segments"][0]["notes"]][-2:] == [300, 310]
    assert any("learner-1.1 gone: timed out" in line for line in job.story("actor:learner-1"))
    assert "learner-1.1 gone: timed out  (syncer.1:300)" in job.story("event:syncer.1:300")[0]


def test_a_refused_contribution_is_a_red_cell():
    """With the reason, also in the story of its merge."""
    job = told()
    job.take_news(
        news("refused", 21.0, 301, learner="learner-2.1", t=21, fragment=1, reason="too far")
    )
    job.take_news(merged(21, 21.1, 2))
    data = plain(job)

    assert [row[-1][0] for row in data["matrix"]["cells"]] == [1, 1, 2]
    assert data["matrix"]["reasons"] == ["refused: too far"]
    job.take_status(status(60))
    first, second, last = job.story("merge:21")
    assert first == "21.00 s  learner-2.1: refused: too far  (syncer.1:301)"
    assert "merge 21 of fragment 1: learner-0.1 0.5, learner-1.1 0.5" in second
    assert "on the syncer's host" in last


def test_a_story_is_of_one_actor():
    """And not of one whose name begins alike."""
    job = told(12)
    [line, _] = job.story("actor:learner-1")
    assert line == "0.10 s  learner-1.1 is linked  (syncer.1:2)"


def test_a_syncer_that_comes_back_goes_on_where_it_was():
    """Its own time begins at 0 again, the page's does not."""
    job = told()
    job.take_status(status(2, syncer="syncer.2", computing_s=1.0, restarted=True))
    job.take_news(merged(22, 3.0, 3, "syncer.2"))
    data = plain(job)

    first, second = data["lanes"][0]["segments"]
    assert (first["incarnation"], second["incarnation"]) == ("syncer.1", "syncer.2")
    assert first["end"] <= second["begin"] < second["end"] == data["end"]
    since = list(accumulate(data["bars"]["since"]))
    assert since == sorted(since)
    assert data["bars"]["syncer"][-1] == data["names"].index("syncer.2")
    assert all(0.0 <= share <= 1.0 for share in data["goodput"])


def test_what_it_waits_for_and_warns_of_is_said():
    """A standstill, a wait for a quorum, a learner apart from others; the end of the job."""
    job = told()
    waiting = WaitingSync(21, 1, "a quorum", missing=("learner-1.1",))
    job.take_status(status(30, standstill="no merge for 9 s", waiting=waiting))
    job.take_news(news("apart", 30.0, 400, learner="learner-2.1", reason="trains 5 times as many"))
    data = plain(job)
    assert data["now"][0] == "no merge for 9 s"
    assert any("waits for a quorum (learner-1.1 missing)" in line for line in data["now"])
    assert "learner-2.1: trains 5 times as many" in data["findings"]

    job.take_news(news("result", 31.0, 401, held_out_loss=0.25))
    job.take_news(news("ended", 31.0, 402, status="done", reason="global step 40"))
    data = plain(job)
    assert data["now"] == ["the job has ended, done: global step 40"]
    assert [loss for _, loss in data["held_out"]] == [0.25]


def test_what_is_kept_is_bounded():
    """However long a job is looked at."""
    job = told(1, POINTS_MAX + 9)
    for n in range(LIVES_MAX + 9):
        job.take_news(news("joined", POINTS_MAX + 9.0, n, learner=f"learner-0.{n + 2}"))
    data = plain(job)

    assert len(data["bars"]["t"]) == MERGES_MAX
    assert len(data["curves"][0]["at"]) <= POINTS_MAX
    assert sum(data["curves"][0]["step"]) == 10 * (POINTS_MAX + 9), "the newest one stays"
    assert sum(len(lane["segments"]) for lane in data["lanes"]) == 1 + LIVES_MAX


class Answers:
    """An observer of a syncer that goes away, comes back, and ends."""

    def __init__(self):
        self.follows = 0

    async def status(self):
        """What it says when it is first asked."""
        return msgspec.to_builtins(status(1))

    async def follow(self, take, *, payloads):
        """Tell a little; the first time no end."""
        self.follows += 1
        await take(Told(1, msgspec.to_builtins(status(2 * self.follows))))
        if self.follows == 1:
            await take(news("merge", 2.0, 20, t="odd"))
            raise UnansweredError("tcp://far:5555: no answer for 30 s")
        how = ("left", "asked to stop by SIGTERM") if self.follows == 2 else ("done", "step 40")
        last = news("ended", 5.0, 50, status=how[0], reason=how[1])
        await take(last)
        return last


@pytest.fixture
def page(monkeypatch):
    """A page whose syncer is ``Answers``."""
    answers = Answers()

    @asynccontextmanager
    async def opened(*where):
        assert where == ("tcp://far:5555", 3.0, None)
        yield answers

    monkeypatch.setattr(observed_page, "open_observer", opened)
    return ObservedPage("tcp://far:5555", timeout_s=3.0, keys=None)


async def test_a_syncer_that_is_away_is_asked_again(page, autojump_clock, nursery):
    """The page says so meanwhile, and keeps what it has."""

    def now():
        page._rest_until = 0.0
        told = page.told(0)
        return json.loads(told)["data"]["runs"][0]["now"]

    await page.look()
    assert now() == ["learners train"]
    nursery.start_soon(page.follow)
    await observed_page.trio.sleep(AGAIN_S / 2)
    assert "no answer for 30 s" in now()[0]
    await observed_page.trio.sleep(AGAIN_S)
    assert now()[0] == "left: asked to stop by SIGTERM; it is asked again"
    await observed_page.trio.sleep(AGAIN_S)
    assert now() == ["the job has ended, done: step 40"]
    assert page.told(json.loads(page.told(0))["number"]) is None
    nursery.cancel_scope.cancel()


async def test_news_that_cannot_be_read_end_nothing(page):
    """They are of another version; the page says which."""
    await page.look()
    await page._take(news("merge", 2.0, 20, t="odd"))
    assert "news of another version cannot be read" in page._data().runs[0].now[0]
    await page._take(merged(2, 2.0, 3))
    assert page._data().runs[0].bars.t == [2]


def test_a_syncer_that_does_not_answer_is_named(capsys):
    """Before there is a page, as by the other commands."""
    words = ["observe", "tcp://127.0.0.1:1", "--page", "--timeout", "0.2"]
    assert observe(parser().parse_args(words)) == 1
    assert "no answer from tcp://127.0.0.1:1" in capsys.readouterr().err
    assert observe(parser().parse_args([*words, "--timeout", "0"])) == 2
    assert "--timeout 0.0: want seconds" in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--json"], ["--prometheus", "9000"], ["--best", "x"]])
def test_a_page_is_all_that_a_command_shows(option, capsys):
    """Another option is refused, and not left out."""
    words = ["observe", "tcp://127.0.0.1:1", "--page", *option]
    assert observe(parser().parse_args(words)) == 2
    assert f"--page: not with {option[0]}" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
@pytest.mark.parametrize("size", [(1366, 900), (390, 844)])
@pytest.mark.parametrize("learners", [8, 200])
def test_a_browser_draws_it(page, size, learners):
    """Without complaint, also at a click on a cell and a merge."""
    page._job = told(learners)
    with serving(page) as address, Browser(*size) as browser:
        browser.go(address)
        browser.wait("document.documentElement.dataset.known === '1'")
        assert browser.value("document.documentElement.scrollWidth <= innerWidth")
        browser.click(*browser.value(WHERE % (1, 0.5, 12)))
        browser.wait("Number(document.getElementById('tip').dataset.told) >= 2")
        said = browser.value("document.getElementById('tip').textContent")
        assert "ddloco story RUN merge:" in said
        assert "weight 0." in said
        assert browser.complaints == []
