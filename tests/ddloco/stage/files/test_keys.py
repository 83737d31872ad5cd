"""Key files: who can read them, what is never overwritten, and one line for what is wrong."""

import os
import tomllib
from pathlib import Path

import pytest

from ddloco.cli.parser import main
from ddloco.job.config import job_from
from ddloco.job.keys import curve_of, keys_of, names_for, with_keys
from ddloco.stage.files.keys import PUBLIC_FILE, handed_out, load_curve, make_keys, read_public
from ddloco.stage.files.toml import ConfigError
from transport.curve_auth import new_pair, public_of

JOB = job_from({"job": {"task": "x:y"}}, "test")


@pytest.fixture
def folder(tmp_path):
    """A folder of keys for three learners."""
    make_keys(tmp_path / "keys", names_for(3))
    return tmp_path / "keys"


def contents(folder):
    """All files and what is in them."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_who_can_read_what(tmp_path):
    """The folder and secrets are their owner's, whatever the umask; public keys are not secret."""
    before = os.umask(0)
    try:
        made = make_keys(tmp_path / "a" / "keys", names_for(1, "backup"))
    finally:
        os.umask(before)
    folder = tmp_path / "a" / "keys"
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    secrets = ["syncer.key", "owner.key", "observer.key", "learner-0.key", "backup.key"]
    assert modes == {**dict.fromkeys(secrets, 0o600), PUBLIC_FILE: 0o644}
    assert folder.stat().st_mode & 0o777 == 0o700
    assert made == ["syncer", "owner", "observer", "learner-0", "backup"]


def test_secrets_are_never_open_for_a_moment(tmp_path, monkeypatch):
    """A secret file is new and its owner's from its first moment: no change of mode comes after."""
    opened, real = [], os.open

    def spying(path, flags, mode=0o777, **more):
        if str(path).endswith(".key") and flags & os.O_WRONLY:
            opened.append((flags & (os.O_CREAT | os.O_EXCL), mode))
        return real(path, flags, mode, **more)

    monkeypatch.setattr(os, "open", spying)
    make_keys(tmp_path / "keys", names_for(1))
    assert opened == [(os.O_CREAT | os.O_EXCL, 0o600)] * 4


def test_pairs_belong_together(folder):
    """What public.toml says of a name is the public half of its secret file; all differ."""
    public = read_public(folder)
    assert list(public) == ["syncer", "owner", "observer", *(f"learner-{n}" for n in range(3))]
    assert len(set(public.values())) == len(public)
    for name, key in public.items():
        secret = tomllib.loads((folder / f"{name}.key").read_text())["secret"]
        assert public_of(secret) == key
        assert secret not in (folder / PUBLIC_FILE).read_text()


def test_existing_keys_stay(folder):
    """A second time nothing changes; with more learners only theirs are added."""
    before = contents(folder)
    assert make_keys(folder, names_for(3)) == []
    assert contents(folder) == before
    assert make_keys(folder, names_for(4)) == ["learner-3"]
    after = contents(folder)
    assert {name: after[name] for name in before if name != PUBLIC_FILE} == {
        name: data for name, data in before.items() if name != PUBLIC_FILE
    }
    assert set(after) - set(before) == {"learner-3.key"}
    assert len(read_public(folder)) == 7


def test_secrets_that_have_moved_to_their_hosts_are_not_made_again(folder):
    """A name in public.toml keeps its key, also when its secret is not here any more."""
    (folder / "learner-1.key").unlink()
    before = contents(folder)
    assert make_keys(folder, names_for(3)) == []
    assert contents(folder) == before


def test_a_cut_short_beginning_is_completed(folder):
    """Secrets that never came into public.toml, since making them was cut short, are taken up."""
    before = read_public(folder)
    (folder / PUBLIC_FILE).unlink()
    assert make_keys(folder, names_for(3)) == []
    assert read_public(folder) == before


def test_a_host_needs_two_files(folder, tmp_path):
    """With public.toml and its own secret an actor has what it needs; so has each incarnation."""
    host = tmp_path / "host"
    host.mkdir()
    for name in (PUBLIC_FILE, "learner-1.key"):
        (folder / name).rename(host / name)
    curve = load_curve(host, "learner-1")
    assert public_of(curve.secret) == curve.public["learner-1"]
    assert curve.owner("learner-0.3") == "learner-0"
    with pytest.raises(ConfigError, match=r"learner-0.key: cannot be read: No such file"):
        load_curve(host, "learner-0")


