"""The learner machine alone: fed events, judged by its effects."""

import math

import msgspec
import pytest
from msgspec.structs import replace

from ddloco.job.config import RelayTable
from ddloco.job.protocol.events import Started, WorkerBusy
from ddloco.job.protocol.messages import (
    TOGETHER_MAX,
    Contribution,
    GlobalFragment,
    LastStep,
    Progress,
    Pull,
    Resume,
    Roster,
    StatePiece,
    StateRefused,
    StateWanted,
    Stop,
)
from ddloco.job.protocol.timers import STOP_S_MAX, LeaveDeadline, RelayLook
from ddloco.job.protocol.work import (
    CopyState,
    EncodeFragment,
    FragmentEncoded,
    InstallState,
    OneStep,
    RunStep,
    StateInstalled,
    StepFinished,
)
from ddloco.machines.learner.machine import ANSWERS_MAX, Learner
from ddloco.stage.actors.effects import Finish, Observe
from ddloco.stage.actors.events import LeaveRequested, Restored, StopRequested, WorkFailed
from transport import (
    BULK,
    CONTROL,
    Dial,
    Drop,
    Hangup,
    Keep,
    MessageArrived,
    PeerJoined,
    PeerLost,
    PeerRefused,
    Retire,
    Send,
    SetTimer,
    TimerFired,
)

P = 3


class Harness:
    """A learner, and the events that can be put before it."""

    def __init__(self, job, leaves, name="learner-0.1", **more):
        self.machine = Learner(job)
        self.at = 0.0
        self.number = 0
        self.holders = {}
        self.effects = self.tell(Started(name, leaves, **more))

    def tell(self, event, after_s=0.0):
        """An event happens; holders of arrays are counted as the actor would."""
        self.at += after_s
        arrived = getattr(event, "handle", "")
        effects = self.machine.handle(self.at, event)
        for effect in effects:
            if isinstance(effect, Keep | Drop):
                step = 1 if isinstance(effect, Keep) else -1
                self.holders[effect.handle] = self.holders.get(effect.handle, 0) + step
                assert self.holders[effect.handle] >= 0, "dropped more than kept"
        self.holders = {handle: n for handle, n in self.holders.items() if n}
        assert arrived not in self.holders or self.holders[arrived] == 1
        return effects

    def say(self, body, payload=True):
        """The syncer says something."""
        self.number += 1
        bulk = isinstance(body, GlobalFragment | StatePiece)
        handle = f"in/{self.number}" if payload and bulk else ""
        lane = BULK if handle else CONTROL
        return self.tell(
            MessageArrived("syncer", lane, "syncer.1", 1, self.number, {}, body, handle=handle)
        )

    def join(self):
        """The link is up."""
        return self.tell(PeerJoined("syncer", "syncer.1"))

    def parameters(self, version=0):
        """All first fragments come; the effects of the last."""
        return [self.say(GlobalFragment(p, version)) for p in range(P)][-1]

    def finish_step(self, loss=1.0, tokens=8, after_s=1.0, **more):
        """The running step is done."""
        running = self.machine.running
        before = (OneStep(loss, tokens, b"batch"),) * (running.count - 1)
        last = self.machine.step + running.count
        done = StepFinished(running.work, last, loss, tokens, b"batch", before=before, **more)
        return self.tell(done, after_s)


@pytest.fixture
def harness(make_job, leaves):
    """A learner of three fragments that has just started."""
    return Harness(make_job(fragments=P, interval=P), leaves)


@pytest.fixture
def training(harness):
    """A learner in the middle of its third step, linked."""
    harness.join()
    harness.parameters()
    harness.finish_step()
    harness.finish_step()
    return harness


def of(kind, effects):
    """The effects of a kind."""
    return [effect for effect in effects if isinstance(effect, kind)]


def said(kind, effects):
    """The bodies of a kind that are sent."""
    return [send.body for send in of(Send, effects) if isinstance(send.body, kind)]


