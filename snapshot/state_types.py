"""The classes whose objects a state may hold, and the attributes that each of them declares.

A state can come from anybody who may write to the store, so it decides nothing about code: a class
that is not listed is refused, as is an attribute that its class does not declare, one that would
hide something that its class defines, and a value of another type than the declared one.
"""

import ast
import functools
import inspect
import sys
import textwrap
import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, is_dataclass
from enum import Enum
from typing import Any, ClassVar, Literal, TypeVar, cast

import msgspec

HOME = __name__.removesuffix("snapshot.state_types")
"""What precedes the name of this package where it and its siblings are parts of another one. The
names of classes are written without it, so that a state means the same in both."""

ALL_STRUCTS = ("*",)
"""Stands for all structs that a module defines."""


@dataclass(frozen=True)
class StateTypes:
    """The classes that may occur in a state.

    Attributes:
        listed: the names of classes by their module, or ``*`` for a module's structs.
        own: the top-level package of a trusted program: its structs, dataclasses, enums and
            machines may occur, too. Machines are classes with a method ``handle``.
    """

    listed: Mapping[str, Collection[str]]
    own: str = ""
    _known: dict[str, type] = field(default_factory=dict[str, type], repr=False, compare=False)

    def named(self, name: str) -> type | None:
        """Return the class of this name if it may occur and has been imported."""
        known = self._known.get(name)
        if known is None:
            known = self._found(name)
            if known is not None:
                self._known[name] = known
        return known

    def _found(self, name: str) -> type | None:
        module, _, path = name.partition(":")
        names = self.listed.get(module)
        if names is not None:
            found = _class_in(f"{HOME}{module}", path) or _class_in(module, path)
            if path in names:
                return found
            struct = found is not None and issubclass(found, msgspec.Struct)
            return found if struct and names == ALL_STRUCTS else None
        if not self.own or module.partition(".")[0] != self.own:
            return None
        found = _class_in(module, path)
        return found if found is not None and _is_data(found) else None

    def declares(self, cls: type) -> bool:
        """Whether a class must declare its attributes; those of a user's program need not."""
        return cls.__module__.removeprefix(HOME) in self.listed


def written_name(cls: type) -> str:
    """The name of a class in a state."""
    return f"{cls.__module__.removeprefix(HOME)}:{cls.__qualname__}"


def _is_data(cls: type) -> bool:
    plain = is_dataclass(cls) or issubclass(cls, msgspec.Struct | Enum)
    return plain or type(_defined(cls, "handle")) is types.FunctionType


def _class_in(module: str, path: str) -> type | None:
    found: Any = sys.modules.get(module)
    for step in path.split("."):
        found = vars(found).get(step) if found is not None else None
    same = isinstance(found, type) and (found.__module__, found.__qualname__) == (module, path)
    return cast("type", found) if same else None


def _defined(cls: type, name: str) -> Any:
    """What a class or one of its bases defines under a name, without calling anything."""
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)


@functools.cache
def attribute_names(cls: type) -> Mapping[str, Any]:
    """The declared type of each attribute: annotated in the class or in ``__init__``, or of what
    ``__init__`` assigns, which are its annotated parameters, new objects and literals."""
    declared: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base is not object:
            declared.update(_assigned(base))
    hints = typing.get_type_hints(cls)
    declared.update((name, hint) for name, hint in hints.items() if not _of_class(hint))
    return declared


def _of_class(hint: Any) -> bool:
    return hint is ClassVar or typing.get_origin(hint) is ClassVar


@functools.cache
def may_set(cls: type, name: str) -> bool:
    """Whether a state may set an attribute: the class defines nothing else under its name, except
    the default of an attribute that it annotates."""
    if not name.isidentifier() or (name.startswith("__") and name.endswith("__")):
        return False
    missing = object()
    found = next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), missing)
    if found is missing or type(found) is types.MemberDescriptorType:
        return True
    annotated = any(name in inspect.get_annotations(base) for base in cls.__mro__)
    plain = not callable(found) and not hasattr(type(found), "__get__")
    return annotated and plain and not _of_class(typing.get_type_hints(cls)[name])


