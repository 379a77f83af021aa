"""Calls that only our questions find odd, or that torch refuses too: nothing is switched off."""

from __future__ import annotations

import json
import math
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from disttrace.capture.objects.groups import nanoseconds
from support.cores import EACH_CORE
from support.preloaded import FAKE, GLOO, TRACED, preloaded, recorded, side_by_side
from support.processes import python
from support.raw import RawJournal, read_journals

RAISING = """
store, tensor = dist.HashStore(), torch.ones(2)

def of(base, **methods):
    def raising(name):
        def method(self, *args):
            raise ValueError(name)
        return method
    names = "__hash__ __eq__ __repr__ __str__ __len__ __iter__ __index__ __int__ __bool__".split()
    return type("Odd", (base,), {name: raising(name) for name in names})

Object, Int, Str, List, Tuple = map(of, (object, int, str, list, tuple))
calls = [
    lambda: dist.broadcast(tensor, Int(0)), lambda: dist.send(tensor, Int(1)),
    lambda: dist.broadcast(tensor, Object()), lambda: dist.send(tensor, 1, tag=Int(3)),
    lambda: dist.all_reduce(tensor, op=Object()), lambda: dist.all_reduce(tensor, group=Object()),
    lambda: dist.new_group(List([0, 1])), lambda: dist.new_group(Tuple([0])),
    lambda: dist.new_group([0, 1], group_desc=Str("x")),
    lambda: dist.all_gather(List([tensor]), tensor),
    lambda: dist.group.WORLD.allreduce(List([tensor])),
    lambda: dist.group.WORLD.barrier(Object()),
    lambda: dist.PrefixStore(Str("p"), store), lambda: dist.PrefixStore(Object(), store),
    lambda: store.set(Str("a"), Str("b")), lambda: store.add("n", Int(1)),
    lambda: store.wait(List()),
    lambda: store.multi_get(Object()), lambda: dist.all_gather_object(List(), Object()),
    lambda: dist.monitored_barrier(timeout=Object()), lambda: dist.barrier(device_ids=List([0])),
]
for call in calls:
    try:
        call()
    except Exception as error:
        print(type(error).__name__, str(error).partition("\\n")[0])
    else:
        print("done")
dist.all_reduce(tensor)
store.set("k", "v")
from disttrace import session
if session._session is not None:
    print(session._session.capture.broken, file=sys.stderr)
"""


@EACH_CORE
def test_arguments_that_raise_whatever_they_are_asked(tmp_path: Path, core: str) -> None:
    """The program sees what it sees without tracing, and no part of the tracing is switched off."""
    bare = (FAKE + RAISING).replace("disttrace.install", "dict")
    plain = preloaded("-W", "ignore", "-c", bare, str(tmp_path), core).check()
    outcome, journal = recorded(FAKE + RAISING, tmp_path, core)
    assert outcome.stdout == plain.stdout
    assert outcome.stderr == "set()\n"
    assert journal.operations()[-1][0] == "store.set"


OPTIONS = """
group, tensor, Op = dist.group.WORLD, torch.ones(2), dist.ReduceOp

def made(op=None):
    options = dist.AllreduceOptions()
    if op is not None:
        options.reduceOp = op
    return options

def call(options):
    group.allreduce([tensor], options).wait()

for op in (Op.SUM, Op.MAX, Op.MAX, None, Op.SUM):
    call(made(op))
made(Op.MIN)
call(made())
changed, copied, both = made(Op.MIN), Op(Op.MIN), (made(Op.MIN), made(Op.MAX))
changed.reduceOp.op = Op.MAX
call(changed)
options = made(copied)
copied.op = Op.MAX
for each in (options, *both, both[0], options):
    call(each)
disttrace.uninstall()
print({type(value) for name, value in vars(dist.AllreduceOptions).items() if "Op" in name})
"""


@EACH_CORE
def test_options_say_what_they_are_when_they_are_used(tmp_path: Path, core: str) -> None:
    """However they came to it, at one place in the program: also the one that was freed before."""
    outcome, journal = recorded(FAKE + OPTIONS, tmp_path, core)
    assert outcome.stdout == "{<class 'property'>}\n"
    found = [call["reduce_op"] for call in journal.called() if call["op"] == "all_reduce"]
    once = ["SUM", "MAX", "MAX", "SUM", "SUM"]
    assert found == [*once, "SUM", "MAX", "MIN", "MIN", "MAX", "MIN", "MIN"]