def test_it_dials_the_syncer_first(harness, make_job, leaves):
    """A learner begins by dialling, with what both sides must agree on."""
    job = make_job(fragments=P, interval=P)
    assert [Dial("syncer", job.agreement(job.plan(leaves)))] == of(Dial, harness.effects)


def test_it_waits_for_every_first_fragment(harness):
    """The first step is asked for with the last missing fragment, overwriting all of them."""
    assert [] == of(RunStep, harness.join())
    for p in (2, 0):
        assert [] == of(RunStep, harness.say(GlobalFragment(p, 0)))
    assert [] == of(RunStep, harness.say(GlobalFragment(2, 0))), "twice the same is no third"
    (run,) = of(RunStep, harness.say(GlobalFragment(1, 0)))
    assert (1, "host/1") == (run.step, run.out)
    assert [0, 1, 2] == [each.fragment for each in run.overwrites]


def test_waiting_for_parameters_it_repeats_itself(harness):
    """Until its first step it says again what it lacks, and so learns that a link is dead.

    Found by test_machines_stateful: the syncer had given up the link, and both waited for ever.
    """
    (again,) = of(SetTimer, harness.join())
    effects = harness.tell(TimerFired(again.timer), after_s=again.at)
    assert [(-1, -1, -1)] == [progress.versions for progress in said(Progress, effects)]
    assert of(SetTimer, effects)
    harness.parameters()
    assert [] == harness.tell(TimerFired(again.timer))


def test_every_finished_step_asks_for_the_next(training):
    """The next step is asked for while its predecessor is handled, linked or not."""
    for step in range(4, 8):
        if step == 5:
            training.tell(PeerLost("syncer", "gone"))
        (run,) = of(RunStep, training.finish_step())
        assert (step, ()) == (run.step, run.overwrites)


@pytest.mark.parametrize(
    "event",
    [
        PeerLost("syncer", "gone"),
        PeerJoined("syncer", "syncer.1"),
        MessageArrived("syncer", CONTROL, "syncer.1", 1, 9, {}, Pull(3, 0)),
        MessageArrived("syncer", BULK, "syncer.1", 1, 9, {}, GlobalFragment(0, 3), handle="in/9"),
        MessageArrived("syncer", CONTROL, "syncer.1", 1, 9, {}, Stop(3, "over")),
    ],
)
def test_nothing_else_starts_a_step(training, event):
    """No message, and no loss of the link, starts or restarts a step."""
    assert [] == of(RunStep, training.tell(event))


def test_the_worker_hears_before_the_syncer(training):
    """The next step is asked for before the progress is said."""
    effects = training.finish_step()
    assert effects.index(of(RunStep, effects)[0]) < effects.index(of(Send, effects)[0])


def test_progress_is_whole(training):
    """After every step it says step, its time, and versions, steps, tokens of each fragment."""
    (progress,) = said(Progress, training.finish_step(tokens=5, after_s=2.0))
    assert (3, (0, 0, 0), (3, 3, 3), (21, 21, 21)) == (
        progress.step,
        progress.versions,
        progress.steps,
        progress.tokens,
    )
    assert progress.step_s == pytest.approx(1.0), "the median: one slow step changes nothing"


def test_what_the_last_step_brought_is_reported(make_job, leaves):
    """Its loss, the tokens of all steps, and the task's own metrics; the log has those, too."""
    harness = Harness(make_job(fragments=P, interval=P), leaves, tells=True)
    harness.join()
    harness.parameters()
    harness.finish_step(tokens=3)
    effects = harness.finish_step(loss=0.5, tokens=5, metrics={"accuracy": 0.25})
    (progress,) = said(Progress, effects)

    assert LastStep(0.5, {"accuracy": 0.25}) == progress.last
    assert 8 == progress.trained
    assert {"accuracy": 0.25} == of(Observe, effects)[-1].fields["metrics"]


def test_the_shapes_of_all_batches_are_reported(make_job, leaves):
    """Those that were seen at a look; not always the same ones are various for good."""
    harness = Harness(make_job(fragments=P, interval=P), leaves, tells=True)
    harness.join()
    harness.parameters()
    found = []
    for shapes in ("", "8x9", "", "8x9", "4x9", "4x9", ""):
        (progress,) = said(Progress, harness.finish_step(shapes=shapes))
        found.append(progress.last.shapes)
    assert found == ["", "8x9", "8x9", "8x9", "various", "various", "various"]


