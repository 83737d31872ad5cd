"""The story of two runs that part: each cause is named."""

from examples import find_the_bug


def test_each_cause_is_named(capfd):
    """Nothing, a setting, and the order of arrivals."""
    find_the_bug.main()
    same, changed, *rest = capfd.readouterr().out.splitlines()
    assert same.startswith("the same again: ")
    assert same.endswith(" 0 different")
    assert changed.startswith("another outer learning rate: ")
    assert [each.strip().partition(";")[0] for each in rest if "cause: " in each] == [
        "cause: configuration",
        "cause: timing",
    ]
