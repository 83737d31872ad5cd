"""The command ``ddloco simulate``."""

import argparse

from ddloco.cli.ask import complain
from ddloco.simulation.bandwidth.table import bandwidth
from ddloco.simulation.report import scenario_table
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.nodes.exit_codes import FOUND
from ddloco.stage.process.process_pool import ProcessLostError
from replay import TapeError
from snapshot import SnapshotError, StorageError


def simulate(given: argparse.Namespace) -> int:
    try:
        if given.scenario == "bandwidth":
            return bandwidth(given)
        return scenario_table(given)
    except (TapeError, ConfigError, SnapshotError, StorageError) as error:
        return complain(error)
    except ProcessLostError as error:
        return complain(f"{error}; --jobs 1 needs the least memory", FOUND)
