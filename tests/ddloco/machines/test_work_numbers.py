"""Work numbers: no two are alike, whoever of a machine and its parts asks."""

from ddloco.machines.work_numbers import WorkNumbers


def test_numbers_count_up_for_all_who_share_them():
    """From one."""
    numbers = WorkNumbers()
    assert [1, 2, 3] == [numbers.next() for _ in range(3)]
    assert 3 == numbers.newest
