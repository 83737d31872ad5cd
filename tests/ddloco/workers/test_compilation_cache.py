"""The cache of compiled programs: where it is, when it is used, and that it changes no bit."""

import os
import sys
from contextlib import closing
from pathlib import Path

import jax
import pytest

from ddloco.job.config import Inner, Worker
from ddloco.job.protocol.fragment_plan import make_plan
from ddloco.stage.arrays.shared_memory import SharedMemory
from ddloco.workers import devices, rpc
from ddloco.workers.compilation_cache import (
    CACHE_BYTES_MAX,
    CACHE_DIR,
    PLACE,
    cache_folder,
    cache_settings,
    is_quiet,
    was_quiet,
)
from ddloco.workers.process import open_worker


def test_it_is_in_the_users_cache_by_processor():
    """As the XDG specification says; a relative path there counts as none."""
    there = cache_folder({"XDG_CACHE_HOME": "/there"}, "one")
    assert Path("/there/ddloco/compiled") == there.parent
    assert there != cache_folder({"XDG_CACHE_HOME": "/there"}, "another")
    home = Path.home() / ".cache/ddloco/compiled"
    assert home == cache_folder({"XDG_CACHE_HOME": "there"}, "one").parent
    assert home == cache_folder({}, "one").parent


@pytest.mark.parametrize("quiet", [True, False])
def test_what_is_printed_is_noticed(quiet, capfd):
    """Also by a library that writes to the descriptor; and it is not shown."""

    def load():
        if not quiet:
            os.write(2, b"machine type does not match\n")

    assert quiet is is_quiet(load)
    print("said", file=sys.stderr)
    assert "said\n" == capfd.readouterr().err


def test_that_it_was_quiet_is_remembered(tmp_path):
    """For each compiler. After a noisy try, or if nothing can be written, it is tried again."""
    asked = []

    def quiet():
        asked.append("quiet")

    def noisy():
        asked.append("noisy")
        os.write(2, b"machine type does not match\n")

    assert not was_quiet(tmp_path, "one", noisy)
    assert was_quiet(tmp_path, "one", quiet)
    assert was_quiet(tmp_path, "one", noisy)
    assert not was_quiet(tmp_path, "another", noisy)
    assert was_quiet(tmp_path / "missing", "one", quiet)
    assert asked == ["noisy", "quiet", "noisy", "quiet"]


@pytest.fixture
def config(monkeypatch, tmp_path):
    """JAX's settings as a user has them who has set none; they are put back."""
    names = cache_settings(tmp_path)
    before = {name: getattr(jax.config, name) for name in names}
    monkeypatch.delenv(PLACE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    jax.config.update(CACHE_DIR, None)
    yield jax.config
    for name, value in before.items():
        jax.config.update(name, value)


def test_a_worker_uses_it(config, tmp_path, monkeypatch):
    """With a bounded size, in a folder that only the user may write to."""
    monkeypatch.setattr(devices, "was_quiet", lambda *_: True)
    devices.keep_compiled_programs()
    folder = cache_folder({"XDG_CACHE_HOME": str(tmp_path)}, devices.cpu_model())
    assert str(folder) == getattr(config, CACHE_DIR)
    assert CACHE_BYTES_MAX == config.jax_compilation_cache_max_size
    assert folder.is_dir()


def test_where_it_is_noisy_it_is_not_used(config, monkeypatch):
    """XLA rejects its own programs on some processors, with an error for each."""
    monkeypatch.setattr(devices, "was_quiet", lambda *_: False)
    before = {name: getattr(config, name) for name in cache_settings(Path())}
    devices.keep_compiled_programs()
    assert before == {name: getattr(config, name) for name in before}


def test_a_place_of_the_users_own_is_left_alone(config, monkeypatch):
    """JAX reads its variable itself."""
    monkeypatch.setenv(PLACE, "/elsewhere")
    devices.keep_compiled_programs()
    assert getattr(config, CACHE_DIR) is None


def test_a_home_that_cannot_be_written_to_is_no_error(config, monkeypatch, tmp_path):
    """Every run compiles then."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    devices.keep_compiled_programs()
    assert getattr(config, CACHE_DIR) is None


async def trained(steps, when_prepared=lambda: None):
    """The whole state after so many steps in a worker process.

    ``when_prepared`` is called before the first step, once the worker knows its task.
    """
    with closing(SharedMemory()) as arena:
        async with open_worker("learner-0", arena, Worker()) as process:
            task = "tests.tasks:regression"
            prepared = await process.expect(
                rpc.Prepare(task, {}, Inner(), seed=1, shard=0, shards=1), rpc.Prepared
            )
            when_prepared()
            plan = make_plan(prepared.leaves, fragments=1, interval=1, strategy="balanced")
            laid = await process.expect(rpc.Lay(plan), rpc.Laid)
            out = arena.allocate(laid.state_bytes)
            await process.expect(rpc.Fill(rpc.span_of(arena.allocate(plan.total_bytes))), rpc.Ready)
            for step in range(steps):
                await process.expect(rpc.Train(step + 1, (), None, 0), rpc.Trained)
            await process.expect(rpc.CopyOut(rpc.span_of(out)), rpc.Copied)
            return out.data.tobytes()


@pytest.mark.slow
async def test_it_changes_no_bit(monkeypatch, tmp_path):
    """Compiled, kept, and loaded: the same parameters and moments after three steps."""
    monkeypatch.delenv(PLACE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def programs():
        return {each.name for each in tmp_path.rglob("*-cache")}

    def the_first_are_kept():
        assert any(name.startswith("jit__threefry_seed-") for name in programs())

    kept = await trained(3, the_first_are_kept)
    assert any(name.startswith("jit__step-") for name in programs())
    before = programs()
    assert kept == await trained(3)
    assert before == programs()
    monkeypatch.setenv("JAX_ENABLE_COMPILATION_CACHE", "false")
    assert kept == await trained(3)
