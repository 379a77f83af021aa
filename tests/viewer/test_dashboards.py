"""The dashboard, the alerts and the metrics of a real job speak of the same names."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc")

from disttrace_viewer.companion.slow import verdict_of
from disttrace_viewer.load.problems import ViewerError
from disttrace_viewer.views import prometheus
from support.processes import ROOT, free_port, wait_until

yaml = pytest.importorskip("yaml")
GRAFANA = ROOT / "docs" / "grafana"
NAME = re.compile(r"\bdisttrace_[a-z_]+")
UNITS = {"s": "seconds", "By": "bytes", "By/s": "bytes_per_second"}
KNOWN = {
    "at": 0.0, "job": 'night"ly', "host": "node7", "stalled": False,
    "ranks": {"p": {"rank": 0, "waiting_share": 0.25}, "q": {"rank": 1, "waiting_share": None}},
    "slow": [
        {"rank": 1, "share": 0.07, "since": 1.0, "line": "a.py:4", "others": 63, "rank_hours": 31.0}
    ],
}  # fmt: skip


def expressions() -> Iterator[str]:
    """Of all panels, variables and rules."""
    dashboard = json.loads((GRAFANA / "dashboard.json").read_text())
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (one["query"]["query"] for one in dashboard["templating"]["list"][1:])
    for group in yaml.safe_load((GRAFANA / "alerts.yaml").read_text())["groups"]:
        yield from (rule["expr"] for rule in group["rules"])


def names_of(text: str) -> dict[str, set[str]]:
    """Metrics of a scrape, with the labels that they have."""
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, labels = line.split("{", 1)
            found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    return found


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder in which files of jobs are."""
    monkeypatch.setattr(prometheus, "own_folder", lambda: str(tmp_path))
    return tmp_path


def write(folder: Path, **other: Any) -> None:
    (folder / "x.live").write_text(json.dumps({**KNOWN, "at": time.time(), **other}))


def test_what_companions_write_is_told_in_the_text_format(live: Path) -> None:
    write(live)
    lines = [one for one in prometheus.metrics().splitlines() if not one.startswith("#")]
    assert lines == [
        r'disttrace_ranks{disttrace_job="night\"ly",host="node7"} 2',
        r'disttrace_stalled{disttrace_job="night\"ly",host="node7"} 0',
        r'disttrace_waiting_ratio{disttrace_job="night\"ly",host="node7",rank="0"} 0.25',
        *(
            f'{name}{{disttrace_job="night\\"ly",rank="1",line="a.py:4"}} {value}'
            for name, value in (
                ("disttrace_slow_ratio", 0.07),
                ("disttrace_slow_lost_rank_seconds", 111600),
            )
        ),
    ]


def test_a_stall_says_who_and_where(live: Path) -> None:
    """Only while it stands; of several culprits all."""
    finding = {"kind": "missing_participant", "locations": [{"file": "loader.py", "line": 34}]}
    said = {"certainty": "certain", "culprit_ranks": [1, 3], "finding": finding}
    write(live, stalled=True, verdict=verdict_of(said))
    assert (
        r'disttrace_verdict_info{disttrace_job="night\"ly",host="node7",kind="missing_participant",'
        r'culprit="1,3",line="loader.py:34",certainty="certain"} 1'
    ) in prometheus.metrics().splitlines()
    write(live, verdict={})
    assert "disttrace_verdict_info{" not in prometheus.metrics()


def test_ranks_without_a_launcher_are_one_job(live: Path) -> None:
    """Each has a file of its own, and what they meet in is one store; others stay apart."""
    stores = {"a": (0, "tcp://h:1"), "b": (1, "tcp://h:1"), "c": (0, "tcp://h:2"), "d": (0, None)}
    for name, (rank, store) in stores.items():
        one = {**KNOWN, "at": time.time(), "job": name, "meets": store, "slow": []}
        one["ranks"] = {name: {"rank": rank, "waiting_share": None}}
        (live / f"{name}.live").write_text(json.dumps({**one, "stalled": name == "b"}))
    lines = [one for one in prometheus.metrics().splitlines() if not one.startswith("#")]
    assert [re.sub(r',host="\w+"', "", line) for line in lines] == [
        f'disttrace_{what}{{disttrace_job="{name}"}} {value}'
        for what, values in (("ranks", (2, 1, 1)), ("stalled", (1, 0, 0)))
        for name, value in zip("acd", values, strict=True)
    ]


def test_what_is_old_or_half_written_or_a_link_is_not_told(live: Path) -> None:
    write(live, at=time.time() - 60)
    (live / "y.live").write_text('{"at": ')
    (live / "z.live").symlink_to(live / "x.live")
    assert not names_of(prometheus.metrics())


HOSTS = {
    "localhost:9465": 200, "LOCALHOST": 200, "10.0.0.7:9465": 200, "[::1]:9465": 200, "::1": 200,
    "node.example:1": 200, socket.gethostname(): 200,
    "rebound.example": 421, "rebound.example:9465": 421, "localhost.example": 421, "": 421,
    "127.0.0.1.example:9465": 421, "127.0.0.1 x": 421,
}  # fmt: skip


def test_it_is_served_at_metrics_and_nowhere_else(live: Path) -> None:
    write(live)
    port = free_port()
    serve = threading.Thread(
        target=prometheus.serve, args=("127.0.0.1", port, [], ["Node.example"]), daemon=True
    )
    serve.start()
    wait_until(lambda: _listens(port))
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        assert answer.headers["Content-Type"] == prometheus.CONTENT_TYPE
        assert answer.read().decode() == prometheus.metrics()
    with pytest.raises(urllib.error.HTTPError, match="404") as refused:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/etc/passwd", timeout=10)
    refused.value.close()
    assert {host: _asked(port, host) for host in HOSTS} == HOSTS
    with pytest.raises(ViewerError, match=f"cannot listen at 127.0.0.1:{port}"):
        prometheus.serve("127.0.0.1", port, [])


def _asked(port: int, host: str) -> int:
    asked = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with contextlib.closing(asked):
        asked.request("GET", "/metrics", headers={"Host": host})
        return asked.getresponse().status


def _listens(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).close()
    except OSError:
        return False
    return True


def test_dashboard_and_alerts_ask_for_what_is_sent() -> None:
    """By the names that Prometheus gives to the metrics and attributes of the page about OTLP."""
    page = (ROOT / "docs" / "otlp.md").read_text(encoding="utf-8")
    labels = {one.replace(".", "_") for one in re.findall(r"`(disttrace\.[a-z_.]+)`", page)}
    rows = re.findall(r"^\| `(disttrace\.[\w.]+)` \| `([^`]+)` \|", page, re.MULTILINE)
    sent = ["_".join([name.replace(".", "_"), UNITS.get(unit, "")]) for name, unit in rows]
    for expression in expressions():
        asked = {*NAME.findall(expression)} - labels - {*prometheus.METRICS}
        assert not [one for one in asked if not f"{one}_".startswith(tuple(sent))], expression
