"""Every check can fail: bugs are planted, and the invariant that must object does."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from ddloco.replayer.invariants import training
from tests.lab import (
    belief,
    data_order,
    fencing,
    hostile_world,
    launches,
    merge_oracle,
    mutations,
    resource_bounds,
    snapshot_checks,
    truth,
)
from tests.lab.mutations_pictures import PICTURES

MUTATIONS = [*mutations.MUTATIONS, *PICTURES]

SEEDS_MAX = 60
"""Seeds that are tried after those in which a bug is known to be noticed."""

MUTATIONS_MIN = 40
AGAIN = {"determinism-check", "record-is-inert"}
"""Invariants of one world that runs twice."""


def invariants():
    """Every name that some check can raise, from the source."""
    modules = (
        training,
        launches,
        truth,
        resource_bounds,
        merge_oracle,
        belief,
        data_order,
        fencing,
        hostile_world,
        snapshot_checks,
    )
    sources = [Path(module.__file__).read_text() for module in modules]
    return sorted({name for source in sources for name in names_in(source)})


def names_in(source):
    """The second argument of every ``hold``, the third of every ``_compare``."""
    tree = ast.parse(source)
    constants = {
        node.targets[0].id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = getattr(node.func, "id", "self." + getattr(node.func, "attr", ""))
        at = {"hold": 1, "self.hold": 1, "_compare": 2}.get(called, len(node.args))
        if at < len(node.args) and not handed_on(node.args[at]):
            name = node.args[at]
            yield constants[name.id] if isinstance(name, ast.Name) else name.value


def handed_on(name):
    """Whether an argument is only passed along, and its name stands elsewhere."""
    return isinstance(name, ast.Name) and name.id == "invariant"


def outcomes(mutation):
    """What comes of the worlds of a mutation, and then of others."""
    run = hostile_world.run_checked if mutation.invariant in AGAIN else hostile_world.run_seed
    for world in (*mutation.worlds, *range(SEEDS_MAX)):
        yield run(world) if isinstance(world, int) else hostile_world.happen(world)


def test_every_invariant_has_a_bug_that_it_catches():
    """A check without a planted bug is not known to be able to fail."""
    planted = Counter(mutation.invariant for mutation in MUTATIONS)
    assert sorted(planted) == invariants()
    assert MUTATIONS_MIN <= len(MUTATIONS)


def test_names_are_found_in_the_source():
    """Also those that stand in a constant, and those of worlds that run twice."""
    source = 'A = "a-b"\nhold(x, A, "")\nself.hold(y, "c", f"{z}")\n_compare(o, p, "d-e")\n'
    source += 'other(1, "f")\nhold(condition, invariant, said)'
    assert ["a-b", "c", "d-e"] == list(names_in(source))


@pytest.mark.parametrize("mutation", MUTATIONS, ids=[each.name for each in MUTATIONS])
def test_planted_bugs_are_caught(mutation, monkeypatch):
    """By the very invariant that is broken."""
    mutation.plant(monkeypatch)
    said = Counter()
    for outcome in outcomes(mutation):
        said[outcome.invariant] += 1
        if outcome.invariant == mutation.invariant:
            return
    pytest.fail(f"not noticed by {mutation.invariant}; what was said instead: {dict(said)}")


@pytest.mark.parametrize(
    "world",
    {id(each): each for m in MUTATIONS for each in m.worlds if not isinstance(each, int)}.values(),
)
def test_worlds_made_by_hand_hold_without_a_bug(world):
    """What is caught in them is the bug."""
    assert hostile_world.happen(world).violation is None
