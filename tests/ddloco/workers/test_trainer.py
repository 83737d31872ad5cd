"""The JAX worker, asked in this process: a whole state given to another continues to the bit."""

import gc
import platform
import time

import jax
import msgspec
import numpy as np
import optax
import pytest

from ddloco.job.config import Inner
from ddloco.job.protocol.fragment_plan import make_plan
from ddloco.job.protocol.state_layout import piece_slice, pieces_of
from ddloco.job.protocol.work import FromShard, OneStep
from ddloco.stage.arrays.shared_memory import PAGE, ArenaView, SharedMemory
from ddloco.workers import rpc
from ddloco.workers.first_step import SavedTree
from ddloco.workers.inner_optimizer import schedule_counts, with_counts
from ddloco.workers.rpc import span_of
from ddloco.workers.server import fulfilled
from ddloco.workers.task import TaskError
from ddloco.workers.tensor_sums import host_sums
from ddloco.workers.trainer import Trainer
from tests.tasks import Regression


class Harness:
    """A trainer, its arena, and the requests of a learner."""

    def __init__(
        self,
        arena,
        task="tests.tasks:regression",
        *,
        shard=0,
        shards=1,
        batch=None,
        task_options=None,
        **inner,
    ):
        self.arena = arena
        self.trainer = Trainer(ArenaView(arena.filenos()))
        self.step = 0
        known = (task, task_options or {}, Inner(**inner), 1, shard, shards)
        prepared = self.ask(rpc.Prepare(*known, batch=batch))
        self.fingerprint = prepared.fingerprint
        self.plan = make_plan(prepared.leaves, fragments=3, interval=3, strategy="balanced")
        self.state_bytes = self.ask(rpc.Lay(self.plan)).state_bytes

    def ask(self, request):
        """Fulfil one request."""
        return self.trainer.answer(request)

    def begin(self):
        """Make parameters."""
        self.ask(rpc.Fill(span_of(self.arena.allocate(self.plan.total_bytes))))

    def train(self, skipped=0, cursor=b"", data=None):
        """One step; loss, batch and the parameters after it."""
        self.step += 1
        out = self.arena.allocate(self.plan.total_bytes)
        done = self.ask(rpc.Train(self.step, (), span_of(out), skipped, cursor, 0, data))
        return done.loss, done.batch, out.data.tobytes()

    def installing(self, state):
        """The request to take over a whole state."""
        return rpc.Install((span_of(state),))

    def state(self):
        """The whole state."""
        out = self.arena.allocate(self.state_bytes)
        out.data[:] = 0
        self.ask(rpc.CopyOut(span_of(out)))
        return out


@pytest.fixture
def arena():
    """Shared memory for as many trainers as there are."""
    arena = SharedMemory()
    yield arena
    arena.close()


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_who_takes_over_a_state_goes_on_to_the_bit(arena, optimizer):
    """Parameters, moments, step counts and the place in the data: the next step is the same."""
    donor = Harness(arena, optimizer=optimizer, warmup=5)
    donor.begin()
    for _ in range(3):
        donor.train()
    state = donor.state()
    taker = Harness(arena, optimizer=optimizer, warmup=5)
    taker.ask(rpc.Install((span_of(state),)))
    assert donor.train() == taker.train(skipped=3)
    assert donor.train() == taker.train()


def test_a_step_gives_the_sums_of_its_tensors_and_trains_the_same(arena, monkeypatch):
    """In the order of the plan; a trainer that computes none has the same parameters to the bit."""
    one, other = Harness(arena), Harness(arena)
    monkeypatch.setattr(other.trainer, "_sums", lambda _: lambda: b"")
    told = []
    for harness in (one, other):
        harness.begin()
        told.append([harness.train() for _ in range(3)])
    assert told[0] == told[1]
    assert other.trainer._last.tensors == b""
    by_name = dict(zip(one.trainer._names, one.trainer._leaves(), strict=True))
    leaves = [by_name[leaf.name] for each in one.plan.fragments for leaf in each]
    assert one.trainer._last.tensors == host_sums(leaves)


