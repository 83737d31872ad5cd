"""Snapshots of a whole job, taken without stopping it, and the stores that hold them.

``participant`` is the state machine of the Chandy-Lamport algorithm, ``states`` converts a
machine's state to bytes and back, ``store`` keeps blobs by digest and commits a sealed manifest
last, and ``tensors`` writes named tensors to one file.
"""

from snapshot.blob_reader import Listed as Listed
from snapshot.integrity import Verifier as Verifier
from snapshot.manifest import BEGAN_FROM as BEGAN_FROM
from snapshot.manifest import RUN as RUN
from snapshot.manifest import Entry as Entry
from snapshot.manifest import Kind as Kind
from snapshot.manifest import Manifest as Manifest
from snapshot.manifest import encode_piece as encode_piece
from snapshot.manifest import id_of as id_of
from snapshot.packing import PackingError as PackingError
from snapshot.packing import pack as pack
from snapshot.participant import GATHERING_S as GATHERING_S
from snapshot.participant import REFUSED as REFUSED
from snapshot.participant import Ask as Ask
from snapshot.participant import Capture as Capture
from snapshot.participant import Commit as Commit
from snapshot.participant import Discard as Discard
from snapshot.participant import Forget as Forget
from snapshot.participant import Moment as Moment
from snapshot.participant import Participant as Participant
from snapshot.participant import RecordFlight as RecordFlight
from snapshot.participant import SendMarkers as SendMarkers
from snapshot.participant import Tell as Tell
from snapshot.record import Part as Part
from snapshot.record import problem_of as problem_of
from snapshot.record import split as split
from snapshot.retention import Removed as Removed
from snapshot.states import StateError as StateError
from snapshot.states import read_state as read_state
from snapshot.states import write_state as write_state
from snapshot.storage import BLOBS as BLOBS
from snapshot.storage import GRACE_S as GRACE_S
from snapshot.storage import Blob as Blob
from snapshot.storage import Place as Place
from snapshot.storage import SnapshotError as SnapshotError
from snapshot.storage import StorageError as StorageError
from snapshot.storage import digest_of as digest_of
from snapshot.storage import open_place as open_place
from snapshot.store import NEWEST as NEWEST
from snapshot.store import Store as Store
from snapshot.tensors import load_metadata as load_metadata
from snapshot.tensors import load_tensors as load_tensors
from snapshot.tensors import save_tensors as save_tensors
