"""The commands ``ddloco snapshot``: take, list and verify snapshots, and export a model."""

import argparse
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from rich.progress import DownloadColumn, Progress

from ddloco.api.model import PlaceError, open_store, parameters, tensors_at
from ddloco.cli.ask import complain, look, timeout_of
from ddloco.monitoring.client import UnansweredError, open_observer
from ddloco.monitoring.watch import say
from ddloco.stage.actors.observations import DISCARDED, TAKEN
from ddloco.stage.files.run_folder import folders_to_make
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.nodes.exit_codes import FOUND, HELD
from ddloco.stage.observers.observer_protocol import News
from ddloco.stage.process.console import SafeConsole
from ddloco.workers.task import TaskError
from snapshot import Listed, Manifest, SnapshotError, StorageError, Store, id_of, save_tensors

FINAL = "model"
"""Names the final model of a run folder where the id of a snapshot is wanted."""

Command = Callable[[argparse.Namespace, Store], int]


def _on_place(command: Command, given: argparse.Namespace) -> int:
    try:
        return command(given, open_store(given.place))
    except PlaceError as error:
        return complain(error)
    except (SnapshotError, StorageError) as error:
        return complain(error, FOUND)


def _id_of(store: Store, snapshot: str) -> str:
    try:
        return store.find(snapshot)
    except SnapshotError as error:
        raise PlaceError(str(error)) from None


# take


def snapshot_take(given: argparse.Namespace) -> int:
    async def ask() -> None:
        asking = open_observer(given.address, timeout_of(given), given.keys, owner=True)
        async with asking as observer:
            said = await observer.snapshot()
        for line in _said_of(given.address, said, as_json=given.json):
            say(line)

    return look(ask)


def _said_of(address: str, said: News, *, as_json: bool) -> list[str]:
    """The lines about its result: the id, then the absent participants with reasons."""
    if said.event == DISCARDED:
        reason = said.fields["reason"]
        raise UnansweredError(f"{address}: the snapshot was discarded: {reason}")
    if said.event != TAKEN:
        reason = said.fields.get("reason", "no reason was given")
        raise UnansweredError(
            f"{address}: the job ended before the snapshot was complete: {reason}"
        )
    id_, absent = id_of(said.fields["snapshot"]), said.fields.get("absent", {})
    if as_json:
        taken = {"id": id_, "participants": list(said.fields["parts"]), "absent": dict(absent)}
        return [json.dumps(taken)]
    return [id_, *(_without(id_, who, why) for who, why in absent.items())]


LEFT = "it had left before"


def _without(id_: str, who: str, why: str) -> str:
    return f"{id_}: without {who}: {why}"


# list


def snapshot_list(given: argparse.Namespace) -> int:
    return _on_place(_list, given)


def _list(given: argparse.Namespace, store: Store) -> int:
    listed = store.snapshots()
    rows = snapshot_rows(store, listed)
    if given.json:
        print(json.dumps(rows, indent=2))
    elif not rows:
        print("no snapshots")
    else:
        for line in snapshot_table(rows):
            print(line)
    return FOUND if any(each.manifest is None for each in listed) else HELD


def snapshot_rows(store: Store, listed: list[Listed]) -> list[dict[str, Any]]:
    """A description of each snapshot, newest first. ``new_bytes`` are those that it does not share
    with an older snapshot in the store."""
    seen: set[str] = set()
    rows: list[dict[str, Any]] = []
    for each in reversed(listed):
        if each.manifest is None:
            rows.append({"id": each.id, "problem": each.problem})
            continue
        sizes = store.sizes(each.manifest)
        new = sum(size for digest, size in sizes.items() if digest not in seen)
        seen.update(sizes)
        known = sum(sizes.values()) == each.manifest.nbytes
        rows.append(_row(each.manifest, new if known else None))
    rows.reverse()
    return sorted(rows, key=lambda row: "problem" in row)


def _row(manifest: Manifest, new_bytes: int | None) -> dict[str, Any]:
    return {
        "id": manifest.id,
        "order": manifest.order,
        "participants": [part.who for part in manifest.parts],
        "absent": dict(manifest.absent),
        "left": list(manifest.left),
        "bytes": manifest.nbytes,
        "new_bytes": new_bytes,
        "facts": dict(manifest.facts),
    }


