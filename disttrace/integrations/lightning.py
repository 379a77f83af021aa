"""For Lightning: ``Trainer(callbacks=[Disttrace()])``."""

from __future__ import annotations

from typing import Any

import disttrace
from disttrace import integrations

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:  # the same under its older name
    from pytorch_lightning.callbacks import Callback


class DisttraceCallback(Callback):
    """Names the steps of the training in the trace, gives what `disttrace.live()` knows to the
    trainer's loggers as often as the trainer logs, and puts what the job reported of itself below
    the exception that ends it. It asks no other rank, and does nothing without tracing.
    """

    _step: Any = None

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        self._step = disttrace.annotate(f"epoch {trainer.current_epoch} batch {batch_idx}")
        self._step.__enter__()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._leave(None)
        every = trainer.log_every_n_steps
        if trainer.loggers and every and trainer.global_step % every == 0:
            values = integrations.numbers()
            for logger in trainer.loggers if values else ():
                logger.log_metrics(values, step=trainer.global_step)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._leave(exception)
        integrations.explain(exception)

    def _leave(self, error: BaseException | None) -> None:
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(type(error), error, None)


Disttrace = DisttraceCallback
