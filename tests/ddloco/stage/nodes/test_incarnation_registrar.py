"""Numbers of incarnations: given once, also after a restart, and told again to who asks again."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddloco.job.config import job_from
from ddloco.roles.job_program import JobProgram, program_of
from ddloco.stage.nodes.incarnation_grants import (
    DESCRIBED_BYTES_MAX,
    DIFFERENCES_MAX,
    NUMBER_MAX,
    WORD_BYTES_MAX,
    Denied,
    Describe,
    Described,
    Granted,
    decode_described,
    decode_question,
)
from ddloco.stage.nodes.incarnation_registrar import (
    NumberRecord,
    RecordError,
    Registrar,
    newest_on_tape,
)
from ddloco.stage.nodes.node import Notes
from ddloco.stage.nodes.peer_version import want_of
from ddloco.stage.process.side_protocol import SideProtocolError, encode
from tests.manual_time import ManualTime
from transport import Arrival


def job_of(**sync):
    """A job whose task has a source file."""
    return job_from({"job": {"task": "json:loads", "learners": 3}, "sync": sync}, "test")


JOB = job_of()


class Harness:
    """A registrar in a folder."""

    def __init__(self, folder, job=JOB):
        self.notes = []
        self.folder = folder
        self.time = ManualTime()
        note = lambda *note: self.notes.append(note)  # noqa: E731
        self.registrar = Registrar(program_of(job), NumberRecord(folder), None, note, self.time)

    def ask(self, route="learner-0.77/grant", job=JOB, known=0, exact=0, **more):
        """Its answer to a question."""
        want = msgspec.structs.replace(want_of(program_of(job), known, exact), **more)
        return self.registrar.answer(Arrival(route, (encode(want),)))

    def ask_what_runs(self, route="learner-0.77/grant", **more):
        """Its answer to a learner without a job file."""
        return self.registrar.answer(Arrival(route, (encode(Describe(**more)),)))


@pytest.fixture
def harness(tmp_path):
    """A registrar that has given nothing."""
    return Harness(tmp_path)


def test_every_one_that_comes_has_a_number_of_its_own(harness):
    """Two empty folders are two incarnations, other actors count apart."""
    assert Granted(1) == harness.ask("learner-0.1/grant")
    assert Granted(2) == harness.ask("learner-0.2/grant")
    assert Granted(1) == harness.ask("learner-1.1/grant")


def test_a_question_that_is_said_twice_has_one_answer(harness):
    """The answer was lost: the same route is told the same number."""
    assert Granted(1) == harness.ask()
    assert Granted(1) == harness.ask()
    assert Granted(2) == harness.ask("learner-0.78/grant")


def test_a_syncer_that_starts_again_gives_no_number_twice(harness, tmp_path):
    """What was given is written down before the answer."""
    harness.ask("learner-0.1/grant")
    harness.ask("learner-0.2/grant")
    assert Granted(3) == Harness(tmp_path).ask("learner-0.3/grant")


def test_tapes_count_wherever_they_are(harness, tmp_path):
    """Those in the asker's folder, those in the syncer's, also of chains."""
    assert Granted(5) == harness.ask(known=4)
    (tmp_path / "tapes").mkdir()
    (tmp_path / "tapes" / "learner-0.8@55.tape").touch()
    (tmp_path / "tapes" / "learner-00.9.tape").touch()
    assert newest_on_tape(tmp_path / "tapes", "learner-0") == 8
    assert Granted(9) == harness.ask("learner-0.2/grant")


def test_an_actor_that_resumes_keeps_its_number_once(harness):
    """Under the number that it had at the cut; the next one that asks for it gets a new one."""
    assert Granted(3) == harness.ask("learner-0.1/grant", exact=3)
    assert Granted(4) == harness.ask("learner-0.2/grant", exact=3)


def test_another_task_is_told_and_let_in(harness):
    """Its source differs: both sides are told which. Files that only one has, and versions of
    Python, are no difference."""
    theirs = dict(want_of(program_of(JOB), 0).identity)
    theirs |= {"python": "3.99", "source json/more.py": "00" * 32}
    assert Granted(1) == harness.ask("learner-0.2/grant", identity=theirs)
    theirs["source json/decoder.py"] = "00" * 32
    answer = harness.ask(identity=theirs)
    assert answer.number == 2
    said = "task json:loads differs: the source file json/decoder.py is "
    assert answer.warning.startswith(said)
    assert answer.warning.endswith(" at syncer, 000000000000 at learner-0")
    assert ["task differs"] == [event for event, _ in harness.notes]


def test_learners_with_other_flags_are_named_once(harness, monkeypatch):
    """Beside each other, whatever the lead's own are; set and not set differ, too."""
    flags = "--xla_cpu_enable_fast_math=true"
    for name, said in (("learner-0", ""), ("learner-1", flags), ("learner-2", "")):
        monkeypatch.delenv("XLA_FLAGS", raising=False)
        if said:
            monkeypatch.setenv("XLA_FLAGS", said)
        identity = want_of(program_of(JOB), 0, name=name).identity
        assert harness.ask(f"{name}.9/grant", identity=identity).warning == ""
    [(event, fields)] = harness.notes
    assert (event, fields["learner"]) == ("apart", "learner-1.1")
    assert fields["reason"] == f"env.XLA_FLAGS is {flags}; of the others not set"
    notes = Notes()
    notes.write("worker busy", {"call": "step"})
    notes.write(event, fields)
    notes.write("code differs", {**fields, "reason": "jax 1, here 2"})
    assert notes.differs == {"learner-1.1": f"{fields['reason']}; jax 1, here 2"}


