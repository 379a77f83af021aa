"""Bus bandwidth of collectives, as doc/PERFORMANCE.md of NVIDIA's nccl-tests defines it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

Shape = Callable[[int, int, bool], tuple[float, float]]
"""(bytes of the member, size of the group, is root) -> (S of NCCL's tests, their busbw factor)."""


def _of_all(n: int) -> float:
    return (n - 1) / n


# S and factor as doc/PERFORMANCE.md of NVIDIA's nccl-tests defines them; bytes are of what this
# process passes in, so S of a gathering operation is n times that.
BUS: Mapping[str, Shape] = {
    "all_reduce": lambda b, n, root: (b, 2 * _of_all(n)),
    "all_gather": lambda b, n, root: (b * n, _of_all(n)),
    "all_gather_into_tensor": lambda b, n, root: (b * n, _of_all(n)),
    "reduce_scatter": lambda b, n, root: (b, _of_all(n)),
    "reduce_scatter_tensor": lambda b, n, root: (b, _of_all(n)),
    "all_to_all": lambda b, n, root: (b, _of_all(n)),
    "all_to_all_single": lambda b, n, root: (b, _of_all(n)),
    "broadcast": lambda b, n, root: (b, 1.0),
    "reduce": lambda b, n, root: (b, 1.0),
    "gather": lambda b, n, root: (b * n, _of_all(n)),
    "scatter": lambda b, n, root: (b if root else b * n, _of_all(n)),
    "send": lambda b, n, root: (b, 1.0),
    "recv": lambda b, n, root: (b, 1.0),
}
