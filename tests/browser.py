"""A headless Chromium, driven over its debugging pipe: pages are looked at and clicked on."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)

WAIT_S = 60.0


class Browser:
    """One page; ``complaints`` are errors of its console and exceptions of its scripts."""

    def __init__(self, width, height, *, dark=False):
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
        quiet = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-proxy-server", *scheme]
        where = [f"--user-data-dir={self._profile.name}", f"--window-size={width},{height}"]
        # Chromium reads from file descriptor 3 and writes to 4.
        script = f'exec "$@" 3<&{to_read} 4>&{to_write}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", CHROMIUM, "--remote-debugging-pipe", *quiet, *where],
            pass_fds=(to_read, to_write),
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._rest, self._number, self._session, self.complaints = b"", 0, None, []
        target = self.ask("Target.createTarget", url="about:blank")
        found = self.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(WAIT_S)
        os.close(self._read)
        os.close(self._write)
        self._profile.cleanup()

    def ask(self, method, **params):
        """The answer to one request; events that come before it are taken in."""
        self._number += 1
        said = {"id": self._number, "method": method, "params": params}
        said |= {"sessionId": self._session} if self._session else {}
        os.write(self._write, json.dumps(said).encode() + b"\0")
        while True:
            told = self._next()
            if told.get("id") == self._number:
                assert "error" not in told, told
                return told["result"]

    def _next(self):
        while b"\0" not in self._rest:
            piece = os.read(self._read, 2**20)
            assert piece, "the browser has ended"
            self._rest += piece
        first, _, self._rest = self._rest.partition(b"\0")
        told = json.loads(first)
        params = told.get("params", {})
        if told.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(params["exceptionDetails"])
        if told.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.complaints.append(params["entry"])
        return told

    def go(self, address):
        """Open an address, and wait until its page is drawn."""
        self.ask("Page.navigate", url=address)
        self.wait("document.documentElement.dataset.drawn === 'yes'")

    def value(self, expression):
        """What an expression is in the page."""
        found = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        return found["result"].get("value")

    def wait(self, expression):
        """Wait until an expression holds in the page."""
        until = time.monotonic() + WAIT_S
        while not self.value(expression):
            assert time.monotonic() < until, expression
            time.sleep(0.05)

    def click(self, x, y):
        """Click on a place of the window, in CSS pixels."""
        place = {"x": x, "y": y, "button": "left", "clickCount": 1}
        self.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.ask("Input.dispatchMouseEvent", type="mousePressed", **place)
        self.ask("Input.dispatchMouseEvent", type="mouseReleased", **place)

    def picture(self):
        """The window, as a PNG file's bytes in base64."""
        return self.ask("Page.captureScreenshot", format="png")["data"]