@pytest.mark.parametrize("actor", ["syncer", "syncer-0", "syncer-11", "observer-laptop"])
def test_some_share_a_key(folder, actor):
    """All syncers have one key, all observers another."""
    curve = load_curve(folder, actor)
    assert public_of(curve.secret) == curve.public[actor.partition("-")[0]]


def test_a_job_says_where_its_keys_are(folder):
    """From the job file or the command line; without either there are none."""
    job = job_from({"job": {"task": "x:y"}, "transport": {"keys": str(folder)}}, "test")
    assert curve_of(JOB, "syncer") is None
    assert curve_of(job, "syncer") == curve_of(with_keys(JOB, folder), "syncer")
    assert with_keys(JOB, None) is JOB


def test_where_keys_are_does_not_make_another_job(folder):
    """Hosts that keep their keys in different places have the same job."""
    assert with_keys(JOB, folder).id == JOB.id


def test_keys_of_a_whole_job(folder):
    """Every actor has its own over tcp; inside one process no key is needed."""
    job = with_keys(JOB, folder)
    assert list(keys_of(job, "tcp")) == ["syncer", "learner-0", "learner-1", "learner-2"]
    assert keys_of(job, "inproc") == keys_of(JOB, "tcp") == {}


def rewritten(name, **keys):
    """Replace some public keys."""

    def spoil(folder):
        public = {**read_public(folder), **keys}
        lines = [f'{each} = "{key}"' for each, key in public.items()]
        (folder / name).write_text("\n".join(["[public]", *lines]))

    return spoil


ANOTHER = new_pair()[0]
SPOILS = [
    (lambda f: (f / "learner-0.key").chmod(0o640), "learner-0.key: others can read", "chmod 600"),
    (lambda f: (f / "learner-0.key").chmod(0o604), "learner-0.key: others can read", "chmod 600"),
    (lambda f: (f / PUBLIC_FILE).chmod(0o664), "public.toml: others can change", "chmod 644"),
    (lambda f: f.chmod(0o777), ": others can replace the keys in it", "chmod 700"),
    (lambda f: f.chmod(0o720), ": others can replace the keys in it", "chmod 700"),
    (lambda f: (f / "learner-0.key").unlink(), "learner-0.key: cannot be read: No such file"),
    (lambda f: (f / PUBLIC_FILE).unlink(), "public.toml: cannot be read: No such file"),
    (lambda f: (f / "learner-0.key").write_text("?"), "learner-0.key: not TOML"),
    (lambda f: (f / "learner-0.key").write_bytes(b"\xff"), "learner-0.key: not TOML"),
    (lambda f: (f / "learner-0.key").write_text(""), "learner-0.key: ", "`secret`"),
    (lambda f: (f / "learner-0.key").write_text('secret = "a"'), "secret: a key has 40 characters"),
    (lambda f: (f / "learner-0.key").write_text(f'secret = "{"~" * 40}"'), "secret: a key is wri"),
    (lambda f: (f / PUBLIC_FILE).write_text("public = 3"), "public.toml: public: Expected"),
    (rewritten(PUBLIC_FILE, syncer="no"), "public.toml: public.syncer: a key has 40 characters"),
    (rewritten(PUBLIC_FILE, **{"learner-0": ANOTHER}), "not the secret of public.learner-0 in"),
    (
        lambda f: rewritten(PUBLIC_FILE, **{"learner-1": read_public(f)["learner-0"]})(f),
        "public.learner-1: is also the key of learner-0",
    ),
    (lambda f: (f / PUBLIC_FILE).write_text("[public]"), "public.syncer: missing"),
    (lambda f: (f / PUBLIC_FILE).write_text('[public]\n"../x" = "y"'), "'../x' is not a name"),
]


