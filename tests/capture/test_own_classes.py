"""A class of the program's below one of torch's keeps what it has: methods stay what they are."""

from __future__ import annotations

from pathlib import Path

from support.cores import EACH_CORE
from support.preloaded import preloaded, recorded

PROGRAM = """
import abc, asyncio, copy, functools, inspect, pickle, sys, types, typing, weakref
import torch.distributed as dist
if sys.argv[1:]:
    import disttrace
    disttrace.install(dir=sys.argv[1], core=sys.argv[2])

class Mine(dist.Store):
    def get(self, key: str, *, default: bytes = b"none") -> bytes:
        "What is kept."
        return default
    get.marked = "yes"
    @classmethod
    def check(cls, keys):
        return cls.__name__
    @staticmethod
    def num_keys():
        return 42
    @property
    def list_keys(self):
        return "a property"
    async def wait(self, keys):
        return keys
    def queue_pop(self, key):
        yield key
    add = functools.partialmethod(lambda self, key, n: n, n=9)
    @functools.lru_cache(maxsize=None)
    def append(self, key, value):
        return key + value

class Kind(type(dist.Store), abc.ABCMeta):
    pass

class Abstract(dist.Store, metaclass=Kind):
    @abc.abstractmethod
    def set(self, key, value): ...

mine = Mine()
print(Mine.check([]), mine.check([]), Mine.num_keys(), mine.num_keys(), mine.list_keys)
print(asyncio.run(mine.wait(["k"])), list(mine.queue_pop("k")), mine.add("k"))
print(mine.append("a", "b"), Mine.append.cache_info().misses, sorted(Abstract.__abstractmethods__))
method = Mine.get
print(mine.get("k"), method.marked, method.__qualname__, method.__module__, method.__doc__)
print(inspect.signature(method), typing.get_type_hints(method))
print(isinstance(method, types.FunctionType), type(vars(Mine)["check"]).__name__)
print(pickle.loads(pickle.dumps(method)) is method, copy.deepcopy(method) is method)
print(weakref.ref(method)() is method, mine.get.__func__ is method, hash(method) == hash(method))
print(inspect.iscoroutinefunction(Mine.wait), inspect.isgeneratorfunction(Mine.queue_pop))
"""


@EACH_CORE
def test_methods_of_the_program_stay_what_they_are(tmp_path: Path, core: str) -> None:
    """They can be called, asked, copied and pickled as untraced, and are recorded."""
    outcome, journal = recorded(PROGRAM, tmp_path, core)
    assert outcome.stderr == ""
    assert outcome.stdout == preloaded("-c", PROGRAM).check().stdout
    assert "store.get" in {call["op"] for call in journal.calls().values()}


COMPILED = """
import sys
import torch, torch._dynamo.testing, torch.distributed as dist
if sys.argv[1:]:
    import disttrace
    disttrace.install(dir=sys.argv[1], core=sys.argv[2])

class Mine(dist.Store):
    def get(self, key):
        return self.kept[key]

mine = Mine()
mine.kept = {"a": "bb"}

def step(x):
    return (x + 1) * len(mine.get("a"))

for whole in (False, True):
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(step, backend=counter, fullgraph=whole)
    print([compiled(torch.full((2,), float(n))).tolist() for n in range(3)])
    print(counter.frame_count, counter.op_count)
"""


@EACH_CORE
def test_methods_of_the_program_are_compiled_as_they_were(tmp_path: Path, core: str) -> None:
    """One graph stays one graph, also where the program insists."""
    outcome = preloaded("-c", COMPILED, str(tmp_path), core).check()
    assert outcome.stderr == ""
    assert outcome.stdout == preloaded("-c", COMPILED).check().stdout


MANAGED = """
import contextlib
import sys
import torch, torch._dynamo.testing, torch.distributed as dist
if sys.argv[1:]:
    import disttrace
    disttrace.install(dir=sys.argv[1])

@contextlib.contextmanager
def within(tensor):
    yield tensor + 1

@torch._dynamo.disable(recursive=False)  # what it calls is compiled
def step(tensor):
    with within(tensor) as one:
        return one + 1

torch.compile(lambda tensor: step(tensor * 2), backend="eager")(torch.ones(2))
print(dict(torch._dynamo.utils.counters["frames"]))
"""


def test_context_managers_of_the_program_are_compiled_as_they_were(tmp_path: Path) -> None:
    """What ``contextlib`` makes of them is code that ours have as well."""
    outcome = preloaded("-c", MANAGED, str(tmp_path)).check()
    assert outcome.stdout == preloaded("-c", MANAGED).check().stdout


PATCHED = """
import sys
import torch
import torch.distributed as dist
import disttrace

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
store = dist.HashStore()
Group, Work, Store = dist.ProcessGroup, dist.Work, dist.Store
for owner, name in ((Group, "allreduce"), (Group, "barrier"), (Work, "wait"), (Store, "set")):
    former = getattr(owner, name)
    setattr(owner, name, lambda self, *a, former=former, **named: former(self, *a, **named))
disttrace.install(dir=sys.argv[1], core=sys.argv[2])
for _ in range(2):  # the second time the call is known
    dist.all_reduce(torch.ones(1))
    dist.all_reduce(torch.ones(1), async_op=True).wait()
    store.set("key", "value")
    dist.barrier()
"""


@EACH_CORE
def test_what_the_program_patched_before_is_traced(tmp_path: Path, core: str) -> None:
    """A function of the program's that stands on torch's class by then is a method as any other."""
    outcome, journal = recorded(PATCHED, tmp_path, core)
    assert outcome.stderr == ""
    expected = ["all_reduce", "all_reduce", "store.set", "barrier"]
    assert [op for op, *_ in journal.operations()] == expected * 2
