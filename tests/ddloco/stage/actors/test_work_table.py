"""Which method does which kind of work."""

import pytest

from ddloco.stage.actors.effects import CaptureFlight, CaptureState, CommitSnapshot
from ddloco.stage.actors.work_table import Doer, doers, does


class Base(Doer):
    """Does two kinds."""

    @does(CaptureState)
    def state(self) -> str:
        """One of them."""
        return "base"

    @does(CommitSnapshot)
    def commit(self) -> str:
        """The other."""
        return "commit"


class Own(Base):
    """Does one of them in its own way, unmarked."""

    def state(self) -> str:
        """Instead of that of the base."""
        return "own"


class Other(Doer):
    """Does a third kind."""

    @does(CaptureFlight)
    def flight(self) -> str:
        """Its own."""
        return "flight"


def test_each_kind_is_done_by_the_method_that_is_marked():
    """Of all parts; a method that overrides a marked one takes its place."""
    table = doers(Own(), Other())
    assert {kind: doer() for kind, doer in table.items()} == {
        CaptureState: "own",
        CommitSnapshot: "commit",
        CaptureFlight: "flight",
    }


def test_two_methods_for_one_kind_are_refused():
    """When the class is made, not when the work is asked for."""
    with pytest.raises(TypeError, match="state and again both do CaptureState"):

        class Twice(Base):  # pyright: ignore[reportUnusedClass]
            """Marks a second method."""

            @does(CaptureState)
            def again(self) -> str:
                """The same kind."""
                return ""
