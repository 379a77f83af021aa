"""Operations as OpenTelemetry spans, events and metrics."""
