"""Both cores write the same bytes, keep every line, and keep their journal within its bound."""

from __future__ import annotations

import itertools
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from disttrace.recording import core as cores
from disttrace.recording.core import take_out
from support.cores import EACH_CORE, recorder
from support.preloaded import preloaded
from support.raw import read_journals

PROGRAM = """
import itertools, sys
import disttrace
from disttrace.journal import format
if sys.argv[3] == "device":  # ends what is issued, and nobody says when
    format._ON_HOST -= {"fake"}
    format.ON_DEVICE |= {"fake"}
disttrace.install(dir=sys.argv[1], core=sys.argv[2], heartbeat=False, device="off")
from disttrace import session
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

recorder = session._session.recorder
ticks = itertools.count(recorder.core.t0, 1000)
recorder.clock = recorder.core.clock = lambda: next(ticks)
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
tensor, wide = torch.ones(4), torch.ones(8)
all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
store = dist.HashStore()
for turn in range(3):
    dist.all_reduce(tensor)
    dist.all_reduce(torch.ones(turn + 1), dist.ReduceOp.MAX)
    dist.all_reduce(tensor, async_op=True).wait()
    dist.broadcast(tensor, 0)
    dist.reduce(tensor, 0)
    dist.barrier()
    all_gather(wide, tensor)
    dist.all_gather([tensor, tensor], tensor)
    dist.send(tensor, 1, tag=turn)
    dist.recv(tensor, 1)
    dist.isend(tensor, 1).wait()
    dropped = dist.all_reduce(tensor, async_op=True)
    del dropped
    asked = dist.all_reduce(tensor, async_op=True)
    asked.get_future()
    asked.wait()
    store.set("plain", "v" * turn)
    store.set('q"' + chr(233), b"bytes")
    store.get("plain")
    store.add("n", 1)
    store.multi_set(["a", "b"], ["1", "2"])
    store.multi_get(["a", "b"])
    try:
        store.get(None)
    except TypeError:
        pass
    with disttrace.annotate("step"):
        dist.all_reduce(tensor)
for size in range(100):  # more lengths than a place has definitions for
    dist.all_reduce(torch.ones(size), dist.ReduceOp.MAX)
    dist.all_to_all_single(torch.ones(size), torch.ones(size), [0, size], [size, 0])
    dist.send(torch.ones(size, size), 1, tag=size % 2)
dist.destroy_process_group()
"""


@pytest.mark.skipif(cores.choose(None)[0] == cores.PLAIN, reason="the core was not built")
@pytest.mark.parametrize("where", ["cpu", "device"])
def test_both_write_the_same_records(tmp_path: Path, where: str) -> None:
    """On a clock that ticks at each reading; of devices the native core leaves Python the rest."""
    written: dict[str, list[bytes]] = {}
    for name in cores.NAMES:
        folder = tmp_path / name
        preloaded("-c", PROGRAM, str(folder), name, where).check()
        (segment,) = folder.glob("*.ops.jsonl")
        written[name] = segment.read_bytes().split(b"\n")[1:]  # the first says which process
    assert len(written[cores.PLAIN]) > 120
    assert written[cores.NATIVE] == written[cores.PLAIN]
    asked = [line for line in written[cores.PLAIN] if b'"o":1' in line]
    assert (len(asked) > 40) is (where == "device")
    added = [json.loads(line)["a"] for line in written[cores.PLAIN] if b'"a":{' in line]
    assert len(added) > 100
    assert added[-3]["shapes"] == [[99]]
    assert added[-2]["splits"] == [[99, 0], [0, 99]]
    assert added[-1] == {"shapes": [[99, 99]], "dtypes": ["float32"], "bytes": 4 * 99 * 99}


def test_a_window_that_others_fill_at_once_is_no_failure(tmp_path: Path) -> None:
    """The moment between a new window and the line that needs it, taken by another thread."""
    failures: list[BaseException] = []
    made = recorder(tmp_path, cores.PLAIN, failures)
    call, _ = made.call("store.set", synchronous=True, counter=None, kind="store")
    made.open()
    filling = b"x" * 1000

    class Greedy(type(made.core)):  # type: ignore[misc]
        """Fills whatever is published before anybody else can put."""

        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            if name == "put" and getattr(value, "__name__", "") == "put":
                for _ in itertools.count():
                    try:
                        value(b'{"hb":"%b"}\n' % filling)
                    except ValueError:
                        return

    made.core.__class__ = Greedy
    for _ in range(400):
        made.end(made.begin(made.threads.state, call, b',"k":"%b"' % filling))
    made.close()
    assert failures == []


