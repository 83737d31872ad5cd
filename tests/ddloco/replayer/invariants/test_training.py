"""What a learner has trained on, as its steps alone tell."""

from msgspec import UNSET

from ddloco.job.protocol.messages import Contribution
from ddloco.replayer.invariants.training import TrainedSteps


def said(base, step, steps, tokens):
    """A contribution of the only fragment."""
    return Contribution(
        t=99, fragment=0, base=base, step=step, steps=steps, tokens=tokens, relay=UNSET
    )


def test_an_encoding_that_takes_long_is_compared_with_what_it_was_made_of():
    """However many versions were installed meanwhile; and it is still told from a wrong one."""
    trained = TrainedSteps([-1])
    for version in range(12):
        trained.take(0, version, len(trained.tokens) - 1)
        trained.finish(10)
    late = said(base=1, step=3, steps=2, tokens=20)
    assert trained.agrees(late)
    for wrong in ({"tokens": 21}, {"steps": 3}, {"base": 13}, {"step": 4}):
        fields = {"base": 1, "step": 3, "steps": 2, "tokens": 20, **wrong}
        assert not trained.agrees(said(**fields)), wrong