def test_a_source_file_with_a_long_path_keeps_nobody_out(harness, monkeypatch):
    """What no message holds is not compared; and of many files that differ some are named."""
    name, many = "x" * 300 + ".py", {f"{n}.py": "0" for n in range(400)}
    monkeypatch.setattr(JobProgram, "sources", lambda *_: {name: "0" * 64, "a.py": "1" * 64})
    want = want_of(program_of(JOB), 0)
    assert {k for k in want.identity if k.startswith("source ")} == {"source a.py"}
    assert decode_question([encode(want)]) == want
    monkeypatch.setattr(JobProgram, "sources", lambda *_: many)
    lead = Harness(harness.folder)
    theirs = {f"source {each}": "1" for each in many}
    warning = lead.ask("learner-1.5/grant", identity=theirs).warning
    assert warning.count("the source file") == DIFFERENCES_MAX


def test_other_settings_are_named_and_refused(harness):
    """Which ones, with both values; no number is used up."""
    other = job_of(interval=12, fragments=6)
    answer = harness.ask(job=other)
    assert isinstance(answer, Denied)
    assert "sync.fragments is 24 here, 6 there; sync.interval is 24 here, 12 there" in answer.reason
    assert Granted(1) == harness.ask("learner-0.2/grant")


def test_another_version_is_refused_by_name(harness):
    """Its messages or recordings are others: whoever reads it knows what to do. It is said before
    the settings, which another version may have more of."""
    former = {"ddloco": "ddloco 0.1.0 sources-0"}
    answer = harness.ask(identity=former, agreement="0", job=job_of(interval=48))
    assert answer.reason.startswith(
        "it runs ddloco 0.1.0 sources-0, whose messages or recordings are not those of ddloco "
    )
    assert answer.reason.endswith("update all hosts of a job together")
    assert Granted(1) == harness.ask("learner-0.2/grant")


def test_a_request_of_the_former_protocol_is_answered(harness):
    """It has neither a version nor what is agreed on, and must not go on asking."""
    of_then = {"type": "Want", "known": 0, "job": JOB.id, "task": "", "settings": {}, "version": 2}
    answer = harness.registrar.answer(
        Arrival("learner-0.77/grant", (msgspec.msgpack.encode(of_then),))
    )
    assert "asks in version 2 of this protocol" in answer.reason
    assert "update all hosts of a job together" in answer.reason