def test_a_step_is_told_the_newest_global_step(make_job, leaves):
    """Of the fragments that it begins with; on older tapes it was not."""
    for tells in (True, False):
        harness = Harness(make_job(fragments=P, interval=P), leaves, tells=tells)
        harness.join()
        [first] = of(RunStep, harness.parameters(version=4))
        harness.say(GlobalFragment(1, 9))
        [second] = of(RunStep, harness.finish_step())
        [third] = of(RunStep, harness.finish_step())

        assert ([4, 9, 9] if tells else [0, 0, 0]) == [first.t, second.t, third.t]


def test_losses_are_reported_only_where_that_is_asked_for(training):
    """The first event says so; simulated learners do not report them."""
    (progress,) = said(Progress, training.finish_step())

    assert progress.last is None
    assert set(msgspec.to_builtins(progress)) == {
        *("type", "step", "step_s", "versions", "steps", "tokens", "batches", "cursor"),
        *("trained", "spent"),
    }
    assert "metrics" not in of(Observe, training.finish_step())[-1].fields


def test_the_first_step_is_no_measure(harness):
    """A step that compiles does not count as how long steps take."""
    harness.join()
    harness.parameters()
    (progress,) = said(Progress, harness.finish_step(after_s=60.0))
    assert 0.0 == progress.step_s
    (progress,) = said(Progress, harness.finish_step(after_s=1.0))
    assert 1.0 == progress.step_s


def short_steps(make_job, leaves, span=1000, **changes):
    """A learner that has done two steps of 1 ms each, with changes to the job, and installed a
    fragment twice, so many steps apart."""
    job = make_job(fragments=P, interval=12)
    job = replace(job, worker=replace(job.worker, **changes))
    harness = Harness(job, leaves)
    harness.join()
    harness.parameters()
    harness.finish_step()
    harness.machine.span = span
    return harness, harness.finish_step(after_s=0.00099)


def asked_for(harness, effects, requests, step_s=0.00099):
    """The numbers of the first and of all steps of the next requests; the last one's effects."""
    asked = []
    for _ in range(requests):
        [run] = of(RunStep, effects)
        assert harness.machine.step + 1 == run.step
        asked.append((run.step, run.count))
        effects = harness.finish_step(after_s=step_s * run.count, tokens=8)
    return asked, effects


def test_short_steps_are_asked_for_several_at_once(make_job, leaves):
    """Twice as many as the last time, then as many as take 10 ms; what they bring is counted."""
    asked, effects = asked_for(*short_steps(make_job, leaves), 4)
    assert [(3, 2), (5, 4), (9, 8), (17, 10)] == asked
    [progress] = said(Progress, effects)
    assert (26, 26 * 8, (26,) * P) == (progress.step, progress.trained, progress.steps)
    assert pytest.approx(0.00099) == progress.step_s
    assert (10, pytest.approx(0.0099)) == (progress.together, progress.report_s)
    [seen] = of(Observe, effects)
    assert (26, 80, 10) == tuple(seen.fields[each] for each in ("step", "tokens", "together"))


def test_a_version_counts_from_the_first_of_the_steps_that_install_it(make_job, leaves):
    """A fragment that arrives in the middle of several steps is installed before the next ones."""
    harness, _ = short_steps(make_job, leaves)
    harness.say(GlobalFragment(1, 3))
    [progress] = said(Progress, harness.finish_step(after_s=0.002))
    assert (4, (4, 4, 4)) == (progress.step, progress.steps)
    [progress] = said(Progress, harness.finish_step(after_s=0.004))
    assert (8, (8, 4, 8)) == (progress.step, progress.steps)
    assert (64, 32, 64) == progress.tokens


