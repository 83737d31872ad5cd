"""Consistent snapshots: cuts, what is written of them, and places where they lie."""

from snapshot.inventory import Verifier as Verifier
from snapshot.manifest import Entry as Entry
from snapshot.manifest import Manifest as Manifest
from snapshot.packing import PackingError as PackingError
from snapshot.place import GRACE_S as GRACE_S
from snapshot.place import Blob as Blob
from snapshot.place import SnapshotError as SnapshotError
from snapshot.place import StorageError as StorageError
from snapshot.reading import Listed as Listed
from snapshot.retention import Removed as Removed
from snapshot.store import Store as Store
from snapshot.tensors import load_metadata as load_metadata
from snapshot.tensors import load_tensors as load_tensors
from snapshot.tensors import save_tensors as save_tensors
