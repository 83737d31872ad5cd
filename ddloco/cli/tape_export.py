"""The command ``ddloco tape export``."""

import argparse

from ddloco.cli.ask import complain, complain_of_tape
from ddloco.debugger.exports import FORMATS
from ddloco.stage.nodes.exit_codes import HELD
from replay import TapeError, open_tapes


def tape_export(given: argparse.Namespace) -> int:
    try:
        lines = FORMATS[given.format](open_tapes(given.folder, salvage=given.salvage))
        if given.to is None:
            for line in lines:
                print(line)
            return HELD
        with given.to.open("x") as file:
            file.writelines(f"{line}\n" for line in lines)
    except TapeError as error:
        return complain_of_tape(given, error)
    except OSError as error:
        return complain(f"--to {given.to}: {error.strerror}")
    return HELD
