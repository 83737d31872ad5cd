"""Which method does which kind of work: a table, in every world that work is done in."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from ddloco.stage.actors.effects import Work

M = TypeVar("M", bound=Callable[..., Any])


def does(kind: type[Work]) -> Callable[[M], M]:
    """Mark a method as what does work of this kind; one that overrides it takes its place."""

    def marked(method: M) -> M:
        method.__dict__["does"] = kind
        return method

    return marked


class Doer:
    """Base of what does work by methods that are marked with ``does``; ``kinds`` has their
    names."""

    kinds: ClassVar[Mapping[type[Work], str]] = {}

    def __init_subclass__(cls) -> None:
        """Collect the marked methods. Raises ``TypeError`` if two of them do one kind."""
        super().__init_subclass__()
        found = dict(cls.kinds)
        for name, method in cls.__dict__.items():
            kind = getattr(method, "does", None)
            if kind is not None and found.setdefault(kind, name) != name:
                raise TypeError(f"{found[kind]} and {name} both do {kind.__name__}")
        cls.kinds = found


def doers(*parts: Doer) -> dict[type[Work], Callable[..., Any]]:
    return {kind: getattr(part, name) for part in parts for kind, name in part.kinds.items()}
