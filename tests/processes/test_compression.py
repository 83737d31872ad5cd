"""Jobs that send compressed differences: they learn, survive a kill and a snapshot, and replay."""

import pytest

SETTINGS = (
    'compress.up="int4"',
    'compress.down="int8"',
    'compress.rounding="stochastic"',
    "compress.feedback=true",
)


def flags(*settings):
    """Settings as they are said on the command line."""
    return [f"--set={each}" for each in (*SETTINGS, *settings)]


@pytest.mark.slow
def test_a_compressed_job_learns_and_replays(job, tools):
    """With a learner killed on the way and snapshots taken; the replay is identical."""
    ran = job.run(
        "--processes",
        *flags(
            "job.steps=80",
            "task.step_s=0.03",
            "snapshot.every_steps=30",
            'chaos.fault=[{what="crash", who="learner-1", at_s=1.0}]',
        ),
    )
    assert ran.returncode == 0, ran.stderr
    result = next(line for line in job.log() if line["event"] == "result")
    assert result["held_out_loss"] < 1.0
    replayed = tools.replay(job.run_folder)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr


@pytest.mark.slow
@pytest.mark.parametrize("up", ["bfloat16", "int8", "e3m0", "int2", "int1"])
def test_every_format_trains(job, tools, up):
    """Upwards alone, and the tapes replay, also from a snapshot."""
    more = "--set=compress.feedback=true", "--set=snapshot.every_steps=15"
    ran = job.run(f'--set=compress.up="{up}"', *more)
    assert ran.returncode == 0, ran.stderr
    result = next(line for line in job.log() if line["event"] == "result")
    assert result["held_out_loss"] < 1.0
    assert tools.replay(job.run_folder).returncode == 0
    later = tools.replay(job.run_folder, "--from", "latest")
    assert later.returncode == 0, later.stdout + later.stderr
