"""Programs that look for us: each runs untraced and traced, and has to print and end the same.

A file is a theme and a public function an attack, whose docstring says what a program may count on.
What it prints is compared line by line, as are its exit code and what it leaves in its folder.
Those of a few lines are rows here.
"""

HEAD = """
import contextvars, datetime, gc, os, sys, threading, time, weakref
import torch, torch.distributed as dist
from reliability.attacks.ground import group
group()
x, log, store = torch.ones(4), [], dist.HashStore()

def say(*values):
    print(*values, flush=True)

def of(call):
    try:
        return type(call()).__name__
    except BaseException as error:
        chain = [type(one).__name__ for one in (error.__cause__, error.__context__)]
        return type(error).__name__, str(error).partition(" at 0x")[0].partition("\\n")[0], chain
"""

ROWS = {
    "signals_replaced": """
import signal
real = sys.modules["_signal"]
class Odd:
    def __call__(self, *_): log.append("called")
    def __eq__(self, other): log.append("eq"); return False
    def __hash__(self): log.append("hash"); return 1
for number in (signal.SIGUSR1, signal.SIGTERM): signal.signal(number, Odd())
for name in ("signal", "getsignal", "pthread_sigmask", "set_wakeup_fd"):
    setattr(real, name, lambda *_, name=name: log.append(name))
dist.all_reduce(x)
time.sleep(5)
for number in (signal.SIGUSR1, signal.SIGTERM): os.kill(os.getpid(), number)
say(log)
""",
    "equality_raises": """
class Key(str):
    __hash__ = str.__hash__
    def __eq__(self, other): raise KeyError("eq")
say(of(lambda: store.set(Key("k"), "v")), of(lambda: store.get(Key("k"))))
say(of(lambda: dist.all_reduce(x, op=Key("sum"))),
    of(lambda: dist.new_group([0], backend=Key("gloo"))))
""",
    "hash_raises": """
class Rank(int):
    def __hash__(self): raise ZeroDivisionError("hash")
say(of(lambda: dist.broadcast(x, Rank(0))), of(lambda: dist.broadcast(x, src=Rank(7))))
say(of(lambda: dist.send(x, Rank(0))), of(lambda: dist.new_group([Rank(0)])))
""",
    "index_and_truth_are_counted": """
class Number:
    def __index__(self): log.append("index"); return 0
    def __int__(self): log.append("int"); return 0
    def __bool__(self): log.append("bool"); return True
say(of(lambda: dist.broadcast(x, Number())), of(lambda: store.add("a", Number())), log)
say(of(lambda: dist.all_reduce(x, async_op=Number())),
    of(lambda: dist.barrier(async_op=Number())), log)
""",
    "attributes_are_counted": """
class Any:
    def __getattribute__(self, name): log.append(name); return object.__getattribute__(self, name)
say(of(lambda: dist.all_reduce(Any())), of(lambda: dist.barrier(group=Any())))
say(of(lambda: store.set("a", Any())), log)
""",
    "classes_lie": """
class Kind(type):
    def __instancecheck__(self, one): log.append("instance"); return False
    def __subclasscheck__(self, one): log.append("subclass"); return False
class One(metaclass=Kind): pass
class Lies:
    @property
    def __class__(self): log.append("class"); return torch.Tensor
class Own(torch.Tensor): pass
y = torch.ones(2).as_subclass(Own)
say(of(lambda: dist.all_reduce(One())), of(lambda: dist.all_reduce(Lies())),
    of(lambda: dist.all_reduce(y)), log)
""",
    "lists_lie": """
class Longer(list):
    def __len__(self): return 10**6
    def __iter__(self): log.append("iter"); return super().__iter__()
say(of(lambda: dist.all_gather(Longer([x]), x)),
    of(lambda: dist.scatter_object_list(Longer([None]), Longer([1]), 0)))
short = datetime.timedelta(milliseconds=20)
say(of(lambda: dist.all_gather((log.append(1) or x for _ in "ab"), x)),
    of(lambda: store.wait((k for k in "ab"), short)), log)
""",
    "texts_and_times_lie": """
class Text(str):
    def __str__(self): log.append("str"); return "q"
    __repr__ = __str__
    def encode(self, *_): log.append("encode"); return b"q"
class Time(datetime.timedelta):
    def total_seconds(self): raise OSError("seconds")
store.set(Text("a"), Text("b"))
say(store.get("a"), of(lambda: dist.new_group([0], group_desc=Text("d"))), log)
say(of(lambda: store.wait(["no"], Time(milliseconds=50))),
    of(lambda: dist.new_group([0], timeout=Time(seconds=9))))
""",
    "finalizers_communicate": """
class Dies:
    def __del__(self): log.append(of(lambda: dist.all_reduce(torch.ones(1))))
for _ in range(5):
    of(lambda: dist.all_reduce(Dies())), of(lambda: store.set("a", Dies()))
gc.collect()
say(len(log), set(log))
""",
    "monitoring_is_free": """
if sys.version_info >= (3, 12):
    own = sys.monitoring
    say([own.get_tool(n) for n in range(6)])
    own.use_tool_id(2, "mine")
    own.register_callback(2, own.events.RAISE, lambda code, at, error: log.append(type(error)))
    own.set_events(2, own.events.RAISE)
    for _ in range(3): dist.all_reduce(x)
    own.set_events(2, 0)
say(log)
""",
    "memory_is_steady": """
import tracemalloc
def run(count):
    for _ in range(count): dist.all_reduce(x)
    gc.collect()
    return len(gc.get_objects()), tracemalloc.get_traced_memory()[0]
tracemalloc.start()
run(300)
before, after = run(300), run(4000)
say(after[0] - before[0] > 100, after[1] - before[1] > 40_000)
""",
    "frozen_and_forked": """
gc.freeze()
child = os.fork()
if not child:
    say("child", of(lambda: dist.HashStore().set("a", "b")))
    os._exit(3)
say(os.waitpid(child, 0)[1] >> 8, gc.get_freeze_count() > 0)
""",
    "contexts_and_locals_are_the_programs": """
contextvars.ContextVar("v").set(1)
context = contextvars.copy_context()
context.run(dist.all_reduce, x)
local = threading.local()
def run(): dist.all_reduce(torch.ones(1)); log.extend(vars(local))
thread = threading.Thread(target=run)
thread.start(), thread.join()
say(len(context), len(contextvars.copy_context()), log, vars(local))
""",
    "generators_are_closed_and_thrown_into": """
def steps():
    try:
        while True: dist.all_reduce(x); yield
    except GeneratorExit: dist.barrier(); say("closed")
one, other = steps(), steps()
next(one), next(other), one.close()
say(of(lambda: other.throw(KeyError("thrown"))))
""",
    "tasks_are_cancelled": """
import asyncio
async def run():
    try:
        while True: dist.all_reduce(x); await asyncio.sleep(0)
    finally: dist.barrier(); say("finally")
async def main():
    try: await asyncio.wait_for(run(), 0.2)
    except asyncio.TimeoutError: say("over")
asyncio.run(main(), debug=True)
""",
    "hooks_of_threads": """
threading.excepthook = lambda given: say("hook", given.exc_type.__name__, given.thread.name)
for target, args in ((dist.send, (x, 0)), (sys.exit, (4,))):
    thread = threading.Thread(target=target, args=args, name="own")
    thread.start(), thread.join()
""",
    "modes_of_torch": """
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
class Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        log.append(str(function)); return function(*args, **(kwargs or {}))
class Function(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        log.append(getattr(function, "__name__", "")); return function(*args, **(kwargs or {}))
for mode in (Dispatch, Function):
    with mode(): dist.all_reduce(x), dist.broadcast(x, 0), dist.all_gather_object([None], 1)
say(log)
""",
    "vmap_grad_and_fakes": """
from torch._subclasses.fake_tensor import FakeTensorMode
say(of(lambda: torch.func.vmap(lambda a: (dist.all_reduce(a), a)[1])(torch.ones(2, 2))))
say(of(lambda: torch.func.grad(lambda a: (dist.barrier(), (a * a).sum())[1])(torch.ones(2))))
with FakeTensorMode(): say(of(lambda: dist.all_reduce(torch.ones(3))))
with torch.inference_mode(): say(of(lambda: dist.all_reduce(torch.ones(2))))
say(of(lambda: dist.all_reduce(torch.ones(2, device="meta"))),
    of(lambda: dist.all_reduce(torch.eye(2).to_sparse())))
""",
    "works_asked_wrongly": """
work = dist.all_reduce(x, async_op=True)
say(of(lambda: work.wait(1, 2, 3)), of(lambda: work.wait("a")), of(work.wait),
    of(work.exception), of(work.result))
say(of(lambda: work.get_future().then(lambda _: 1 / 0).wait()),
    of(lambda: dist.batch_isend_irecv([])))
say(of(lambda: dist.batch_isend_irecv([1])), of(lambda: dist.P2POp(print, x, 0)))
""",
    "imports_from_archives": """
import zipfile
with zipfile.ZipFile("own.zip", "w") as file:
    code = "import torch, torch.distributed as dist\\n"
    file.writestr("zipped.py", code + "def run(): dist.all_reduce(torch.ones(2))")
sys.path.insert(0, "own.zip")
class Counts:
    def find_spec(self, name, path=None, target=None): log.append(name)
sys.meta_path.insert(0, Counts())
import zipped
known, path = set(sys.modules), list(sys.path)
for _ in range(50): zipped.run(), of(lambda: dist.send(x, 0))
say(log, sorted(set(sys.modules) - known), path == sys.path, type(zipped.__loader__).__name__)
os.unlink("own.zip")
""",
    "functions_put_over_ours": """
kept, of_stores = dist.all_reduce, dist.Store.set
dist.all_reduce = lambda *a, **k: (log.append(1), kept(*a, **k))[1]
dist.Store.set = lambda *a: (log.append(2), of_stores(*a))[1]
dist.all_reduce(x), store.set("a", "b")
dist.all_reduce, dist.Store.set = kept, of_stores
dist.all_reduce(x), store.set("a", "b")
say(log)
""",
    "finalizers_and_hooks_at_the_end": """
import atexit
sys.unraisablehook = lambda given: say("unraisable", given.exc_type.__name__)
class Dies:
    def __del__(self): dist.send(x, 0)
Dies()
atexit.register(say, "last")
atexit.register(lambda: say(of(lambda: dist.all_reduce(x))))
atexit.register(lambda: 1 / 0)
""",
    "journals_cut_to_nothing": """
from pathlib import Path
for file in Path(os.environ["DISTTRACE_DIR"]).glob("*"):
    os.truncate(file, 0)
for size in range(3000): dist.all_reduce(torch.ones(size % 90 + 1))
time.sleep(1.2)
dist.barrier()
say("on")
""",
}
"""By name what follows on ``HEAD``."""