def test_a_step_that_is_run_twice_is_the_first_of_several(make_job, leaves):
    """Steps that are asked for together end before one that is checked."""
    asked, _ = asked_for(*short_steps(make_job, leaves, check_every=5), 6)
    assert [(3, 2), (5, 4), (9, 1), (10, 2), (12, 3), (15, 5)] == asked


@pytest.mark.parametrize(("together_s", "count"), [(0.0, 1), (0.0015, 1), (0.005, 2), (60.0, 2)])
def test_how_many_are_asked_for_follows_from_the_setting(make_job, leaves, together_s, count):
    """None takes longer together than the job says; at first there are two."""
    _, effects = short_steps(make_job, leaves, together_s=together_s)
    assert [count] == [each.count for each in of(RunStep, effects)]


def test_few_of_the_steps_between_two_versions_are_asked_for(make_job, leaves):
    """An eighth of those between the last two; of the steps since the oldest, if they are more."""
    harness, effects = short_steps(make_job, leaves, span=32)
    asked, effects = asked_for(harness, effects, 4)
    assert [2, 4, 4, 4] == [count for _, count in asked]
    harness.say(GlobalFragment(1, 3))
    asked, _ = asked_for(harness, effects, 9)
    assert [4, 4, 3, 3, 3] == [count for _, count in asked][:5]
    assert harness.machine.span == 20


def test_a_request_has_a_most(make_job, leaves):
    """However short its steps are."""
    harness, effects = short_steps(make_job, leaves, span=10_000, together_s=60.0)
    asked, _ = asked_for(harness, effects, 12, step_s=0.0)
    assert TOGETHER_MAX == asked[-1][1]


def test_without_a_link_nothing_is_said(training):
    """A learner without a syncer trains on silently, and says all of it when it is back."""
    training.tell(PeerLost("syncer", "gone"))
    assert [] == of(Send, training.finish_step())
    (progress,) = said(Progress, training.join())
    assert (3, (3, 3, 3)) == (progress.step, progress.steps)


def test_overwrite_waits_for_the_step_boundary_and_resets_counters(training):
    """A newer fragment goes in with the next step; its counters restart, the others continue."""
    assert [] == of(RunStep, training.say(GlobalFragment(1, 4)))
    effects = training.finish_step()
    (before,) = said(Progress, effects)
    (run,) = of(RunStep, effects)
    assert ((0, 0, 0), (3, 3, 3)) == (before.versions, before.steps)
    assert [(1, 4)] == [(each.fragment, each.version) for each in run.overwrites]
    (after,) = said(Progress, training.finish_step())
    assert ((0, 4, 0), (4, 1, 4), (32, 8, 32)) == (after.versions, after.steps, after.tokens)


def test_the_newest_of_several_wins(training):
    """Of two versions that wait the newer goes in, and the other's array is let go at once."""
    (keep,) = training.say(GlobalFragment(1, 4))
    effects = training.say(GlobalFragment(1, 7))
    assert [keep.handle] == [drop.handle for drop in of(Drop, effects)]
    (run,) = of(RunStep, training.finish_step())
    assert [(1, 7)] == [(each.fragment, each.version) for each in run.overwrites]


@pytest.mark.parametrize("version", [3, 4, 0])
def test_older_and_equal_versions_are_ignored(training, version):
    """A version that is not newer than what waits is not kept."""
    training.say(GlobalFragment(1, 4))
    assert [] == training.say(GlobalFragment(1, version))


def test_a_version_may_come_instead_of_what_was_made_of_it(training):
    """What was refused is replaced by the same version, and its counters restart."""
    training.say(GlobalFragment(1, 4))
    training.finish_step()
    training.finish_step()
    (keep,) = training.say(GlobalFragment(1, 4, instead=True))
    (run,) = of(RunStep, training.finish_step())
    assert [(1, 4, keep.handle)] == [(e.fragment, e.version, e.handle) for e in run.overwrites]
    (progress,) = said(Progress, training.finish_step())
    assert (4, 1) == (progress.versions[1], progress.steps[1])


