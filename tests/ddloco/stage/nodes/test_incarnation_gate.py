"""A shard hears those whose numbers the lead has given, and no others."""

import msgspec
import pytest
import trio

from ddloco.job.config import job_from
from ddloco.roles.job_program import program_of
from ddloco.stage.nodes.incarnation_gate import ASK_S, Gate
from ddloco.stage.nodes.incarnation_grants import Granted, Known, decode_question
from ddloco.stage.nodes.incarnation_registrar import SHARDS_S, NumberRecord, Registrar
from ddloco.stage.nodes.peer_version import want_of
from ddloco.stage.process.side_protocol import encode
from tests.manual_time import ManualTime
from transport import Arrival, PeerGone

JOB = job_from(
    {"job": {"task": "json:loads", "learners": 3, "syncers": 2}, "sync": {"fragments": 2}}, "test"
)
FULL = 3
SHARD, LEARNER = "syncer-1.1/grant", "learner-0.77/grant"


class Wire:
    """An endpoint that hands over what is sent."""

    def __init__(self):
        self.sent = []
        self.there = True
        self.full = trio.Event()

    def send_nowait(self, route, frames):
        """To a peer that may be away."""
        if not self.there:
            raise PeerGone(route)
        self.sent.append((route, frames))
        if len(self.sent) == FULL:
            self.full.set()


class Lead:
    """A lead in a folder."""

    def __init__(self, folder):
        self.time = ManualTime()
        self.wire = Wire()
        record = NumberRecord(folder)
        self.registrar = Registrar(program_of(JOB), record, self.wire, lambda *_: None, self.time)

    def ask(self, question, route):
        """Its answer."""
        return self.registrar.answer(Arrival(route, (encode(question),)))

    def number(self, route=LEARNER):
        """Its answer to a learner with an empty folder."""
        return self.ask(want_of(program_of(JOB), 0), route)


def gate_of(*answers):
    """A shard that was told something."""
    notes = []
    gate = Gate(program_of(JOB), Wire(), lambda *note: notes.append(note))
    for each in answers:
        gate.take(Arrival("syncer-0/grant", (encode(each),)))
    return gate, notes


def test_an_unknown_peer_locks_no_learner_out_of_a_shard():
    """Whatever number it makes up is not heard; the learner itself is."""
    gate, _ = gate_of(Known({"learner-0": 2}))
    assert not gate.heeds("learner-0.999/control")
    assert not gate.heeds("learner-1.1/control")
    assert gate.heeds("learner-0.2/control")
    assert gate.heeds("learner-0.1/bulk")


def test_a_shard_judges_learners_only():
    """The numbers of the lead and of observers are not granted here."""
    gate, _ = gate_of()
    for route in ("syncer-0.7/control", "observer.x/status", "learner-0.02/control"):
        assert gate.heeds(route)


def test_what_is_no_answer_teaches_nothing():
    """It is noted."""
    gate, notes = gate_of(Granted(3))
    assert not gate.heeds("learner-0.1/control")
    assert [name for name, _ in notes] == ["answer refused"]


def test_a_number_is_never_smaller_than_it_was():
    """A lead without its folder says less than before."""
    gate, _ = gate_of(Known({"learner-0": 3}), Known({"learner-0": 1, "nobody": 4}))
    assert gate.heeds("learner-0.3/control")


def test_the_lead_tells_a_shard_all_numbers(tmp_path):
    """Those that were given before it asked, and those of learners only."""
    lead = Lead(tmp_path)
    assert Known({}) == lead.ask(Known({}), SHARD)
    assert Granted(1) == lead.number()
    assert Known({"learner-0": 1}) == lead.ask(Known({}), SHARD)
    assert lead.ask(Known({}), "learner-1.1/grant") is None


def test_a_lead_without_its_folder_gives_no_number_that_a_shard_has_seen(tmp_path):
    """The learner's folder is lost, too: numbers continue where the shard knows they were."""
    lead = Lead(tmp_path)
    assert lead.number() is None
    lead.ask(Known({"learner-0": 3, "learner-1": 10**9 - 1}), SHARD)
    assert Granted(4) == lead.number()
    assert Granted(1) == lead.number("learner-1.1/grant"), "no shard was ever told so much"


def test_a_lead_waits_for_its_shards_a_while(tmp_path):
    """One that never comes keeps no learner from its number; nor does a lead that knows wait."""
    lead = Lead(tmp_path)
    assert lead.number() is None
    assert Granted(1) == lead.ask(want_of(program_of(JOB), 0), "syncer-1.5/grant"), (
        "shards need theirs first"
    )
    lead.time.advance_to(SHARDS_S)
    assert Granted(1) == lead.number()
    assert Granted(2) == Lead(tmp_path).number()


async def test_a_number_that_is_given_is_told_to_the_shards_at_once(tmp_path):
    """A learner that is there a moment later is heard."""
    lead = Lead(tmp_path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lead.registrar.run)
        for route, question in ((SHARD, Known({})), (LEARNER, want_of(program_of(JOB), 0))):
            lead.registrar.take(Arrival(route, (encode(question),)))
        with trio.fail_after(60):
            await lead.wire.full.wait()
        nursery.cancel_scope.cancel()
    route, (frame,) = lead.wire.sent[-1]
    assert (route, Known({"learner-0": 1})) == (SHARD, msgspec.msgpack.decode(frame, type=Known))


@pytest.mark.parametrize("there", [True, False])
async def test_a_shard_asks_at_an_unknown_number_and_every_few_seconds(autojump_clock, there):
    """Not more often than that, however many come; and continues when the lead is away."""
    gate, _ = gate_of(Known({"learner-0": 2}))
    gate._endpoint.there = there
    with trio.move_on_after(ASK_S + 1):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(gate.run)
            await trio.sleep(0.5)
            for _ in range(100):
                gate.heeds("learner-1.1/control")
    asked = [decode_question(frames) for _, frames in gate._endpoint.sent]
    assert asked == [Known({"learner-0": 2})] * (3 if there else 0)
