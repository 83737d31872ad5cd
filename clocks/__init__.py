"""Vector clocks, causal order, consistent cuts, sequence checks, and sources of time.

Uses only the standard library; every other package imports this one.
"""

from clocks.actor_clock import INCARNATIONS_MAX as INCARNATIONS_MAX
from clocks.actor_clock import ActorClock as ActorClock
from clocks.causality import CausalityError as CausalityError
from clocks.causality import Order as Order
from clocks.causality import causal_sort as causal_sort
from clocks.causality import inconsistencies as inconsistencies
from clocks.causality import is_consistent_cut as is_consistent_cut
from clocks.files import is_in_use as is_in_use
from clocks.files import make_durable as make_durable
from clocks.files import mark_in_use as mark_in_use
from clocks.files import open_regular as open_regular
from clocks.files import open_to_append as open_to_append
from clocks.files import read_regular as read_regular
from clocks.files import read_text as read_text
from clocks.files import replace_file as replace_file
from clocks.sequence import LaneSequence as LaneSequence
from clocks.sequence import Verdict as Verdict
from clocks.time_source import MonotonicTime as MonotonicTime
from clocks.time_source import SuspendAwareTime as SuspendAwareTime
from clocks.time_source import TimeSource as TimeSource
from clocks.vector_clock import NUMBER_DIGITS_MAX as NUMBER_DIGITS_MAX
from clocks.vector_clock import ClockError as ClockError
from clocks.vector_clock import VectorClock as VectorClock
from clocks.vector_clock import actor_of as actor_of
from clocks.vector_clock import check_entries as check_entries
from clocks.vector_clock import is_incarnation as is_incarnation
from clocks.vector_clock import number_of as number_of
