"""A rendezvous that an earlier run has left in a file, or an earlier attempt in a store."""

from __future__ import annotations

HINT = "Delete that file before each run, or give each run a file of its own (init_method)."

OWN_STORE = (
    "Give each attempt keys of its own: TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for torchrun, or a"
    " PrefixStore with TORCHELASTIC_RESTART_COUNT in its name."
)


def summary(found: str, path: str) -> str:
    """What was found, and where it comes from."""
    return (
        f"{found.removesuffix('.')}; {path} is left over from an earlier run: the file still holds"
        " its addresses."
    )


def of_attempt(found: str, before: int) -> str:
    """What was found, and in which attempt it comes from."""
    return (
        f"{found.removesuffix('.')}; attempt {before} made this group under the same keys of the"
        " same store, which still holds its addresses."
    )