@pytest.mark.parametrize(("spoil", "said"), [(spoil, said) for spoil, *said in SPOILS])
def test_bad_files_get_one_line(folder, spoil, said):
    """The line names the file, the field and the cure."""
    spoil(folder)
    with pytest.raises(ConfigError) as caught:
        load_curve(folder, "learner-0")
    assert "\n" not in str(caught.value)
    for part in said:
        assert part in str(caught.value)


def test_a_learner_without_a_key_is_named(folder):
    """A job that has grown says how its new learners get keys."""
    with pytest.raises(ConfigError, match=r"public.learner-3: no such key; .*ddloco keys"):
        load_curve(folder, "learner-3")


def call(capsys, *words):
    """Run the command; exit code, output, complaint."""
    with pytest.raises(SystemExit) as ended:
        main(["keys", *map(str, words)])
    said = capsys.readouterr()
    return ended.value.code, said.out, said.err


def test_the_command_says_what_goes_where(tmp_path, capsys):
    """Every file is named with its destination, and what was there is counted as kept."""
    folder = tmp_path / "keys"
    code, out, _ = call(capsys, folder, "--learners", 2)
    assert code == 0
    assert out.splitlines() == [
        *handed_out(folder, names_for(2)),
        "5 keys made; 0 existed and were not changed",
    ]
    assert f"{folder / 'learner-1.key'}  to the host of learner-1, and nowhere else" in out
    (tmp_path / "job.toml").write_text('[job]\ntask = "x:y"\nlearners = 4\n')
    code, out, _ = call(capsys, folder, "--job", tmp_path / "job.toml")
    assert out.endswith("2 keys made; 5 existed and were not changed\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--learners", "0"], "--learners 0: a job has 1 to 1024 learners"),
        (["--learners", "9999"], "--learners 9999: a job has 1 to 1024 learners"),
        (["--names", "a,../b"], "--names a,../b: '../b' is not a name"),
        (["--names", "a,,b"], "'' is not a name"),
        (["--job", "none.toml"], "none.toml: cannot be read"),
    ],
)
def test_bad_options_get_one_line(tmp_path, capsys, words, said):
    """Nothing is made then."""
    code, _, err = call(capsys, tmp_path / "keys", *words)
    assert (code, err.count("\n")) == (2, 1)
    assert said in err
    assert not (tmp_path / "keys").exists()


def test_a_folder_that_others_look_into_is_refused(tmp_path, capsys):
    """Keys are not made where others could exchange them."""
    tmp_path.chmod(0o755)
    code, _, err = call(capsys, tmp_path)
    assert (code, err) == (
        2,
        f"ddloco: {tmp_path}: others can look into it; chmod 700 {tmp_path}\n",
    )
    (tmp_path / "file").touch()
    code, _, err = call(capsys, tmp_path / "file")
    assert (code, err) == (2, f"ddloco: {tmp_path / 'file'}: File exists\n")


def test_a_damaged_secret_is_not_overwritten(folder, capsys):
    """What is no key stays as it is, and is named."""
    (folder / "learner-2.key").write_text("")
    code, _, err = call(capsys, folder)
    assert (code, err.count("\n")) == (2, 1)
    assert "learner-2.key" in err
    assert Path(folder / "learner-2.key").read_text() == ""


def test_keys_that_are_made_while_a_job_runs_are_known(tmp_path):
    """Without a restart; a name that is taken out is unknown again, and a file that cannot be read
    changes nothing."""
    make_keys(tmp_path, ["syncer", "learner-0"])
    curve = load_curve(tmp_path, "syncer", [])
    file = tmp_path / PUBLIC_FILE
    make_keys(tmp_path, ["syncer", "learner-0", "learner-1"])
    assert curve.owner("learner-1.3") is None
    curve.renew()
    assert curve.owner("learner-1.3") == "learner-1"
    text = file.read_text()
    for spoilt in ("[public", '[public]\nlearner-1 = "short"\n', ""):
        file.write_text(spoilt)
        curve.renew()
        assert curve.owner("learner-0.1") == "learner-0"
    file.unlink()
    curve.renew()
    assert curve.owner("learner-0.1") == "learner-0"
    file.write_text("".join(line for line in text.splitlines(True) if "learner-1" not in line))
    curve.renew()
    assert (curve.owner("learner-1.3"), curve.owner("learner-0.1")) == (None, "learner-0")
