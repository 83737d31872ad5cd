"""What happened before what: vector clocks, causal order, consistent cuts, lane sequence, time.

Standard library only; every other room imports this one.
"""

from clocks.files import open_regular as open_regular
from clocks.files import read_regular as read_regular
from clocks.links import LaneSequence as LaneSequence
from clocks.links import Verdict as Verdict
from clocks.order import CausalityError as CausalityError
from clocks.order import Order as Order
from clocks.order import causal_sort as causal_sort
from clocks.order import inconsistencies as inconsistencies
from clocks.order import is_consistent_cut as is_consistent_cut
from clocks.running import INCARNATIONS_MAX as INCARNATIONS_MAX
from clocks.running import RunningClock as RunningClock
from clocks.source import ManualTime as ManualTime
from clocks.source import MonotonicTime as MonotonicTime
from clocks.source import TimeSource as TimeSource
from clocks.vector import NUMBER_DIGITS_MAX as NUMBER_DIGITS_MAX
from clocks.vector import ClockError as ClockError
from clocks.vector import VectorClock as VectorClock
from clocks.vector import actor_of as actor_of
from clocks.vector import check_entries as check_entries
from clocks.vector import is_incarnation as is_incarnation
from clocks.vector import number_of as number_of
