"""What a report shows of the merges: all of them as bars, and the matrix of merges and learners."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from clocks import actor_of
from ddloco.debugger.merge_history import Merge, MergeAnswer
from ddloco.debugger.report_lanes import Axis, Names, clip, evenly, finite, to_differences

BARS_MAX = 20_000
COLUMNS_MAX = 2_000
CELLS_MAX = 40_000


class Bars(Struct):
    """Merges in columns; all times are in units of the axis, ``of`` is how many there are.

    Attributes:
        syncer: the number of the syncer's incarnation.
        n: the number of its event.
        since: when a slot for the sync was free; ``floor``, ``quorum`` and ``grace`` are how long
            each of them held the launch from then on, ``flight`` the time from launch to merge.
        took: how many contributions were merged.
    """

    of: int
    t: list[int]
    p: list[int]
    syncer: list[int]
    n: list[int]
    since: list[int]
    floor: list[int]
    quorum: list[int]
    grace: list[int]
    flight: list[int]
    took: list[int]
    moved: list[float | None]


class Column(Struct):
    t: int
    p: int
    event: str
    at: int
    live: int
    moved: float | None
    wait: tuple[float, float, float, float]
    repeats: list[str]
    clock: list[int]


class TableCell(Struct, array_like=True, omit_defaults=True):
    """A learner in a merge.

    Attributes:
        state: 0 unknown, 1 merged, 2 refused, 3 absent.
        event: the syncer's event that shows it.
        reason: why it was refused or is absent; the number of a text.
        weight: its share; ``norm``, ``cosine``, ``base``, ``steps``, ``tokens`` and ``wait`` as in
            ``merge_history.MergeAnswer``.
        who: the number of its incarnation.
    """

    state: int
    event: str = ""
    reason: int = -1
    weight: float | None = None
    norm: float | None = None
    cosine: float | None = None
    base: int = -1
    steps: int = 0
    tokens: int = 0
    wait: float | None = None
    who: int = -1


class Matrix(Struct):
    """Columns are merges, rows learners; ``cells[row][column]``. ``of`` is how many merges."""

    of: int
    rows: list[str]
    columns: list[Column]
    cells: list[list[TableCell]]
    reasons: list[str]


def bars_of(
    merges: Sequence[Merge],
    common: Callable[[str, float], float],
    axis: Axis,
    names: Names,
    share: int,
) -> Bars:
    shown = [merges[i] for i in evenly(len(merges), BARS_MAX // share)]
    width = axis.unit_s
    since = [each.launched_at - each.wait.total_s for each in shown]
    return Bars(
        of=len(merges),
        t=to_differences(each.t for each in shown),
        p=[each.fragment for each in shown],
        syncer=[names.number(syncer_of(each)) for each in shown],
        n=to_differences(each.number for each in shown),
        since=to_differences(
            axis.place(common(syncer_of(each), at)) for each, at in zip(shown, since, strict=True)
        ),
        floor=[round(each.wait.floor_s / width) for each in shown],
        quorum=[round(each.wait.quorum_s / width) for each in shown],
        grace=[round(each.wait.grace_s / width) for each in shown],
        flight=[round((each.at - each.launched_at) / width) for each in shown],
        took=[len(each.contributions) for each in shown],
        moved=[finite(each.moved) for each in shown],
    )


def syncer_of(merge: Merge) -> str:
    return merge.event.rpartition(":")[0]


def columns_shown(merges: Sequence[Merge], learners: int, share: int) -> list[Merge]:
    """Return the merges of the matrix: all, or of each group of adjacent ones the one with most
    refusals and absences."""
    most = max(min(COLUMNS_MAX, CELLS_MAX // max(learners, 1)) // share, 1)
    if len(merges) <= most:
        return list(merges)
    begins = [*evenly(len(merges), most), len(merges)]
    groups = [merges[a:b] for a, b in pairwise(begins)]
    return [max(group, key=lambda m: (len(m.refused), len(m.absent))) for group in groups]


def matrix_of(
    merges: Sequence[Merge],
    of: int,
    *,
    learners: Sequence[str],
    placed: Callable[[Merge], int],
    clocks: Mapping[str, dict[str, int]],
    names: Names,
) -> Matrix:
    reasons: dict[str, int] = {}
    matrix = Matrix(of, list(learners), [], [[] for _ in learners], [])
    for merge in merges:
        wait = merge.wait
        parts = (wait.total_s, wait.floor_s, wait.quorum_s, wait.grace_s)
        column = Column(
            t=merge.t,
            p=merge.fragment,
            event=merge.event,
            at=placed(merge),
            live=merge.live,
            moved=finite(merge.moved),
            wait=(round(parts[0], 6), round(parts[1], 6), round(parts[2], 6), round(parts[3], 6)),
            repeats=[clip(each) for each in merge.repeats],
            clock=names.clock(clocks.get(merge.event, {}), ""),
        )
        matrix.columns.append(column)
        found = _cells_of(merge, names, reasons)
        for row, learner in zip(matrix.cells, learners, strict=True):
            row.append(found.get(learner, TableCell(0)))
    matrix.reasons = list(reasons)
    return matrix


def _cells_of(merge: Merge, names: Names, reasons: dict[str, int]) -> dict[str, TableCell]:
    """The learners of one merge, by name; of several incarnations the one that took part."""
    found: dict[str, TableCell] = {}
    refused = {each.learner: each for each in merge.refused}
    for each in merge.absent:
        reason = reasons.setdefault(clip(each.reason), len(reasons))
        who = names.number(each.learner)
        answer = refused.get(each.learner)
        state = 2 if each.kind == "refused" else 3
        cell = TableCell(state, each.event, reason, who=who)
        if answer is not None:
            cell = _answered(answer, state, who)
            cell.reason = reason
        cell.norm, cell.cosine = finite(each.norm), finite(each.cosine)
        before = found.get(actor_of(each.learner))
        if before is None or before.state > state:
            found[actor_of(each.learner)] = cell
    for each in merge.contributions:
        found[actor_of(each.learner)] = _answered(each, 1, names.number(each.learner))
    return found


def _answered(each: MergeAnswer, state: int, who: int) -> TableCell:
    return TableCell(
        state=state,
        event=each.event,
        weight=finite(each.weight),
        norm=finite(each.norm),
        cosine=finite(each.cosine),
        base=each.base,
        steps=each.steps,
        tokens=each.tokens,
        wait=finite(each.wait_s),
        who=who,
    )
