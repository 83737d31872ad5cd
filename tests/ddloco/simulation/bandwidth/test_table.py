"""The command: what it prints, as text and as JSON, and what it says to bad options."""

import json

import pytest

from ddloco.cli.parser import parser
from ddloco.simulation.bandwidth.table import bandwidth, checked
from ddloco.simulation.bandwidth.wide_links import HEADLINE
from ddloco.stage.files.toml import ConfigError


def parsed(*arguments):
    """Options as the command line gives them."""
    return parser().parse_args(["simulate", "bandwidth", *arguments])


def test_the_defaults_are_the_headlines():
    """Without options the setting is the one in which the headline comes out."""
    assert HEADLINE == checked(parsed())


def test_it_prints_everything(capsys):
    """Table, bars and wall time, in 100 columns; exit code 0."""
    assert 0 == bandwidth(parsed())
    printed = capsys.readouterr().out
    for said in (
        "│ Data-parallel              │ 126.5 │ 184.2 │ 222.3 │ 268.3 │ 268.3 │ 569.0 │",
        "│ Decoupled DiLoCo, 4 bit    │  0.54 │  0.79 │  0.95 │  0.95 │  1.15 │  1.15 │",
        "there and back within the overlap from 4.20 Gbit/s on",
        "over 20x up to 7.7 Gbit/s",
        "10 to 20x from 9.0 to 18.3 Gbit/s",
        "0.4 s 121x, 0.8 s 61x, 1.6 s 31x, 3.2 s 15x, 6.4 s 8x",
    ):
        assert said in printed
    assert "as given" not in printed


def test_another_setting_gets_its_own_wall_time(capsys):
    """What was given is compared too, before the two published cases."""
    bandwidth(parsed("--sites", "3", "--overlap", "0"))
    printed = capsys.readouterr().out
    assert "as given: 12B parameters, 32 layers, step 1.6 s, 3 sites" in printed
    assert "without overlap no fragment is back in time" in printed


def test_json_is_one_object(capsys):
    """With --json nothing else is printed, and every part is in it; None for out of reach."""
    assert 0 == bandwidth(parsed("--json", "--parameters", "60e9", "--overlap", "0"))
    found = json.loads(capsys.readouterr().out)
    assert 60e9 == found["setting"]["parameters"]
    assert found["gbit_s"]["data-parallel"]["main"][-1] is None
    assert {"decoupled": None, "decoupled-4bit": None} == found["in_time_gbit_s"]
    assert {"given", "regions", "sites"} == set(found["wall_clock"])


def test_it_draws(tmp_path, capsys):
    """--svg leaves the drawing; the text is printed all the same."""
    file = tmp_path / "bandwidth.svg"
    assert 0 == bandwidth(parsed("--svg", str(file)))
    assert file.read_text(encoding="utf-8").startswith("<svg ")
    assert "Data-parallel" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--parameters", "0"), r"--parameters 0: must be between 1e\+06 and 1e\+15"),
        (("--parameters", "nan"), "--parameters nan: must be between"),
        (("--parameters", "inf"), "--parameters inf: must be between"),
        (("--layers", "0"), "--layers 0: must be between 1 and 10000"),
        (("--step-s", "-1"), "--step-s -1: must be between 0.001 and 100000"),
        (("--sites", "1"), "--sites 1: must be between 2 and 10000"),
        (("--interval", "0"), "--interval 0: must be between 1 and 10000"),
        (("--fragments", "-3"), "--fragments -3: must be between 1 and 10000"),
        (("--overlap", "-1"), "--overlap -1: must be between 0 and 10000"),
        (("--fragments", "25"), "--fragments 25: at most one .* of --interval 24"),
        (("--overlap", "24"), "--overlap 24: must be below --interval 24"),
    ],
)
def test_bad_options_are_named(arguments, problem):
    """One line names the option and what would be right."""
    with pytest.raises(ConfigError, match=f"^{problem}") as caught:
        bandwidth(parsed(*arguments))
    assert "\n" not in str(caught.value)


def test_a_drawing_that_cannot_be_written_is_said(tmp_path):
    """A folder where the file should be is one line, too."""
    with pytest.raises(ConfigError, match=r"^--svg .*: Is a directory$"):
        bandwidth(parsed("--svg", str(tmp_path)))
