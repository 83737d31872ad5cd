"""Shells complete commands, options, choices and paths."""

import shutil
import subprocess
import sys

import pytest

from ddloco.cli.parser import main

TYPED = """
source ./script
complete -p ddloco | grep -q 'complete .*-F _shtab_ddloco ddloco' || exit 1
typed() {{
    COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
    _shtab_ddloco ddloco "${{COMP_WORDS[$COMP_CWORD]}}" "${{COMP_WORDS[$COMP_CWORD - 1]}}"
    echo "${{COMPREPLY[@]}}"
}}
typed {words}
"""


@pytest.fixture
def script(tmp_path, capsys):
    """The folder with the script for bash, a job file and a run folder."""
    pytest.importorskip("shtab")
    with pytest.raises(SystemExit) as left:
        main(["completion", "bash"])
    assert left.value.code == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    (tmp_path / "job.toml").write_text("")
    (tmp_path / "runs").mkdir()
    return tmp_path


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("ddloco sna", {"snapshot"}),
        ("ddloco snapshot ex", {"export"}),
        ("ddloco run --sch", {"--schedule"}),
        ("ddloco run jo", {"job.toml"}),
        ("ddloco report ''", {"runs"}),
        ("ddloco init --template c", {"classifier"}),
    ],
)
def test_bash_completes(script, words, found):
    """A command, one below another, an option, a file, a folder, and a choice."""
    typed = ["bash", "--norc", "-c", TYPED.format(words=words)]
    said = subprocess.run(typed, cwd=script, capture_output=True, text=True, check=True)

    assert set(said.stdout.split()) == found


@pytest.mark.parametrize("shell", ["zsh", "fish", "tcsh"])
def test_other_shells_have_a_script(shell, capsys):
    """Each names the commands."""
    pytest.importorskip("shtab")
    with pytest.raises(SystemExit):
        main(["completion", shell])
    said = capsys.readouterr().out

    assert "snapshot" in said
    assert "schedule" in said


def test_without_the_package_one_line_says_so(monkeypatch, capsys):
    """The way out is named."""
    monkeypatch.setitem(sys.modules, "shtab", None)
    with pytest.raises(SystemExit) as left:
        main(["completion", "bash"])

    assert left.value.code == 2
    said = "ddloco: completion needs more: pip install 'ddloco[completion]'\n"
    assert said == capsys.readouterr().err