@pytest.mark.parametrize(("version", "taken"), [(3, False), (4, False), (5, True)])
def test_what_waits_is_not_replaced_by_its_like(training, version, taken):
    """Nothing was trained from a version that waits; an older one is never taken."""
    training.say(GlobalFragment(1, 4))
    effects = training.say(GlobalFragment(1, version, instead=True))
    assert taken is bool(of(Keep, effects))


def test_an_older_version_does_not_come_instead(training):
    """Where the learner has gone on to a newer version, the refusal is of the past."""
    training.say(GlobalFragment(1, 4))
    training.finish_step()
    training.finish_step()
    assert [] == training.say(GlobalFragment(1, 3, instead=True))


def test_who_has_gone_for_good_is_retired(training):
    """The syncer's roster is the actor's business; nothing else comes of it."""
    assert [Retire({"learner-1": 3})] == training.say(Roster(9, {"learner-1": 3}))


def test_a_version_going_in_is_not_taken_again(training):
    """What the running step overwrites counts as held, though its counters have yet to restart.

    Found by test_machines_stateful: the syncer sends it again after a link was lost in between.
    """
    training.say(GlobalFragment(1, 4))
    training.finish_step()
    assert [] == training.say(GlobalFragment(1, 4))
    assert [] == training.say(GlobalFragment(1, 3))
    (run,) = of(RunStep, training.finish_step())
    assert () == run.overwrites


@pytest.mark.parametrize(("fragment", "payload"), [(P, True), (0, False)])
def test_impossible_fragments_are_refused(training, fragment, payload):
    """A fragment outside the plan or without an array is observed, not kept."""
    effects = training.say(GlobalFragment(fragment, 9), payload)
    assert ["refused"] == [each.event for each in of(Observe, effects)]
    assert len(effects) == 1


def test_a_pull_is_answered_from_the_last_finished_step(training):
    """While step 3 runs, a pull gets step 2's copy with step 2's counters."""
    (encode,) = of(EncodeFragment, training.say(Pull(3, 1)))
    assert ("host/2", 1) == (encode.source, encode.fragment)
    (send,) = of(Send, training.tell(FragmentEncoded(encode.work, b"digest")))
    assert Contribution(t=3, fragment=1, base=0, step=2, steps=2, tokens=16) == send.body
    assert (BULK, encode.out) == (send.lane, send.payload)


def test_an_answer_keeps_its_counters_and_its_copy(training):
    """A step that ends during the encoding changes neither the counters nor frees the copy."""
    (encode,) = of(EncodeFragment, training.say(Pull(3, 1)))
    training.say(GlobalFragment(1, 3))
    training.finish_step()
    training.finish_step()
    assert "host/2" in training.holders
    (send,) = of(Send, training.tell(FragmentEncoded(encode.work, b"digest")))
    assert Contribution(t=3, fragment=1, base=0, step=2, steps=2, tokens=16) == send.body
    assert "host/2" not in training.holders


def test_a_pull_before_the_first_step_gets_no_answer(harness):
    """Nothing was trained yet, so there is nothing to contribute."""
    harness.join()
    assert [] == harness.say(Pull(1, 0))
    harness.parameters()
    assert [] == harness.say(Pull(1, 0))


def test_pulls_beyond_reason_are_refused(training):
    """A fragment outside the plan, and more answers than a syncer can want, are refused."""
    assert [] == of(EncodeFragment, training.say(Pull(3, P)))
    for _ in range(ANSWERS_MAX):
        assert of(EncodeFragment, training.say(Pull(3, 1)))
    (refusal,) = training.say(Pull(3, 1))
    assert "refused" == refusal.event


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_first_loss_that_is_no_number_is_bad_input(harness, loss):
    """A task whose first loss is NaN or Inf ends its learner, naming the task."""
    harness.join()
    harness.parameters()
    effects = harness.finish_step(loss=loss)
    (finish,) = of(Finish, effects)
    assert "bad-input" == finish.status
    assert "none:none" in finish.reason
    assert [] == of(RunStep, effects)


def test_a_later_loss_that_is_no_number_is_only_seen(training):
    """Later the syncer refuses what is not finite; the learner continues."""
    assert of(RunStep, training.finish_step(loss=math.nan))


