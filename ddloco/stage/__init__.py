"""A stage for actors: whatever is written as messages, machines and work runs, is recorded and
replayed here. It knows nothing of learners and syncers."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddloco.stage.files.settings import SnapshotTable, TapeTable
    from ddloco.stage.programs.program import Program, Role, mesh, star
    from ddloco.stage.programs.user_actor import Array, UserActor, computation
    from transport import Body

__all__ = [
    "Array",
    "Body",
    "Program",
    "Role",
    "SnapshotTable",
    "TapeTable",
    "UserActor",
    "computation",
    "mesh",
    "star",
]

_HOMES = {
    "ddloco.stage.files.settings": ("SnapshotTable", "TapeTable"),
    "ddloco.stage.programs.program": ("Program", "Role", "mesh", "star"),
    "ddloco.stage.programs.user_actor": ("Array", "Body", "UserActor", "computation"),
}
"""Each name is imported when it is first used: machines import this package, and no sockets."""


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'ddloco.stage' has no attribute {name!r}")
