"""What a refused ``ddloco learner``, ``relay`` or ``syncer`` leaves behind."""

import pytest

from ddloco.cli.parser import command_named, parser

RELAY = "relay", "--bind", "tcp://127.0.0.1:*"
SITE = "--set", 'relay.relay-0.learners=["learner-0"]'
JOB = '[job]\ntask = "tests.tasks:regression"\n'


def refused(folder, *words):
    """Run a command that cannot be; its run folder is ``runs/x``."""
    (folder / "job.toml").write_text(JOB)
    command, *more = words
    line = [command, str(folder / "job.toml"), "--dir", str(folder / "runs" / "x"), *more]
    given = parser().parse_args(line)
    assert command_named(given.run)(given) == 2


@pytest.mark.parametrize(
    "words",
    [
        ("learner", "--name", "learner-9", "--connect", "tcp://127.0.0.1:1"),
        ("learner", "--name", "learner-0", "--connect", "nowhere"),
        ("learner", "--name", "learner-0", "--connect", "tcp://127.0.0.1:1", "--patience", "-1"),
        ("syncer", "--bind", "tcp://10.0.0.1:1"),
        ("syncer", "--bind", "tcp://127.0.0.1:*", "--keys", "nowhere"),
        ("syncer", "--bind", "tcp://127.0.0.1:*", "--lease", "nope://x"),
        ("syncer", "--bind", "tcp://127.0.0.1:*", "--lease", "/proc/x"),
        ("learner", "--name", "learner-0", "--connect", "lease:nope://x"),
        ("learner", "--name", "learner-0", "--connect", "lease:x", "tcp://127.0.0.1:1"),
        (*RELAY, "--name", "relay-0", "--connect", "tcp://127.0.0.1:1"),  # The job has none.
        (*RELAY, "--name", "relay-9", "--connect", "tcp://127.0.0.1:1", *SITE),
        (*RELAY, "--name", "relay-0", "--connect", "nowhere", *SITE),
        (*RELAY, "--name", "relay-0", "--connect", "lease:nope://x", *SITE),
        (*RELAY, "--name", "relay-9", "--connect", "lease:x", *SITE),
        (*RELAY, "--name", "relay-0", "--connect", "tcp://127.0.0.1:1", "tcp://x:1", *SITE),
        ("learner", "--name", "learner-0", "--connect", "tcp://127.0.0.1:1", *SITE),
    ],
)
def test_a_refused_command_leaves_no_run_folder(words, tmp_path, capsys):
    """Nor the folders that were made for it."""
    refused(tmp_path, *words)
    assert [each.name for each in tmp_path.iterdir()] == ["job.toml"]
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("more", [(), ("--join",)])
def test_what_was_there_before_stays(more, tmp_path):
    """A folder that existed, also an empty one; and one that other actors may be about to join."""
    run = tmp_path / "runs" / "x"
    if not more:
        run.mkdir(parents=True)
        (run / "notes.txt").write_text("mine")
    refused(tmp_path, "syncer", "--bind", "tcp://10.0.0.1:1", *more)
    assert (run / "job.toml").exists()
    assert more or (run / "notes.txt").read_text() == "mine"
