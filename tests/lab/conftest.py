"""The heap world, as tests of the package have it."""

from tests.ddloco.conftest import job_maker, leaves, world_class

__all__ = ["job_maker", "leaves", "world_class"]
