"""Where in a checkout a finding stands, for what shows it beside the source."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any


def place(finding: Mapping[str, Any], root: str) -> dict[str, str]:
    """File and line of a culprit, else of somebody else who is concerned; nothing without one.
    Files below ``root`` are named from there.
    """
    places = [one for one in finding["locations"] if one["file"] and one["line"]]
    mine = [one for one in places if one["process"] in finding["culprits"]]
    for one in (*mine, *places):
        path = os.path.relpath(one["file"], root) if os.path.isabs(one["file"]) else one["file"]
        return {"file": one["file"] if path.startswith("..") else path, "line": str(one["line"])}
    return {}