PROPERTIES = (
    (FAKE + OPTIONS).split("for op in")[0]
    + """
import inspect
entry = dist.AllreduceOptions.reduceOp
print(isinstance(entry, property), repr(entry).split()[0], type(entry.fget).__name__)
print("reduceOp" in dict(inspect.getmembers(dist.AllreduceOptions, inspect.isdatadescriptor)))
print(isinstance(entry.getter(len), property), hasattr(entry, "nothing"))
options = made(Op.MAX)
entry.fset(options, Op.MIN)
call(options)
options = made(Op.MAX)
call(options)
disttrace.uninstall()
print(dist.AllreduceOptions.reduceOp is entry)
"""
)


@EACH_CORE
def test_what_stands_for_a_property_is_one(tmp_path: Path, core: str) -> None:
    """To all that asks for it, also where that takes torch's own setter and passes ours by."""
    outcome, journal = recorded(PROPERTIES, tmp_path, core)
    first, *others, last = outcome.stdout.splitlines()
    assert first.startswith("True <property ")
    assert others == ["True", "True False"]
    assert last == str(core != "c")  # of the plain one nothing stands there
    found = [call["reduce_op"] for call in journal.called() if call["op"] == "all_reduce"]
    assert found == ["MIN", "MAX"]


JOINED = """
from torch.distributed.algorithms.join import Join
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
with Join([model]):
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
dist.destroy_process_group()
"""


@EACH_CORE
def test_work_that_ddp_hands_to_its_reducer_is_not_forgotten(tmp_path: Path, core: str) -> None:
    """C++ waits for it: the journal says that somebody does."""
    _, journal = recorded(GLOO + JOINED, tmp_path, core)
    asked = [record.get("k") for record in journal.records if "o" in record and "l" not in record]
    assert asked == ["Reducer"] * 3


FRAMELESS = """
import _thread
from functools import partial
from operator import methodcaller
import torch.distributed._functional_collectives
group, tensor, store = dist.group.WORLD, torch.ones(2), dist.HashStore()
work = group.allreduce([tensor], dist.AllreduceOptions())
functional = torch.ops._c10d_functional
coalesces = hasattr(dist.AllreduceOptions, "asyncOp")  # fake does not on torch 2.5
for call, *args in (
    (store.set, "key", "value"),
    (store.set, "key", "value"),
    (group.allreduce, [tensor], dist.AllreduceOptions()),
    (group.allreduce, [tensor], dist.AllreduceOptions()),
    (group.send, [tensor], 1, 0),
    (work.wait,),
    (dist.HashStore.__init__, dist.HashStore.__new__(dist.HashStore)),
    (functional.all_reduce, tensor, "sum", group.group_name),
    (functional.all_reduce, tensor, "sum", group.group_name),
    *([(group._start_coalescing, tensor.device)] * coalesces),
):
    over = _thread.allocate_lock()
    over.acquire()
    called = map(methodcaller("__call__"), (partial(call, *args), over.release))
    _thread.start_new_thread(list, (called,))  # no Python code runs in that thread
    over.acquire()
print(store.get("key").decode(), coalesces)
"""


@EACH_CORE
def test_calls_without_a_caller_in_python(tmp_path: Path, core: str) -> None:
    """A new thread, or C++, calls the method itself: there is no stack, and that is all."""
    outcome, journal = recorded(FAKE + FRAMELESS, tmp_path, core)
    assert outcome.stdout.startswith("value ")
    batches = ["coalescing_manager"] * (outcome.stdout == "value True\n")
    assert "disttrace" not in outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert [op for op, _, _ in journal.operations()] == [
        *("init_process_group", "HashStore", "all_reduce", "store.set", "store.set"),
        *("all_reduce", "all_reduce", "send", "HashStore", "all_reduce", "all_reduce"),
        *(*batches, "store.get"),
    ]
    calls = [call for call in journal.calls().values() if call.get("stack") is None]
    names = {"store.set", "all_reduce", "send", "HashStore", *batches}
    assert {call["op"] for call in calls} == names


EACH_ON_ITS_LINE = """
group = dist.group.WORLD
def refused():
    try:
        dist.broadcast(torch.ones(1), 9)  # 13
    except ValueError:
        pass
    try:
        dist.broadcast(torch.ones(1), 8)  # 17
    except ValueError:
        pass
refused()
if hasattr(dist.AllreduceOptions, "asyncOp"):
    group._start_coalescing(torch.device("cpu"))  # 22
    group._end_coalescing(torch.device("cpu"))
    group._start_coalescing(torch.device("cpu"))  # 24
    group._end_coalescing(torch.device("cpu"))
    print(True)
"""


