"""Instruments itself with a provider of its own, and shows what that provider's exporter got."""

from __future__ import annotations

import torch
import torch.distributed as dist
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from disttrace.instrumentor import DisttraceInstrumentor

memory = InMemorySpanExporter()
provider = TracerProvider(resource=Resource.create({"service.name": "mine"}))
provider.add_span_processor(SimpleSpanProcessor(memory))
trace.set_tracer_provider(provider)
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))

DisttraceInstrumentor().instrument()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
# Named: torch 2.5 may hang in destroying a group when the tensor went before.
tensor = torch.ones(1)
with trace.get_tracer("program").start_as_current_span("train_step") as step:
    dist.all_reduce(tensor)
dist.destroy_process_group()
DisttraceInstrumentor().uninstrument()

spans = {
    span.name: span
    for span in memory.get_finished_spans()
    if span.attributes.get("disttrace.type") in (None, "operation")
}
found = spans["all_reduce"]
print("parent", found.parent.span_id == step.get_span_context().span_id)
print("trace", found.context.trace_id == step.get_span_context().trace_id)
print("service", found.resource.attributes["service.name"])
print("provider", trace.get_tracer_provider() is provider)
print("names", sorted(spans))
data = reader.get_metrics_data()
counted = {
    metric.name: len(metric.data.data_points)
    for resource in (data.resource_metrics if data else ())
    for scope in resource.scope_metrics
    for metric in scope.metrics
}
print("counted", counted.get("disttrace.operations", 0), counted.get("disttrace.io", 0))