@pytest.mark.parametrize("how", ["said", "asked"])
def test_stop_finishes_the_step_at_hand(training, how):
    """A stop, from the syncer or from outside, lets the running step end, then it leaves."""
    stop = training.say(Stop(9, "over")) if how == "said" else training.tell(StopRequested("over"))
    assert [SetTimer(LeaveDeadline(), training.at + STOP_S_MAX)] == stop
    effects = training.finish_step()
    assert [Hangup("syncer", "over"), Finish("done", "over")] == of(Hangup | Finish, effects)
    assert [] == of(RunStep | Send, effects)


def test_a_stop_does_not_wait_for_a_step_that_hangs(training):
    """Nobody needs what it brings."""
    training.tell(StopRequested("over"))
    effects = training.tell(TimerFired(LeaveDeadline()), after_s=STOP_S_MAX)
    assert [Hangup("syncer", "over"), Finish("done", "over")] == of(Hangup | Finish, effects)


def test_who_goes_on_from_a_snapshot_does_not_leave(training):
    """That it was asked to was said in another run."""
    training.tell(StopRequested("over"))
    training.tell(Restored("syncer.1-9", ()))
    effects = training.finish_step()
    assert [] == of(Hangup | Finish, effects)
    assert 1 == len(of(RunStep, effects))


def test_stop_before_the_first_step_leaves_at_once(harness):
    """With nothing running, there is nothing to finish."""
    assert [Finish("done", "over")] == of(Finish, harness.say(Stop(0, "over")))


@pytest.mark.parametrize(
    ("event", "status"),
    [
        (WorkFailed(1, "task", "it raised"), "bad-input"),
        (WorkFailed(1, "worker", "it died"), "failed"),
        (WorkFailed(1, "later", "it raised"), "failed"),
        (PeerRefused("syncer", "job differs"), "bad-input"),
    ],
)
def test_failures_end_it_with_whose_fault_it_is(training, event, status):
    """Failed work and a refusal end the learner, and say whose fault it is. What may pass is named
    with its place in the data, and it comes back from that."""
    (finish,) = of(Finish, training.tell(event))
    assert status == finish.status
    assert finish.again == (status == "failed")
    assert finish.again == finish.reason.endswith(", at batch 3")


def test_a_long_call_of_its_worker_is_reported_until_the_step_is_done(training):
    """To the syncer, whose status names it, and in the log."""
    effects = training.tell(WorkerBusy("next()", 61.2))
    assert ["next() for 61 s"] == [said.body.busy for said in of(Send, effects)]
    [seen] = of(Observe, effects)
    assert ("worker busy", "next()") == (seen.event, seen.fields["call"])
    assert [""] == [said.body.busy for said in of(Send, training.finish_step())]


def test_batches_without_tokens_are_counted(training):
    """The first is said, and then every doubling."""
    said = [of(Observe, training.finish_step(tokens=0)) for _ in range(5)]
    told = [[o.fields["batches"] for o in each if o.event == "no tokens"] for each in said]
    assert [[1], [2], [], [4], []] == told
    assert 5 == training.machine.empty


def test_a_number_that_is_not_finite_is_said_once(training):
    """Of its loss, or of its state, whose trace no loss need have."""
    told = [{}, {"nan": ("optimizer:/1",)}, {"nan": ("optimizer:/1",)}, {"loss": math.inf}]
    said = [of(Observe, training.finish_step(**each)) for each in told]
    seen = [[o.fields["what"] for o in each if o.event == "not finite"] for each in said]
    assert [[], ["optimizer:/1"], [], []] == seen


def test_arrays_are_balanced(training):
    """After many steps, pulls and overwrites a learner holds two copies and nothing else."""
    for t in range(4, 40):
        (encode,) = of(EncodeFragment, training.say(Pull(t, t % P)))
        training.say(GlobalFragment(t % P, t))
        training.say(GlobalFragment(t % P, t + 1))
        training.finish_step()
        training.tell(FragmentEncoded(encode.work, b"digest"))
    training.finish_step()
    assert {"host/39": 1, "host/40": 1} == training.holders


