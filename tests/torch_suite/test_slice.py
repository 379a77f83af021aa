"""A fixed slice of PyTorch's own distributed tests; `make torch-suite` runs them all."""

from __future__ import annotations

from pathlib import Path

from torch_suite.compare import differences, outcomes

SLICE = (
    "test_all_gather_object_default_pg", "test_all_gather_coalesced_simple",
    "test_all_reduce_coalesced_sum", "test_all_reduce_sum", "test_all_to_all_single_unequal_split",
    "test_barrier_timeout_global", "test_broadcast_group", "test_ddp_python_error_logged",
    "test_DistributedDataParallel_requires_grad", "test_gather_object", "test_irecv", "test_isend",
    "test_monitored_barrier_gloo", "test_new_subgroups_by_enumeration",
    "test_reduce_scatter_v_cuda", "test_send_recv_any_source", "test_send_recv_with_tag",
    "test_sparse_all_reduce_sum", "RpcTest.test_async_function_nested_remote",
    "RpcTest.test_py_rref_args_user_share",
    "TensorPipeAgentRpcTest.test_infer_backend_from_options",
)  # fmt: skip


def test_the_same_outcome_with_and_without_tracing(tmp_path: Path) -> None:
    """Ok stays ok, skipped stays skipped, and what fails fails with the same words."""
    plain = outcomes(tmp_path, SLICE, 90.0, traced=False)
    traced = outcomes(tmp_path, SLICE, 90.0, traced=True)
    assert differences(plain, traced) == {}
    assert len(traced) == len(SLICE)
    assert sum(outcome == "ok" for outcome in traced.values()) >= 10
    assert list((tmp_path / "journals").glob("*.defs.jsonl"))
