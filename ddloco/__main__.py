"""``python -m ddloco`` is the ``ddloco`` command."""

import sys
from pathlib import Path

if not sys.flags.safe_path and Path(sys.path[0]).resolve() != Path(__file__).parents[1]:
    # Python puts the current folder first, where a user's clocks.py would hide ddloco's.
    del sys.path[0]

from ddloco.cli.parser import main

main()
