"""A rendezvous in a file that an earlier run has left."""

from __future__ import annotations

HINT = "Delete that file before each run, or give each run a file of its own (init_method)."


def summary(found: str, path: str) -> str:
    """What was found, and where it comes from."""
    return (
        f"{found.removesuffix('.')}; {path} is left over from an earlier run: the file still holds"
        " its addresses."
    )
