"""A program with OpenTelemetry of its own, which continues the launcher's trace or starts one."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import TracerProvider

import disttrace

trace.set_tracer_provider(TracerProvider())
tracer = trace.get_tracer("program")


def main() -> None:
    dist.init_process_group("gloo")
    carrier = {"traceparent": os.environ["TRACEPARENT"]} if "join" in sys.argv else {}
    context = propagate.extract(carrier)
    with tracer.start_as_current_span("train_step", context=context) as span:
        if dist.get_rank() == 0:
            dist.send(torch.ones(1), 1)
        else:
            dist.recv(torch.ones(1), 0)
        with disttrace.annotate("inner"):
            dist.all_reduce(torch.ones(1))
        found = span.get_span_context()
        line = f"{dist.get_rank()} {found.trace_id:032x} {found.span_id:016x}\n"
        os.write(1, line.encode())  # print would let the other rank come between text and end
    # Named: torch 2.5 may hang in destroying a group when the tensor went before.
    last = torch.ones(1)
    dist.all_reduce(last)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
