"""An exported page, open in a headless browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from disttrace_viewer.merge.reader import load
from disttrace_viewer.views.timeline import content
from support.browser import Browser


def page(folder: Path, **options: bool) -> str:
    return b"".join(content.lines(load([str(folder)]), **options)).decode()


class Page:
    def __init__(self, chromium: Browser, journals: Path, fragment: str = "") -> None:
        self.file = journals.parent / f"{journals.name}.html"
        self.file.write_text(page(journals), encoding="utf-8")
        self.chromium = chromium
        self.open(fragment)

    def open(self, fragment: str = "") -> None:
        self.chromium.complaints.clear()
        self.chromium.requests.clear()
        self.chromium.open(self.file.as_uri() + fragment)
        self.chromium.settle()

    def text(self, selector: str) -> str:
        return str(self.run(f"document.querySelector({selector!r}).innerText"))

    def run(self, script: str) -> Any:
        return self.chromium.run(script)

    def press(self, *keys: str) -> None:
        self.chromium.key(*keys)
        self.chromium.settle()

    def type(self, text: str) -> None:
        self.press(*text)

    def click(self, selector: str) -> None:
        box = self.run(
            f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])"
            f"(document.querySelector({selector!r}).getBoundingClientRect())"
        )
        self.chromium.click(*box)
        self.chromium.settle()

    def where(self, identity: str) -> tuple[float, float]:
        found = self.run(f"disttrace.whereIs({identity!r})")
        return found["x"], found["y"]

    def point(self, identity: str) -> None:
        self.chromium.mouse("mouseMoved", *self.where(identity))
        self.chromium.settle()

    def operation(self, name: str, rank: int) -> str:
        """The id of the first operation with a title, of a rank."""
        return str(
            self.run(
                "(() => { for (let op = 0; op < T.n; op += 1) if (title(op) === "
                f"{name!r} && T.processes[T.process[op]].rank === {rank}) return idOf(op); }})()"
            )
        )

    def dataset(self) -> dict[str, str]:
        found: dict[str, str] = self.run("({...document.body.dataset})")
        return found

    def close(self) -> None:
        assert self.chromium.complaints == []
        pages = {request.partition("#")[0] for request in self.chromium.requests}
        assert pages <= {self.file.as_uri(), "about:blank"}
