"""Runs PyTorch's own distributed tests on gloo and remote calls, and writes outcomes as JSON.

    python suite.py OUTCOMES.json [TEST ...]        without names: all

A test is `test_name` of collectives, messages and DDP, or `Class.test_name` of remote calls.
Outcomes are `ok`, `skipped: reason`, or the last line of what went wrong.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import unittest
from collections.abc import Iterator

WORLD_SIZE = 8  # with fewer torch skips those of groups
os.environ.setdefault("BACKEND", "gloo")
os.environ.setdefault("WORLD_SIZE", str(WORLD_SIZE))
os.environ.setdefault("TEMP_DIR", tempfile.gettempdir())

import torch.multiprocessing  # noqa: E402
from torch.testing._internal.common_distributed import MultiProcessTestCase  # noqa: E402
from torch.testing._internal.distributed import rpc_utils  # noqa: E402
from torch.testing._internal.distributed.distributed_test import (  # noqa: E402 - reads variables
    DistributedTest,
    TestDistBackend,
)
from torch.testing._internal.distributed.rpc.faulty_rpc_agent_test_fixture import (  # noqa: E402
    FaultyRpcAgentTestFixture,
)
from torch.testing._internal.distributed.rpc.tensorpipe_rpc_agent_test_fixture import (  # noqa: E402
    TensorPipeRpcAgentTestFixture,
)


def _fork(case: MultiProcessTestCase) -> None:
    # Importing all this in each process would take longer than the test.
    case._start_processes(torch.multiprocessing.get_context("fork").Process)


class Suite(TestDistBackend, DistributedTest._DistTestBase):
    """Tests of collectives, messages and DDP, each in processes of its own."""

    def setUp(self) -> None:
        super().setUp()
        _fork(self)

    @property
    def world_size(self) -> int:
        return WORLD_SIZE


# By class: tests of remote calls, each in processes of its own.
REMOTE = rpc_utils.generate_tests(
    "",
    TensorPipeRpcAgentTestFixture,
    rpc_utils.GENERIC_TESTS + rpc_utils.TENSORPIPE_TESTS,
    __name__,
) | rpc_utils.generate_tests("", FaultyRpcAgentTestFixture, rpc_utils.FAULTY_AGENT_TESTS, __name__)
rpc_utils.SpawnHelper._spawn_processes = _fork


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
        self.found[test.id().removeprefix(f"{__name__}.").removeprefix("Suite.")] = outcome
        with open(self._path, "w", encoding="utf-8") as file:
            json.dump(self.found, file)
        print(f"{outcome[:60]:60} {test.id()}", flush=True)


def _last_line(err: object) -> str:
    error = err[1] if isinstance(err, tuple) else err
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"


def _cases(names: list[str]) -> Iterator[unittest.TestCase]:
    for name in names or _all():
        of, _, test = name.rpartition(".")
        yield (REMOTE[of] if of else Suite)(test)


def _all() -> Iterator[str]:
    of = unittest.defaultTestLoader.getTestCaseNames
    yield from of(Suite)
    for name, case in REMOTE.items():
        yield from (f"{name}.{test}" for test in of(case))


if __name__ == "__main__":
    unittest.TestSuite(_cases(sys.argv[2:])).run(Outcomes(sys.argv[1]))
