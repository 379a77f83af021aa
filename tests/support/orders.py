"""What a companion is ordered to do, as the recorder does it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from disttrace_viewer.companion.service import Order


def order(folder: Path | str, job: str = "job", **changes: Any) -> Order:
    """To watch a job whose journals lie in a folder."""
    beside, nothing = f"{folder}/{job}-host-1", dict[str, Any](roll="", host="", cwd="/")
    names = nothing | {"directory": str(folder), "root": str(folder), "job": job, "in_names": job}
    files = names | {"registry": f"{beside}.otlp", "says": f"{beside}.say"}
    does = files | {"exports": False, "keep": True, "watches": True, "quiet_since": None}
    return Order(**does | {"pending_s": 5.0, "stall_s": 10.0, "slow": 0.0} | changes)
