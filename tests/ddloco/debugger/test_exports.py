"""Exports, each read back by a reader of its format that is not ours."""

import json
import re
from base64 import b64encode

import pytest
from google.protobuf.json_format import Parse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ddloco.cli.parser import parser
from ddloco.cli.tape_export import tape_export
from ddloco.debugger.exports import export_otlp, first_steps, json_line, spans_of
from ddloco.debugger.timeline import timeline
from replay import open_tapes
from tests.ddloco.debugger.cuts import cut, opened_at

SHIVIZ = re.compile(r"(?P<event>.*)\n(?P<host>\S*) (?P<clock>{.*})")
"""The default expression of ShiViz, from its manual."""


@pytest.fixture
def export(folder, tmp_path):
    """Exports the run; returns the file."""

    def exported(name):
        path = tmp_path / f"run.{name}"
        words = ["tape", "export", str(folder), f"--{name}", "--to", str(path)]
        assert tape_export(parser().parse_args(words)) == 0
        return path

    return exported


def count(run):
    """How many events the run has."""
    return sum(each.events for each in run.tapes.values())


def test_json_lines_have_every_event_in_causal_order(export, run):
    """Read by the json module."""
    lines = [json.loads(line) for line in export("jsonl").read_text().splitlines()]
    assert len(lines) == count(run)
    seen = {}
    for line in lines:
        who, number = line["event"].rsplit(":", 1)
        assert int(number) == seen.get(who, 0) + 1
        seen[who] = int(number)
        assert line["clock"][who] == int(number)


def test_a_shiviz_log_is_read_by_the_expression_of_its_manual(export, run):
    """Host and clock of every event; each host counts its own events one by one."""
    found = [match.groupdict() for match in SHIVIZ.finditer(export("shiviz").read_text())]
    assert len(found) == count(run)
    counts = {}
    for each in found:
        clock = json.loads(each["clock"])
        assert clock[each["host"]] == counts.get(each["host"], 0) + 1
        counts[each["host"]] = clock[each["host"]]


def test_a_perfetto_trace_has_slices_instants_and_arrows(export, run):
    """As the Trace Event Format demands: phases, times in microseconds, arrows in pairs."""
    trace = json.loads(export("perfetto").read_text())
    events = trace["traceEvents"]
    phases = {phase: [each for each in events if each["ph"] == phase] for phase in "MXisf"}
    assert len(phases["i"]) == count(run)
    steps = [each for each in phases["X"] if each["name"].startswith("step ")]
    assert len(steps) == sum(1 for who in run.learners for _ in run.steps_of(who))
    assert all(each["dur"] >= 0 and each["ts"] >= 0 for each in phases["X"])
    assert {each["id"] for each in phases["s"]} == {each["id"] for each in phases["f"]}
    named = {(each["pid"], each.get("tid")) for each in phases["M"]}
    assert all((each["pid"], each["tid"]) in named for each in phases["i"])


def test_spans_are_read_by_the_protocol_of_opentelemetry(export, run):
    """Parsed by its own message type, which refuses unknown fields. OTLP writes ids in hex where
    protobuf's JSON has base64."""
    text = re.sub(
        r'"(traceId|spanId)":"([0-9a-f]+)"',
        lambda found: f'"{found[1]}":"{b64encode(bytes.fromhex(found[2])).decode()}"',
        export("otlp").read_text(),
    )
    request = Parse(text, ExportTraceServiceRequest())
    spans = [s for r in request.resource_spans for scope in r.scope_spans for s in scope.spans]
    steps = sum(1 for who in run.learners for _ in run.steps_of(who))
    assert len(spans) == steps + len(list(run.merges()))
    assert len({span.span_id for span in spans}) == len(spans)
    assert all(span.end_time_unix_nano >= span.start_time_unix_nano for span in spans)
    assert {len(span.trace_id) for span in spans} == {16}


def test_no_file_is_overwritten(export, capsys, folder):
    """A file that is there is named, and left as it is."""
    path = export("jsonl")
    before = path.read_bytes()
    words = ["tape", "export", str(folder), "--jsonl", "--to", str(path)]
    assert tape_export(parser().parse_args(words)) == 2
    assert "File exists" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_a_number_that_json_does_not_have_is_null():
    """Perfetto, as any reader in a browser, refuses a file with NaN in it."""
    assert json_line({"loss": float("nan"), "norm": float("inf")}) == '{"loss":null,"norm":null}'


def test_a_first_step_begins_when_it_was_asked_for(export, run):
    """And not where the learner started: its parameters and its compilation came first."""
    spans = json.loads(export("otlp").read_text())["resourceSpans"]
    shown = {(e.actor, e.number): e.common_at for e in timeline(list(run.tapes.values()))}
    zero = min(shown.values())
    begun = {
        each["resource"]["attributes"][0]["value"]["stringValue"]: each["scopeSpans"][0]["spans"]
        for each in spans
    }
    for learner in run.learners:
        asked = shown[learner, run.first_step(learner).number] - zero
        assert int(begun[learner][0]["startTimeUnixNano"]) == pytest.approx(asked * 1e9, abs=10)
        assert asked > shown[learner, 1] - zero


def test_a_step_that_ran_where_a_tape_begins_began_before_it(run, tmp_path, monkeypatch):
    """As long as in the whole run; nothing has a time before 0. Without the snapshot it is drawn
    from the tape's beginning."""
    learner = run.learners[0]
    steps = [record.n for record, *_ in run.steps_of(learner)]
    folder = tmp_path / "cut"
    begun = cut(run, folder, learner, steps[8] + 1)

    def first_step(tapes):
        spans = spans_of(timeline(tapes), first_steps(tapes))
        return next(each for each in spans if each.actor == learner)

    tapes = open_tapes(folder)
    unknown = first_step(tapes)
    opened_at(folder, begun, monkeypatch)
    known = first_step(tapes)
    whole = spans_of(timeline(list(run.tapes.values())), {})
    [same] = [each for each in whole if (each.actor, each.name) == (learner, known.name)]
    assert known.end - known.begin == pytest.approx(same.end - same.begin)
    assert unknown.begin > known.begin
    [told] = export_otlp(tapes)
    times = [int(each) for each in re.findall(r'"startTimeUnixNano":"(-?[0-9]+)"', told)]
    assert min(times) == 0


def test_an_arrow_begins_where_its_message_was_sent(export, run):
    """No arrow goes backwards."""
    events = json.loads(export("perfetto").read_text())["traceEvents"]
    begins = {each["id"]: each for each in events if each["ph"] == "s"}
    ends = {each["id"]: each for each in events if each["ph"] == "f"}
    sent = {each["args"]["event"]: each["ts"] for each in events if each["ph"] == "i"}
    assert begins.keys() == ends.keys()
    for name, begin in begins.items():
        assert begin["ts"] <= ends[name]["ts"]
        assert begin["ts"] == sent[begin["args"]["sent"]]
