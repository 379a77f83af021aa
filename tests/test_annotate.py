"""`disttrace.annotate`: a name around operations, as context manager and as decorator."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.preloaded import preloaded

PROGRAM = """
import disttrace
@disttrace.annotate("early")
def early():
    return 7
with disttrace.annotate("untraced"):
    assert early() == 7
disttrace.install()
import torch.distributed as dist
store = dist.HashStore()
with disttrace.annotate("outer"):
    assert early() == 7
    store.set("k", "v")
try:
    with disttrace.annotate("failing"):
        raise LookupError("gone")
except LookupError:
    pass
else:
    raise SystemExit("annotate swallowed an exception")
"""


def test_an_annotation_is_the_parent_of_what_happens_in_it(tmp_path: Path) -> None:
    """Traced from `install` on, also where decorated before, at the user's line; errors pass."""
    pytest.importorskip("torch")
    outcome = preloaded("-c", PROGRAM, DISTTRACE_DIR=str(tmp_path)).check()
    assert outcome.stderr == ""
    records = [
        json.loads(line)
        for path in sorted(tmp_path.glob("*.jsonl"))
        for line in path.read_text().replace("\0", "").splitlines()
    ]
    calls = {record["n"]: record for record in records if record.get("def") == "call"}
    begun = {
        record["b"]: (calls[record["s"]]["op"], calls[record["s"]].get("name"), record.get("p"))
        for record in records
        if "b" in record
    }
    names = {number: name for number, (_, name, _) in begun.items()}
    assert [(op, name, names.get(parent)) for op, name, parent in begun.values()] == [
        ("HashStore", None, None), ("annotate", "outer", None), ("annotate", "early", "outer"),
        ("store.set", None, "outer"), ("annotate", "failing", None),
    ]  # fmt: skip
    strings = {record["n"]: record["v"] for record in records if record.get("def") == "string"}
    ended = [strings[record["x"]] for record in records if "e" in record and "x" in record]
    assert ended == ["LookupError: gone"]
