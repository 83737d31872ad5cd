"""The tensors that a message must carry, compressed or whole."""

import pytest

from ddloco.job.protocol.compression import compressed_layout
from ddloco.job.protocol.fragment_plan import wire_layout
from ddloco.job.protocol.messages import Contribution, ContributionSum, GlobalFragment
from ddloco.job.protocol.validation import admission
from transport import PROTOCOL_VERSION, Header, RemoteProtocolError, TensorMeta


@pytest.fixture
def plan(make_job, leaves):
    """The plan of three fragments."""
    return make_job(fragments=3, interval=3).plan(leaves)


def header(body, layout):
    """A message with tensors of this layout."""
    tensors = tuple(TensorMeta(name, shape, dtype, 8, b"d" * 16) for name, shape, dtype in layout)
    return Header(PROTOCOL_VERSION, "job", "learner-0.1", 1, 1, {}, body, tensors)


def test_a_compressed_fragment_is_rows_of_bytes(plan):
    """Each direction has its own format."""
    admits = admission(plan, 0, "int4", "int8")
    up = Contribution(1, 2, 0, 1, 1, 8, "int4")
    down = GlobalFragment(2, 1, form="int8", base=0)
    admits(header(up, compressed_layout(plan, 2, "int4")))
    admits(header(down, compressed_layout(plan, 2, "int8")))
    admits(header(Contribution(1, 2, 0, 1, 1, 8), wire_layout(plan, 2)))


@pytest.mark.parametrize("form", ["int8", "float32", "int1"])
def test_another_format_is_refused(plan, form):
    """The message names its format; the job has one."""
    admits = admission(plan, 0, "int4", "int8")
    body = Contribution(1, 2, 0, 1, 1, 8, form)
    with pytest.raises(RemoteProtocolError, match=rf"body.form: {form}, this job has int4"):
        admits(header(body, compressed_layout(plan, 2, form)))


def test_a_size_that_does_not_fit_is_refused(plan):
    """A payload of one format cannot pass as another."""
    admits = admission(plan, 0, "int4", "int8")
    body = Contribution(1, 2, 0, 1, 1, 8, "int4")
    with pytest.raises(RemoteProtocolError, match=r"tensor 0 is"):
        admits(header(body, compressed_layout(plan, 2, "int8")))


def test_a_payload_at_a_relay_is_with_the_relay_alone(plan):
    """The syncer is only told of it."""
    body, whole = Contribution(1, 2, 0, 1, 1, 8, relay="relay-0"), wire_layout(plan, 2)
    at_syncer, at_relay = admission(plan, 0), admission(plan, 0, relays=True)
    at_syncer(header(body, ()))
    at_relay(header(body, whole))
    with pytest.raises(RemoteProtocolError, match=r"tensors: this message carries none"):
        at_syncer(header(body, whole))
    with pytest.raises(RemoteProtocolError, match=r"tensors: 0 tensors, the fragment has"):
        at_relay(header(body, ()))


def test_a_sum_has_a_length_for_each_tensor(plan):
    """And rows in the format of contributions; without names it has nothing."""
    admits, count = admission(plan, 0, "int4"), len(plan.fragments[2])
    rows = compressed_layout(plan, 2, "int4")
    admits(header(ContributionSum(1, 2, 7, ("a.1",), (1.0,) * count, form="int4"), rows))
    admits(header(ContributionSum(1, 2, 7, ()), ()))
    with pytest.raises(RemoteProtocolError, match=r"body.lengths: 9, the fragment has"):
        admits(header(ContributionSum(1, 2, 7, ("a.1",), (1.0,) * 9, form="int4"), rows))
    with pytest.raises(RemoteProtocolError, match=r"body.form: float32, this job has int4"):
        admits(header(ContributionSum(1, 2, 7, ("a.1",), (1.0,) * count), rows))
