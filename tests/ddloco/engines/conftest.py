"""A job file, and what ``ddloco launch`` prints for it."""

import pytest

from ddloco.cli.parser import main

JOB = """
[transport]
insecure = true

[job]
name = "small"
task = "tests.tasks:regression"
learners = 8
"""


@pytest.fixture
def launched(tmp_path, capsys):
    """Call the command; returns its exit code, output and errors."""

    def call(*words, job="", folder="run"):
        (tmp_path / "job.toml").write_text(JOB + job)
        with pytest.raises(SystemExit) as left:
            main(["launch", str(tmp_path / "job.toml"), "--dir", str(tmp_path / folder), *words])
        said = capsys.readouterr()
        return left.value.code, said.out, said.err

    return call
