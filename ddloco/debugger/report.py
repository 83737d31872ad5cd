"""Writes a report: one HTML file that explains a recorded run and needs nothing but a browser. What
comes from tapes is data in the page, never markup: JSON without ``<``, ``>`` and ``&``, put in
place as text, and the page's policy runs no other script."""

import base64
import hashlib
import os
from html import escape
from importlib.resources import files
from pathlib import Path

import msgspec

from clocks import open_regular, replace_file
from ddloco.debugger.recorded_run import RecordedRun
from ddloco.debugger.report_data import ReportData, report_data
from ddloco.replayer.recording import run_folder_of
from ddloco.stage.files.toml import ConfigError

REPORT_FILE = "report.html"

MARK = b"<!doctype html>\n<!-- A ddloco report. -->\n"
"""How every report begins; only such files are overwritten."""

_ESCAPES = (("&", "\\u0026"), ("<", "\\u003c"), (">", "\\u003e"))
_SEPARATORS = (("\u2028", "\\u2028"), ("\u2029", "\\u2029"))


def write_report(run: RecordedRun, out: Path | None, other: RecordedRun | None = None) -> Path:
    """Write the report of a run, or of two, and return its file, by default one in the run folder.
    ``ConfigError`` if there is a file that is no report, or it cannot be written."""
    place = out if out is not None else run_folder_of(run.path) / REPORT_FILE
    check_report_place(place)
    page = page_of(report_data(run, other))
    try:
        replace_file(place, [page], mode=0o644)
    except OSError as error:
        raise ConfigError(f"{place}: cannot be written: {error.strerror}") from None
    return place


def check_report_place(place: Path) -> None:
    """Refuse to overwrite what is no report."""
    if not os.path.lexists(place):
        return
    try:
        with open_regular(place) as file:
            begins = file.read(len(MARK))
    except OSError as error:
        raise ConfigError(f"{place}: cannot be opened: {error.strerror}") from None
    if begins != MARK:
        raise ConfigError(f"{place}: exists, and is no report; name another file with --out")


def page_of(data: ReportData, *, live: int = 0) -> bytes:
    """Return the page; a ``live`` one asks the program that serves it for newer data than those of
    this number."""
    parts = files("ddloco.debugger") / "report_page"
    style, script = ((parts / name).read_text("utf-8") for name in ("style.css", "script.js"))
    policy = f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'"
    policy += "; connect-src 'self'" * bool(live)
    filled = {
        "POLICY": policy,
        "TITLE": escape(" and ".join(run.name for run in data.runs)),
        "STYLE": style,
        "LIVE": str(live),
        "DATA": safe_json(data),
        "SCRIPT": script,
    }
    pieces = (parts / "template.html").read_text("utf-8").split("@@")
    pieces[1::2] = [filled[name] for name in pieces[1::2]]
    return MARK + "".join(pieces).encode()


def safe_json(data: ReportData) -> str:
    """Return data as JSON that ends no script element, whatever texts it has."""
    text = msgspec.json.encode(data).decode()
    for one, other in (*_ESCAPES, *_SEPARATORS):
        text = text.replace(one, other)
    return text


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
