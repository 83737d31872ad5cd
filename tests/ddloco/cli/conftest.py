"""Recorded runs for the commands that read them."""

from tests.ddloco.debugger.conftest import folder, simulate

__all__ = ["folder", "simulate"]