@EACH_CORE
def test_definitions_stay_within_the_bound(tmp_path: Path, core: str) -> None:
    """Shapes, names, stacks, strings and threads that never repeat: all of it in one megabyte."""
    failures: list[BaseException] = []
    made = recorder(tmp_path, core, failures)
    thread, counter = made.threads.state, made.core.new_counter()
    for turn in range(20_000):
        stack = made.stack([(f"generated-{turn}.py", 1, "step")])
        call, extra = made.call(
            "all_reduce", synchronous=True, counter=counter, kind="collective", group=turn % 300,
            stack=stack, shapes=[[turn]], tag=turn,
        )  # fmt: skip
        operation = made.begin(thread, call, extra)
        if turn % 2:
            made.failed(operation, ValueError(f"text {turn}"), on_issue=False)
        else:
            made.end(operation)
        made.thread_number(10_000 + turn, f"thread {turn}", turn)
    made.close()
    assert failures == []
    files = list(tmp_path.iterdir())
    assert sum(file.stat().st_size for file in files) <= 2**20
    newest = max(tmp_path.glob("*.ops.jsonl")).read_bytes().splitlines()
    begins = [json.loads(line) for line in newest if line.startswith(b'{"b"')]
    assert begins[-1]["a"]["shapes"] == [[19_999]]
    (journal,) = read_journals(tmp_path)
    assert {b["s"] for b in begins} <= journal.calls().keys()


@pytest.mark.skipif(cores.choose(None)[0] == cores.PLAIN, reason="the core was not built")
def test_the_native_core_refuses_what_is_no_event_of_an_operation(tmp_path: Path) -> None:
    """Instead of reading another object's memory as an operation's."""
    made = recorder(tmp_path, cores.NATIVE, [])
    core: Any = made.core
    call, _ = made.call("store.set", synchronous=True, counter=None, kind="store")
    operation = made.begin(made.threads.state, call)
    wrong = [(2, call), (1, operation), (7, operation), (9, operation), (4,)]
    for arguments in (*wrong, (4, operation, "text"), (4, operation, bytes(300)), ("4", operation)):
        with pytest.raises(TypeError):
            core.event(*arguments)
    assert core.in_flight() == [operation]
    with pytest.raises(IndexError):
        type(core)(())
    made.end(operation)
    made.close()


@EACH_CORE
def test_many_are_seen_complete_at_one_time(tmp_path: Path, core: str) -> None:
    """Each that is not over: how long it took, and for how much of that nobody had asked."""
    made = recorder(tmp_path, core, [])
    call, _ = made.call("all_reduce", synchronous=False, counter=None, kind="collective")
    operations = [made.begin(made.threads.state, call) for _ in range(3)]
    made.issued(operations[0])
    made.end(operations[1])
    at = operations[2].begin + 1_000_000
    made.core.completed(operations, at)
    made.core.completed(operations, at + 1)
    assert made.core.in_flight() == []
    with pytest.raises((TypeError, AttributeError)):
        made.core.completed([call], at)  # type: ignore[list-item]
    made.close()
    (journal,) = read_journals(tmp_path)
    told = [record for record in journal.records if "c" in record]
    first, last = operations[0], operations[2]
    assert told == [
        {"c": first.n, "d": at - first.begin, "g": at - first.begin - first.issued},
        {"c": last.n, "d": 1_000_000, "g": 1_000_000},
    ]


class Raced(dict[int, Any]):
    """A table in which somebody else comes between each look and what follows it."""

    def __init__(self, *afterwards: Any) -> None:
        super().__init__({5: "mine"})
        self._afterwards = afterwards

    def get(self, key: int, default: Any = None) -> Any:
        found = super().get(key, default)
        del self[key]
        self.update(dict.fromkeys([key] * len(self._afterwards), *self._afterwards))
        return found


def test_of_two_threads_that_take_an_operation_out_one_finds_it() -> None:
    """The poller sees a work complete while the program drops it; another may get its address."""
    table: dict[int, Any] = {5: "mine"}
    assert take_out(table, 5, "mine")  # type: ignore[arg-type]
    assert not take_out(table, 5, "mine")  # type: ignore[arg-type]
    assert not take_out(Raced(), 5, "mine")  # type: ignore[arg-type]
    other = Raced("another")
    assert not take_out(other, 5, "mine")  # type: ignore[arg-type]
    assert other == {5: "another"}


def test_a_core_of_another_source_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was compiled before an update stays beside it in an editable install."""
    monkeypatch.setitem(sys.modules, "disttrace.recording._fast", types.ModuleType("_fast"))
    core, why = cores.choose(None)
    assert core == cores.PLAIN
    assert "another source" in why
