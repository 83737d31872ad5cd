"""Compressed differences in the learner machine: what it keeps, encodes, decodes and forgets."""

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from ddloco.job.config import Compress
from ddloco.job.protocol.messages import Contribution, GlobalFragment, Pull
from ddloco.job.protocol.work import (
    DecodeFragment,
    EncodeFragment,
    FragmentDecoded,
    FragmentEncoded,
    RunStep,
)
from tests.ddloco.machines.learner.test_machine import Harness, P, of, said


@pytest.fixture
def training(make_job, leaves):
    """Makes a learner in the middle of its second step, with ``[compress]`` settings."""

    def made(**settings):
        job = replace(make_job(fragments=P, interval=P), compress=Compress(**settings))
        harness = Harness(job, leaves)
        harness.join()
        harness.parameters()
        harness.finish_step()
        return harness

    return made


def answer(harness, t, p, whole=UNSET):
    """A pull is answered: the work, and the message."""
    (encode,) = of(EncodeFragment, harness.say(Pull(t, p, whole)))
    (body,) = said(Contribution, harness.tell(FragmentEncoded(encode.work, b"digest")))
    return encode, body


def test_without_compression_nothing_is_kept(training):
    """Parameters are sent whole, and an installed version is released, as ever."""
    harness = training()
    encode, body = answer(harness, 1, 0)
    assert (encode.base, body.form) == ("", UNSET)
    assert set(harness.holders) == {"host/1", "host/2"}


def test_a_contribution_is_a_difference_to_the_installed_version(training):
    """It is encoded against the payload that brought the version, which is kept for that."""
    harness = training(up="int4")
    encode, body = answer(harness, 1, 2)
    assert (encode.base, body.base, body.form) == ("in/3", 0, "int4")
    harness.say(GlobalFragment(2, 3))
    harness.finish_step()
    assert "in/3" in harness.holders, "the running step installs version 3 only at its end"
    harness.finish_step()
    assert "in/3" not in harness.holders
    encode, body = answer(harness, 4, 2)
    assert (encode.base, body.base) == ("in/5", 3)


def test_a_syncer_that_lacks_the_version_gets_it_whole(training):
    """As does one that asks for a fragment that came with a donor's state."""
    harness = training(up="int4")
    encode, body = answer(harness, 1, 0, whole=True)
    assert (encode.base, body.form) == ("", UNSET)


def test_lost_parts_go_into_the_next_contribution(training):
    """Error feedback: two answers from one version start from the same, the next from the last."""
    harness = training(up="int4", feedback=True)
    first, _ = answer(harness, 1, 0)
    again, _ = answer(harness, 1, 0)
    assert (first.error, again.error) == ("", "")
    assert first.error_out not in harness.holders, "the second took its place"
    harness.say(GlobalFragment(0, 3))
    harness.finish_step()
    harness.finish_step()
    later, _ = answer(harness, 4, 0)
    assert later.error == again.error_out
    assert {later.error, later.error_out} <= set(harness.holders)


@pytest.mark.parametrize(
    ("version", "spent", "kept"), [(3, 0, True), (3, -1, False), (1, -1, False), (0, -1, True)]
)
def test_a_contribution_that_was_not_merged_leaves_nothing_behind(training, version, spent, kept):
    """It was late or lost, and may have been wrong; before its sync is over it may still be merged,
    and a syncer that does not say leaves it as it was."""
    harness = training(up="int4", feedback=True)
    encode, _ = answer(harness, 1, 0)
    harness.say(GlobalFragment(0, version, spent=spent))
    assert kept is (encode.error_out in harness.holders)
    harness.finish_step()
    harness.finish_step()
    assert (answer(harness, 4, 0)[0].error == encode.error_out) is (kept and version > 0)


def test_what_was_lost_before_survives_a_contribution_that_was_not_merged(training):
    """The next contribution makes up for what earlier ones that were merged have lost."""
    harness = training(up="int4", feedback=True)
    first, _ = answer(harness, 1, 0)
    for version, spent in ((3, 0), (6, 0)):
        harness.say(GlobalFragment(0, version, spent=spent))
        harness.finish_step()
        harness.finish_step()
        later, _ = answer(harness, version + 1, 0)
        assert later.error == first.error_out
    assert later.error_out in harness.holders


def test_a_rejected_contribution_leaves_nothing_behind(training):
    """What a wrong contribution lost in compression is wrong as well, also while it is encoded."""
    harness = training(up="int4", feedback=True)
    answer(harness, 1, 0)
    (encode,) = of(EncodeFragment, harness.say(Pull(1, 0)))
    harness.say(GlobalFragment(0, 0, instead=True))
    harness.tell(FragmentEncoded(encode.work, b"digest"))
    assert not [handle for handle in harness.holders if handle.startswith("error/")]
    harness.finish_step()
    harness.finish_step()
    assert answer(harness, 4, 0)[0].error == ""


def test_a_version_is_made_from_a_difference(training):
    """It is decoded from what is installed, and installed at the next boundary."""
    harness = training(down="int4")
    effects = harness.say(GlobalFragment(1, 2, form="int4", base=0))
    (decode,) = of(DecodeFragment, effects)
    assert (decode.base, decode.source, decode.out) == ("in/2", "in/4", "global/1/2")
    assert harness.say(GlobalFragment(1, 2, form="int4", base=0)) == [], "it is under way"
    assert of(RunStep, harness.finish_step())[0].overwrites == ()
    harness.tell(FragmentDecoded(decode.work, b"digest"))
    assert "in/4" not in harness.holders
    (run,) = of(RunStep, harness.finish_step())
    assert [(1, 2, "global/1/2")] == [(o.fragment, o.version, o.handle) for o in run.overwrites]
    harness.finish_step()
    assert "in/2" not in harness.holders
    assert "global/1/2" in harness.holders, "the next difference is to this one"


def test_a_difference_to_another_version_is_refused(training):
    """It would lead to parameters that no syncer has; so would one in another format."""
    harness = training(down="int4")
    for said_ in (
        GlobalFragment(1, 5, form="int4", base=3),
        GlobalFragment(1, 2, form="int8", base=0),
    ):
        (observed,) = harness.say(said_)
        assert observed.event == "refused"
    assert len(harness.holders) == P + 2


def test_a_newer_whole_version_overtakes_a_difference(training):
    """The difference is decoded for nothing, and released."""
    harness = training(down="int4")
    (decode,) = of(DecodeFragment, harness.say(GlobalFragment(1, 2, form="int4", base=0)))
    harness.say(GlobalFragment(1, 5))
    harness.tell(FragmentDecoded(decode.work, b"digest"))
    assert "global/1/2" not in harness.holders
    assert of(RunStep, harness.finish_step())[0].overwrites[0].version == 5
