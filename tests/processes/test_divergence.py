"""A replay that differs says where, and one that cannot know says what it does not know."""

import dataclasses
import json
import re
from pathlib import Path

import msgspec
import pytest
import trio

from ddloco.machines.syncer.machine import Syncer
from ddloco.replayer.replay_of import replay_of
from ddloco.stage.files.run_folder import open_folder
from ddloco.workers import executor
from replay import Tape, TapeWriter, tape
from tests.lab import hostile_world
from transport import Effect

SEED = 4
"""Of a hostile world with a syncer and two learners; here without its faults."""


def rewrite(path: Path, change) -> None:
    """Write a tape again with each event as ``change(n, event as plain data)`` returns it."""
    source = Tape(path)
    records = list(source.records())
    path.unlink()
    writer = TapeWriter(path, source.header)
    for record in records:
        if isinstance(record, tape.Event):
            event = change(record.n, msgspec.msgpack.decode(record.event))
            raw = msgspec.Raw(msgspec.msgpack.encode(event, order="deterministic"))
            writer.append(tape.Event(record.n, record.at, raw, record.clock))
        else:
            writer.append(record)
    writer.close()


def first_event(path: Path, kind: str, after: int = 0) -> int:
    """The number of the first event of a kind on a tape."""
    for record in Tape(path).records():
        if isinstance(record, tape.Event) and record.n > after:
            event = msgspec.msgpack.decode(record.event)
            if event["type"] == kind:
                return record.n
    raise AssertionError(f"no {kind} in {path}")


def test_a_changed_loss_is_named(copied, tools):
    """One bit of one loss on one tape: exactly that event, both values, exit 1."""
    path = copied / "tapes" / "learner-1.1.tape"
    target = first_event(path, "StepFinished", after=first_event(path, "StepFinished"))

    def change(n, event):
        if n == target:
            bits = msgspec.msgpack.encode(event["loss"])
            event["loss"] = msgspec.msgpack.decode(bits[:-1] + bytes([bits[-1] ^ 1]))
        return event

    rewrite(path, change)
    found = tools.replay(copied, "--json")
    divergence = json.loads(found.stdout)["divergence"]

    assert found.returncode == 1
    assert ("learner-1.1", target) == (divergence["actor"], divergence["event"])
    assert divergence["aspect"] == "result"
    assert divergence["recorded"] != divergence["replayed"]
    assert target == divergence["clock"]["learner-1.1"]


def test_the_tensor_that_differs_is_named(copied, tools):
    """One byte of the digest of a merge's last tensor, and of its whole: the tensor has a name."""
    path = copied / "tapes" / "syncer.1.tape"
    target = first_event(path, "FragmentMerged")

    def change(n, event):
        if n == target:
            event["tensors"] = event["tensors"][:-1] + bytes([event["tensors"][-1] ^ 1])
            event["wire"] = bytes(16)
        return event

    rewrite(path, change)
    found = tools.replay(copied)
    assert found.returncode == 1
    assert "DIFFERENT ARITHMETIC: the merge of global step 2 (fragment " in found.stdout
    assert re.search(r"^  tensor  .*another digest$", found.stdout, re.MULTILINE), found.stdout


@pytest.fixture(params=["simulated", pytest.param("real", marks=pytest.mark.slow)])
def recorded(request, tmp_path):
    """A run whose tapes may be changed: what plays tapes is one, only the workers are simulated."""
    if request.param == "real":
        return request.getfixturevalue("copied")
    folder = tmp_path / "simulated"
    drawn = dataclasses.replace(hostile_world.draw(SEED, folder), faults=(), poisoned=(), wrong=())
    open_folder(folder, drawn.job)
    assert hostile_world.happen(drawn).violation is None
    return folder


def test_a_changed_message_is_named(recorded, tools):
    """A report that its sender never said so: named at the receiver, as a message."""
    path = recorded / "tapes" / "syncer.1.tape"
    targets = []

    def change(n, event):
        body = event.get("body", {})
        if not targets and body.get("type") == "Progress" and body["step"] == 5:
            targets.append(n)
            body["tokens"] = [count + 1 for count in body["tokens"]]
        return event

    rewrite(path, change)
    found = tools.replay(recorded)

    assert found.returncode == 1
    assert found.stdout.startswith("DIFFERENT MESSAGE: the Progress message of learner-")
    assert f"(event syncer.1:{targets[0]})\n" in found.stdout


def test_a_changed_merge_is_named(copied, monkeypatch):
    """Merging by another rule than the recorded one: named at the first merge it changes."""
    merge = executor.merge_fragment

    def biased(*inputs, **settings):
        result = merge(*inputs, **settings)
        result.theta[0] += 1e-6
        return result

    monkeypatch.setattr(executor, "merge_fragment", biased)
    report = trio.run(replay_of(copied).run)

    assert report.divergence is not None
    assert report.divergence.actor == "syncer.1"
    assert report.divergence.number == first_event(
        copied / "tapes" / "syncer.1.tape", "FragmentMerged"
    )


def test_a_changed_decision_is_named(recorded, monkeypatch):
    """A syncer that decides otherwise: named at the first event it handles differently."""
    handle = Syncer.handle

    def hasty(self, at: float, event) -> list[Effect]:
        effects = handle(self, at, event)
        return effects[::-1] if type(event).__name__ == "FragmentMerged" else effects

    monkeypatch.setattr(Syncer, "handle", hasty)
    report = trio.run(replay_of(recorded).run)

    assert report.divergence is not None
    assert report.divergence.aspect == "effects"
    assert report.divergence.number == first_event(
        recorded / "tapes" / "syncer.1.tape", "FragmentMerged"
    )


@pytest.mark.parametrize("actor", ["learner-1", "syncer"])
def test_a_missing_tape_is_a_named_gap(recorded, tools, actor):
    """Without one tape the rest is verified, the gap is named, and the exit code is 1."""
    (recorded / "tapes" / f"{actor}.1.tape").unlink()
    found = tools.replay(recorded)

    assert found.returncode == 1, found.stdout
    assert f"gap: {actor}: no tape" in found.stdout
    assert "identical as far as it was compared" in found.stdout
    assert "results were not verified" in found.stdout
    assert (
        int(
            found.stdout.split("identical as far as it was compared: ")[1]
            .split()[0]
            .replace(",", "")
        )
        > 50
    )


def test_a_fingerprint_that_differs_is_named_first(copied, tools):
    """What can change arithmetic and is not as recorded is said before the replay starts."""
    path = copied / "tapes" / "learner-0.1.tape"
    source = Tape(path)
    records = list(source.records())
    path.unlink()
    elsewhere = {**source.header.fingerprint, "jaxlib": "0.0.1"}
    writer = TapeWriter(path, msgspec.structs.replace(source.header, fingerprint=elsewhere))
    for record in records:
        writer.append(record)
    writer.close()
    found = tools.replay(copied)

    assert "differs from the recording: learner-0.1: jaxlib was 0.0.1, is " in found.stderr
    assert found.returncode == 0
