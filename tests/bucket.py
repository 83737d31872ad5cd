"""An object store for tests: a server on loopback that speaks S3, and can be made to fail."""

import importlib
import io
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Self

from localbucket import UPLOADS_DIR, S3Handler

BUCKET = "bucket"
WRITES = ("PUT", "POST")

REFUSALS = {
    403: "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>",
    503: "<Error><Code>SlowDown</Code><Message>Reduce your request rate</Message></Error>",
}
"""What a store says that will not write: only after the second does a client ask again."""

LOST = 0
"""It is written, and the answer is lost: a client asks again."""

Judge = Callable[[str, str], int | None]
"""Who writes which object; a status of REFUSALS, LOST, or None where nothing happens to it."""


class Handler(S3Handler):
    """Asks a judge before each write, and reports the write before it is answered."""

    bucket: "Bucket"
    disable_nagle_algorithm = True  # Headers and bodies are sent apart, and would wait 40 ms.

    def log_message(self, *_args: object) -> None:
        """Say nothing: what matters comes back to the client."""

    def do_PUT(self) -> None:  # noqa: N802
        """Write an object, or a part of one."""
        self._judged(super().do_PUT)

    def do_POST(self) -> None:  # noqa: N802
        """Begin or finish an upload in parts."""
        self._judged(super().do_POST)

    def _judged(self, write: Callable[[], None]) -> None:
        who = self.headers["Authorization"].partition("Credential=")[2].partition("/")[0]
        name = self.path.partition("?")[0].removeprefix(f"/{BUCKET}/")
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        status = self.bucket.judge(who, name)
        if status in REFUSALS:
            self._answer(REFUSALS[status], status)
            return
        lines = self.rfile, self.wfile
        self.rfile, self.wfile = io.BytesIO(body), io.BytesIO()
        write()
        said = self.wfile.getvalue()
        self.rfile, self.wfile = lines
        self.bucket.wrote(who, name)
        if status == LOST:
            self.close_connection = True
        else:
            self.wfile.write(said)

    def _answer(self, said: str, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said.encode())


class Server(ThreadingHTTPServer):
    """Ignores errors of connections: a killed process leaves a request half sent."""

    daemon_threads = True
    block_on_close = False  # Clients keep their connections open.

    def handle_error(self, *_args: object) -> None:
        """Say nothing."""


class Bucket:
    """A server with one bucket.

    Args:
        folder: where its objects are kept, as files.

    Attributes:
        url: where it listens.
        judge: asked before each write; None lets it happen.
        wrote: called after each write, before its writer hears of it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.judge: Judge = lambda _who, _name: None
        self.wrote: Callable[[str, str], None] = lambda _who, _name: None
        (folder / BUCKET).mkdir(parents=True)
        ours = type("Ours", (Handler,), {"data_root": folder, "bucket": self})
        self._server = Server(("127.0.0.1", 0), ours)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        """Serve."""
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Serve no longer."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def environment(self, who: str) -> dict[str, str]:
        """What a process needs to write here, under a name of its own."""
        return {
            "AWS_ACCESS_KEY_ID": who,
            "AWS_SECRET_ACCESS_KEY": "x",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.url,
        }

    def objects(self) -> list[str]:
        """The names of all objects, and of nothing half."""
        root = self.folder / BUCKET
        return sorted(
            path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()
        )

    def uploads(self) -> list[str]:
        """Uploads in parts that were neither finished nor taken back."""
        return sorted(path.name for path in self.folder.glob(f"{UPLOADS_DIR}/*"))


@contextmanager
def found_by_fsspec(folder: Path) -> Iterator[Bucket]:
    """A server that fsspec finds by itself, for s3:// URLs."""
    conf = importlib.import_module("fsspec").config.conf
    before = conf.get("s3")
    with Bucket(folder) as served:
        conf["s3"] = {"key": "x", "secret": "x", "endpoint_url": served.url}
        yield served
    conf.pop("s3")
    if before is not None:
        conf["s3"] = before
