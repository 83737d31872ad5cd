"""``ddloco report RUN --live``: the page of a run under way, and what a click on it shows."""

import http.client
import json
import shutil
import threading
from functools import partial
from itertools import product
from urllib.parse import quote, urlsplit

import pytest

from ddloco.cli.debug import report
from ddloco.cli.parser import parser
from ddloco.debugger.live_page import LivePage, server_of
from ddloco.debugger.recorded_job import open_job
from ddloco.stage.files.toml import ConfigError
from tests.browser import CHROMIUM, Browser
from tests.ddloco.debugger.cuts import killed


class Served:
    """A page that is served; ``get`` asks for what is under its address."""

    def __init__(self, folder):
        self.server, self.address = server_of(LivePage(folder, salvage=False, trust=False))
        serve = partial(self.server.serve_forever, poll_interval=0.01)
        threading.Thread(target=serve, daemon=True).start()

    def get(self, what="", method="GET", path=None, host=None):
        """Status, body, headers."""
        to = urlsplit(self.address)
        connection = http.client.HTTPConnection(to.netloc, timeout=60)
        asked = f"{to.path}{what}" if path is None else path
        connection.request(method, asked, headers={"Host": host or to.netloc})
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.getheaders())

    def end(self):
        """Serve it no more."""
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def serve():
    """Serves the page of a folder."""
    served = []

    def begin(folder):
        served.append(Served(folder))
        return served[-1]

    yield begin
    for each in served:
        each.end()


def test_newer_data_come_when_tapes_have_grown(serve, run, tmp_path):
    """And not otherwise; what is damaged meanwhile is said, and tried again."""
    folder = killed(run, tmp_path / "run", 40.0)
    served = serve(folder)
    assert served.get()[0] == 200
    first = json.loads(served.get("data?known=0")[1])
    assert (first["number"], served.get("data?known=1")[0]) == (1, 204)
    for name in ("syncer.1", "learner-0.1"):
        shutil.copy(run.tapes[name].path, folder / "tapes")
    served.server.RequestHandlerClass.shown._rest_until = 0.0
    second = json.loads(served.get("data?known=1")[1])
    assert second["number"] == 2
    [one], [other] = first["data"]["runs"], second["data"]["runs"]
    assert other["end"] * other["unit_s"] > one["end"] * one["unit_s"] + 100
    (folder / "tapes" / "learner-0.1.tape").write_bytes(b"no tape")
    served.server.RequestHandlerClass.shown._rest_until = 0.0
    third = json.loads(served.get("data?known=2")[1])
    assert (third["data"], "not read yet" in third["problem"]) == (None, True)


def test_an_error_that_nobody_expected_is_said(serve, folder, monkeypatch):
    """And not that the program has ended."""
    served = serve(folder)
    monkeypatch.setattr("ddloco.debugger.live_page.story_of", lambda *_: 1 / 0)
    status, body, _ = served.get("story?of=merge:124")
    assert status == 500
    assert json.loads(body)["lines"] == ["cannot be told: ZeroDivisionError: division by zero"]


@pytest.mark.parametrize(
    ("of", "said"),
    [
        ("merge:124", "merge 124 of fragment 1 is launched"),
        ("step:learner-0.1:30", "inner step 30 of learner-0.1"),
        ("message:syncer.1:99", " sends "),
        ("event:syncer.1:99", "because"),
        ("actor:learner-1", "learner-1.1 starts"),
        ("merge:125", "no merge at global step 125; the nearest are "),
        ("step:learner-0.1:x", "no such step; it has 1 to "),
        ("actor:<b>", "no tape of <b>; there are "),
        (":", "no tape of :; there are "),
    ],
)
def test_a_click_shows_a_story(serve, folder, of, said):
    """As the commands say it, or what there is instead."""
    status, body, headers = serve(folder).get(f"story?of={quote(of)}")
    lines = json.loads(body)["lines"]
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert any(said in line for line in lines), lines