def snapshot_table(rows: list[dict[str, Any]]) -> list[str]:
    cells = [["id", "order", "participants", "absent", "bytes", "new bytes"]]
    for row in rows:
        if "problem" not in row:
            new = row["new_bytes"]
            cells.append(
                [
                    row["id"],
                    str(row["order"]),
                    str(len(row["participants"])),
                    str(len(row["absent"])),
                    f"{row['bytes']:,}",
                    "?" if new is None else f"{new:,}",
                ]
            )
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join([each[0].ljust(widths[0]), *map(str.rjust, each[1:], widths[1:])])
        for each in cells
    ]
    for row in rows:
        absent = row.get("absent", {})
        lines += [_without(row["id"], who, why) for who, why in absent.items()]
        lines += [_without(row["id"], who, LEFT) for who in row.get("left", ())]
    return lines + [f"unreadable: {row['problem']}" for row in rows if "problem" in row]


# verify


def snapshot_verify(given: argparse.Namespace) -> int:
    return _on_place(_verify, given)


def _verify(given: argparse.Namespace, store: Store) -> int:
    listed = store.snapshots()
    wanted = [each.id for each in listed]
    if given.snapshot:
        wanted = [_id_of(store, given.snapshot)]
    total: dict[str, int] = {}
    for each in listed:
        if each.manifest is not None and each.id in wanted:
            total.update(store.sizes(each.manifest))
    console = SafeConsole(stderr=True)
    with Progress(
        *Progress.get_default_columns(),
        DownloadColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task("verifying", total=sum(total.values()))
        verifier = store.verifier(partial(bar.advance, task))
        problems = {id_: verifier.verify(id_) for id_ in wanted}
    wrong = sum(map(bool, problems.values()))
    if given.json:
        found = {"files": verifier.files, "bytes": verifier.nbytes, "problems": problems}
        print(json.dumps(found, indent=2))
    else:
        for line in dict.fromkeys(line for lines in problems.values() for line in lines):
            print(line)
        said = f"{verifier.nbytes:,} bytes in {verifier.files:,} files checked"
        print(f"{len(wanted) - wrong} of {len(wanted)} snapshots intact; {said}")
    return FOUND if wrong else HELD


# export


def snapshot_export(given: argparse.Namespace) -> int:
    try:
        if given.snapshot == FINAL:
            return _export(given, tensors_at(given.place), {})
        return _on_place(_export_snapshot, given)
    except (ConfigError, TaskError, PlaceError) as error:
        return complain(error)


def _export_snapshot(given: argparse.Namespace, store: Store) -> int:
    manifest = store.manifest(_id_of(store, given.snapshot))
    tensors, versions = parameters(store, manifest)
    said = ",".join(str(versions[p]) for p in sorted(versions))
    facts = {key: str(value) for key, value in manifest.facts.items()}
    return _export(given, tensors, {**facts, "snapshot": manifest.snapshot, "versions": said})


def _export(
    given: argparse.Namespace, tensors: Mapping[str, NDArray[Any]], about: dict[str, str]
) -> int:
    made = folders_to_make(given.to.absolute().parent)
    if given.format == "hf":
        from ddloco.api.model_folder import write_model_folder  # noqa: PLC0415, it needs jax

        sizes = write_model_folder(given.to, tensors, given.place, job=given.job)
        _say_made(made)
        print(f"{given.to}: " + ", ".join(f"{name}, {sizes[name]:,} bytes" for name in sizes))
        return HELD
    if given.to.exists():
        raise PlaceError(f"{given.to}: exists; choose a new file")
    try:
        save_tensors(given.to, tensors, about)
    except OSError as error:
        raise PlaceError(f"{error.filename or given.to}: {error.strerror or error}") from None
    nbytes = sum(tensor.nbytes for tensor in tensors.values())
    _say_made(made)
    of = f" of {about['versions'].count(',') + 1} fragments" if about else ""
    print(f"{given.to}: {len(tensors)} tensors{of}, {nbytes:,} bytes")
    return HELD


def _say_made(folders: list[Path]) -> None:
    """Name the outermost folder that was not there before: it may be a slip of the pen."""
    if folders:
        print(f"made the folder {folders[-1]}")
