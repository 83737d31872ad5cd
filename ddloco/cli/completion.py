"""The command ``ddloco completion``: a script with which a shell completes ddloco's commands."""

import argparse

from ddloco.cli.ask import complain
from ddloco.monitoring.metrics import extra_package
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.nodes.exit_codes import HELD

FOLDERS = ("RUN", "DIR", "RUN_A", "RUN_B")
"""The names of arguments, in help texts, that are folders; other paths are files or folders."""


def completion(given: argparse.Namespace) -> int:
    from ddloco.cli.parser import parser, path_of  # noqa: PLC0415, it names this command

    try:
        shtab = extra_package("shtab", "completion", "completion")
    except ConfigError as error:
        return complain(error)
    top = parser()
    for action in top.arguments():
        if action.type is path_of:
            found = shtab.DIRECTORY if action.metavar in FOLDERS else shtab.FILE
            vars(action)["complete"] = found
    print(shtab.complete(top, given.shell))
    return HELD
