"""Runs PyTorch's own distributed tests on gloo, and writes each test's outcome as JSON.

    python suite.py OUTCOMES.json [TEST ...]        without names: all

Outcomes are `ok`, `skipped: reason`, or the last line of what went wrong.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import unittest
from collections.abc import Iterator

WORLD_SIZE = 3
os.environ.setdefault("BACKEND", "gloo")
os.environ.setdefault("WORLD_SIZE", str(WORLD_SIZE))
os.environ.setdefault("TEMP_DIR", tempfile.gettempdir())

import torch.multiprocessing  # noqa: E402
from torch.testing._internal.distributed.distributed_test import (  # noqa: E402 - reads variables
    DistributedTest,
    TestDistBackend,
)


class Suite(TestDistBackend, DistributedTest._DistTestBase):
    """All tests, each in processes of its own."""

    def setUp(self) -> None:
        super().setUp()
        # Forked: importing all this in each process would take longer than the test.
        self._start_processes(torch.multiprocessing.get_context("fork").Process)

    @property
    def world_size(self) -> int:
        return WORLD_SIZE


class Outcomes(unittest.TestResult):
    """Writes outcomes as they come: a run that is stopped has those so far."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self.found: dict[str, str] = {}

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802 - unittest's name
        self._note(test, "ok")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802 - unittest's name
        self._note(test, f"skipped: {reason}")

    def addFailure(self, test: unittest.TestCase, err: object) -> None:  # noqa: N802 - unittest's name
        self._note(test, _last_line(err))

    addError = addFailure  # noqa: N815 - unittest's name

    def _note(self, test: unittest.TestCase, outcome: str) -> None:
        self.found[test.id().rpartition(".")[2]] = outcome
        with open(self._path, "w", encoding="utf-8") as file:
            json.dump(self.found, file)
        print(f"{outcome[:60]:60} {test.id()}", flush=True)


def _last_line(err: object) -> str:
    error = err[1] if isinstance(err, tuple) else err
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"


def _cases(names: list[str]) -> Iterator[unittest.TestCase]:
    for name in names or unittest.defaultTestLoader.getTestCaseNames(Suite):
        yield Suite(name)


if __name__ == "__main__":
    unittest.TestSuite(_cases(sys.argv[2:])).run(Outcomes(sys.argv[1]))
