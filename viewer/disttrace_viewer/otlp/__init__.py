"""Journals as OpenTelemetry spans and metrics: live from a process of its own, or afterwards."""
