"""For the Trainer of transformers, and its subclasses: ``class Traced(Disttrace, Trainer): pass``.

No callback: callbacks of the library do not hear of exceptions, and reporters log before them.
"""

from __future__ import annotations

from typing import Any

import disttrace
from disttrace import integrations


class Disttrace:
    """Before a `Trainer` among the bases: names the steps of the training in the trace, adds what
    `disttrace.live()` knows to what the trainer logs, and puts what the job reported of itself
    below the exception that ends it. It asks no other rank, and does nothing without tracing.
    """

    def train(self, *args: Any, **keywords: Any) -> Any:
        try:
            return super().train(*args, **keywords)  # type: ignore[misc]
        except BaseException as error:
            integrations.explain(error)
            raise

    def training_step(self, *args: Any, **keywords: Any) -> Any:
        with disttrace.annotate(f"step {self.state.global_step}"):  # type: ignore[attr-defined]
            return super().training_step(*args, **keywords)  # type: ignore[misc]

    def log(self, logs: dict[str, float], *args: Any, **keywords: Any) -> Any:
        return super().log({**logs, **integrations.numbers()}, *args, **keywords)  # type: ignore[misc]
