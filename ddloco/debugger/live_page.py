"""Serves the report of a run on loopback, for one who looks at it while the run goes on. The page
asks for newer data, which are made again when there is more, for a fifth of the time at most.
Its address has a token, so that other users of the host cannot read it, and requests under
another name than that of loopback, with which a page of the web might come, are refused."""

import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec

from ddloco.debugger.one_step import step_of
from ddloco.debugger.recorded_job import job_in, open_run
from ddloco.debugger.recorded_run import RecordedRun
from ddloco.debugger.report import page_of
from ddloco.debugger.report_data import ReportData, report_data
from ddloco.debugger.story import story_of
from ddloco.debugger.why import why_event
from ddloco.replayer.recording import run_folder_of
from ddloco.stage.files.run_folder import TAPES
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.process.entry_point import NamedError, in_one_line
from replay import Divergence, TapeError
from replay.tape import SUFFIX
from snapshot import SnapshotError, StorageError

HOST = "127.0.0.1"

REST_TIMES = 4.0
"""After the data have been made, that many times as long passes before they are made again."""

STORY_LINES_MAX, CAUSES_MAX = 400, 16
"""Lines of a story that a click shows, and causes of an event."""

READ = (TapeError, ConfigError, NamedError, SnapshotError, StorageError, Divergence)
"""Why tapes cannot be read, or not yet: they are looked at while they are written."""


class Told(msgspec.Struct):
    """An answer: newer data, JSON, and their number; or why there are none."""

    number: int
    data: msgspec.Raw | None = None
    problem: str = ""


class ServedPage(ABC):
    """What a page shows, and how it becomes newer. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told = Told(0)
        self._rest_until = 0.0

    @abstractmethod
    def story(self, of: str) -> list[str]:
        """Return the lines that a click shows: ``merge:40``, ``step:learner-1.1:30``,
        ``message:EVENT``, ``event:EVENT`` or ``actor:learner-1``."""

    @abstractmethod
    def _has_more(self) -> bool:
        """Whether there is more than the data that were made last."""

    @abstractmethod
    def _data(self) -> ReportData: ...

    def page(self) -> bytes:
        with self._lock:
            data = self._make()
            if self._told.problem:
                raise ConfigError(self._told.problem)
            return page_of(data, live=self._told.number)

    def told(self, known: int) -> bytes | None:
        """Return newer data than ``known`` ones, None if there are none."""
        with self._lock:
            if time.monotonic() >= self._rest_until and self._has_more():
                self._make()
            newer = self._told.number > known
            return msgspec.json.encode(self._told) if newer else None

    def _make(self) -> ReportData:
        begun, data, number = time.monotonic(), ReportData([]), self._told.number + 1
        try:
            data = self._data()
            self._told = Told(number, msgspec.Raw(msgspec.json.encode(data)))
        except READ as error:
            self._told = Told(number, problem=f"not read yet, tried again: {error}")
        self._rest_until = time.monotonic() + REST_TIMES * (time.monotonic() - begun)
        return data


class LivePage(ServedPage):
    """The report of a run folder, whose tapes are read again when they have grown."""

    def __init__(self, folder: Path, *, salvage: bool, trust: bool) -> None:
        super().__init__()
        self._folder, self._salvage, self._trust = folder, salvage, trust
        self._run: RecordedRun | None = None
        self._sizes: dict[str, int] = {}

    def story(self, of: str) -> list[str]:
        with self._lock:
            run = self._run if self._run is not None else self._open()
            kind, _, rest = of.partition(":")
            if kind == "step":
                who, _, number = rest.rpartition(":")
                return step_of(job_in(run), who, int(number) if number.isdecimal() else 0).lines()
            if kind == "event":
                return why_event(run, rest, CAUSES_MAX)[0]
            lines = story_of(run, rest if kind == "actor" else of)
        return [f"{each.at:.2f} s  {each.text}  ({each.event})" for each in lines[:STORY_LINES_MAX]]

    def _open(self) -> RecordedRun:
        self._run = open_run(self._folder, salvage=self._salvage, trust=self._trust)
        return self._run

    def _sizes_now(self) -> dict[str, int]:
        """The sizes of the tapes, which an actor may just have begun or deleted."""
        found = sorted((run_folder_of(self._folder) / TAPES).glob(f"*{SUFFIX}"))
        return {each.name: each.stat().st_size for each in found if each.exists()}

    def _has_more(self) -> bool:
        return self._sizes != self._sizes_now()

    def _data(self) -> ReportData:
        self._sizes = self._sizes_now()
        return report_data(self._open())


def server_of(page: ServedPage, port: int = 0) -> tuple[ThreadingHTTPServer, str]:
    """Return what serves a page on loopback, and its address; ``ConfigError`` if the port is
    taken."""
    token = secrets.token_urlsafe(16)

    class Handler(_Handler):
        shown, root = page, f"/{token}/"

    try:
        server = _Server((HOST, port), Handler)
    except (OSError, OverflowError) as error:
        said = getattr(error, "strerror", None) or error
        raise ConfigError(f"--port {port}: cannot be listened to: {said}") from None
    return server, f"http://{HOST}:{server.server_port}/{token}/"


@contextmanager
def serving(page: ServedPage, port: int = 0) -> Iterator[str]:
    """Serve a page in a thread, beside what makes it; gives its address."""
    server, address = server_of(page, port)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    with server:
        thread.start()
        try:
            yield address
        finally:
            server.shutdown()
            thread.join()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that goes away in the middle of an answer is no error."""


class _Handler(BaseHTTPRequestHandler):
    shown: ServedPage
    root: str

    @property
    def port(self) -> int:
        assert isinstance(self.server, ThreadingHTTPServer)
        return self.server.server_port

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        name, _, port = self.headers.get("Host", "").partition(":")
        if name not in {HOST, "localhost"} or port != str(self.port):
            return self._answer(HTTPStatus.FORBIDDEN)
        words = parse_qs(asked.query)
        try:
            return self._given(asked.path.removeprefix(self.root), words, asked.path)
        except READ as error:
            lines = msgspec.json.encode({"lines": [str(error)]})
            return self._answer(HTTPStatus.OK, lines, "application/json")
        except Exception as error:  # noqa: BLE001, the page says what it is, and asks again
            lines = msgspec.json.encode({"lines": [f"cannot be told: {in_one_line(error)}"]})
            return self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, lines, "application/json")

    def _given(self, what: str, words: dict[str, list[str]], path: str) -> None:
        if not path.startswith(self.root):
            return self._answer(HTTPStatus.NOT_FOUND)
        if what == "":
            return self._answer(HTTPStatus.OK, self.shown.page(), "text/html; charset=utf-8")
        if what == "data":
            known = words.get("known", ["0"])[0]
            told = self.shown.told(int(known) if known.isdecimal() else 0)
            if told is None:
                return self._answer(HTTPStatus.NO_CONTENT)
            return self._answer(HTTPStatus.OK, told, "application/json")
        if what == "story" and "of" in words:
            lines = msgspec.json.encode({"lines": self.shown.story(words["of"][0])})
            return self._answer(HTTPStatus.OK, lines, "application/json")
        return self._answer(HTTPStatus.NOT_FOUND)

    def _answer(self, status: HTTPStatus, body: bytes = b"", kind: str = "text/plain") -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002, as in the base class
        """Requests are nobody's business."""
