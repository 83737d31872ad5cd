"""Files that people write: what is wrong is said in one line that names file and field."""

import pytest
from msgspec import Struct

from ddloco.stage.files.toml import ConfigError, Section, convert, read_toml


class Inner(Section, frozen=True):
    size: int
    names: tuple[str, ...] = ()


class Outer(Section, frozen=True):
    inner: Inner
    share: float = 0.5


def test_a_table_becomes_what_it_must_be(tmp_path):
    """What the file says, and defaults for the rest."""
    path = tmp_path / "a.toml"
    path.write_text('[inner]\nsize = 3\nnames = ["x", "é"]\n')
    assert Outer(Inner(3, ("x", "é"))) == convert(read_toml(path), Outer, str(path))


@pytest.mark.parametrize(
    ("plain", "said"),
    [
        ({"inner": {"size": "3"}}, "job.toml: inner.size: Expected `int`, got `str`"),
        (
            {"inner": {"size": 3, "sise": 4}},
            "job.toml: inner: unknown key `sise`; did you mean inner.size?",
        ),
        ({"inner": {}}, "job.toml: inner: missing key `size`"),
        ({}, "job.toml: missing key `inner`"),
        ({"inner": {"size": 1}, "other": 1}, "job.toml: unknown key `other`"),
        (
            {"inner": {"size": 3, "names": ["x", 4]}},
            "job.toml: inner.names[1]: Expected `str`, got `int`",
        ),
        ([], "job.toml: Expected `object`, got `array`"),
    ],
)
def test_what_is_wrong_is_named(plain, said):
    """File, field and what would be right; a single line."""
    with pytest.raises(ConfigError) as caught:
        convert(plain, Outer, "job.toml")
    assert said == str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    """With the reason that the system gives, and without a traceback's cause."""
    with pytest.raises(ConfigError, match=r"no\.toml: cannot be read: No such file") as caught:
        read_toml(tmp_path / "no.toml")
    assert caught.value.__cause__ is None


def test_a_folder_is_no_file(tmp_path):
    """Whatever cannot be opened is said to be so."""
    with pytest.raises(ConfigError, match="cannot be read: is a folder"):
        read_toml(tmp_path)


@pytest.mark.parametrize("data", [b"a = = 1", b"a = 1\na = 2", b"\xff\xfe", b"[a\n"])
def test_what_is_no_toml_is_named(tmp_path, data):
    """Syntax, a key twice, and bytes that are no text."""
    path = tmp_path / "x.toml"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=r"x\.toml: not TOML: ") as caught:
        read_toml(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[a]\nseed = 3\nsteps = 1\n seed=4 # more\n", "`seed` is set twice (at line 4"),
        ('"x y" = 1\r\n"x y" = 2\r\n', '`"x y"` is set twice (at line 2, column 10)'),
        ("a = [\n]\na = [\n1\n]\n", "Cannot overwrite a value (at line 5, column 2)"),
        ("a = 1\na.b = 2\n", "Cannot overwrite a value (at line 2"),
    ],
)
def test_a_key_that_is_set_twice_is_named(tmp_path, text, said):
    """If it is on the line that the parser names; otherwise its words stay."""
    path = tmp_path / "x.toml"
    path.write_bytes(text.encode())
    with pytest.raises(ConfigError) as caught:
        read_toml(path)
    assert str(caught.value).startswith(f"{path}: not TOML: {said}")


def test_sections_are_frozen_and_strict():
    """A table cannot be changed once read, nor say more than it may."""
    assert issubclass(Section, Struct)
    with pytest.raises(AttributeError):
        Inner(3).size = 4


@pytest.mark.parametrize(
    "text",
    [
        "a" + ".a" * 200_000 + " = 1",
        "[" + "a. " * 200_000 + "a]",
        "[[" + '"a".' * 200_000 + "a]]",
        "x = {" + "a .'b'." * 100_000 + "a = 1}",
        "a = " + "[" * 200_000,
        "a = " + "{a=" * 200_000,
    ],
    ids=["key", "table", "tables", "inline", "lists", "dicts"],
)
def test_what_is_nested_without_end_is_one_line(text, tmp_path):
    """Before the parser takes all memory for it."""
    path = tmp_path / "deep.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"deep\.toml: not TOML") as error:
        read_toml(path)
    assert "\n" not in str(error.value)


def test_many_dots_that_are_no_key_are_read(tmp_path):
    """Numbers, words of a text, and lines that separate."""
    path = tmp_path / "dots.toml"
    numbers = ", ".join(["0.5"] * 500)
    path.write_text(f'# {"." * 100}\n[task]\nx = [{numbers}]\ny = "{". " * 100}a.b.c"\na.b.c = 1\n')
    assert read_toml(path)["task"]["x"] == [0.5] * 500


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path):
    """Some editors write one."""
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xef\xbb\xbfa = 1\r\n")
    assert read_toml(path) == {"a": 1}
