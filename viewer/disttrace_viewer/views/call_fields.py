"""What the operations of a call share, for the views that say it once per call."""

from __future__ import annotations

from typing import Any

from disttrace_viewer.trace.model import Trace


def shared(trace: Trace, number: int) -> dict[str, Any]:
    """The fields of a call under their names in jsonl, without those that do not apply."""
    call = trace.call(number)
    group = None if call.group is None else trace.groups[call.group]
    store = None if call.store is None else trace.stores[call.store]
    found = {
        "op": call.op,
        "name": call.name,
        "kind": call.kind,
        "group": group.name if group else None,
        "group_ranks": group.ranks if group else None,
        "backend": call.backend,
        "device": call.device,
        "async": call.asynchronous,
        "bytes": call.bytes,
        "shapes": call.shapes,
        "dtypes": call.dtypes,
        "splits": call.splits,
        "reduce_op": call.reduce_op,
        "root": group.global_rank(call.root) if group else None,
        "peer": group.global_rank(call.peer) if group else None,
        "tag": call.tag,
        "store": store.name if store else None,
        "origin": call.origin,
        "args": call.args or None,
        "stack": [list(frame) for frame in trace.stack(number)],
    }
    return {name: value for name, value in found.items() if value is not None}