@pytest.fixture
def returned(make_job, leaves):
    """A learner that has come back, is linked, and has asked a donor for its state."""
    harness = Harness(make_job(fragments=P, interval=P), leaves, "learner-0.2")
    harness.join()
    harness.say(Resume(7, "learner-1.1"))
    return harness


def install(harness, *, sound=True):
    """Both pieces come, and are taken over."""
    for n in range(2):
        effects = harness.say(StatePiece("learner-1.1", 5, n, 2, (3, 1, 2)))
    (work,) = of(InstallState, effects)
    assert 2 == len(work.pieces)
    return harness.tell(StateInstalled(work.work, sound))


def test_who_comes_back_waits_to_hear_where_its_data_goes_on(make_job, leaves):
    """Parameters alone would have it read the same data again."""
    harness = Harness(make_job(fragments=P, interval=P), leaves, "learner-0.2")
    harness.join()
    assert [] == of(RunStep, harness.parameters())
    effects = harness.say(Resume(7, ""))
    (run,) = of(RunStep, effects)
    assert 7 == run.skip
    assert [{"batches": 7}] == [e.fields for e in of(Observe, effects) if e.event == "state lost"]
    harness.finish_step()
    assert 8 == harness.machine._state().batches


def test_batches_of_former_selves_are_drawn_with_the_first_step(make_job, leaves):
    """Before it, a learner that continues from a snapshot must still skip them; after it, no
    more."""
    harness = Harness(make_job(fragments=P, interval=P), leaves, "learner-0.2")
    harness.join()
    harness.say(Resume(7, ""))
    assert 0 == harness.machine.drawn
    harness.parameters()
    assert 8 == harness.machine.drawn
    harness.finish_step()
    assert 9 == harness.machine.drawn


def test_a_peers_state_is_as_good_a_beginning(returned):
    """With the versions that the peer held; what was newer already goes in with the first step."""
    returned.say(GlobalFragment(0, 3))
    returned.say(GlobalFragment(1, 4))
    effects = install(returned)
    (run,) = of(RunStep, effects)
    assert ([(1, 4)], 7) == ([(e.fragment, e.version) for e in run.overwrites], run.skip)
    assert [(3, 1, 2)] == [each.versions for each in said(Progress, effects)]
    assert 0 == returned.machine.recovery.held()
    returned.finish_step()
    progress = returned.machine._state()
    assert ((3, 4, 2), (1, 1, 1), 8) == (progress.versions, progress.steps, progress.batches)


def test_whatever_comes_first_begins_and_the_rest_is_let_go(returned):
    """All globals are there before the second piece is."""
    returned.say(StatePiece("learner-1.1", 5, 0, 2, (3, 1, 2)))
    assert of(RunStep, returned.parameters(6))
    assert 0 == returned.machine.recovery.held()
    assert [] == returned.say(StatePiece("learner-1.1", 5, 1, 2, (3, 1, 2)))


def test_a_state_that_is_no_numbers_is_refused(returned):
    """By name; and the next donor is asked from the start."""
    effects = install(returned, sound=False)
    assert [] == of(RunStep, effects)
    assert ["learner-1.1"] == [each.who for each in said(StateRefused, effects)]
    assert 0 == returned.machine.recovery.held()
    again = said(StateWanted, returned.say(Resume(7, "learner-2.1")))
    assert [StateWanted("learner-2.1", 0, 0)] == again


def test_a_state_of_other_fragments_is_refused(returned):
    """Nothing of it is kept."""
    effects = returned.say(StatePiece("learner-1.1", 5, 0, 2, (3,)))
    assert ["refused"] == [each.event for each in of(Observe, effects)]
    assert 0 == returned.machine.recovery.held()


def test_a_donor_trains_on(training):
    """The copy is asked for between two steps, right before the next one."""
    training.say(StateWanted("learner-1.2", 0, 0))
    effects = training.finish_step()
    kinds = [type(each) for each in effects if isinstance(each, CopyState | RunStep)]
    assert [CopyState, RunStep] == kinds


