"""What is usual in contributions: remembered from what was accepted, forgotten when in vain."""

import math

import pytest

from ddloco.job.protocol.messages import Contribution
from ddloco.job.protocol.work import FragmentMerged, Measured
from ddloco.machines.syncer.outlier_history import FEW, PATIENCE, WINDOW, OutlierHistory, Usual

A, B, C = "learner-0.1", "learner-1.1", "learner-2.1"


def said(t, base=0, steps=4, tokens=None):
    """A contribution to fragment 0."""
    return Contribution(t, 0, base, steps, steps, 8 * steps if tokens is None else tokens)


def learn(outliers, t, norms, before=0, refused=(), moved=1.0, cosine=0.5, **more):
    """A merge of contributions of these norms, by learner."""
    accepted = tuple(name for name in norms if name not in refused)
    reasons = tuple((name, "norm") for name in refused)
    measured = tuple(Measured(name, norm, cosine) for name, norm in norms.items())
    weights = tuple(1 / len(accepted) for _ in accepted)
    event = FragmentMerged(1, accepted, weights, reasons, b"", b"", b"", measured, moved)
    outliers.learn(event, {name: said(t, **more) for name in norms}, before)


@pytest.fixture
def outliers():
    """Of two fragments, nothing known yet."""
    return OutlierHistory([Usual(), Usual()])


def test_few_say_nothing(outliers):
    """Before there are three accepted ones nothing is usual; of another fragment nothing ever."""
    for t in range(1, FEW):
        learn(outliers, t, {A: 2.0})
        assert (0.0, None) == (outliers.norm(0, 4), outliers.cosine(0))
        assert outliers.objections({B: said(9, tokens=32_000)}, 32.0) == {}
    learn(outliers, FEW, {A: 2.0})
    assert (2.0, 0.5) == (outliers.norm(0, 4), outliers.cosine(0))
    assert (0.0, None) == (outliers.norm(1, 4), outliers.cosine(1))


def test_the_usual_is_the_median_of_what_was_accepted(outliers):
    """A wrong one among the first does not move it, a refused one is not even looked at."""
    for t, norm in enumerate([1000.0, 2.0, 3.0, 2.5], 1):
        learn(outliers, t, {A: norm})
    assert 2.5 == outliers.norm(0, 4)
    for t in range(5, 20):
        learn(outliers, t, {A: 2.5, B: 1e6}, refused=(B,))
    assert 2.5 == outliers.norm(0, 4)


def test_more_steps_may_go_further(outliers):
    """In proportion, at most; fewer may have gone as far."""
    for t in range(1, 5):
        learn(outliers, t, {A: 2.0})
    assert [2.0, 2.0, 4.0, 20.0] == [outliers.norm(0, steps) for steps in (1, 4, 8, 40)]