@EACH_CORE
def test_what_is_seen_beside_a_call_is_known_by_its_own_line(tmp_path: Path, core: str) -> None:
    """Not by a frame of ours, which all of them have in common."""
    outcome, journal = recorded(FAKE + EACH_ON_ITS_LINE, tmp_path, core)
    batches = [("coalescing_manager", 22), ("coalescing_manager", 24)]
    stacks = journal.stacks()
    beside = [
        (call["op"], stacks[call["stack"]][0][1])
        for call in journal.calls().values()
        if call["op"] in ("broadcast", "coalescing_manager")
    ]
    coalesces = outcome.stdout == "True\n"  # fake does not on torch 2.5
    assert sorted(beside) == [("broadcast", 13), ("broadcast", 17), *(batches * coalesces)]


REMADE = """
import torch.distributed._functional_collectives
functional, tensor = torch.ops._c10d_functional, torch.ones(2)
for again in range(2):
    if again:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    name = dist.group.WORLD.group_name
    for _ in range(3):
        functional.wait_tensor(functional.all_reduce(tensor, "sum", name))
        dist.broadcast_object_list([1])
    dist.destroy_process_group()
    dist.distributed_c10d._world.group_count = 0  # as a new default group of newer torches has it
    print(name)
"""


@EACH_CORE
def test_a_group_of_a_name_that_was_used_before(tmp_path: Path, core: str) -> None:
    """A functional call is known by the name of its group, and a composed one by the default."""
    outcome, journal = recorded(FAKE + REMADE, tmp_path, core)
    first, second = outcome.stdout.split()
    assert first == second
    called = journal.called()
    for op in ("all_reduce", "broadcast_object_list"):
        assert [c["group"] for c in called if c["op"] == op] == [1, 1, 1, 2, 2, 2]


OVERRIDDEN = """
import datetime
from torch._C._distributed_c10d import Work

class Own(Work):
    def wait(self, timeout=datetime.timedelta(0)):
        print("own")
        try:
            return super().wait(datetime.timedelta(milliseconds=10))
        except RuntimeError:
            return timeout

print(Own().wait(), Work.wait(Own(), datetime.timedelta(1)))
"""


@EACH_CORE
def test_a_method_that_a_subclass_overrides(tmp_path: Path, core: str) -> None:
    """Of an object that nobody knows, too: torch calls the override, and that the base class."""
    outcome = preloaded("-c", TRACED + OVERRIDDEN, str(tmp_path), core).check()
    assert outcome.stdout == "own\nown\n0:00:00 True\n"


UNCAUGHT = """
work = dist.all_reduce(torch.ones(2), async_op=True)
raise ValueError("the program's own")
"""


@EACH_CORE
def test_a_work_that_dies_with_the_interpreter(tmp_path: Path, core: str) -> None:
    """It goes after our globals have gone; what is shown is the program's exception."""
    outcome = preloaded("-W", "ignore", "-c", FAKE + UNCAUGHT, str(tmp_path), core)
    assert outcome.code == 1
    assert outcome.stderr.endswith("ValueError: the program's own\n")


BY_HAND = """
import datetime
store = dist.HashStore()
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
hand = dist.PrefixStore("hand", store)
unused = dist.ProcessGroupGloo(hand, 0, 1, datetime.timedelta(seconds=20))
for _ in range(2):  # an object of its own each time
    dist.group.WORLD._get_backend(torch.device("cpu")).allreduce([torch.ones(2)]).wait()
backend = dist.group.WORLD._get_backend(torch.device("cpu"))
backend._set_default_timeout(datetime.timedelta(seconds=77))
print(hasattr(backend, "set_timeout"))  # gloo of older torches keeps to the limit it had
"""


@EACH_CORE
def test_a_group_made_by_hand_is_known_before_it_is_used(tmp_path: Path, core: str) -> None:
    """Who never comes to its first call is a member all the same; what torch makes is one group."""
    outcome, journal = recorded(TRACED + BY_HAND, tmp_path, core)
    groups = [one for one in journal.definitions if one["def"] == "group"]
    made = [(one["n"], one["type"], one.get("nth")) for one in groups if "type" in one]
    assert made == [(1, "ProcessGroup", 1), (2, "ProcessGroupGloo", 1)]
    (call,) = [c for c in journal.calls().values() if c["op"] == "all_reduce"]
    assert call["group"] == 1  # by whichever object C++ hands out for its backend
    *_, limit = [one["timeout"] for one in groups if one["n"] == 1 and "timeout" in one]
    assert (limit == 77 * 10**9) == (outcome.stdout == "True\n")


