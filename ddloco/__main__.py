"""``python -m ddloco`` is the ``ddloco`` command."""

from ddloco.cli import main

main()
