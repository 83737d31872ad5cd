"""What travels, read by a decoder that knows nothing of our types."""

from typing import get_args

import msgpack
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clocks import actor_of
from ddloco.job.protocol.messages import (
    Close,
    Contribution,
    ContributionSum,
    DataPlace,
    DataShards,
    GlobalFragment,
    JobBody,
    Measured,
    Progress,
    Pull,
    RelayReport,
    Resume,
    Roster,
    ShardReport,
    Spread,
    StatePiece,
    StateRefused,
    StateWanted,
    Stop,
    SumWanted,
    WantedShare,
)
from ddloco.stage.actors.messages import SnapshotPart
from snapshot import Part
from transport import LANES, PROTOCOL_VERSION, Codec, Header, TensorMeta
from transport.codec import DIGEST_BYTES, sealed
from transport.message import Bye, Chunk, Credit, Hello, Marker, Refused, Reset, Welcome

counts_st = st.integers(0, 2**63 - 1)
tuples_st = st.lists(counts_st, max_size=3).map(tuple)
versions_st = st.lists(st.integers(-1, 2**63 - 1), max_size=3).map(tuple)
floats_st = st.floats(0, allow_nan=False)
finite_st = st.floats(0, 1e38)
text_st = st.text(st.characters(codec="utf-8"), max_size=8)
names_st = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
snapshots_st = st.builds("{}:{}".format, names_st, counts_st)
reasons_st = st.dictionaries(names_st, text_st, max_size=2)
clocks_st = st.dictionaries(names_st, counts_st, max_size=3)
parts_st = st.builds(
    Part,
    names_st,
    counts_st,
    clocks_st,
    st.lists(names_st, max_size=2).map(tuple),
    reasons_st,
    st.lists(names_st, max_size=2).map(tuple),
    text_st,
)

places_st = st.lists(
    st.builds(DataPlace, counts_st, counts_st, counts_st, st.binary(max_size=8)), max_size=3
).map(tuple)

shares_st = st.lists(
    st.builds(WantedShare, names_st, finite_st, counts_st, counts_st, finite_st, floats_st),
    max_size=3,
).map(tuple)
refusals_st = st.lists(st.tuples(names_st, text_st), max_size=2).map(tuple)

BODIES = {
    Hello: st.builds(Hello, st.dictionaries(text_st, text_st, max_size=2)),
    Welcome: st.just(Welcome()),
    Refused: st.builds(Refused, text_st),
    Reset: st.builds(Reset, text_st),
    Credit: st.builds(Credit, st.sampled_from(LANES), counts_st),
    Bye: st.builds(Bye, text_st),
    Marker: st.builds(Marker, snapshots_st),
    SnapshotPart: st.builds(SnapshotPart, snapshots_st, parts_st),
    Progress: st.builds(
        Progress,
        *(counts_st, floats_st, versions_st, tuples_st, tuples_st, counts_st),
        follows=counts_st,
        drawing=places_st,
        returned=places_st,
    ),
    Pull: st.builds(Pull, counts_st, counts_st),
    Contribution: st.builds(Contribution, *[counts_st] * 6),
    GlobalFragment: st.builds(GlobalFragment, counts_st, counts_st, st.booleans()),
    Roster: st.builds(Roster, counts_st, st.dictionaries(names_st, counts_st, max_size=3)),
    Resume: st.builds(Resume, counts_st, text_st),
    DataShards: st.builds(DataShards, counts_st, places_st, counts_st),
    StateWanted: st.builds(StateWanted, names_st, counts_st, counts_st),
    StatePiece: st.builds(StatePiece, names_st, *[counts_st] * 3, versions_st),
    StateRefused: st.builds(StateRefused, names_st, text_st),
    ShardReport: st.builds(ShardReport, counts_st, versions_st, st.booleans()),
    SumWanted: st.builds(SumWanted, *[counts_st] * 4, shares_st, finite_st, finite_st, floats_st),
    ContributionSum: st.builds(
        ContributionSum,
        *[counts_st] * 3,
        st.lists(names_st, max_size=3).map(tuple),
        st.lists(finite_st, max_size=3).map(tuple),
        refusals_st,
        st.lists(st.builds(Measured, names_st, floats_st, st.none()), max_size=2).map(tuple),
        missing=refusals_st,
    ),
    Spread: st.builds(Spread, names_st, tuples_st, versions_st),
    RelayReport: st.builds(
        RelayReport, versions_st, st.dictionaries(names_st, counts_st, max_size=3)
    ),
    Close: st.builds(Close, text_st),
    Stop: st.builds(Stop, counts_st, text_st),
}
metas_st = st.builds(
    TensorMeta,
    names_st,
    st.lists(st.integers(0, 64), max_size=3).map(tuple),
    st.just("bfloat16"),
    st.just(16),
    st.binary(min_size=16, max_size=16),
)


@st.composite
def headers(draw):
    """Give a header with any body that can be said."""
    sender = draw(names_st)
    clock = {**draw(st.dictionaries(names_st, counts_st, max_size=3)), sender: draw(counts_st)}
    return Header(
        PROTOCOL_VERSION,
        "job-1",
        sender,
        draw(counts_st),
        draw(counts_st),
        clock,
        draw(st.one_of(*BODIES.values())),
        tuple(draw(st.lists(metas_st, max_size=2))),
    )


def test_every_body_of_the_job_is_tried_here():
    """A body that is added to the union must be added to these tests."""
    assert set(get_args(JobBody)) == set(BODIES)


@settings(max_examples=150, deadline=None)
@given(headers())
def test_an_independent_decoder_reads_the_same(header):
    """Plain msgpack sees field names, tags and values exactly as our own plain form has them."""
    [[frame]] = Codec(JobBody, "job-1").encode(header, None)

    plain = msgpack.unpackb(frame[:-DIGEST_BYTES])

    builtins = msgspec.to_builtins(header, builtin_types=(bytes,))
    assert plain == msgpack.unpackb(msgpack.packb(builtins))
    assert plain["type"] == "message"
    assert plain["body"]["type"] == type(header.body).__name__


@settings(max_examples=150, deadline=None)
@given(headers())
def test_what_an_independent_encoder_writes_is_read(header):
    """A header packed by plain msgpack, its keys in another order, is the same header."""
    builtins = msgspec.to_builtins(header, builtin_types=(bytes,))
    frame = sealed(msgpack.packb(dict(reversed(builtins.items()))))

    assert Codec(JobBody, "job-1").decode_head(frame) == header


@given(counts_st, counts_st, counts_st)
def test_an_independent_decoder_reads_chunks(session, seq, index):
    """The header of a later piece is a plain map too."""
    frame = msgspec.msgpack.encode(Chunk(session, seq, index))

    plain = {"type": "chunk", "session": session, "seq": seq, "index": index}
    assert msgpack.unpackb(frame) == plain
    assert Codec(JobBody, "job-1").decode_head(sealed(msgpack.packb(plain))) == Chunk(
        session, seq, index
    )


@pytest.mark.parametrize(
    ("incarnation", "actor"),
    [
        ("learner-3.2", "learner-3"),
        ("learner-3", "learner-3"),
        ("a.b.10", "a.b"),
        ("a.b", "a.b"),
        ("a.", "a."),
    ],
)
def test_the_actor_of_an_incarnation_is_its_name_without_number(incarnation, actor):
    """Only a number after the last dot is an incarnation's."""
    assert actor_of(incarnation) == actor