def test_an_update_is_taken_once(arena):
    """A coordinator that continues asks again for what was under way, from a state that has it; one
    whose snapshot is of before its first update begins with the parameters of the seed."""
    harness = Harness(arena)
    gradient, out = (arena.allocate(harness.plan.total_bytes) for _ in range(2))
    harness.begin()
    told = []
    for t in (1, 2, 3):
        gradient.data[:] = np.full(len(gradient.data) // 4, t, np.float32).view(np.uint8)
        harness.ask(rpc.Update(span_of(gradient), span_of(out), t))
        told.append(out.data.tobytes())
        if t == 2:
            state = harness.state()
    later, anew = Harness(arena), Harness(arena)
    later.ask(rpc.Install((span_of(state),), rpc.RestoredState(0, rpc.Updated(2))))
    for t in (2, 3):
        later.ask(rpc.Update(span_of(gradient), span_of(out), t))
        assert told[t - 1] == out.data.tobytes()
    assert later.ask(rpc.CopyOut(span_of(state))) == rpc.Copied(rpc.Updated(3))
    gradient.data[:] = np.full(len(gradient.data) // 4, 1, np.float32).view(np.uint8)
    anew.ask(rpc.Update(span_of(gradient), span_of(out), 1))
    assert told[0] == out.data.tobytes()


def test_a_replica_goes_to_its_place_in_its_data(arena):
    """As one that was there from the start; the batch of a step is that of its number."""
    here, returned = Harness(arena), Harness(arena)
    here.begin()
    source, out = (arena.allocate(here.plan.total_bytes) for _ in range(2))
    here.ask(rpc.Score(None))
    here.trainer._copy_out(here.trainer._leaves(), span_of(source))
    batches = [
        here.ask(rpc.ComputeGradient(span_of(source), span_of(out), step)).batch
        for step in (1, 2, 3)
    ]
    assert len(set(batches)) == 3
    there = returned.ask(rpc.ComputeGradient(span_of(source), span_of(out), 3))
    assert there.batch == batches[2]


def test_a_copy_of_a_fragment_is_its_part_of_all_parameters(arena):
    """As the last step left them; padding is zeroed, since memory is used again."""
    harness = Harness(arena)
    harness.begin()
    _, _, whole = harness.train()
    for p in range(len(harness.plan.fragments)):
        start, stop = harness.plan.fragment_slice(p)
        out = arena.allocate(stop - start)
        out.data[:] = 255
        assert rpc.Ready() == harness.ask(rpc.CopyFragments(((p, span_of(out)),)))
        assert whole[start:stop] == out.data.tobytes()


def test_the_first_step_needs_no_second_state_on_the_device(arena, monkeypatch):
    """It runs twice, and each time the device holds the state once: a state that takes more than
    half of the memory of a GPU can be trained."""
    harness = Harness(arena, optimizer="adamw")
    harness.begin()
    held, update = [], harness.trainer._update

    def counted(params, opt_state, state, given):
        own = {id(leaf) for leaf in jax.tree.leaves((params, opt_state, state, given))}
        held.append(sum(each.nbytes for each in jax.live_arrays() if id(each) not in own))
        return update(params, opt_state, state, given)

    monkeypatch.setattr(harness.trainer, "_update", counted)
    gc.collect()
    elsewhere = sum(each.nbytes for each in jax.live_arrays())
    elsewhere -= sum(leaf.nbytes for leaf in jax.tree.leaves(harness.trainer._params))
    harness.train()
    assert 2 == len(held)
    assert all(beside - elsewhere <= 64 for beside in held), (held, elsewhere)


def test_without_the_moments_it_would_not(arena):
    """The test above can fail: parameters alone are not the state."""
    donor = Harness(arena)
    donor.begin()
    for _ in range(3):
        donor.train()
    state = donor.state()
    state.data[donor.plan.total_bytes :] = 0
    taker = Harness(arena)
    taker.ask(rpc.Install((span_of(state),)))
    assert donor.train() != taker.train(skipped=3)


def test_a_spoilt_state_is_taken_back_as_such(arena):
    """A learner that continues from a snapshot after a loss of NaN begins its moments again with
    the next global fragment, as it would have done without the snapshot."""
    donor = Harness(arena)
    donor.begin()
    for _ in range(3):
        donor.train()
    state, after, cursor = donor.state(), {}, donor.trainer._last.cursor
    start, stop = donor.plan.fragment_slice(0)
    fresh = arena.allocate(stop - start)
    fresh.data[:] = state.data[start:stop]
    for spoilt in (True, False):
        taker = Harness(arena)
        last = rpc.Trained(float("nan") if spoilt else 0.5, 8, b"batch", cursor)
        taker.ask(rpc.Install((span_of(state),), rpc.RestoredState(3, last)))
        out = arena.allocate(taker.plan.total_bytes)
        taker.ask(rpc.Train(4, (rpc.NewFragment(0, span_of(fresh)),), span_of(out), 0))
        after[spoilt] = out.data.tobytes()
    donor.trainer._spoilt = True
    out = arena.allocate(donor.plan.total_bytes)
    donor.ask(rpc.Train(4, (rpc.NewFragment(0, span_of(fresh)),), span_of(out), 0))
    assert out.data.tobytes() == after[True] != after[False]


def test_a_resumed_worker_knows_the_result_of_its_last_step(arena):
    """A second snapshot within the same step says the same of it as the first."""
    before = Harness(arena)
    before.begin()
    before.train()
    out = arena.allocate(before.state_bytes)
    copied = before.ask(rpc.CopyOut(span_of(out)))
    after = Harness(arena)
    after.ask(rpc.Install((span_of(out),), rpc.RestoredState(1, copied.last)))
    again = arena.allocate(before.state_bytes)
    assert copied == after.ask(rpc.CopyOut(span_of(again)))
    assert copied.last.loss > 0.0


def test_a_state_that_is_no_numbers_is_left_alone(arena):
    """A peer's state may hold NaN; a learner must not take it over."""
    donor = Harness(arena)
    donor.begin()
    donor.train()
    state = donor.state()
    state.data[:4] = 255  # The bits of a NaN.
    taker = Harness(arena)
    assert taker.ask(rpc.Install((span_of(state),))) == rpc.Installed(sound=False)
    assert taker.trainer._opt_state is None


def test_a_state_may_come_in_pieces(arena):
    """They are put together in order."""
    donor = Harness(arena)
    donor.begin()
    donor.train()
    state = donor.state()
    pieces = []
    for n in range(pieces_of(donor.state_bytes, 4096)):
        part = state.data[piece_slice(n, donor.state_bytes, 4096)]
        pieces.append(arena.allocate(len(part)))
        pieces[-1].data[:] = part
    assert 1 < len(pieces)
    taker = Harness(arena)
    taker.ask(rpc.Install(tuple(span_of(each) for each in pieces)))
    assert state.data.tobytes() == taker.state().data.tobytes()


def test_an_optimizer_whose_state_is_no_plain_numbers_cannot_be_copied(arena, monkeypatch):
    """It trains all the same, and its worker reports a state of 0 bytes."""
    plain = optax.sgd(0.1)

    def init(params):
        return (plain.init(params), jax.random.key(0))

    def update(gradients, state, params=None):
        updates, inner = plain.update(gradients, state[0], params)
        return updates, (inner, state[1])

    keyed = optax.GradientTransformation(init, update)
    monkeypatch.setattr("ddloco.workers.trainer.inner_optimizer", lambda inner: keyed)
    harness = Harness(arena)
    assert 0 == harness.state_bytes
    harness.begin()
    assert 0.0 < harness.train()[0]


def test_memory_that_is_touched_is_the_actors_own(arena):
    """Every page of it, and nothing but the first byte of each."""
    region = arena.allocate(PAGE + 2)
    region.data[:] = 7
    assert rpc.Ready() == Harness(arena).ask(rpc.Touch(span_of(region)))
    assert [0, 7, 0, 7] == region.data[[0, 1, PAGE, PAGE + 1]].tolist()


# Moments that are made again, and schedules that are not.

COSINE = optax.cosine_decay_schedule(0.1, 1000)


@optax.inject_hyperparams
def injected(learning_rate):
    """A rate that users may change while they train."""
    return optax.sgd(learning_rate, momentum=0.9)


OPTIMIZERS = {
    "adamw": lambda: optax.adamw(COSINE),
    "sgd with momentum": lambda: optax.sgd(COSINE, momentum=0.9),
    "a chain": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adam(COSINE)),
    "a rate that is injected": lambda: injected(COSINE),
    "a step for every two": lambda: optax.MultiSteps(optax.adam(COSINE), 2),
    "adafactor": lambda: optax.adafactor(COSINE),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_schedules_go_on_where_moments_begin_anew(name):
    """The schedules' counts are as after all steps; what corrects young moments begins at zero."""
    params = {"w": jax.numpy.ones((3, 2)), "scale": jax.numpy.ones(())}
    gradients = jax.tree.map(jax.numpy.ones_like, params)
    optimizer = OPTIMIZERS[name]()
    state = fresh = optimizer.init(params)
    for _ in range(8):
        _, state = optimizer.update(gradients, state, params)
    counts = schedule_counts(state)
    assert set(counts) == {4 if "every two" in name else 8}
    again = with_counts(fresh, counts, 8)
    assert counts == schedule_counts(again)
    moved = {
        jax.tree_util.keystr(path)
        for (path, one), other in zip(
            jax.tree.leaves_with_path(fresh), jax.tree.leaves(again), strict=True
        )
        if not bool((one == other).all())
    }
    assert len(moved) == len(counts), "the counts and nothing else"
    assert [8] * len(counts) == schedule_counts(with_counts(fresh, [], 8)), "counts not known"


@pytest.fixture
def cosine(monkeypatch):
    """Learners whose rate falls to nothing within four steps."""
    rate = optax.cosine_decay_schedule(0.1, 4)
    monkeypatch.setattr("ddloco.workers.trainer.inner_optimizer", lambda inner: optax.adamw(rate))


def moved(harness, **more):
    """Whether a step changes the parameters."""
    _, _, after = harness.train(**more)
    before, harness.before = getattr(harness, "before", b""), after
    return before != after


def test_a_healed_learner_does_not_jump_back_to_the_peak_of_its_schedule(arena, cosine):
    """After a loss that was no number its moments are new, its learning rate is not."""
    harness = Harness(arena)
    harness.begin()
    for _ in range(5):
        moved(harness)
    assert not moved(harness), "the schedule is through"
    harness.trainer._spoilt = True
    start, stop = harness.plan.fragment_slice(0)
    fresh, out = arena.allocate(stop - start), arena.allocate(harness.plan.total_bytes)
    fresh.data[:] = memoryview(harness.before)[start:stop]
    harness.ask(rpc.Train(7, (rpc.NewFragment(0, span_of(fresh)),), span_of(out), 0))
    assert out.data.tobytes() == harness.before
    assert 0 == int(jax.tree.leaves(harness.trainer._opt_state[0].mu)[0].sum()), "moments are new"


@pytest.mark.parametrize("known", [True, False])
def test_a_learner_that_comes_back_without_a_donor_goes_on_in_its_schedule(arena, cosine, known):
    """Its cursor says where the schedule stood; without one the batches that it has used do."""
    harness = Harness(arena)
    harness.begin()
    for _ in range(6):
        moved(harness)
    cursor = harness.trainer._last.cursor if known else b""
    back = Harness(arena)
    back.begin()
    moved(back, skipped=6, cursor=cursor)
    assert not moved(back)
    assert harness.train()[1] != back.train()[1], "one batch further"


def test_the_cursor_of_a_step_brings_the_batch_after_it(arena):
    """A stream that says where it stands is put there; no batch is drawn for that."""
    harness = Harness(arena)
    harness.begin()
    for _ in range(5):
        harness.train()
    back = Harness(arena)
    back.begin()
    drawn = []
    inner = back.trainer._batches._batches
    real = inner.next
    inner.next = lambda: drawn.append(1) or real()
    cursor = harness.trainer._last.cursor
    assert harness.train()[1] == back.train(skipped=5, cursor=cursor)[1]
    assert 3 == len(drawn), "its own, again to see that going back works, and the one after it"


def test_a_stream_may_shuffle_its_data_while_the_step_before_is_computed(arena, monkeypatch):
    """The next batch is drawn meanwhile; the batch of the step is not changed by that."""
    harness, other = Harness(arena), Harness(arena)
    for each in (harness, other):
        each.begin()
    inner = other.trainer._batches._batches
    real, shared = inner.next, []

    def next_in_place():
        fresh = real()
        if not shared:
            shared.extend(leaf.copy() for leaf in jax.tree.leaves(fresh))
        for leaf, new in zip(shared, jax.tree.leaves(fresh), strict=True):
            leaf[...] = new
        return jax.tree.unflatten(jax.tree.structure(fresh), shared)

    inner.next = next_in_place
    update = other.trainer._update

    def late(params, opt_state, state, given):
        other.trainer._batches.draw_ahead()
        return update(params, opt_state, state, given)

    other.trainer._update = late
    for _ in range(3):
        assert harness.train() == other.train()


@pytest.mark.parametrize(
    ("task", "returned"),
    [("regression", False), ("keyed", False), ("stateful", False), ("regression", True)],
)
def test_a_step_that_was_compiled_ahead_is_not_traced_again(arena, task, returned, monkeypatch):
    """It gives the same bits, of the same batches; those of a learner that has returned are
    further on."""
    traced = []
    before = Regression.loss
    monkeypatch.setattr(Regression, "loss", lambda *args: traced.append(1) or before(*args))
    plain, ahead = (Harness(arena, f"tests.tasks:{task}", warmup=5) for _ in range(2))
    ahead.ask(rpc.CompileAhead(returned))
    limit = time.monotonic() + 30.0
    while not traced:
        assert time.monotonic() < limit
        time.sleep(0.01)
    for each in (plain, ahead):
        each.begin()
    skipped, cursor = 0, b""
    if returned:
        other = Harness(arena, f"tests.tasks:{task}", warmup=5)
        other.begin()
        for _ in range(3):
            other.train()
        skipped, cursor = 3, other.trainer._last_whole().cursor
        traced.clear()
    steps = [ahead.train(skipped, cursor), ahead.train()]
    assert len(traced) == (not returned)
    assert [plain.train(skipped, cursor), plain.train()] == steps


def test_a_learner_that_returned_draws_nothing_twice_ahead(arena, monkeypatch):
    """If its stream must draw all used batches again, it begins with those."""
    harness = Harness(arena)
    stream = harness.trainer._batches._batches
    monkeypatch.setattr(stream, "state", lambda: None)
    monkeypatch.setattr(stream, "next", lambda: 1 / 0)
    harness.ask(rpc.CompileAhead(returned=True))
    assert harness.trainer._compiling is None
    harness.ask(rpc.CompileAhead())
    assert harness.trainer._batches._ahead.error is not None


def test_what_cannot_be_compiled_ahead_is_said_by_the_step(arena, monkeypatch):
    """As if it had not been tried."""
    harness = Harness(arena)
    monkeypatch.setattr(Regression, "loss", lambda *_: 1 / 0)
    harness.ask(rpc.CompileAhead())
    harness.begin()
    with pytest.raises(ZeroDivisionError):
        harness.train()


def test_tokens_that_are_no_number_are_refused(arena, monkeypatch):
    """The line names the task's method and what it returned."""
    monkeypatch.setattr("tests.tasks.Regression.tokens", lambda self, batch: "x")
    harness = Harness(arena)
    harness.begin()
    with pytest.raises(TaskError, match=r"^task tests.tasks:regression: tokens\(batch\) is 'x'; w"):
        harness.train()


def batches_of(arena, shard, count, shards=4):
    """The digests of the first batches of a data shard."""
    harness = Harness(arena, shard=shard, shards=shards)
    harness.begin()
    return [harness.train()[1] for _ in range(count)]


def test_a_learner_draws_from_several_shards_in_turn(arena):
    """Each is drawn in order; one that is given away is closed, and begins where it is told."""
    mine = Harness(arena, shard=0, shards=4)
    mine.begin()

    def turn(*held, opens=False, skip=0, cursor=b""):
        return mine.train(skip, cursor, FromShard(held, opens=opens))[1]

    told = [turn(0, 2, opens=True), turn(2, 0, opens=True), turn(0, 2)]
    cursor = mine.trainer._last.cursor
    told += [turn(2, 0), turn(2), turn(3, 2, opens=True, skip=1)]
    assert mine.trainer._streams.keys() == {2, 3}
    told += [turn(0, 3, opens=True, skip=2, cursor=cursor), turn(3, 0)]
    zero, two, three = (batches_of(arena, shard, 3) for shard in (0, 2, 3))
    assert told == [zero[0], two[0], zero[1], two[1], two[2], three[1], zero[2], three[2]]


def test_own_state_has_all_shards(arena):
    """A worker that continues from a snapshot draws on from each of its shards."""
    mine, back = (Harness(arena, shard=0, shards=4) for _ in range(2))
    mine.begin()
    mine.train(0, b"", FromShard((0, 2), opens=True))
    mine.train(0, b"", FromShard((2, 0), opens=True))
    state, last = mine.state(), mine.trainer._last
    own = rpc.RestoredState(0, last, ((2, 1, b""), (0, 1, b"")))
    back.ask(rpc.Install((span_of(state),), own))
    for turn in ((0, 2), (2, 0), (0, 2)):
        assert mine.train(0, b"", FromShard(turn)) == back.train(0, b"", FromShard(turn))


def test_a_state_that_is_on_its_way_at_once_is_the_same(arena, monkeypatch):
    """Every tensor, and the padding between them; a large one is not on its way at once."""
    harness = Harness(arena, warmup=5)
    harness.begin()
    harness.train()
    one = harness.state().data.tobytes()
    begun = []
    array = type(jax.numpy.zeros(1))
    begin = array.copy_to_host_async
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    monkeypatch.setattr(
        array, "copy_to_host_async", lambda self: begun.append(self.shape) or begin(self)
    )
    assert harness.state().data.tobytes() == one
    few = len(begun)
    assert few > 4
    monkeypatch.setattr("ddloco.workers.placement.AT_ONCE_BYTES", 0)
    assert harness.state().data.tobytes() == one
    assert few == len(begun)


@pytest.mark.parametrize("check", [False, True])
def test_steps_that_are_asked_for_together_are_the_same_steps(arena, check):
    """Losses, tokens, batches, the place in the data and all numbers are those of single steps."""
    one, other = Harness(arena, warmup=5), Harness(arena, warmup=5)
    fresh = arena.allocate(one.plan.total_bytes)
    fresh.data[:] = 0
    found = []
    for harness, counts in ((one, (1, 1, 1, 1, 1)), (other, (2, 3))):
        harness.begin()
        step, told = 1, []
        for count in counts:
            newer = (rpc.NewFragment(0, span_of(fresh)),) if step == 3 else ()
            checked = check and step == 3
            asked = rpc.Train(step, newer, None, 0, b"", step // 3, None, checked, count)
            done = harness.ask(asked)
            last = OneStep(done.loss, done.tokens, done.batch)
            assert len(done.before) == count - 1
            told += [*done.before, last]
            step += count
        state = harness.state()
        found.append((told, done.cursor, done.tensors, state.data.tobytes()))
    assert found[0] == found[1]
    assert 5 == len({each.loss for each in told})


def test_waits_for_all_batches_of_several_steps_are_counted(arena, monkeypatch):
    """A stream that is slower than the steps makes the device wait before each of them."""
    harness = Harness(arena)
    harness.begin()
    harness.train()
    stream = harness.trainer._batches._batches
    draw = stream.next
    monkeypatch.setattr(stream, "next", lambda: (time.sleep(0.05), draw())[1])
    waited_s = harness.ask(rpc.Train(2, (), None, 0, count=4)).data_s
    assert waited_s > 0.1  # More than one batch or two take.


def test_a_nan_in_the_state_is_named_at_the_next_look(arena):
    """Of one of the optimizer's tensors, which the loss need not show; in none of a sound one."""
    harness = Harness(arena)
    harness.begin()

    def train(step, count):
        return harness.ask(rpc.Train(step, (), None, 0, b"", count=count))

    first, second = train(1, 15), train(16, 4)
    assert [(), ()] == [first.nan, second.nan]
    assert first.shapes == "", "it is looked at as often"
    assert second.shapes.endswith(" float32")
    state, spoilt = harness.trainer._opt_state, []

    def spoil(leaf):
        if leaf.dtype == np.float32 and leaf.ndim and not spoilt:
            spoilt.append(leaf.shape)
            return leaf.at[0].set(np.nan)
        return leaf

    harness.trainer._opt_state = jax.tree.map(spoil, state)
    assert train(20, 12).nan == ()
    told = train(32, 1)
    assert told.nan[0].startswith("optimizer:/")
    assert spoilt
    # A replay that begins at a snapshot of now is given this result, and compares all of it.
    measured = {"reads": {}, "data_s": 0.0, "compiling_s": 0.0}
    assert harness.trainer._last == msgspec.structs.replace(told, **measured)


def test_a_syncers_worker_opens_no_stream(arena, monkeypatch):
    """Only learners have data."""

    def batches(*_, **__):
        raise AssertionError("a syncer asks for no data")

    monkeypatch.setattr("tests.tasks.Regression.batches", batches)
    trainer = Trainer(ArenaView(arena.filenos()))
    trainer.answer(rpc.Prepare("tests.tasks:regression", {}, Inner(), 1, None, 1))
    assert not trainer._streams


def test_the_time_of_a_second_compilation_is_measured(arena, monkeypatch):
    """For a batch of another shape; it is no part of the state. The steps around it have none."""
    harness = Harness(arena)
    harness.begin()
    stream, told = harness.trainer._batches._batches, []
    draw = stream.next
    for step in range(1, 7):
        if step == 3:  # Drawn ahead: it is the batch of the next step.
            monkeypatch.setattr(stream, "next", lambda: tuple(each[:3] for each in draw()))
        told.append(harness.ask(rpc.Train(step, (), None, 0, b"")).compiling_s)
    assert [0.0] * 3 == told[:3]
    assert told[3] > 0.001
    assert [0.0] * 2 == told[4:]
    assert harness.trainer._last.compiling_s == 0.0


@pytest.mark.parametrize(("slow_s", "least_s", "most_s"), [(0.0, 0.0, 0.02), (0.1, 0.08, 0.15)])
def test_the_wait_for_a_batch_is_measured(arena, monkeypatch, slow_s, least_s, most_s):
    """A stream that is slower than the step makes the device wait; a fast one does not. It is no
    part of the state, which is the same in a replay."""
    harness = Harness(arena)
    harness.begin()
    harness.train()
    stream = harness.trainer._batches._batches
    draw = stream.next

    def slow():
        time.sleep(slow_s)
        return draw()

    monkeypatch.setattr(stream, "next", slow)
    waits = []
    for step in (2, 3, 4):
        out = arena.allocate(harness.plan.total_bytes)
        waits.append(harness.ask(rpc.Train(step, (), span_of(out), 0, b"")).data_s)

    assert least_s <= sorted(waits)[1] <= most_s
    assert harness.trainer._last.data_s == 0.0


class Flipping:
    """In place of a trainer's step: in one of its calls, one bit of one result flips."""

    def __init__(self, trainer, call, where):
        self.update, self.call, self.where, self.calls = trainer._update, call, where, 0

    def __call__(self, *given):
        self.calls += 1
        params, opt_state, state, loss, metrics = self.update(*given)
        if self.calls == self.call and self.where == "parameters":
            params["embed"] = flipped(params["embed"])
        elif self.calls == self.call and self.where == "optimizer's state":
            leaves, tree = jax.tree.flatten(opt_state)
            leaves[-1] = flipped(leaves[-1])
            opt_state = jax.tree.unflatten(tree, leaves)
        elif self.calls == self.call:
            loss = flipped(loss)
        return params, opt_state, state, loss, metrics


def flipped(array):
    """The array with the lowest bit of its first number changed."""
    numbers = np.array(array)
    numbers.reshape(-1).view(np.uint32)[0] ^= 1
    return jax.numpy.asarray(numbers)


def checked(harness, monkeypatch, call, where, *, leaves=True):
    """Three steps, of which the last is run twice; a bit flips in a call of the step."""
    harness.trainer._leaves_if_corrupt = leaves
    flipping = Flipping(harness.trainer, call, where)
    monkeypatch.setattr(harness.trainer, "_update", flipping)
    harness.begin()
    harness.train()
    harness.train()
    out = harness.arena.allocate(harness.plan.total_bytes)
    request = rpc.Train(3, (), span_of(out), 0, check=True)
    answer = fulfilled(harness.trainer, request)
    assert flipping.calls == 5, "the first step and the third run twice"
    return answer, out.data.tobytes()


@pytest.mark.parametrize("call", [4, 5])
@pytest.mark.parametrize("where", ["parameters", "optimizer's state", "loss"])
def test_a_flipped_bit_is_found(arena, monkeypatch, call, where):
    """In either run, in whatever the step gives; tensor, step, device and host are named."""
    answer, _ = checked(Harness(arena, optimizer="adamw"), monkeypatch, call, where)
    assert isinstance(answer, rpc.Failed)
    assert answer.kind == "worker"
    assert answer.reason.startswith("silent corruption: step 3 had two results, in ")
    assert f"({where}) on cpu " in answer.reason
    assert answer.reason.endswith(f" of {platform.node()}")


def test_who_goes_on_tells_of_it(arena, monkeypatch):
    """With the second result, which here is the right one."""
    answer, after = checked(Harness(arena), monkeypatch, 4, "parameters", leaves=False)
    assert answer.corrupt.startswith("embed (parameters) on cpu ")
    other = Harness(arena)
    other.begin()
    assert [other.train()[2] for _ in range(3)][-1] == after


def test_a_check_changes_nothing(arena, monkeypatch):
    """Without a flip the step that was run twice gives what it gives when run once."""
    answer, after = checked(Harness(arena, optimizer="adamw"), monkeypatch, 0, "")
    other = Harness(arena, optimizer="adamw")
    other.begin()
    assert [other.train()[2] for _ in range(3)][-1] == after
    assert answer.corrupt == ""


def test_frozen_arrays_are_given_to_the_loss_and_sent_nowhere(arena):
    """They are in no fragment and no state; their digest is in the fingerprint."""
    harness = Harness(arena, "tests.tasks:adapted")
    names = [leaf.name for each in harness.plan.fragments for leaf in each]
    assert "embed" not in names
    harness.begin()
    losses = [harness.train()[0] for _ in range(3)]
    assert losses[2] != losses[0]
    assert harness.ask(rpc.Score(None)).loss > 0
    fingerprints = [
        Harness(arena, "tests.tasks:adapted", task_options=options).fingerprint["frozen"]
        for options in ({}, {}, {"scale": 2.0})
    ]
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]
    assert "frozen" not in Harness(arena).fingerprint


def test_a_learner_may_have_batches_of_its_own_size(arena):
    """The weight of its contributions is by tokens."""
    sizes = []
    for batch in (None, 3):
        harness = Harness(arena, "tests.tasks:adapted", batch=batch)
        harness.begin()
        harness.train()
        sizes.append(harness.trainer._last.tokens)
    assert sizes == [8, 3]
    with pytest.raises(TaskError, match=r"batch is 3, and batches\(\) has no parameter batch"):
        Harness(arena, batch=3)


def test_a_learner_that_begins_or_continues_saves_nothing_on_the_host(arena, monkeypatch):
    """What it was given is read again from the actor's memory when its first step runs twice."""
    saved = []

    class Weighed(SavedTree):
        def __init__(self, tree):
            saved.append(sum(leaf.nbytes for leaf in jax.tree.leaves(tree)))
            super().__init__(tree)

    monkeypatch.setattr("ddloco.workers.trainer.SavedTree", Weighed)
    donor, spans = Harness(arena, optimizer="adamw"), []
    donor.begin()
    donor.train()
    _, _, whole = donor.train()
    state = donor.state()
    for p in range(len(donor.plan.fragments)):
        start, stop = donor.plan.fragment_slice(p)
        region = arena.allocate(stop - start)
        region.data[:] = np.frombuffer(whole[start:stop], np.uint8)
        spans.append(rpc.NewFragment(p, span_of(region)))
    fresh, taker = Harness(arena, optimizer="adamw"), Harness(arena, optimizer="adamw")
    saved.clear()
    fresh.ask(rpc.Train(1, tuple(spans), None, 0))
    taker.ask(rpc.Install((span_of(state),)))
    assert taker.train(skipped=2) == donor.train()
    assert saved == [0, 0]
    assert taker.train() == donor.train()


def test_late_steps_are_mixed_or_carried_over(arena):
    """What a version leaves of the learner's own: nothing, a share, or its steps since a copy."""
    arrays = {}
    for rule in ("overwrite", "blend", "carry"):
        harness = Harness(arena, lr=1e-30)  # Its step changes nothing.
        harness.begin()
        _, _, own = harness.train()
        start, stop = harness.plan.fragment_slice(0)
        newer, since = arena.allocate(stop - start), arena.allocate(stop - start)
        newer.data[:] = 0
        newer.data[:].view(np.float32)[:] = 3.0
        since.data[:].view(np.float32)[:] = 1.0
        more = {"blend": (0.25,), "carry": (0.0, span_of(since))}.get(rule, ())
        out = arena.allocate(harness.plan.total_bytes)
        harness.ask(rpc.Train(2, (rpc.NewFragment(0, span_of(newer), *more),), span_of(out), 0))
        leaf = harness.plan.fragments[0][0]
        arrays[rule] = out.data[start : start + leaf.nbytes].view(np.float32).copy()
        before = np.frombuffer(own[start : start + leaf.nbytes], np.float32)
    assert_allclose = np.testing.assert_allclose
    assert_allclose(arrays["overwrite"], 3.0)
    assert_allclose(arrays["blend"], 0.25 * before + 0.75 * 3.0, rtol=1e-6)
    assert_allclose(arrays["carry"], 3.0 + (before - 1.0), rtol=1e-6)
