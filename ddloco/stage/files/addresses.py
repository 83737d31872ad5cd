"""The addresses of actors: checked before anything listens on or dials them, and their files.
libzmq accepts nearly everything: port 99999 becomes 34463, port -1 becomes 65535, and an invalid
host is dialled for ever without an error."""

import ipaddress
import re
from pathlib import Path

from clocks import read_regular, replace_file
from ddloco.stage.files.run_folder import address_file
from ddloco.stage.files.toml import ConfigError

PORT_MAX = 65535
IPC_BYTES_MAX = 107
"""The longest path of a Unix socket: ``sun_path`` of unix(7)."""

FILE = "file:"
LEASE_PLACE = "lease:"
"""Before a place with the lease of a job's syncers, which has their addresses, too."""

ADDRESS_CHARS_MAX = 1024
REASON_CHARS_MAX = 1000
"""The longest reason of an end beside an address file."""

_HOST = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9_-]{1,63}(?<!-))*\.?")
_WANT = "want tcp://HOST:PORT"


def check_listen(option: str, address: str) -> None:
    """Check that an address is valid for listening; ``ConfigError`` names the option and the
    problem."""
    problem = _problem(address, listens=True)
    if problem is not None:
        raise ConfigError(f"{option} {_shown(address)}: {problem}")


def check_dial(option: str, address: str) -> None:
    """Check an address for dialling, also one in an existing file; ``ConfigError`` names the
    problem."""
    problem = None
    if address.startswith(FILE):
        problem = _problem_in_file(address.removeprefix(FILE))
    else:
        problem = _problem(address, listens=False)
    if problem is not None:
        raise ConfigError(f"{option} {_shown(address)}: {problem}".lstrip())


def check_advertise(option: str, address: str) -> None:
    """Check that hosts may reach a syncer by an address, whose port may be ``*``; else
    ``ConfigError``."""
    check_listen(option, address)
    if not address.startswith("tcp://") or address.startswith("tcp://*:"):
        raise ConfigError(f"{option} {address}: other hosts cannot dial it; {_WANT}")


def _shown(address: str) -> str:
    return address[:200] if address.isprintable() else ascii(address[:200])


def _problem_in_file(path: str) -> str | None:
    if not path or "\0" in path:
        return "want file:PATH"
    try:
        Path(path).stat()
    except FileNotFoundError:
        return None  # A syncer may write the file later.
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    try:
        text = read_regular(path, ADDRESS_CHARS_MAX).decode()
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        return "the file is not text"
    found = text.partition("\n")[0].strip()
    problem = _problem(found, listens=False) if found else None
    return f"the file contains {_shown(found)}: {problem}" if problem else None


def _problem(address: str, *, listens: bool) -> str | None:
    if not address.isprintable() or " " in address or len(address) > ADDRESS_CHARS_MAX:
        return f"an address must not contain blanks, line ends or unprintable characters; {_WANT}"
    scheme, separator, rest = address.partition("://")
    if separator and scheme == "tcp":
        return _tcp_problem(rest, listens=listens)
    if separator and scheme == "ipc":
        return _ipc_problem(rest, listens=listens)
    if separator and scheme == "inproc":
        return f"inproc reaches only this process; {_WANT}"
    return f"unknown kind of address; {_WANT}" + ("" if listens else ", or file:PATH")


def _tcp_problem(rest: str, *, listens: bool) -> str | None:
    host, colon, port = rest.rpartition(":")
    if not colon:
        return f"no port; {_WANT}"
    if not (listens and port == "*"):
        least = 0 if listens else 1
        if not (port.isascii() and port.isdigit() and len(port) < 10):
            return f"port {port!r} is not a number; {_WANT}"
        if not least <= int(port) <= PORT_MAX:
            return f"port {port} is not one of {least} to {PORT_MAX}"
    if host == "*" and listens:
        return None
    if host.startswith("[") and host.endswith("]"):
        return _ip_problem(host[1:-1], 6)
    if re.fullmatch(r"[0-9.]+", host):
        return _ip_problem(host, 4)
    if not _HOST.fullmatch(host) or len(host) > 253:
        return f"{host!r} is not a host; {_WANT}" if host else f"no host; {_WANT}"
    return None


def _ip_problem(said: str, version: int) -> str | None:
    try:
        found = ipaddress.ip_address(said)
    except ValueError:
        return f"{said!r} is not an IPv{version} address"
    return None if found.version == version else f"{said!r} is not an IPv{version} address"


def _ipc_problem(path: str, *, listens: bool) -> str | None:
    if path == "*" and listens:
        return None
    if path in ("", "*"):
        return "no path; want ipc:///PATH"
    if len(path.encode()) > IPC_BYTES_MAX:
        return f"a path of {len(path.encode())} bytes; a socket's has at most {IPC_BYTES_MAX}"
    if path.startswith("@"):
        return None  # An abstract socket has a name but no file.
    folder = Path(path).parent
    if not folder.is_dir():
        return f"there is no folder {folder}"
    return "is a folder" if Path(path).is_dir() else None


def write_address(folder: Path, name: str, bound: str, advertise: str = "") -> str:
    """Write an actor's address file: the advertised address, or the one that it is bound to;
    returns it. One that listens on all interfaces is bound to an address that cannot be dialled:
    without ``advertise`` the file then has the address by which this machine reaches it."""
    host, _, port = bound.rpartition(":")
    if advertise.startswith("tcp://"):
        stem, _, theirs = advertise.removeprefix("tcp://").rpartition(":")
        if not stem and theirs:
            advertise = f"{advertise}:{port}"
        elif theirs in ("*", "0"):
            advertise = f"tcp://{stem}:{port}"
    elif host in ("tcp://0.0.0.0", "tcp://[::]"):
        advertise = f"tcp://127.0.0.1:{port}" if "[" not in host else f"tcp://[::1]:{port}"
    path = address_file(folder, name)
    end_file(path).unlink(missing_ok=True)
    replace_file(path, [(advertise or bound).encode()])
    return advertise or bound


def write_end(folder: Path, name: str, job_id: str, reason: str) -> None:
    said = " ".join(reason.split())[:REASON_CHARS_MAX]
    replace_file(end_file(address_file(folder, name)), [f"{job_id} {said}".encode()])


def end_file(path: Path) -> Path:
    """The file beside an address file that says how the job has ended; absent while it runs."""
    return path.with_name(f"{path.name}.ended")


def end_at(address: str, job_id: str = "") -> str:
    """Why a job has ended, or any job without ``job_id``, if the file beside that of an address
    says so; otherwise empty."""
    if not address.startswith(FILE):
        return ""
    try:
        path = end_file(Path(address.removeprefix(FILE)))
        found = read_regular(path, 5 * REASON_CHARS_MAX).decode()
    except (OSError, ValueError):
        return ""
    whose, _, reason = found.partition(" ")
    return reason if job_id in ("", whose) else ""
