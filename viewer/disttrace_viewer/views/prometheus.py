"""What jobs of this host know of themselves while they run, as Prometheus reads it.

It is what ``disttrace.live()`` gives, for all jobs of this user on this host: their companions
write it into files, anew each second.
"""

from __future__ import annotations

import glob
import ipaddress
import os
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson

from disttrace.journal.format import LIVE_SUFFIX, opened_own
from disttrace.lifecycle.rendezvous_folder import own_folder
from disttrace_viewer.load.problems import ViewerError
from disttrace_viewer.trace.values import together

OLD_S = 15.0
"""What was written longer ago is of a companion that is gone, or was stopped."""
_MOST = 4 << 20
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
METRICS = {
    "disttrace_ranks": "Ranks of a job on this host.",
    "disttrace_stalled": "1 while a stall lasts that was reported from this host, else 0.",
    "disttrace_verdict_info": "1 for the verdict on a stall that lasts: who, where, how sure.",
    "disttrace_waiting_ratio": "Share of the last minute that a rank spent in communication.",
    "disttrace_slow_ratio": "Share of time for which a slow rank makes the others wait.",
    "disttrace_slow_lost_rank_seconds": "What the others have lost by a slow rank so far.",
}
_MISDIRECTED = "Unknown name of this host; disttrace serve --host NAME makes it known."
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})
Labels = tuple[tuple[str, str], ...]


def metrics(folders: Sequence[str] = ()) -> str:
    """The text of one scrape. ``folders``: of journals, where companions have no other place."""
    values: dict[str, dict[Labels, float]] = {name: {} for name in METRICS}
    for known in _jobs(_known(folders)):
        for name, labels, value in _values(known):
            row = tuple((key, str(text).translate(_ESCAPES)) for key, text in labels.items())
            values[name][row] = value
    lines = []
    for name, text in METRICS.items():
        lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
        for row, value in values[name].items():
            words = ",".join(f'{key}="{label}"' for key, label in row)
            lines.append(f"{name}{{{words}}} {value:.10g}")
    return "\n".join(lines) + "\n"


def serve(address: str, port: int, folders: Sequence[str], hosts: Sequence[str] = ()) -> None:
    """Answer ``GET /metrics`` until interrupted. ViewerError where the address cannot be used.
    Against DNS rebinding only addresses, this host's own name and ``hosts`` are answered."""
    names = {_plain(name) for name in ("localhost", socket.gethostname(), address, *hosts)}

    class Handler(BaseHTTPRequestHandler):
        timeout = 10.0

        def do_GET(self) -> None:
            for host in self.headers.get_all("Host", []):
                if not (_is_address(host) or _plain(host) in names):
                    self.send_error(421, "Misdirected Request", _MISDIRECTED)
                    return
            found = self.path.split("?")[0] == "/metrics"
            body = metrics(folders).encode() if found else b"/metrics\n"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Scrapes are no news."""

    try:
        server = ThreadingHTTPServer((address, port), Handler)
    except (OSError, OverflowError) as error:
        raise ViewerError(f"cannot listen at {address}:{port}: {error}") from error
    with server:
        sys.stderr.write(f"disttrace: serving http://{address}:{server.server_port}/metrics\n")
        server.serve_forever()


def _plain(host: str) -> str:
    """A name as it is compared, without its port."""
    return host.rpartition(":")[0].lower() or host.lower()


def _is_address(host: str) -> bool:
    """Whether ``Host`` names an address: ``10.0.0.7:9465``, ``[::1]``."""
    for text in (host, host.rpartition(":")[0]):
        try:
            ipaddress.ip_address(text.removeprefix("[").removesuffix("]"))
        except ValueError:
            continue
        return True
    return False


def _known(folders: Sequence[str]) -> Iterator[dict[str, Any]]:
    for path in sorted(p for place in (own_folder(), *folders) if place for p in _files(place)):
        try:
            with opened_own(path, os.O_RDONLY) as fd:
                found = orjson.loads(os.pread(fd, _MOST, 0))
        except (OSError, orjson.JSONDecodeError):
            continue  # it has just gone, or is written just now
        if time.time() - found["at"] < OLD_S:
            yield found


def _jobs(found: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Ranks that no launcher started have a file each: those that meet in one store are one job."""
    jobs = together(((one["host"], one.get("meets") or one["job"]), one) for one in found)
    for those in jobs.values():
        those.sort(key=lambda one: min((r["rank"] for r in one["ranks"].values()), default=0))
        yield {
            **those[0],
            "ranks": {name: rank for one in those for name, rank in one["ranks"].items()},
            "stalled": any(one["stalled"] for one in those),
            "verdict": next((one["verdict"] for one in those if one.get("verdict")), None),
            "slow": [rank for one in those for rank in one["slow"]],
        }


def _files(place: str) -> Iterable[str]:
    where, own = glob.escape(place), f"*{LIVE_SUFFIX}"
    return (p for at in ("", "*/*/") for p in glob.iglob(os.path.join(where, at + own)))


def _values(known: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], float]]:
    job = {"disttrace_job": known["job"]}  # a scrape has a label `job` of its own
    here = {**job, "host": known["host"]}
    yield "disttrace_ranks", here, len(known["ranks"])
    yield "disttrace_stalled", here, float(known["stalled"])
    if known.get("verdict"):
        yield "disttrace_verdict_info", {**here, **known["verdict"]}, 1
    for one in known["ranks"].values():
        if one["waiting_share"] is not None:
            yield "disttrace_waiting_ratio", {**here, "rank": one["rank"]}, one["waiting_share"]
    for one in known["slow"]:
        labels = {**job, "rank": one["rank"], "line": one["line"] or ""}
        yield "disttrace_slow_ratio", labels, one["share"]
        yield "disttrace_slow_lost_rank_seconds", labels, one["rank_hours"] * 3600
