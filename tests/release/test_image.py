"""The Dockerfile can be followed without a daemon, and says what the documentation says of it."""

import json
import os
import re
import shutil

import pytest

from tests.release import image
from tests.release.__main__ import ROOT

TEXT = (ROOT / "Dockerfile").read_text()


def test_every_line_can_be_executed():
    """The builder knows each instruction and each base, and joins lines that go on."""
    found = image.instructions(TEXT)
    assert all(hasattr(image.Builder, f"_{word.lower()}") for word, _ in found)
    assert all(
        re.split(r"\s+AS\s+", rest)[0] in image.SUITES for word, rest in found if word == "FROM"
    )
    assert image.instructions("# a\nRUN a \\\n  b\n") == [("RUN", "a b")]


def test_it_is_started_as_nobody_special():
    """By tini, as a user that is not root, in a folder of its own."""
    last = dict(image.instructions(TEXT))
    assert json.loads(last["ENTRYPOINT"]) == ["/usr/bin/tini", "--", "ddloco"]
    assert last["USER"] != "root"
    assert last["WORKDIR"] == "/app"


def test_what_is_copied_leaves_out_what_is_made():
    """Keys, runs and environments of a checkout are in no image."""
    left_out = (ROOT / ".dockerignore").read_text().split()
    assert {".git", ".venv*", "runs", "dist"} <= set(left_out)


@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, image.NEEDED)), reason="needs root, debootstrap"
)
def test_a_job_trains_in_it():
    """With a root that cannot be written, as the image's user."""
    [said] = image.checked(ROOT)
    assert "ddloco 0." in said