def test_what_is_no_time_is_no_limit() -> None:
    """A store of the program's takes whatever torch takes: tracing goes on."""
    found = [nanoseconds(one) for one in (math.nan, math.inf, timedelta.max, timedelta(seconds=2))]
    assert found == [None, None, None, 2 * 10**9]


# -- calls that torch refuses before a method is called leave an operation with the error


PROGRAM = Path(__file__).parent / "programs" / "refused.py"
WORLD = 3
OUTSIDE = ("broadcast", "reduce", "send", "recv")
UNPICKLED = "PicklingError" if sys.version_info >= (3, 14) else "AttributeError"


def failed(journal: RawJournal) -> list[tuple[str, list[int] | None, str, int | None]]:
    """(operation, members of its group, exception's type, the mark of no number) in order."""
    strings = journal.strings()
    members = {r["n"]: r["ranks"] for r in journal.of("group") if "ranks" in r}
    begun = {record["b"]: call for record, call in journal.begun()}
    ends = [(begun[r["e"]], r) for r in journal.records if "x" in r]
    return [
        (call["op"], members[call["group"]], strings[r["x"]].partition(":")[0], r.get("f"))
        for call, r in ends
    ]


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("refused")
    traced, plain = (side_by_side(PROGRAM, WORLD, folder, mode) for mode in "10")
    assert traced == plain
    return folder / "out"


def test_each_refusal_is_an_operation(traced: Path) -> None:
    """Under its public name, on its group, once, without a number; its only record if it raised."""
    journals = read_journals(traced)
    assert len(journals) == WORLD
    everywhere = [
        ("send", [0, 1, 2], "ValueError", 1),
        ("all_reduce", [0, 1, 2], "TypeError", 1),
        ("all_gather_object", [0, 1, 2], UNPICKLED, None),
        ("all_reduce", [0, 1, 2], "RuntimeError", None),
    ]
    outside = [(op, [1, 2], "ValueError", 1) for op in OUTSIDE]
    found = sorted([failed(journal) for journal in journals], key=len)
    assert found == [everywhere, outside + everywhere, outside + everywhere]
    for journal in journals:
        assert journal.of("note") == []


def test_the_stack_shows_the_call(traced: Path) -> None:
    """Its first frame is the program's, with the ranks that were given beside it."""
    for journal in read_journals(traced):
        strings, stacks = journal.strings(), journal.stacks()
        for call in journal.calls().values():
            if call["op"] == "broadcast" and call.get("args") == {"src": 0}:
                assert Path(strings[stacks[call["stack"]][0][0]]) == PROGRAM


def test_what_was_caught_is_no_finding(traced: Path) -> None:
    """Nobody was harmed: diagnose says nothing of it."""
    pytest.importorskip("polars")
    outcome = python("-m", "disttrace", "diagnose", str(traced), "--json").check()
    assert json.loads(outcome.stdout)["findings"] == []


EACH_WITH_A_TEXT = """
import os, re, sys, torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
if traced := os.environ["DISTTRACE"] == "1":
    from disttrace.foreign import is_our_file

dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
called, raised = 0, set()

def seen(frame, event, arg):
    global called
    called += event == "call" and is_our_file(frame.f_code.co_filename)

def refused(first, count):
    global called
    called = 0
    sys.setprofile(seen if traced else None)
    for number in range(first, first + count):
        try:
            dist.send(torch.ones(1), 10_000 + number)
        except ValueError as error:
            raised.add((re.sub("[0-9]+", "", str(error)), error.__context__))
        try:
            dist.all_reduce("text of its own " * 10 + str(number))
        except TypeError as error:
            raised.add((re.sub("[0-9]+", "", str(error)), error.__context__))
    sys.setprofile(None)
    return called / count / 2

refused(0, 10)
print(*[refused(first, 100) for first in (100, 200, 1000)][1:])  # the first defines signatures
print(sorted(raised, key=str))
"""


@pytest.mark.parametrize("core", ["c", "python"])
def test_a_refusal_with_a_text_of_its_own_is_bounded_work(tmp_path: Path, core: str) -> None:
    """79 to 87 functions of ours, the thousandth time too; what is raised is as without us."""
    variables = {"DISTTRACE_DIR": str(tmp_path / "out"), "DISTTRACE_CORE": core}
    bare, printed = (
        preloaded("-c", EACH_WITH_A_TEXT, DISTTRACE=on, **variables).check().stdout.splitlines()  # type: ignore[arg-type]
        for on in "01"
    )
    assert bare == ["0.0 0.0", printed[1]]
    early, late = map(float, printed[0].split())
    assert early < 150
    assert late < early + 1