def test_habits_change(outliers):
    """After a window of others, nothing is left of what was usual before."""
    for t in range(1, WINDOW):
        learn(outliers, t, {A: 2.0})
    for t in range(WINDOW, WINDOW + WINDOW // 2 + 1):
        learn(outliers, t, {A: 0.01})
    assert 0.01 == outliers.norm(0, 4)


def test_nothing_is_learned_of_what_is_stale(outliers):
    """Its difference holds what the others did; how far the fragment went since is known."""
    learn(outliers, 5, {A: 2.0}, moved=3.0)
    learn(outliers, 9, {A: 2.0}, before=5, base=5, moved=4.0)
    for t in (13, 17, 21):
        learn(outliers, t, {A: 70.0}, before=t - 4, base=5, moved=0.5)
    assert 0.0 == outliers.norm(0, 4)
    assert [0.0, 4.0, 7.0] == [outliers.moved(0, base, 9) for base in (9, 5, 0)]
    assert [7.0] == [outliers.moved(0, 3, 9)], (
        "a version that never was is as old as the one before"
    )
    assert math.inf == OutlierHistory([Usual()]).moved(0, 0, 9), (
        "what another incarnation did is unknown"
    )


def test_moves_are_remembered_for_a_while(outliers):
    """No more of them than of anything else."""
    for t in range(1, 100):
        learn(outliers, t, {A: 2.0}, before=t - 1, base=t - 1)
    assert float(WINDOW) == outliers.moved(0, 99 - WINDOW, 99)
    assert math.inf == outliers.moved(0, 98 - WINDOW, 99)


def test_in_vain_for_long_is_forgotten(outliers):
    """After so many merges in a row of which nothing was believed, everything is accepted."""
    for t in range(1, 5):
        learn(outliers, t, {A: 2.0})
    for _ in range(PATIENCE - 1):
        learn(outliers, 9, {A: 200.0}, refused=(A,))
    assert 2.0 == outliers.norm(0, 4)
    learn(outliers, 9, {A: 200.0}, refused=(A,))
    assert 0.0 == outliers.norm(0, 4)


def test_what_is_no_number_is_no_reason_to_forget(outliers):
    """It was not measured; nor is a refusal beside an accepted contribution."""
    for t in range(1, 5):
        learn(outliers, t, {A: 2.0})
    for t in range(5, 5 + 2 * PATIENCE):
        nan = FragmentMerged(1, (), (), ((A, "NaN or Inf"),), b"", b"", b"")
        outliers.learn(nan, {A: said(t)}, 0)
        if t % 8 == 0:
            learn(outliers, t, {A: 2.0, B: 900.0}, refused=(B,))
    assert 2.0 == outliers.norm(0, 4)


def odd(outliers, tokens, *names, others=(), band=32.0):
    """Who is refused of one sync: these learners with so many tokens in four steps, and others with
    the usual 32."""
    counts = {**dict.fromkeys(names, tokens), **dict.fromkeys(others, 32)}
    return outliers.objections({n: said(9, tokens=count) for n, count in counts.items()}, band)


def test_tokens_of_a_step_have_a_band(outliers):
    """Thirty-two times the usual is believed, more is named with both numbers; zero is no band."""
    for t in range(1, 5):
        learn(outliers, t, {A: 2.0})
    assert odd(outliers, 32 * 8 * 4, A) == {}
    assert "more tokens than steps allow: 1025 in 4" in odd(outliers, 1025, A)[A]
    assert odd(outliers, 10**9, A, band=0.0) == {}


def test_no_band_is_no_leave_to_outweigh_all_others(outliers):
    """Nobody's word counts a thousand times that of the others, however often it is said, nor more
    than 64 bits have; a learner alone, or one whose batches the job file says, is believed."""
    lie = 2**63 - 1
    assert odd(outliers, 4 * 2**31, A, band=0.0) == {}
    assert list(odd(outliers, lie, A, band=0.0)) == [A]
    for t in range(1, 5):
        learn(outliers, t, {A: 2.0, B: 2.0, C: 2.0})
    for _ in range(2 * FEW):
        for band in (0.0, 32.0):
            assert list(odd(outliers, lie, A, others=[B, C], band=band)) == [A]
            assert list(odd(outliers, 8001 * 4, A, others=[B, C], band=band)) == [A]
    assert odd(outliers, 8000 * 4, A, others=[B, C], band=0.0) == {}
    counts = {B: said(9), C: said(9, tokens=9_999_999)}
    assert outliers.objections(counts, 0.0, apart={"learner-2"}) == {}


def test_batches_without_tokens_are_no_measure_of_others(outliers):
    """Such as those whose labels are all masked: nobody is refused because of them."""
    for t in range(1, 5):
        learn(outliers, t, {A: 2.0}, tokens=0)
    for band in (0.0, 32.0):
        assert outliers.objections({B: said(9, tokens=8192)}, band) == {}
        both = {A: said(9, tokens=0), B: said(9, tokens=8192)}
        assert outliers.objections(both, band) == {}


def test_tokens_that_most_count_are_the_usual(outliers):
    """Such as sequences that grow, for all or for most at once; of two, both."""
    for t in range(1, 5):
        learn(outliers, t, {A: 2.0, B: 2.0, C: 2.0})
    assert odd(outliers, 9999, A, B, C) == odd(outliers, 9999, A, B, others=[C]) == {}
    assert list(odd(outliers, 9999, A, others=[B, C])) == [A]
    assert odd(outliers, 9999, A, B) == {}
    assert list(odd(outliers, 9999, A, others=[B])) == [A]


def test_tokens_of_a_learner_are_compared_with_its_own(outliers):
    """Its batches may be many times as large as those of others, from the first on."""
    for t in range(1, 5):
        learn(outliers, t, {A: 2.0, B: 2.0})
        learn(outliers, t, {C: 2.0}, tokens=9999)
    assert odd(outliers, 9999, C, others=[A, B]) == {}
    assert list(odd(outliers, 9999, A, others=[B, C])) == [A]


def test_batches_that_the_job_file_says_are_no_outliers(outliers):
    """Not even those of a learner that has contributed nothing before."""
    for t in range(1, 5):
        learn(outliers, t, {A: 2.0, B: 2.0})
    counts = {A: said(9), B: said(9), C: said(9, tokens=9999)}
    assert list(outliers.objections(counts, 32.0)) == [C]
    assert outliers.objections(counts, 32.0, apart={"learner-2"}) == {}


def test_tokens_counted_again_and_again_are_believed(outliers):
    """Then it is the history that is wrong. What is odd each time in another way is not."""
    for t in range(1, 5):
        learn(outliers, t, {A: 2.0, B: 2.0})
    for _ in range(FEW - 1):
        assert odd(outliers, 9999, A, others=[B])
    assert odd(outliers, 32, A, others=[B]) == {}  # The count begins again.
    for _ in range(FEW - 1):
        assert odd(outliers, 9999, A, others=[B])
    assert odd(outliers, 9999, A, others=[B]) == odd(outliers, 9999, A, others=[B]) == {}
    for power in range(4, 10):
        assert list(odd(outliers, 10 ** (2 * power), A, others=[B])) == [A]
