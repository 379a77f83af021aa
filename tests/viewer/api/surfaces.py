"""What every surface says of each rank of a job, as an object of JSON: the state, and lines.

python tests/viewer/api/surfaces.py FOLDER DAYS ...   as if read so many days later
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
import time
from pathlib import Path
from typing import Any

import orjson

import disttrace
from disttrace.cli import main
from viewer.views.test_html import data

LINE = re.compile(r"slow_loader\.py:(\d+)")


def shown(*arguments: str) -> str:
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main([*arguments])
    out.flush()
    out.seek(0)
    return out.read()


def of_text(text: str) -> dict[str, Any]:
    """The lines of the program that a text names, and whether it speaks of the dead and living."""
    return {"lines": sorted(set(LINE.findall(text))), "text": text}


def surfaces(folder: str) -> dict[str, Any]:
    """Of each surface the state of each rank, where it has such, and what else it says."""
    trace = disttrace.load(folder)
    told = orjson.loads(shown("diagnose", folder, "--json"))
    page = data(trace.timeline().page)
    spans = Path(folder, "spans.json")
    shown("export", folder, "--format", "otlp", "-o", str(spans))
    ended: dict[int, str] = {}
    for line in spans.read_bytes().splitlines():
        for resource in orjson.loads(line)["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    values = {a["key"]: a["value"] for a in span["attributes"]}
                    if "disttrace.process.state" in values:
                        rank = int(span["name"].rpartition(" ")[2])
                        ended[rank] = values["disttrace.process.state"]["stringValue"]
    spans.unlink()
    top = orjson.loads(shown("top", folder, "--json"))
    return {
        "states": {
            "diagnose": {p["rank"]: p["state"] for p in told["processes"]},
            "notebook": {p.rank: p.state for p in trace.diagnose().positions},
            "top": {r: row["state"] for row in top["positions"] for r in row["ranks"]},
            "page": {p["rank"]: p["state"] for p in page["processes"]},
        },
        "ended": ended,
        "live": top["live"],
        "texts": {
            "diagnose": of_text(shown("diagnose", folder)),
            "view": of_text(shown("view", folder, "--width", "200")),
            "top": of_text(shown("top", folder)),
            "notebook": of_text(trace.diagnose()._repr_html_()),
        },
        "stats": sorted({*LINE.findall(shown("stats", folder, "--json"))}),
    }


if __name__ == "__main__":
    now = time.time_ns
    found = []
    for days in map(float, sys.argv[2:]):
        past = round(days * 86_400e9)

        def later(past: int = past) -> int:
            return now() + past

        time.time_ns = later
        found.append(surfaces(sys.argv[1]))
    sys.stdout.buffer.write(orjson.dumps(found, option=orjson.OPT_NON_STR_KEYS))