def _assigned(cls: type) -> dict[str, Any]:
    """The types of what a class's own ``__init__`` assigns."""
    made = vars(cls).get("__init__")
    if type(made) is not types.FunctionType or is_dataclass(cls):
        return {}
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(made)))
    except (OSError, SyntaxError):
        return {}
    names = dict(vars(sys.modules[cls.__module__]))
    parameters = typing.get_type_hints(made)
    found: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and (name := _own(node.target)):
            found[_mangled(cls, name)] = _value(node.annotation, names)
        elif isinstance(node, ast.Assign):
            hint = _type_of(node.value, names, parameters)
            for name in filter(None, map(_own, node.targets)):
                if hint is not None:
                    found.setdefault(_mangled(cls, name), hint)
    return found


def _mangled(cls: type, name: str) -> str:
    hidden = name.startswith("__") and not name.endswith("__")
    return f"_{cls.__name__.lstrip('_')}{name}" if hidden else name


def _own(target: ast.expr) -> str:
    """The attribute of ``self`` that is assigned to; empty for anything else."""
    match target:
        case ast.Attribute(ast.Name("self"), name):
            return name
        case _:
            return ""


def _value(node: ast.expr, names: dict[str, Any]) -> Any:
    """The value of an expression in the source of a listed class."""
    text = ast.unparse(node)
    text = ast.literal_eval(node) if isinstance(node, ast.Constant) and text != "None" else text
    return eval(text, names)  # noqa: S307, source of this program, as typing.get_type_hints does


def _type_of(node: ast.expr, names: dict[str, Any], parameters: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Name):
        return parameters.get(node.id)
    if isinstance(node, ast.JoinedStr):
        return str
    if isinstance(node, ast.Constant):
        return type(node.value) if node.value is not None else None
    if isinstance(node, ast.Compare):
        return bool
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        made = names.get(node.func.id)
        return made if isinstance(made, type) else None
    return None


EXACT = frozenset({int, str, bool, bytes})


def fits(value: Any, hint: Any, known: dict[Any, bool]) -> bool:
    """Whether a value is of a declared type, with what its containers hold.

    Objects within are not entered: each of them is checked for itself.

    Args:
        value: the value.
        hint: the type, as ``typing.get_type_hints`` gives it.
        known: results by object and type; containers may be shared and may contain themselves.
    """
    if hint is Any:
        return True
    if isinstance(hint, type) and not typing.get_origin(hint):
        return _is_a(value, hint)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is None:
        if isinstance(hint, TypeVar):
            return fits(value, hint.__bound__ or Any, known)
        return hint is None and value is None
    if origin in {typing.Union, types.UnionType}:
        return any(fits(value, each, known) for each in args)
    if origin is Literal:
        return any(type(value) is type(each) and value == each for each in args)
    if origin is typing.Annotated:
        return fits(value, args[0], known)
    if not isinstance(origin, type) or not isinstance(value, origin) or callable(value):
        return False
    key = id(value), hint
    if key not in known:
        known[key] = True
        known[key] = _holds(value, origin, args, known)
    return known[key]


def _is_a(value: Any, hint: type) -> bool:
    if hint in EXACT:
        return type(value) is hint
    if hint is float:
        return type(value) in {float, int}
    if getattr(hint, "_is_protocol", False):
        wanted = (name for name in vars(hint) if not name.startswith("_"))
        return all(_defined(type(value), name) is not None for name in wanted)
    return isinstance(value, hint)


def _holds(value: Any, origin: type, args: tuple[Any, ...], known: dict[Any, bool]) -> bool:
    if issubclass(origin, tuple):
        if len(args) == 2 and args[1] is Ellipsis:
            return all(fits(each, args[0], known) for each in value)
        pairs = zip(value, args, strict=False)
        return len(value) == len(args) and all(fits(one, hint, known) for one, hint in pairs)
    if issubclass(origin, Mapping):
        return all(
            fits(key, args[0], known) and fits(each, args[1], known) for key, each in value.items()
        )
    if issubclass(origin, Collection):
        return all(fits(each, args[0], known) for each in value)
    return True
