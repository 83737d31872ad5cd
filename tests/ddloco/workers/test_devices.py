"""What an error says about the devices of a worker."""

from types import SimpleNamespace

import jax
import pytest

from ddloco.workers.devices import flags_off
from ddloco.workers.environment import FLAGS, GPU_FLAGS

ALL = " ".join(f"{name}={value}" for name, value in GPU_FLAGS.items())


@pytest.mark.parametrize(
    ("platform", "flags", "said"),
    [
        ("cpu", "", ""),
        ("gpu", f"--other {ALL}", ""),
        ("gpu", "", f"; want {FLAGS} with {ALL}"),
        ("gpu", ALL.replace("true", "false"), f"; want {FLAGS} with {ALL}"),
    ],
)
def test_only_a_gpu_whose_flags_are_off_is_told_so(monkeypatch, platform, flags, said):
    """Where the flags are on, or there is no GPU, the task itself is not deterministic."""
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(platform=platform)])
    monkeypatch.setenv(FLAGS, flags)
    assert flags_off() == said
