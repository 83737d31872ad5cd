"""What people name as ``module:function``: imported, called with options, told apart by source."""

import hashlib
import importlib
import inspect
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any


class NamedError(ValueError):
    """It cannot be used; the message is one line for the person who named it."""


def called(kind: str, spec: str, options: Mapping[str, Any]) -> Any:
    """Import ``module:function`` and call it.

    Args:
        kind: what it makes, for messages.
        spec: where it is.
        options: what it is called with.

    Raises:
        NamedError: with one line that names the module, the function or the option.
    """
    module_name, function_name = parted(kind, spec)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        said = in_one_line(error)
        raise NamedError(f"{kind} {spec!r}: cannot import {module_name}: {said}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise NamedError(f"{kind} {spec!r}: {module_name} has no function {function_name}")
    try:
        inspect.signature(function).bind(**options)
    except TypeError as error:
        said = f"{function_name} does not take these options: {error}"
        raise NamedError(f"{kind} {spec!r}: {said}") from error
    try:
        return function(**options)
    except Exception as error:
        said = in_one_line(error)
        raise NamedError(f"{kind} {spec!r}: {function_name} failed: {said}") from error


def source_digest(kind: str, spec: str) -> str:
    """The SHA-256 in hex of the source file of the module.

    Only that one file is covered: what it imports, and the data it reads, are not.

    Raises:
        NamedError: there is no such module, or it has no source file.
    """
    module_name, _ = parted(kind, spec)
    try:
        found = find_spec(module_name)
    except Exception as error:
        said = in_one_line(error)
        raise NamedError(f"{kind} {spec!r}: cannot find {module_name}: {said}") from error
    if found is None or found.origin is None or not found.has_location:
        raise NamedError(f"{kind} {spec!r}: {module_name} has no source file")
    return hashlib.sha256(Path(found.origin).read_bytes()).hexdigest()


def parted(kind: str, spec: str) -> tuple[str, str]:
    """Module and function.

    Raises:
        NamedError: it has not that form.
    """
    module_name, colon, function_name = spec.partition(":")
    if not (colon and module_name and function_name):
        raise NamedError(f"{kind} {spec!r} is not of the form module:function")
    return module_name, function_name


def in_one_line(error: BaseException) -> str:
    """What an exception says: a user's may speak over many lines, the promise is one."""
    return " ".join(f"{type(error).__name__}: {error}".split())
