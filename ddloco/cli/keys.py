"""The command ``ddloco keys``."""

import argparse

from ddloco.cli.ask import complain
from ddloco.job.config import load_job
from ddloco.job.keys import names_for
from ddloco.stage.files.keys import handed_out, make_keys
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.nodes.exit_codes import HELD


def keys(given: argparse.Namespace) -> int:
    try:
        learners = given.learners if given.job is None else load_job(given.job).job.learners
        names = names_for(learners, given.names)
        made = make_keys(given.folder, names)
    except ConfigError as error:
        return complain(error)
    for line in handed_out(given.folder, names):
        print(line)
    print(f"{len(made)} keys made; {len(names) - len(made)} existed and were not changed")
    return HELD