def test_other_sources_of_the_same_behaviour_are_told_and_let_in(harness):
    """Such as those of a checkout that has a commit more."""
    answer = harness.ask(identity={"ddloco": "ddloco 0.2.0 sources-0", "jax": "0.0.1"})
    assert answer.number == 1
    assert " at syncer, ddloco 0.2.0 sources-0 at learner-0; jax is " in answer.warning
    assert ["code differs"] == [event for event, _ in harness.notes]


@pytest.mark.parametrize("route", ["learner-3.1/grant", "syncer.1/grant", "x/grant", "/grant"])
def test_other_names_have_no_number(harness, route):
    """A name that is not of this job is refused, and the lead asks no shard."""
    assert isinstance(harness.ask(route), Denied)
    assert not (harness.folder / "kept").exists()


@pytest.mark.parametrize(
    "frames",
    [
        (),
        (b"", b""),
        (b"\xff",),
        (b"x" * (WORD_BYTES_MAX + 1),),
        (msgspec.msgpack.encode({"type": "Want", "known": -1}),),
        (msgspec.msgpack.encode({"type": "Want", "known": NUMBER_MAX + 1}),),
    ],
)
def test_what_is_no_question_is_not_answered(harness, frames):
    """It is counted, and logged a few times."""
    with pytest.raises(SideProtocolError):
        decode_question(frames)
    for _ in range(50):
        assert harness.registrar.answer(Arrival("learner-0.1/grant", frames)) is None
    assert len(harness.notes) == 20


@pytest.mark.parametrize("how", ["known", "exact"])
def test_the_numbers_cannot_be_used_up(harness, how):
    """An actor's claim about its former incarnations is accepted up to a limit; others continue."""
    answer = harness.ask(**{how: NUMBER_MAX})
    assert isinstance(answer, Denied)
    assert "the newest number of learner-0 here" in answer.reason
    assert Granted(1) == harness.ask("learner-0.2/grant")


def test_new_numbers_are_given_now_and_then(harness):
    """An actor that asks a hundred times gets a few numbers; later, and for others, there are
    more."""
    given = [harness.ask(f"learner-0.{n}/grant") for n in range(1, 101)]
    assert given == [*map(Granted, range(1, 17)), *[None] * 84]
    assert Granted(1) == harness.ask("learner-1.1/grant")
    harness.time.advance_to(10.0)
    assert Granted(17) == harness.ask("learner-0.2000/grant")
    assert Granted(1) == harness.ask("learner-0.1/grant")  # It was given that before.


@pytest.mark.parametrize("lane", ["control", "bulk", "tape"])
def test_who_was_never_given_is_not_heard(harness, lane):
    """learner-0.999 was never granted, and harms neither the one that is there nor its
    successors."""
    harness.ask()
    heeds = harness.registrar.heeds
    assert heeds(f"learner-0.1/{lane}")
    assert not heeds(f"learner-0.2/{lane}")
    assert not heeds(f"learner-0.999/{lane}")
    assert Granted(2) == harness.ask("learner-0.78/grant")
    assert heeds(f"learner-0.2/{lane}")
    assert heeds("observer-1/control")
    assert heeds(f"learner-77.1/{lane}")


def test_a_lead_that_has_lost_its_folder_hears_who_is_there(harness):
    """Learners that outlived it continue under their numbers; later ones come after those."""
    assert harness.registrar.heeds("learner-0.7/control")
    assert not harness.registrar.heeds("learner-0.8/control")
    assert Granted(8) == harness.ask()
    assert not harness.registrar.heeds(f"learner-1.{NUMBER_MAX}/control")
    assert Granted(1) == harness.ask("learner-1.1/grant")


