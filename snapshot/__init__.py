"""State on disk: tensors as safetensors files, whole or not at all."""

from snapshot.tensors import load_metadata as load_metadata
from snapshot.tensors import load_tensors as load_tensors
from snapshot.tensors import save_tensors as save_tensors
