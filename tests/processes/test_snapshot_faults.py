"""Whatever happens while a snapshot is under way: it is whole or not there, and a line says why.

One job lives through all of it. Its snapshots go to an object store that knows who writes what, so
that each fault meets the phase that it is meant for: an actor is killed, or may not write, at its
n-th write of a snapshot, or before or behind the manifest.
"""

import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, Literal, Self

import pytest

from tests.bucket import LOST, Bucket
from tests.processes.actors import Actors, Relay
from tests.processes.conftest import DDLOCO, Job, call, replay

LEAD, SHARD, FAR, NEAR = "syncer-0", "syncer-1", "learner-0", "learner-1"
PLACE = "s3://bucket/run"
MANIFEST = "run/snapshots/"
SETTINGS = (
    "job.steps=1000000",
    "job.learners=2",
    "task.step_s=0.1",
    f"snapshot.place={PLACE}",
    "snapshot.every_s=0.2",
    "snapshot.keep=6",
)


@dataclass(frozen=True)
class Scene:
    """What goes wrong while a snapshot is under way, and what becomes of it.

    Attributes:
        name: a few words.
        what: an actor is killed; a write is forbidden, or put off; its answer is lost; or the link
            of an actor breaks with the markers in it.
        who: that actor.
        at: at its how manieth write of the snapshot's blobs; "manifest" and "behind": just before
            and after the manifest is written.
        ends: as what.
        absent: who is not in it.
        said: part of the reason.
    """

    name: str
    what: Literal["kill", "forbid", "delay", "lose-answer", "lose-link"]
    who: str
    at: int | Literal["manifest", "behind"]
    ends: Literal["taken", "discarded", "nothing", "unheard"] = "taken"
    absent: str = ""
    said: str = ""


DENIED = "cannot be written: Access Denied"
BEGAN = "syncer-0.1, who began it: s3://bucket/run/blobs/"

SCENES = (
    Scene("a learner may not write", "forbid", FAR, 1, absent=FAR, said=DENIED),
    Scene("nor finish what it wrote", "forbid", NEAR, 4, absent=NEAR, said=DENIED),
    Scene("a shard may not write", "forbid", SHARD, 2, absent=SHARD, said=DENIED),
    Scene("the lead may not write", "forbid", LEAD, 1, "discarded", said=BEGAN),
    Scene("nor finish what it began", "forbid", LEAD, 4, "discarded", said=DENIED),
    Scene("there may be no manifest", "forbid", LEAD, "manifest", "discarded", said=DENIED),
    Scene("the store is busy", "delay", NEAR, 2),
    Scene("the manifest's answer is lost", "lose-answer", LEAD, "manifest"),
    Scene("a marker's link is lost", "lose-link", FAR, 0, absent=FAR),
    Scene("learner killed before it wrote", "kill", NEAR, 1, absent=NEAR),
    Scene("learner killed while it wrote", "kill", NEAR, 4, absent=NEAR),
    Scene("learner killed when it was through", "kill", NEAR, "manifest"),
    Scene("shard killed while it wrote", "kill", SHARD, 2, absent=SHARD),
    Scene("lead killed while it wrote", "kill", LEAD, 2, "nothing"),
    Scene("lead killed before the manifest", "kill", LEAD, "manifest", "nothing"),
    Scene("lead killed behind the manifest", "kill", LEAD, "behind", "unheard"),
)


class Trap:
    """Counts the writes of each snapshot, and lets a scene happen at its moment.

    Args:
        actors: whom it happens to.
        under_way: which snapshot is.
    """

    def __init__(self, actors: Actors, under_way: Callable[[], str]) -> None:
        self.snapshot = ""
        """The one that the last scene happened to."""
        self.sprung = threading.Event()
        self._under_way = under_way
        self._actors = actors
        self._scene: Scene | None = None
        self._lock = threading.Lock()
        self._writes: Counter[str] = Counter()
        """By actor, since the last manifest."""

    def set(self, scene: Scene) -> None:
        """Wait for its moment, in this snapshot or a later one."""
        self.sprung.clear()
        with self._lock:
            self._scene = scene

    def judge(self, who: str, name: str) -> int | None:
        """Asked before a write."""
        with self._lock:
            if name.startswith("run/blobs/"):
                self._writes[who] += 1
                return self._reached(who, self._writes[who])
            return self._reached(who, "manifest") if name.startswith(MANIFEST) else None

    def wrote(self, who: str, name: str) -> None:
        """Told of what was written."""
        with self._lock:
            if name.startswith(MANIFEST):
                self._reached(who, "behind")
                self._writes.clear()

    def _reached(self, who: str, at: int | str) -> int | None:
        scene = self._scene
        if scene is None or at != scene.at or (isinstance(at, int) and who != scene.who):
            return None
        self._scene, self.snapshot = None, self._under_way()
        self.sprung.set()
        if scene.what == "kill":
            self._actors.kill(scene.who)
        own = who == scene.who
        return (
            {"forbid": 403, "delay": 503, "lose-answer": LOST, "kill": 403}[scene.what]
            if own
            else None
        )


