"""A headless Chromium, driven by the DevTools protocol over two pipes: no driver, no packages."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
PATH = next((found for found in map(shutil.which, NAMES) if found), None)
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
LIMIT_S = 60.0
CODES = {"Escape": 27, "Enter": 13, "Tab": 9}
MODIFIERS = {"Alt": 1, "Control": 2, "Shift": 8}


class Browser:
    """One page; ``complaints`` are errors of the console and exceptions, ``requests`` addresses."""

    def __init__(self, to: int, come: int) -> None:
        self._to, self._come = to, come
        self._number = 0
        self._text = b""
        self._session: str | None = None
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        found = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def open(
        self, address: str, *, width: int = 1280, height: int = 800, dark: bool = False
    ) -> None:
        """Load a page and wait until it says that it is ready."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
            mobile=False,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._call("Page.navigate", url="about:blank")
        self._call("Page.navigate", url=address)
        self.until("document.body && document.body.dataset.ready === 'yes'")

    def run(self, script: str) -> Any:
        how = {"returnByValue": True, "awaitPromise": True}
        found = self._call("Runtime.evaluate", expression=script, **how)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, script: str) -> None:
        """Wait for an expression to become true."""
        limit = time.monotonic() + LIMIT_S
        while not self.run(f"Boolean({script})"):
            shown = self.run("document.body ? document.body.innerText : ''")  # none: it loads
            assert time.monotonic() < limit, (script, self.complaints, shown)
            time.sleep(0.03)

    def settle(self) -> None:
        """Wait until what was asked for is drawn, summed up and in the address."""
        self.run("new Promise((r) => setTimeout(() => requestAnimationFrame(() => r(1)), 250))")

    def key(self, *names: str) -> None:
        """Press keys one after the other: ``w``, ``Escape``, ``Shift+ArrowLeft``."""
        for name in names:
            *held, key = name.split("+") if len(name) > 1 else [name]
            mask = sum(MODIFIERS[one] for one in held)
            text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
            values = {"key": key, "modifiers": mask, "windowsVirtualKeyCode": CODES.get(key, 0)}
            self._call("Input.dispatchKeyEvent", type="keyDown", **values, **text)
            self._call("Input.dispatchKeyEvent", type="keyUp", **values)

    def mouse(self, what: str, x: float, y: float, **keys: Any) -> None:
        """``mouseMoved``, ``mousePressed``, ``mouseReleased`` or ``mouseWheel``."""
        self._call("Input.dispatchMouseEvent", type=what, x=x, y=y, **keys)

    def click(self, x: float, y: float) -> None:
        self.drag((x, y), (x, y))

    def drag(
        self, start: tuple[float, float], end: tuple[float, float], *, shift: bool = False
    ) -> None:
        keys: dict[str, Any] = {"button": "left", "clickCount": 1}
        keys["modifiers"] = MODIFIERS["Shift"] if shift else 0
        self.mouse("mouseMoved", *start)
        self.mouse("mousePressed", *start, **keys)
        if start != end:
            for part in (0.5, 1.0):
                x, y = (a + part * (b - a) for a, b in zip(start, end))
                self.mouse("mouseMoved", x, y, buttons=1, **keys)
        self.mouse("mouseReleased", *end, **keys)

    def cpu_s(self) -> float:
        """CPU time, in seconds, of the process of the page: the one that has taken most of all."""
        session, self._session = self._session, None
        try:
            found = self._call("SystemInfo.getProcessInfo")["processInfo"]
        finally:
            self._session = session
        return float(max(one["cpuTime"] for one in found if one["type"] == "renderer"))

    def save_to(self, folder: Path) -> None:
        """Where what a page saves goes."""
        self._call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(folder))

    def printed(self, script: str) -> Any:
        """The value of an expression while the page is prepared for paper."""
        self._call("Emulation.setEmulatedMedia", media="print")
        self.run("dispatchEvent(new Event('beforeprint'))")
        found = self.run(script)
        self._call("Emulation.setEmulatedMedia", media="")
        self.run("dispatchEvent(new Event('afterprint'))")
        return found

    def paper(self, path: Path) -> None:
        found = self._call("Page.printToPDF", printBackground=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        limit = time.monotonic() + LIMIT_S
        while True:
            found = self._next(limit)
            if found.get("id") == self._number:
                assert "error" not in found, (method, found["error"])
                result: dict[str, Any] = found["result"]
                return result
            self._note(found)

    def _next(self, limit: float) -> dict[str, Any]:
        while b"\0" not in self._text:
            ready = select.select([self._come], [], [], max(0, limit - time.monotonic()))[0]
            assert ready, "the browser does not answer"
            more = os.read(self._come, 1 << 20)
            assert more, "the browser is gone"
            self._text += more
        text, _, self._text = self._text.partition(b"\0")
        found: dict[str, Any] = json.loads(text)
        return found

    def _note(self, event: dict[str, Any]) -> None:
        method, values = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(values["exceptionDetails"])[:500])
        elif method == "Log.entryAdded" and values["entry"]["level"] in ("error", "warning"):
            self.complaints.append(values["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and values["type"] in ("error", "warning"):
            self.complaints.append(str(values["args"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(values["request"]["url"])


_CONNECT = """
import fcntl, os, sys
come, to = (fcntl.fcntl(int(n), fcntl.F_DUPFD, 10) for n in sys.argv[1:3])
os.dup2(come, 3)
os.dup2(to, 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser with a fresh profile, gone with all its processes afterwards."""
    assert PATH is not None
    to_read, to = os.pipe()
    come, from_write = os.pipe()

    process = subprocess.Popen(
        # The protocol's pipes are the numbers 3 and 4 in the browser.
        [
            *(sys.executable, "-c", _CONNECT, str(to_read), str(from_write)),
            *(PATH, *OPTIONS, f"--user-data-dir={profile}"),
        ],
        pass_fds=(to_read, from_write), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, env={**os.environ, "HOME": str(profile)}, start_new_session=True,
    )  # fmt: skip
    os.close(to_read)
    os.close(from_write)
    try:
        yield Browser(to, come)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
        os.close(to)
        os.close(come)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests of a file."""
    if PATH is None:
        pytest.skip("no Chromium here")
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found
