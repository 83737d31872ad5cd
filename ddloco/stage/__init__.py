"""A stage for actors: whatever is written as messages, machines and work runs, is recorded and
replayed here. It knows nothing of learners and syncers.
"""

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
    "Array": "ddloco.stage.programs.user_actor",
    "Body": "ddloco.stage.programs.user_actor",
    "Program": "ddloco.stage.programs.program",
    "Role": "ddloco.stage.programs.program",
    "SnapshotTable": "ddloco.stage.files.settings",
    "TapeTable": "ddloco.stage.files.settings",
    "UserActor": "ddloco.stage.programs.user_actor",
    "mesh": "ddloco.stage.programs.program",
    "star": "ddloco.stage.programs.program",
    "computation": "ddloco.stage.programs.user_actor",
}
"""Each name is imported when it is first used: machines import this package, and no sockets."""


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'ddloco.stage' has no attribute {name!r}")
