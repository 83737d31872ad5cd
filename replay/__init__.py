"""Tapes: record every event before it is handled, execute it again, and compare.

Generic over events and machines. ``tape`` documents the format to the byte, ``recorder`` writes it,
``player`` feeds it to a machine, ``stepper`` walks along it both ways, ``divergence`` says where
the two part.
"""

from replay.divergence import Divergence as Divergence
from replay.player import Player as Player
from replay.player import event_line as event_line
from replay.recorder import OnError as OnError
from replay.recorder import Recorder as Recorder
from replay.recorder import digest_effects as digest_effects
from replay.stepper import Step as Step
from replay.stepper import Stepper as Stepper
from replay.tape import DamagedTapeError as DamagedTapeError
from replay.tape import Tape as Tape
from replay.tape import TapeError as TapeError
from replay.tape import TapeHeader as TapeHeader
from replay.tape import TapeWriter as TapeWriter
from replay.tape import UnwrittenError as UnwrittenError
from replay.tape_files import bytes_of as bytes_of
from replay.tape_files import files_of as files_of
from replay.tape_files import open_tapes as open_tapes
from replay.tape_files import whose as whose
from replay.verify import Receipt as Receipt
from replay.verify import TapeVerdict as TapeVerdict
from replay.verify import verify as verify