def test_nobody_else_reads_it(serve, folder):
    """Without its token, under another name than that of loopback, or by another method."""
    served = serve(folder)
    port = served.server.server_port
    assert served.get(path="/")[0] == 404
    assert served.get(path="/guessed/data?known=0")[0] == 404
    assert served.get("more")[0] == 404
    assert served.get("story")[0] == 404
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1:1", "127.0.0.1", ""):
        assert served.get(host=host or "x")[0] == 403, host
    assert served.get(host=f"localhost:{port}")[0] == 200
    assert served.get(method="POST")[0] == 501
    assert served.server.server_address[0] == "127.0.0.1"
    _, body, headers = served.get()
    assert b"connect-src 'self'" in body
    assert headers["Referrer-Policy"] == "no-referrer"
    assert served.address != serve(folder).address


def test_the_commands_name_what_is_wrong(folder, capsys, serve):
    """In one line each."""
    port = str(serve(folder).server.server_port)
    live = ["report", str(folder), "--live"]
    for words, said in (
        ([*live, "--port", port], f"--port {port}: cannot be listened to: "),
        ([*live, "--port", "99999"], "--port 99999: cannot be listened to: "),
        ([*live, "--out", "x.html"], "--out: not with --live"),
        (["report", str(folder), "--port", "1"], "--port 1: is of a page that is served"),
        (["report", str(folder / "none"), "--live"], "no such folder"),
    ):
        assert report(parser().parse_args(words)) == 2
        err = capsys.readouterr().err
        assert said in err
        assert err.count("\n") == 1


def test_a_port_that_is_taken_is_refused(folder, serve):
    """As an error of what was asked."""
    taken = serve(folder).server.server_port
    with pytest.raises(ConfigError, match="cannot be listened to"):
        server_of(LivePage(folder, salvage=False, trust=False), taken)


WHERE = """(() => {
  const canvas = document.querySelectorAll('canvas')[%d], box = canvas.getBoundingClientRect();
  scrollTo(0, box.top + scrollY - 200);
  const now = canvas.getBoundingClientRect();
  return [now.left + 118 + (now.width - 132) * %f, now.top + %f];
})()"""
"""A place of a chart: its number, the share of its width, and pixels from its top."""


def found_at(page, chart, kind):
    """Click on a chart until that is about something of a kind; what it is about."""
    for share, down in product((0.5, 0.55, 0.6), range(12, 140, 5)):
        page.ask("Input.dispatchKeyEvent", type="keyDown", key="Escape")
        page.click(*page.value(WHERE % (chart, share, down)))
        about = page.value("document.getElementById('tip').dataset.about") or ""
        if about.startswith(f"{kind}:"):
            return about.split(":")
    raise AssertionError(f"nowhere is a {kind}")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [(1366, 900), (390, 844)])
@pytest.mark.parametrize("learners", [8, 200])
def test_a_browser_follows_a_run(simulate, serve, tmp_path, size, dark, learners):
    """It is drawn without complaint and fits the window; it goes on with the run, a click on a
    merge, a step and a cell opens its story and the command that goes there."""
    steps = "job.steps=48" if learners > 8 else "job.steps=96"
    whole = open_job(simulate(f"job.learners={learners}", steps, "chaos.fault=[]", "learner={}"))
    folder = killed(whole, tmp_path / "run", 30.0)
    served = serve(folder)
    with Browser(*size, dark=dark) as page:
        page.go(served.address)
        page.wait("document.documentElement.dataset.known === '1'")
        before = page.value("document.querySelectorAll('.value')[1].textContent")
        for tape in whole.tapes.values():
            shutil.copy(tape.path, folder / "tapes")
        served.server.RequestHandlerClass.shown._rest_until = 0.0
        page.wait("document.documentElement.dataset.known === '2'")
        assert page.value("document.querySelectorAll('.value')[1].textContent") != before
        assert page.value("document.documentElement.scrollWidth <= innerWidth")
        for chart, kind, command in (
            (0, "merge", "story"),
            (1, "merge", "story"),
            (0, "step", "why"),
        ):
            _, *words = found_at(page, chart, kind)
            page.wait("Number(document.getElementById('tip').dataset.told) > 3")
            said = page.value("document.getElementById('tip').textContent")
            what = f"merge:{words[0]}" if kind == "merge" else f"step {' '.join(words)}"
            assert f"ddloco {command} {folder} {what}" in said
            assert f"ddloco replay {folder} --until {':'.join([kind, *words])} --shell" in said
            told = (
                f"merge {words[0]} of fragment "
                if kind == "merge"
                else f"step {words[1]} of {words[0]}"
            )
            assert told in said
        assert page.complaints == []