class ShardedJob:
    """A job of two shards and two learners, one of them behind a relay.

    Args:
        folder: an empty one.
    """

    def __init__(self, folder: Path) -> None:
        self.job = Job(folder)
        self.bucket = Bucket(folder / "objects")
        self.actors = Actors(self.job, 2, SETTINGS, self.bucket.environment)
        self.unheard: set[str] = set()
        """Committed snapshots whose commit no surviving process reported."""
        self._trap = Trap(self.actors, self.under_way)
        self.bucket.judge, self.bucket.wrote = self._trap.judge, self._trap.wrote

    def __enter__(self) -> Self:
        """Start all actors, and wait for a snapshot of them all."""
        with ExitStack() as stack:
            stack.enter_context(self.bucket)
            self.relay = stack.enter_context(Relay(list(self.actors.addresses.values())))
            stack.enter_context(self.actors)
            self.actors.relays[FAR] = self.relay
            for name in (LEAD, SHARD, FAR, NEAR):
                self.actors.start(name)
            self.healed()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """All processes are ended."""
        self._stack.close()

    def lines(self, *events: str) -> list[dict[str, Any]]:
        """The log's lines of some kinds."""
        return [line for line in self.job.log() if line["event"] in events]

    def settled(self, snapshot: str) -> dict[str, Any] | None:
        """What was said of a snapshot in the end."""
        said = self.lines("snapshot taken", "snapshot discarded")
        return next((line for line in said if line["snapshot"] == snapshot), None)

    def is_in_store(self, snapshot: str) -> bool:
        """Whether its manifest is; the name of the file begins with the id of the run."""
        ends = f"_{snapshot.replace(':', '-')}.json"
        objects = self.bucket.objects()
        return any(each.startswith(MANIFEST) and each.endswith(ends) for each in objects)

    def under_way(self) -> str:
        """The newest snapshot."""
        begun = self.lines("snapshot begun")
        return begun[-1]["snapshot"] if begun else ""

    def healed(self) -> None:
        """Wait until a snapshot is taken of all actors."""
        before, wanted = len(self.lines("snapshot taken")), self.actors.incarnations()

        def whole() -> bool:
            return any(
                wanted == set(line["parts"]) and "absent" not in line
                for line in self.lines("snapshot taken")[before:]
            )

        self.actors.wait_until(whole, f"a snapshot of {sorted(wanted)}")

    def play(self, scene: Scene) -> str:
        """Let it happen; the snapshot that was under way."""
        if scene.what == "lose-link":
            return self._lose_link()
        self._trap.set(scene)
        self.actors.wait_until(self._trap.sprung.is_set, f"the moment of {scene.name}")
        if scene.what == "kill":
            self.actors.again(scene.who)
        return self._trap.snapshot

    def _lose_link(self) -> str:
        """What is under way a second later lacks a marker, or a part that followed it."""
        before = self.under_way()
        self.relay.hold()
        with suppress(AssertionError):
            self.actors.wait_until(lambda: self.under_way() != before, "the next", seconds=1.0)
        snapshot = self.under_way()
        self.relay.lose()
        return snapshot

    def snapshot(self, action: str, *more: str) -> CompletedProcess[str]:
        """``ddloco snapshot ACTION`` of the place."""
        command = [*DDLOCO, "snapshot", action, PLACE, *more]
        return call(command, env={**os.environ, **self.bucket.environment("somebody")})


@pytest.fixture(scope="module")
def sharded_job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShardedJob]:
    """One job for all scenes."""
    with ShardedJob(tmp_path_factory.mktemp("sharded_job")) as sharded_job:
        yield sharded_job


@pytest.mark.slow
@pytest.mark.parametrize(
    "scene", [pytest.param(each, id=each.name.replace(" ", "-")) for each in SCENES]
)
def test_a_fault_while_a_snapshot_is_under_way(sharded_job, scene):
    """It costs that snapshot at most, or one part of it; a line says which, and why; later ones are
    whole again. Nothing is in the place of which the log says that it is not there."""
    snapshot = sharded_job.play(scene)
    if scene.ends in {"taken", "discarded"}:
        line = sharded_job.actors.wait_until(
            lambda: sharded_job.settled(snapshot), f"{snapshot} is settled"
        )
        assert f"snapshot {scene.ends}" == line["event"]
        absent = {who.rpartition(".")[0]: why for who, why in line.get("absent", {}).items()}
        assert {scene.absent} - {""} == set(absent)
        assert scene.said in absent.get(scene.absent, "") + line.get("reason", "")
    # Looked at now: retention may have taken it away by the time that all is well again.
    assert (scene.ends in {"taken", "unheard"}) == sharded_job.is_in_store(snapshot)
    if scene.ends == "unheard":
        sharded_job.unheard.add(snapshot.replace(":", "-"))
    sharded_job.healed()
    assert sharded_job.settled(snapshot) or scene.ends in {"nothing", "unheard"}


@pytest.mark.slow
def test_all_that_stands_is_whole_and_the_tapes_replay(sharded_job):
    """Every byte of every snapshot is as it was written, each of them was told of, and the job ends
    well."""
    ended = sharded_job.actors.stop()
    assert {0} == set(ended.values()), ended
    listed = json.loads(sharded_job.snapshot("list", "--json").stdout)
    taken = {line["snapshot"].replace(":", "-") for line in sharded_job.lines("snapshot taken")}
    verified = sharded_job.snapshot("verify")
    assert 0 == verified.returncode, verified.stdout + verified.stderr
    assert f"{len(listed)} of {len(listed)} snapshots intact" in verified.stdout
    # An id begins with that of the run.
    ids = {each["id"].partition("_")[2] for each in listed}
    assert ids <= taken | sharded_job.unheard
    replayed = replay(sharded_job.job.run_folder)
    assert 0 == replayed.returncode, replayed.stdout + replayed.stderr
    assert "identical" in replayed.stdout