def test_a_learner_that_leaves_waits_for_its_step_a_little(training):
    """It leaves with the step, or without it when that takes too long; and not as if it were
    done."""
    assert [] == of(Finish, training.tell(LeaveRequested("moved")))
    assert [Finish("left", "moved")] == of(Finish, training.tell(TimerFired(LeaveDeadline())))


@pytest.fixture
def sited(make_job, leaves):
    """A learner with a relay, in the middle of its third step, linked to both."""
    job = make_job(fragments=P, interval=P)
    harness = Harness(replace(job, relay={"relay-0": RelayTable(("learner-0",))}), leaves)
    assert [each.peer for each in of(Dial, harness.effects)] == ["syncer", "relay-0"]
    harness.join()
    harness.parameters()
    (look,) = of(SetTimer, harness.tell(PeerJoined("relay-0", "relay-0.1")))
    assert look.timer == RelayLook()
    harness.finish_step()
    harness.finish_step()
    return harness


def answered(harness, pull):
    """To whom what is sent when a pull was answered, with whether it has a payload."""
    (encode,) = of(EncodeFragment, harness.say(pull))
    sends = of(Send, harness.tell(FragmentEncoded(encode.work, b"digest")))
    return [(each.peer, each.body.relay, bool(each.payload)) for each in sends]


def test_a_payload_goes_to_the_relay_and_its_head_to_the_syncer(sited):
    """If the syncer says so, and the relay is linked."""
    to_relay = [("relay-0", "relay-0", True), ("syncer", "relay-0", False)]
    assert answered(sited, Pull(1, 0, relay="relay-0")) == to_relay
    assert answered(sited, Pull(1, 0)) == [("syncer", msgspec.UNSET, True)]
    seen = of(Observe, sited.tell(PeerLost("relay-0", "gone")))
    assert [each.event for each in seen] == ["relay lost"]
    assert answered(sited, Pull(1, 0, relay="relay-0")) == [("syncer", msgspec.UNSET, True)]


def test_a_relay_brings_fragments(sited):
    """As the syncer does; another actor may not."""
    for peer, taken in (("relay-0", True), ("relay-9", False)):
        body = GlobalFragment(1, 3 if taken else 6)
        sited.tell(MessageArrived(peer, BULK, peer, 1, 99, {}, body, handle=f"in/{peer}"))
        assert (sited.machine.incoming[1].version == body.version) == taken


@pytest.mark.parametrize(
    ("relays", "left", "dialled"),
    [
        ({}, ["relay-0"], []),
        ({"relay-1": RelayTable(("learner-0",))}, ["relay-0"], ["relay-1"]),
        ({"relay-0": RelayTable(("learner-0",))}, [], []),
    ],
)
def test_a_run_that_continues_may_have_other_relays(sited, relays, left, dialled):
    """A learner leaves the one that it had, and dials the one that it has."""
    sited.machine.job = replace(sited.machine.job, relay=relays)
    effects = sited.tell(Restored("syncer.1-9", ()))
    assert [each.peer for each in of(Hangup, effects)] == left
    assert [each.peer for each in of(Dial, effects)] == dialled
    assert sited.machine.relayed == (not left)


def test_earlier_incarnations_of_a_relay_are_retired(sited):
    """When a later one is linked."""
    sited.tell(PeerLost("relay-0", "gone"))
    joined = sited.tell(PeerJoined("relay-0", "relay-0.3"))
    assert of(Retire, joined) == [Retire({"relay-0": 3})]


def test_a_relay_is_sent_signs_of_life(sited):
    """So that it is noticed when it was restarted."""
    due = sited.tell(TimerFired(RelayLook()))
    assert [each.peer for each in of(Send, due)] == ["relay-0"]
    sited.tell(PeerLost("relay-0", "gone"))
    assert [] == sited.tell(TimerFired(RelayLook()))
    sited.tell(StopRequested("over"))
    assert "relay-0" in [each.peer for each in of(Hangup, sited.finish_step())]
