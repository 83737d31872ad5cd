"""What the states of actors may hold: the list is complete, exact, and declares its attributes."""

import ast
import importlib
import inspect
from typing import get_args

import msgspec
import pytest

from ddloco.job.config import job_from
from ddloco.machines.registry import machine_for
from ddloco.stage.actors.actor import Actor
from ddloco.stage.actors.state_types import JOB_STATES, LISTED, package_of, states_of
from snapshot import FreezeError, freeze, thaw
from snapshot.freeze import bare, made_bare, slots
from snapshot.state_types import ALL_STRUCTS, attribute_names, may_set
from tests.ddloco.stage.actors.wired_actors import Script

TOUCHES = ("io", "os", "pathlib", "socket", "subprocess", "threading", "trio", "zmq", "numpy")
"""Packages of what opens, starts, sends or waits."""


def listed():
    """Every listed class."""
    found = []
    for module, names in LISTED.items():
        there = vars(importlib.import_module(module))
        if names == ALL_STRUCTS:
            structs = (each for each in there.values() if isinstance(each, type))
            found += [
                each
                for each in structs
                if issubclass(each, msgspec.Struct) and each.__module__ == module
            ]
        else:
            found += [there[name] for name in names]
    return found


def parts(hint):
    """A type, and the types within it."""
    return [hint, *(each for within in get_args(hint) for each in parts(within))]


@pytest.mark.parametrize("cls", listed(), ids=lambda cls: f"{cls.__module__}.{cls.__qualname__}")
def test_a_listed_class_is_data(cls):
    """Making one runs no code of the class, and no attribute is a function, a file or a process."""
    assert JOB_STATES.named(f"{cls.__module__}:{cls.__qualname__}") is cls
    if issubclass(cls, msgspec.Struct):
        assert made_bare(cls)
    else:
        assert bare(cls)
    assert "__setattr__" not in vars(cls) or "frozen" in inspect.getsource(cls)
    assert not {"__del__", "__getattr__", "__getattribute__"} & vars(cls).keys()
    for name, hint in attribute_names(cls).items():
        assert may_set(cls, name), f"{name} hides something"
        for each in parts(hint):
            home = getattr(each, "__module__", "").partition(".")[0]
            assert home not in TOUCHES, f"{name}: {hint}"
            assert "Callable" not in repr(each), f"{name}: {hint}"


@pytest.mark.parametrize("cls", listed(), ids=lambda cls: f"{cls.__module__}.{cls.__qualname__}")
def test_a_listed_class_declares_all_that_it_assigns(cls):
    """Every ``self.name = ...`` in its source has a type; a state with another name is refused."""
    if issubclass(cls, msgspec.Struct):
        return
    declared = {*attribute_names(cls), *(name for name in dir(cls) if name not in slots(cls))}
    for node in ast.walk(ast.parse(inspect.getsource(cls))):
        for target in getattr(node, "targets", [getattr(node, "target", None)]):
            for each in getattr(target, "elts", [target]):
                own = isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name)
                if own and each.value.id == "self":
                    assert each.attr in declared


def test_what_is_not_listed_has_no_place():
    """Of our own packages, whatever it is."""
    for name in (
        "ddloco.workers.forking:ForkServerProcess",
        "ddloco.stage.driver.driver:Driver",
        "transport.zeromq:ZeromqEndpoint",
        "ddloco.machines.syncer.machine:os",
        "ddloco.job.config:Path",
        "ddloco.job.protocol.messages:",
        "subprocess:Popen",
    ):
        importlib.import_module(name.partition(":")[0])
        assert JOB_STATES.named(name) is None


@pytest.mark.parametrize("who", ["syncer.1", "learner-0.1"])
def test_no_attribute_becomes_a_method(who):
    """Of a machine, its actor, or their bases."""
    job = job_from({"job": {"task": "none:none"}}, "test")
    data = freeze(Actor(who, machine_for(job, who)), JOB_STATES)
    version, nodes, root = msgspec.msgpack.decode(data)
    for at, node in enumerate(nodes):
        if node[0] != "o":
            continue
        cls = JOB_STATES.named(node[1])
        for name in [*vars(cls), "__class__", "__dict__", "handle", "anything"]:
            if name in attribute_names(cls):
                continue
            changed = [*nodes]
            changed[at] = [*node[:2], {**node[2], name: None}]
            with pytest.raises(FreezeError):
                thaw(msgspec.msgpack.encode([version, changed, root]), JOB_STATES)


def test_a_program_has_a_list_of_its_own():
    """That of its package, besides those of actors."""
    assert "tests" == package_of(Script())
    assert states_of("tests").named(f"{Script.__module__}:Script") is Script
    assert JOB_STATES.named(f"{Script.__module__}:Script") is None
    assert "" == package_of(machine_for(job_from({"job": {"task": "a:b"}}, "test"), "syncer.1"))
    assert states_of("tests").named("ddloco.stage.actors.actor:Actor") is Actor
