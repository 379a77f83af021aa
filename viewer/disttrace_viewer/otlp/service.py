"""The exporter's life: follow the journals of a job on this host, end soon after its processes."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

from disttrace_viewer.otlp.build.pipeline import Pipeline
from disttrace_viewer.otlp.build.spans import Emit
from disttrace_viewer.otlp.follow.registry import Registry
from disttrace_viewer.otlp.send.backends import span_exporter, target
from disttrace_viewer.otlp.send.delivery import Delivery
from disttrace_viewer.otlp.send.log import Errors, Log
from disttrace_viewer.otlp.send.metrics import SentMetrics

POLL_S = 0.25
LINGER_S = 1.0
"""A job whose last process went may go on with the next one (a restart, a shell loop)."""


@dataclass(frozen=True, slots=True)
class Order:
    """What the first traced process asked for."""

    directory: str
    pending_s: float
    keep: bool
    """Keep the journals (json) instead of deleting what was delivered or given up."""


class Service:
    """Everything between the registry and the collector."""

    def __init__(self, order: Order, registry: Registry, log: Log) -> None:
        """Raises ViewerError for settings that cannot be followed."""
        from disttrace_viewer.otlp.send.tracers import Tracers

        self._order = order
        self._registry = registry
        self._log = log
        where = target("TRACES")
        self._delivery: Delivery | None = None
        emit: Emit = _discard
        if where.protocol is not None:
            name = f"the collector at {where.name}"
            logger = logging.getLogger("opentelemetry")
            logger.propagate = False
            logger.addHandler(first := Errors(log.say))  # what it says of the environment
            self._delivery = Delivery(span_exporter(where.protocol), name, log.say)
            logger.removeHandler(first)
            logger.addHandler(Errors(self._delivery.error))
            emit = Tracers(self._delivery).emit
        self.pipeline = Pipeline(emit, None, pending_ns=int(order.pending_s * 1e9))
        self._metrics = SentMetrics(target("METRICS"), self.pipeline, self._delivery)

    def run(self) -> None:
        """Until the last process of the job is gone and what it left was delivered or given up."""
        last_alive = time.monotonic()
        while True:
            for entry in self._registry.poll():
                self.pipeline.follow(self._order.directory, entry.base, owner=self._registry.owner)
            for name in self._registry.refused:
                self._log.say(f"{name[:80]!r} is no journal of this user here; it is not read")
            gone = [e for e in self._registry.entries if not e.alive()]
            self.pipeline.poll()
            for entry in gone:
                self.pipeline.ended(entry.base)
            if len(gone) < len(self._registry.entries):
                last_alive = time.monotonic()
            elif time.monotonic() - last_alive > LINGER_S and self._registry.release():
                break
            self._warn_of_hosts()
            self._metrics.named()
            time.sleep(POLL_S)
        self.pipeline.finish()
        self._finish()

    def _finish(self) -> None:
        self._warn_of_unread()
        self._metrics.begin_shutdown()
        if self._delivery is not None:
            self._delivery.finish()
        self._metrics.wait()
        if not self._order.keep:
            for journal in self.pipeline.journals.values():
                journal.delete()

    def _warn_of_hosts(self) -> None:
        """A job over several hosts that nothing names is several traces."""
        known = [j.definitions for j in self.pipeline.journals.values()]
        drawn = any(
            d.process.get("job_source") == "drawn" and "TRACEPARENT" not in d.env for d in known
        )
        if drawn and any(_elsewhere(d.env) for d in known):
            self._log.say(
                "this job has processes on other hosts, and no id that they share: each host has "
                "a trace of its own; set DISTTRACE_JOB to one value on all of them"
            )

    def _warn_of_unread(self) -> None:
        unread = sum(journal.unread for journal in self.pipeline.journals.values())
        if unread:
            self._log.say(
                f"{unread} segments of journals were dropped before they were sent; "
                "DISTTRACE_MAX_MB keeps more"
            )


def _elsewhere(environ: Mapping[str, str]) -> bool:
    """Whether a launcher said that the job has more ranks than this host."""
    world, local = environ.get("WORLD_SIZE", ""), environ.get("LOCAL_WORLD_SIZE", "")
    return world.isdigit() and local.isdigit() and int(world) > int(local)


def _discard(span: object) -> None:
    """Where spans go when nobody wants them."""
