"""The JAX worker, asked in this process: a whole state given to another goes on to the bit."""

import jax
import optax
import pytest

from ddloco import chores
from ddloco.chores import span_of
from ddloco.config import Inner
from ddloco.fragments import make_plan
from ddloco.stage.arena import PAGE, Arena, ArenaView
from ddloco.state import piece_slice, pieces_of
from ddloco.worker import Trainer, skip


class Desk:
    """A trainer, its arena, and the chores of a learner."""

    def __init__(self, arena, task="tests.tasks:regression", **inner):
        self.arena = arena
        self.trainer = Trainer(ArenaView(arena.fileno()))
        self.step = 0
        inner = Inner(**inner)
        prepared = self.ask(chores.Prepare(task, {}, inner, seed=1, shard=0, shards=1))
        self.plan = make_plan(prepared.leaves, fragments=3, interval=3, strategy="balanced")
        self.state_bytes = self.ask(chores.Lay(self.plan)).state_bytes

    def ask(self, request):
        """One chore."""
        return self.trainer.answer(request)

    def begin(self):
        """Make parameters."""
        self.ask(chores.Fill(span_of(self.arena.allocate(self.plan.total_bytes))))

    def train(self, skipped=0):
        """One step; loss, batch and the parameters after it."""
        self.step += 1
        out = self.arena.allocate(self.plan.total_bytes)
        done = self.ask(chores.Train(self.step, (), span_of(out), skipped))
        return done.loss, done.batch, out.data.tobytes()

    def state(self):
        """The whole state."""
        out = self.arena.allocate(self.state_bytes)
        out.data[:] = 0
        self.ask(chores.CopyOut(span_of(out)))
        return out


@pytest.fixture
def arena():
    """Shared memory for as many trainers as there are."""
    arena = Arena()
    yield arena
    arena.close()


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_who_takes_over_a_state_goes_on_to_the_bit(arena, optimizer):
    """Parameters, moments, step counts and the place in the data: the next step is the same."""
    donor = Desk(arena, optimizer=optimizer, warmup=5)
    donor.begin()
    for _ in range(3):
        donor.train()
    state = donor.state()
    taker = Desk(arena, optimizer=optimizer, warmup=5)
    taker.ask(chores.Install((span_of(state),)))
    assert donor.train() == taker.train(skipped=3)
    assert donor.train() == taker.train()


def test_without_the_moments_it_would_not(arena):
    """The test above can fail: parameters alone are not the state."""
    donor = Desk(arena)
    donor.begin()
    for _ in range(3):
        donor.train()
    state = donor.state()
    state.data[donor.plan.total_bytes :] = 0
    taker = Desk(arena)
    taker.ask(chores.Install((span_of(state),)))
    assert donor.train() != taker.train(skipped=3)


def test_a_spoilt_state_is_taken_back_as_such(arena):
    """Whoever goes on from a snapshot after a loss that was no number begins its moments anew with
    the next global fragment, as it would have done without."""
    donor = Desk(arena)
    donor.begin()
    for _ in range(3):
        donor.train()
    state, after = donor.state(), {}
    start, stop = donor.plan.fragment_slice(0)
    fresh = arena.allocate(stop - start)
    fresh.data[:] = state.data[start:stop]
    for spoilt in (True, False):
        taker = Desk(arena)
        taker.ask(chores.Install((span_of(state),), drawn=3, spoilt=spoilt))
        out = arena.allocate(taker.plan.total_bytes)
        taker.ask(chores.Train(4, ((0, span_of(fresh)),), span_of(out), 0))
        after[spoilt] = out.data.tobytes()
    donor.trainer._spoilt = True
    out = arena.allocate(donor.plan.total_bytes)
    donor.ask(chores.Train(4, ((0, span_of(fresh)),), span_of(out), 0))
    assert out.data.tobytes() == after[True] != after[False]


def test_a_state_that_is_no_numbers_is_left_alone(arena):
    """A peer may be broken; whoever comes back must not be."""
    donor = Desk(arena)
    donor.begin()
    donor.train()
    state = donor.state()
    state.data[:4] = 255  # The bits of a NaN.
    taker = Desk(arena)
    assert taker.ask(chores.Install((span_of(state),))) == chores.Installed(sound=False)
    assert taker.trainer._opt_state is None


def test_a_state_may_come_in_pieces(arena):
    """They are put together in order."""
    donor = Desk(arena)
    donor.begin()
    donor.train()
    state = donor.state()
    pieces = []
    for n in range(pieces_of(donor.state_bytes, 4096)):
        part = state.data[piece_slice(n, donor.state_bytes, 4096)]
        pieces.append(arena.allocate(len(part)))
        pieces[-1].data[:] = part
    assert 1 < len(pieces)
    taker = Desk(arena)
    taker.ask(chores.Install(tuple(span_of(each) for each in pieces)))
    assert state.data.tobytes() == taker.state().data.tobytes()


def test_an_optimizer_whose_state_is_no_plain_numbers_cannot_be_copied(arena, monkeypatch):
    """It trains all the same; whoever asks is told that there is nothing to be had."""
    plain = optax.sgd(0.1)

    def init(params):
        return (plain.init(params), jax.random.key(0))

    def update(gradients, state, params=None):
        updates, inner = plain.update(gradients, state[0], params)
        return updates, (inner, state[1])

    keyed = optax.GradientTransformation(init, update)
    monkeypatch.setattr("ddloco.worker.inner_optimizer", lambda inner: keyed)
    desk = Desk(arena)
    assert 0 == desk.state_bytes
    desk.begin()
    assert 0.0 < desk.train()[0]


class Counted:
    """A stream whose state is how many batches were drawn."""

    def __init__(self):
        self.index, self.drawn = 0, 0

    def next(self):
        self.index += 1
        self.drawn += 1
        return self.index

    def state(self):
        return self.index

    def restore(self, state):
        self.index = state


class Opaque(Counted):
    """A stream whose state is something else."""

    def state(self):
        return {"byte": self.index * 512}


def test_memory_that_is_touched_is_the_actors_own(arena):
    """Every page of it, and nothing but the first byte of each."""
    region = arena.allocate(PAGE + 2)
    region.data[:] = 7
    assert chores.Ready() == Desk(arena).ask(chores.Touch(span_of(region)))
    assert [0, 7, 0, 7] == region.data[[0, 1, PAGE, PAGE + 1]].tolist()


@pytest.mark.parametrize(("kind", "drawn"), [(Counted, 1), (Opaque, 9)])
def test_used_up_batches_are_left_out(kind, drawn):
    """By going there where the state is their number, else by drawing them."""
    stream = kind()
    skip(stream, 9)
    assert drawn == stream.drawn
    assert 10 == stream.next()