@pytest.mark.parametrize("text", ["{", '{"x":' * 100_000])
def test_a_record_that_cannot_be_read_is_named(tmp_path, text):
    """It is no reason to begin at 1 again."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "incarnations.json").write_text(text)
    with pytest.raises(RecordError, match=r"incarnations\.json: not a record"):
        NumberRecord(tmp_path)


def test_actors_of_one_folder_note_their_numbers_at_once(tmp_path):
    """Those that ask nobody do, each in its own process; none is lost."""
    records = {f"actor-{n}": NumberRecord(tmp_path) for n in range(4)}

    def note_many(name):
        for number in range(1, 21):
            records[name].note(name, number)

    with ThreadPoolExecutor(len(records)) as threads:
        list(threads.map(note_many, records))
    known = NumberRecord(tmp_path)
    assert [20] * len(records) == [known.newest(name) for name in records]


@pytest.mark.parametrize("text", ["{", None])
def test_a_record_that_was_damaged_or_removed_since_is_written_again(tmp_path, text):
    """With what is known; numbers go on."""
    record, path = NumberRecord(tmp_path), tmp_path / "kept" / "incarnations.json"
    record.note("a", 3)
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    record.note("b", 1)
    assert (3, 1) == tuple(map(NumberRecord(tmp_path).newest, "ab"))


SOURCE = {"own.py": "X = 1\n", "parts/deep.py": "Y = 2\n"}


def test_what_runs_is_told_once_it_is_known(harness):
    """The settings, from which the same job can be made again, and the source; first the lead's own
    worker must have read that."""
    assert harness.ask_what_runs() is None
    harness.registrar.know_source(SOURCE)
    told = harness.ask_what_runs()
    assert isinstance(told, Described)
    assert job_from(told.settings, "test").id == JOB.id
    assert told.source == SOURCE
    assert decode_described([encode(told)]) == told


def test_what_runs_is_told_now_and_then(harness):
    """An actor that asks all the time is told a few times, and then once in ten seconds."""
    harness.registrar.know_source(SOURCE)
    told = [harness.ask_what_runs() for _ in range(100)]
    assert sum(each is not None for each in told) == 4
    assert isinstance(harness.ask_what_runs("learner-1.1/grant"), Described)
    harness.time.advance_to(10.0)
    assert isinstance(harness.ask_what_runs(), Described)


@pytest.mark.parametrize("route", ["learner-3.1/grant", "syncer.1/grant", "/grant"])
def test_what_runs_is_told_to_no_other(harness, route):
    """A name that is not of this job, and a request in another version, are refused."""
    harness.registrar.know_source(SOURCE)
    assert isinstance(harness.ask_what_runs(route), Denied)
    assert isinstance(harness.ask_what_runs(version=1), Denied)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"own.py": "x" * DESCRIBED_BYTES_MAX}, "bytes, at most"),
        ({"my-parts/own.py": ""}, "Expected `str` matching regex"),
        ({f"own_{n}.py": "" for n in range(501)}, "length <= 500"),
    ],
)
def test_a_source_that_cannot_be_sent_is_said_to_be_so(harness, source, said):
    """The line says why, and what to do: copy it."""
    harness.registrar.know_source(source)
    answer = harness.ask_what_runs()
    assert isinstance(answer, Denied)
    assert said in answer.reason
    assert answer.reason.endswith("copy it and the job file to that host")


@pytest.mark.parametrize(
    "name",
    [
        "../own.py",
        "/own.py",
        "a/../own.py",
        "own.txt",
        "a//own.py",
        "own.py\n",
        ".own.py",
        "a.py/x",
    ],
)
def test_received_files_stay_in_their_folder(name):
    """A name that leads elsewhere, or is no module's, is refused before anything is written."""
    with pytest.raises(SideProtocolError):
        decode_described([encode(Described({}, {name: ""}))])


@given(
    st.binary(max_size=400)
    | st.recursive(
        st.none() | st.integers() | st.text() | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.just("type"), inner),
    ).map(lambda said: _or_empty(said))
)
def test_any_answer_is_read_or_refused(frame):
    """By one error, whatever whoever answers at an address sends."""
    with suppress(SideProtocolError):
        decode_described([frame])


def _or_empty(said):
    try:
        return msgspec.msgpack.encode(said)
    except OverflowError:
        return b""
