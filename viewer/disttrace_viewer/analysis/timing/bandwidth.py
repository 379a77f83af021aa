"""Bandwidths of many operations at once, by the definitions of nccl-tests."""

from __future__ import annotations

import polars as pl

from disttrace_viewer.trace.bandwidth import BUS

HOST, DEVICE = "host", "device"
"""Which clock a bandwidth comes from: begins and ends as they were seen, or the backend's own."""


def by_device(parts: pl.LazyFrame, completions: pl.DataFrame) -> pl.LazyFrame:
    """``parts`` of exchanges with ``busy_ns`` of the device's clock where all members have one.

    A device's time of a collective includes its waiting for the others, so that of the member who
    waited least counts: the last to come. ``clock`` says which one it is.
    """
    if not completions["device_ns"].count():  # asked of each exchange it takes half of ``stats``
        return parts.with_columns(clock=pl.lit(HOST))
    own = completions.lazy().select("process", "number", "device_ns")
    device = pl.col("device_ns")
    whole = device.is_not_null().all().over("kind", "exchange") & (device.min() > 0).over(
        "kind", "exchange"
    )
    return (
        parts.join(own, on=["process", "number"], how="left", maintain_order="left")
        .with_columns(
            busy_ns=pl.when(whole).then(device.min().over("kind", "exchange")).otherwise("busy_ns"),
            clock=pl.when(whole).then(pl.lit(DEVICE)).otherwise(pl.lit(HOST)),
        )
        .drop("device_ns")
    )


def with_shapes(rows: pl.LazyFrame) -> pl.LazyFrame:
    """``rows`` (with ``op``, ``bytes``, ``expected``, ``is_root``) and what nccl-tests divide by
    the time: ``_moved`` (S in bytes) and ``_factor`` of the bus; null where none is defined.
    """
    keys = ["op", "expected", "is_root"]
    known = []
    for op, size, root in rows.select(keys).unique().collect().iter_rows():
        shape = BUS.get((op or "").removesuffix("_coalesced"))
        if shape is not None and size is not None and size > 1:
            scale, factor = shape(1, size, bool(root))
            known.append((op, size, root, float(scale), factor))
    table = pl.LazyFrame(
        known,
        schema={
            "op": pl.String,
            "expected": pl.UInt32,
            "is_root": pl.Boolean,
            "_scale": pl.Float64,
            "_factor": pl.Float64,
        },
        orient="row",
    )
    return rows.join(
        table, on=keys, how="left", nulls_equal=True, maintain_order="left"
    ).with_columns(_moved=pl.col("bytes") * pl.col("_scale"))
