"""Pictures of a whole job, taken without stopping it; and state on disk.

``participant`` is the machine (Chandy and Lamport), ``freeze`` a machine's state as bytes,
``tensors`` named tensors in one file, whole or not at all.
"""

from snapshot.freeze import FreezeError as FreezeError
from snapshot.freeze import freeze as freeze
from snapshot.freeze import thaw as thaw
from snapshot.part import Part as Part
from snapshot.participant import GATHERING_S as GATHERING_S
from snapshot.participant import Ask as Ask
from snapshot.participant import Capture as Capture
from snapshot.participant import Commit as Commit
from snapshot.participant import Discard as Discard
from snapshot.participant import Mark as Mark
from snapshot.participant import Moment as Moment
from snapshot.participant import Participant as Participant
from snapshot.participant import RecordFlight as RecordFlight
from snapshot.participant import Tell as Tell
from snapshot.tensors import load_metadata as load_metadata
from snapshot.tensors import load_tensors as load_tensors
from snapshot.tensors import save_tensors as save_tensors
