"""Dumps of the Flight Recorder as torch's NCCL backend writes them, made by hand."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CREATED_NS = 1_760_000_000_000_000_000
OLDEST, NEWEST = "2.4", "2.10"
LIBRARY = "/usr/lib/python3/site-packages/torch/distributed/distributed_c10d.py"


def entry(
    op: str, seq: int, *, at_s: float = 0.0, state: str = "completed",
    group: tuple[str, str] = ("0", "default_pg"), pg_id: int = 0,
    sizes: Sequence[Sequence[int]] = ((4,),), dtype: str = "Float", p2p: int | None = None,
    backend: str = "nccl", line: int = 7, retired: bool | None = None, timeout_ms: int = 600_000,
) -> dict[str, Any]:  # fmt: skip
    """One entry; ``p2p``: the number of a message."""
    over = state == "completed"
    created = CREATED_NS + int(at_s * 1e9)
    return {
        "frames": [
            {"name": op, "filename": LIBRARY, "line": 2810},
            {"name": "step", "filename": "/home/me/train.py", "line": line},
        ],
        "record_id": 0, "pg_id": pg_id, "process_group": group, "thread_name": "python",
        "thread_id": "140", "collective_seq_id": seq, "p2p_seq_id": p2p or 0, "op_id": seq,
        "profiling_name": f"{backend}:{op}", "time_created_ns": created,
        "input_sizes": [list(s) for s in sizes], "input_dtypes": [dtype] * len(sizes),
        "output_sizes": [list(s) for s in sizes], "output_dtypes": [dtype] * len(sizes),
        "state": state,
        "time_discovered_started_ns": created + 1_000 if state != "scheduled" else None,
        "time_discovered_completed_ns": created + 5_000_000 if over else None,
        "retired": over if retired is None else retired,
        "timeout_ms": timeout_ms,
        "is_p2p": p2p is not None and op != "coalesced",
    }  # fmt: skip


def dump(
    entries: Sequence[dict[str, Any]], *, groups: Mapping[str, Sequence[int]], first: int = 0,
    version: str = NEWEST, status: Mapping[str, tuple[int, int]] | None = None,
    descs: Mapping[str, str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """A whole dump; entries are numbered from ``first`` on."""
    value: dict[str, Any] = {
        "version": version,
        "pg_config": {
            name: {
                "name": name,
                "desc": (descs or {}).get(name, "default_pg" if name == "0" else "undefined"),
                "ranks": str(list(ranks)),
            }
            for name, ranks in groups.items()
        },
        "nccl_version" if version < "2.7" and version != NEWEST else "comm_lib_version": "2.27.5",
        "pg_status": {
            name: {
                "last_enqueued_collective": enqueued,
                "last_started_collective": enqueued,
                "last_completed_collective": completed,
            }
            for name, (enqueued, completed) in (status or {}).items()
        },
    }
    if entries:
        value["entries"] = [{**e, "record_id": first + n} for n, e in enumerate(entries)]
    for one in value.get("entries", ()):
        if version in ("2.4", "2.3", "2.1", "1.5"):
            del one["thread_name"], one["thread_id"]
        if version == "1.5":
            one["seq_id"] = one.pop("collective_seq_id")
    return value


def write(
    folder: Path, dumps: Mapping[int, dict[str, Any]], *, made_s: float | None = 60.0,
    form: str = "pickle", name: str = "nccl_trace_rank_",
) -> Path:  # fmt: skip
    """The files of a job, made so long after the first operation; None: times tell nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (rank, value) in enumerate(dumps.items()):
        path = folder / f"{name}{rank}"
        path.write_bytes(pickle.dumps(value, 2) if form == "pickle" else as_json(value))
        # Not one right after the other, in order, as a copy would be.
        at = CREATED_NS + int((made_s or 90 * 86_400) * 1e9) + (number * 7 % 5) * 300_000_000
        os.utime(path, ns=(at, at))
    return folder


def as_json(value: Mapping[str, Any]) -> bytes:
    """As torch writes JSON: sorted, without frames, 0 for no time, counts as strings."""
    found = dict(value)
    if "entries" in found:
        found["entries"] = [
            {k: 0 if v is None else v for k, v in one.items() if k != "frames"}
            for one in found["entries"]
        ]
    found["pg_status"] = {
        name: {k: str(v) for k, v in one.items()} for name, one in found["pg_status"].items()
    }
    return json.dumps(found, sort_keys=True, separators=(",", ":")).encode()
