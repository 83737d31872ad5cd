"""Changes one field of one event of a recorded run, with its checksums mended."""

import math
import re
import shutil

import msgspec

from replay import Tape, tape
from tests.processes.test_divergence import rewrite


def events_of(folder):
    """Yield the file name, number and plain data of each event of a run."""
    for path in sorted((folder / "tapes").glob("*.tape")):
        for record in Tape(path).records():
            if isinstance(record, tape.Event):
                yield path.name, record.n, msgspec.msgpack.decode(record.event)


def places_of(value, path=()):
    """Yield the place of each value within plain data that is no table: keys and indices. Of a list
    only its first element."""
    if isinstance(value, dict):
        for key, each in value.items():
            if key != "type":
                yield from places_of(each, (*path, key))
    elif isinstance(value, list) and value:
        yield from places_of(value[0], (*path, 0))
    elif value is not None and value != []:
        yield path


def name_of(event, place):
    """The kind of event, that of its message, and the field."""
    body = event.get("body")
    kind = f"{event['type']} {body['type']}" if isinstance(body, dict) else event["type"]
    return f"{kind}: {'.'.join(str(each) for each in place)}"


def changed(value):
    """Another value of the same type, as near as can be."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case float():
            return math.nextafter(value, math.inf) if math.isfinite(value) else 0.5
        case str():
            return f"{value}x"
        case bytes():
            return bytes([value[0] ^ 1]) + value[1:] if value else b"x"
        case _:
            raise AssertionError(f"no change of {value!r}")


def put(value, place, to):
    """Put ``to`` at a place within plain data."""
    *path, last = place
    for each in path:
        value = value[each]
    value[last] = to


def at(value, place):
    """What is at a place within plain data."""
    for each in place:
        value = value[each]
    return value


def fields_of(folder, cuts, nth=2):
    """For each field of each kind of event where it is changed: in the ``nth`` such event of the
    run, or else in the last one that there is. Of events before the cut that a replay begins with
    none is changed; ``cuts`` has their numbers by incarnation."""
    found, seen = {}, {}
    for file, n, event in events_of(folder):
        before = n <= cuts.get(re.split(r"@|\.tape$", file)[0], 0)
        for place in places_of(event) if not before else ():
            name = name_of(event, place)
            seen[name] = seen.get(name, 0) + 1
            if seen[name] <= nth:
                found[name] = (file, n, place)
    return found


def change_one(folder, to, where):
    """Copy a run with one field changed."""
    file, number, place = where
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(folder, to)

    def change(n, event):
        if n == number:
            put(event, place, changed(at(event, place)))
        return event

    rewrite(to / "tapes" / file, change)
    return to
