"""A simulation with the speeds and delays of a recorded run, to try another schedule. With the
run's own schedule the simulation must reproduce the run's merges, which a test checks; with another
it predicts their effect."""

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from msgspec.msgpack import Decoder
from msgspec.structs import replace

from clocks import actor_of, read_text
from ddloco.job.config import Job, load_job
from ddloco.job.protocol.events import Happened
from ddloco.job.protocol.messages import Contribution, Pull
from ddloco.job.protocol.tape_facts import TENSORS
from ddloco.job.protocol.work import FragmentEncoded, FragmentMerged
from ddloco.simulation.network import Wire
from ddloco.simulation.node import Costs, Pace
from ddloco.simulation.physics import Physics
from ddloco.simulation.scenario import ScenarioTable, WorkTable
from ddloco.simulation.tapes import log_maker, recorder_maker
from ddloco.stage.files.faults import SYNCER, Fault
from ddloco.stage.files.run_folder import JOB_FILE, LOG_FILE
from ddloco.stage.files.toml import ConfigError
from ddloco.workers.simulated.work import leaves_of
from replay import open_tapes, tape
from transport import MessageArrived


class RecordedPace(Pace):
    """Steps with the recorded durations; after the last one, with their median."""

    def __init__(self, durations: Sequence[float], rng: random.Random) -> None:
        super().__init__(median(durations) if durations else 1.0, 0.0, rng)
        self._durations = durations
        self._begun = 0

    def step(self, now: float, slow: float, count: int = 1) -> float:
        begun, self._begun = self._begun, self._begun + count
        known = self._durations[begun : self._begun]
        seconds = sum(known) * slow + super().step(now, slow, count - len(known))
        self._running_s = seconds
        return seconds


@dataclass(frozen=True)
class Recording:
    """A run folder, as a scenario with one case; learners in ``without`` never join."""

    folder: Path
    overrides: tuple[str, ...] = ()
    work: WorkTable = field(default_factory=WorkTable)
    without: tuple[str, ...] = ()

    @property
    def scenario(self) -> ScenarioTable:
        about = f"{self.folder}, with the speeds and delays of the run"
        return ScenarioTable(name=self.folder.name or "run", about=about)

    def resolved(self, source: str) -> Job:
        """The run's job with overrides; a simulated model has the same number of fragments."""
        del source
        # The speeds and absences of single learners are in the recording; with fewer learners,
        # tables of those that are left out would be refused.
        job = load_job(self.folder / JOB_FILE, ("learner={}", "chaos={}", *self.overrides))
        self._check_without(job)
        table = replace(job.job, task="simulated:tensors")
        return replace(job, job=table, task={TENSORS: self._fragments}, learner={})

    def physics(self, job: Job, seed: int, folder: Path | None = None) -> Physics:
        steps: dict[str, list[float]] = {}
        for line in self._said("step"):
            steps.setdefault(line["actor"], []).extend([line["step_s"]] * line.get("together", 1))
        listening = self._said("listening")
        make_s = listening[0]["at"] if listening else 0.0
        encode_s, merge_s, delay_s = self._measured
        return Physics(
            leaves=leaves_of(job.task[TENSORS]),
            seed=seed,
            wire=Wire(delay_s=delay_s),
            costs=Costs(encode_s=encode_s, merge_s=merge_s, make_s=make_s, rest_s=0.0),
            pace=lambda name, rng: RecordedPace(steps.get(name, []), rng),
            recorder=recorder_maker(job, folder, arithmetic=False),
            log=log_maker(folder),
        )

    def faults(self, job: Job, seed: int, until_s: float) -> tuple[Fault, ...]:
        """Learners join at the recorded times; those that are left out never do."""
        del seed, until_s
        delay_s = self._measured[2]
        first: dict[str, float] = {}
        for line in self._said("joined"):
            first.setdefault(actor_of(line["learner"]), line["at"] - delay_s)
        there = {name: max(at, 0.0) for name, at in first.items() if name in job.learner_names()}
        joined = {**there, **dict.fromkeys(self.without, math.inf)}
        return tuple(Fault("join", name, at) for name, at in sorted(joined.items()))

    def _check_without(self, job: Job) -> None:
        names = job.learner_names()
        for name in self.without:
            if name not in names:
                there = f"{names[0]} to {names[-1]}"
                raise ConfigError(f"--without {name}: no such learner; the run has {there}")
        left = len(names) - len(set(self.without))
        if not left:
            raise ConfigError("--without: leaves no learner")
        if left < job.sync.quorum:
            raise ConfigError(
                f"--without: leaves {left} of {len(names)} learners, and sync.quorum is "
                f"{job.sync.quorum}, so nothing would be merged; add --set sync.quorum={left}"
            )

    @cached_property
    def _lines(self) -> list[dict[str, Any]]:
        try:
            text = read_text(self.folder / LOG_FILE)
            return [json.loads(line) for line in text.splitlines()]
        except OSError as error:
            raise ConfigError(f"{self.folder / LOG_FILE}: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{self.folder / LOG_FILE}: has a damaged line: {error}") from None

    def _said(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self._lines if line["event"] == event]

    @property
    def _fragments(self) -> int:
        listening = self._said("listening")
        if not listening:
            raise ConfigError(f"{self.folder}: its syncer never listened; nothing to go by")
        return listening[0]["fragments"]

    @cached_property
    def _measured(self) -> tuple[float, float, float]:
        """Median seconds for encoding, merging, and the delay of a message."""
        decode = Decoder(Happened).decode
        at: dict[tuple[str, int], float] = {}
        came: list[tuple[str, str, int, float]] = []
        encode: list[float] = []
        merge: list[float] = []
        for each in open_tapes(self.folder):
            since = 0.0
            for record in each.records():
                if not isinstance(record, tape.Event):
                    continue
                at[each.incarnation, record.n] = record.at
                event = decode(record.event)
                match event:
                    case MessageArrived(body=Pull() | Contribution()):
                        since = record.at
                        came.append(
                            (each.incarnation, event.sender, event.clock[event.sender], record.at)
                        )
                    case FragmentEncoded():
                        encode.append(record.at - since)
                    case FragmentMerged():
                        merge.append(record.at - since)
                    case _:
                        pass
        ways: dict[bool, list[float]] = {True: [], False: []}
        for me, sender, number, then in came:
            if (sender, number) in at:
                ways[actor_of(me) == SYNCER].append(then - at[sender, number])
        # Each actor has its own time origin; in the sum of both directions the offset cancels.
        there_and_back = sum(median(way) for way in ways.values() if way)
        some = [0.001]
        return median(encode or some), median(merge or some), max(there_and_back / 2, 0.0)
