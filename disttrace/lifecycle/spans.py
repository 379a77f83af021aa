"""The program's own spans of OpenTelemetry: where ours begin in them, and theirs in ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from disttrace.identity import AGENT, Identity
from disttrace.journal.format import job_trace_id, process_span_id
from disttrace.recording.recorder import Recorder

TRACEPARENT = "TRACEPARENT"
_ALWAYS_ON = ("", "always_on", "parentbased_always_on")


def hand_down(identity: Identity, environ: Mapping[str, str]) -> dict[str, str]:
    """What a launcher hands to its children, so that their spans are in the job's trace; nothing
    where there is one, or a sampler may drop it."""
    sampler = environ.get("OTEL_TRACES_SAMPLER", "").strip().lower()
    if identity.role != AGENT or environ.get(TRACEPARENT) or sampler not in _ALWAYS_ON:
        return {}
    trace = job_trace_id(identity.job)
    return {TRACEPARENT: f"00-{trace}-{process_span_id(trace, identity.process)}-01"}


def note_spans(recorder: Recorder) -> Callable[[Any], None]:
    """The callback that has begins name the program's span, once OpenTelemetry is imported."""

    def imported(module: Any) -> None:
        get_current_span = module.get_current_span

        def under_span() -> bytes:
            context = get_current_span().get_span_context()
            if not context.span_id:
                return b""
            ids = (context.trace_id, context.span_id, context.trace_flags)
            return b',"sp":"%032x-%016x-%02x"' % ids

        recorder.core.ambient = under_span

    return imported
