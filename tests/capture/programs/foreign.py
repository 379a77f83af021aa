"""Programs whose exceptions and values mind being touched; each prints what it saw of them.

``foreign.py NAME CORE FOLDER``: untraced where CORE is empty.
"""

import ctypes
import dataclasses
import functools
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

name, core, folder = sys.argv[1:4]
if core:
    import disttrace

    disttrace.install(dir=folder, core=core)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
tensor = torch.ones(2)
world: Any = dist.group.WORLD
store = dist.HashStore()
touched: list[str] = []


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    n: int = 0


class MindingError(Exception):
    """Notes whoever touches it in a way that runs code of its own."""

    def __getattribute__(self, name: str) -> Any:
        touched.append(name)
        return Exception.__getattribute__(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        touched.append(f"{name} is set")
        raise AttributeError(name)

    def __str__(self) -> str:
        touched.append("str")
        raise KeyboardInterrupt

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        touched.append("==")
        raise KeyboardInterrupt

    def __hash__(self) -> int:
        touched.append("hash")
        raise KeyboardInterrupt


lock = threading.Lock()


class LockedError(Exception):
    """Its text is made under a lock of the program's."""

    def __str__(self) -> str:
        if not lock.acquire(timeout=5):
            print("waited for itself")
        return "locked"


def place_of(error: BaseException) -> list[str]:
    """The functions of its traceback, but those of ours that Python 3.10 puts back."""
    entry, found = BaseException.__dict__["__traceback__"].__get__(error), []
    while entry is not None:
        code = entry.tb_frame.f_code
        ours = in_place(code) or "/disttrace/" in code.co_filename
        if sys.version_info >= (3, 11) or not ours:
            found.append(code.co_name)
        entry = entry.tb_next
    return found


def in_place(code: Any) -> bool:
    """Whether it runs in the place of a function of torch's."""
    return type(code.co_consts[-1] if code.co_consts else None).__name__ == "InPlace"


class Text(str):
    """Notes whoever has it do something."""


def noted(name: str) -> Callable[..., Any]:
    def method(*_: Any) -> Any:
        touched.append(name)
        raise ZeroDivisionError(name)

    return method


for each in ("__eq__", "__hash__", "__len__", "__format__", "__getitem__", "__contains__"):
    setattr(Text, each, noted(each))


class Entries(dict):  # type: ignore[type-arg]
    __getitem__ = __setitem__ = get = __contains__ = noted("an attribute")


def fail(error: BaseException) -> None:
    raise error


def vars_of(error: BaseException) -> list[str]:
    """Its attributes, but the mark by which it is known how the process ends."""
    return [one for one in BaseException.__dict__["__dict__"].__get__(error) if one != "_disttrace"]


def see(call: Callable[[], Any]) -> None:
    """What the call raises, with all that it bears."""
    touched.clear()
    try:
        call()
    except BaseException as error:
        slots = BaseException.__dict__
        bears = [slots[one].__get__(error) for one in ("__context__", "__cause__")]
        kinds = [type.__dict__["__name__"].__get__(type(one)) for one in (error, *bears)]
        print(kinds, place_of(error), touched, sorted(vars_of(error)))
    else:
        print("nothing is raised", touched)


class Raising:
    """Raises what it was made with, whatever it is used for."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        raise self.error

    def __iter__(self) -> Any:
        raise self.error

    def __fspath__(self) -> str:
        raise self.error


class OfProgram(dist.Store):
    """A store whose methods raise."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def get(self, key: str) -> bytes:
        raise self.error


def passes() -> None:
    """Exceptions on all ways through wrappers."""
    for kind in (FrozenError, MindingError, LockedError, KeyError, SystemExit):
        with lock:
            passes_each(functools.partial(kind, 3), kind in (MindingError, LockedError))


def passes_each(made: Callable[[], BaseException], has_no_text: bool) -> None:
    class Group(dist.ProcessGroup):
        def allreduce(self, tensors: Any, options: Any = None) -> Any:
            raise made()

    class Asking(torch.Tensor):
        """Nobody asks for its shape untraced."""

        @property
        def shape(self) -> Any:
            raise made()

    group = Group(0, 1)
    see(lambda: OfProgram(made()).get("a"))
    see(lambda: group.allreduce([tensor]))
    see(lambda: dist.PrefixStore("a", OfProgram(made())).get("a"))
    see(lambda: dist.HashStore().wait(Raising(made())))
    see(lambda: world.allreduce(Raising(made())))
    see(lambda: os.execv(Raising(made()), ["a"]))
    see(lambda: world.allreduce([torch.ones(2).as_subclass(Asking)]))
    if not has_no_text:  # of these torch makes a text
        see(lambda: dist.all_gather_object([None], Raising(made())))
        see(lambda: dist.new_group(Raising(made())))


def ends() -> None:
    """``sys.exit`` while such an exception is handled."""
    for made in (FrozenError, MindingError, LockedError):
        try:
            fail(made(1))
        except Exception:
            with lock:
                see(lambda: sys.exit(3))


def named() -> None:
    """Classes and threads whose names, and exceptions whose attributes, are of own classes."""

    class NamedError(Exception):
        pass

    def waits() -> None:
        renamed.wait()
        world.allreduce([tensor])
        time.sleep(1.2)  # its stack is looked at meanwhile

    NamedError.__name__ = Text("NamedError")
    see(lambda: OfProgram(NamedError(1)).get("a"))
    leaves = SystemExit(3)
    leaves.__dict__ = Entries()
    see(lambda: sys.exit(leaves))  # type: ignore[arg-type]
    renamed, thread = threading.Event(), threading.Thread(target=waits)
    thread.start()
    setattr(thread, "_name", Text("own"))  # noqa: B010
    renamed.set()
    thread.join()
    print(touched)


def shapes() -> None:
    """More shapes at one place than have definitions of their own, of functional collectives."""
    functional, name = torch.ops._c10d_functional, world.group_name
    for n in range(300):
        functional.wait_tensor(functional.all_reduce(torch.ones(n % 100 + 1), "sum", name))
    print("all of them")


def strikes() -> None:
    """In each line of ours one strikes, from another thread and a signal handler: none is lost."""

    class StruckError(TimeoutError, ValueError, TypeError, KeyError, RuntimeError, IndexError):
        __module__ = "builtins"

    def handler(number: int, frame: Any) -> None:
        raise kinds[len(seen) % 3](1)

    signal.signal(signal.SIGUSR1, handler)
    kinds: Any = (StruckError, FrozenError, ValueError)
    me, api = ctypes.c_ulong(threading.get_ident()), ctypes.pythonapi
    home = disttrace.__path__[0] if core else "none"
    seen: set[Any] = set()
    found: list[Any] = []
    ways: tuple[Any, ...] = (
        functools.partial(api.PyThreadState_SetAsyncExc, me, ctypes.py_object(StruckError)),
        functools.partial(api.PyErr_SetInterruptEx, signal.SIGUSR1),
    )
    for way in ways:
        # Struck is what checks for it next, and that is not the property, which is C's.
        striking = type("Striking", (), {"_as_parameter_": 0, "now": property(way)})()
        seen.clear()
        for n in range(5000):
            struck = strike(striking, home, seen, n)
            if struck is None:
                break
            found += struck
    print(found)


def strike(striking: Any, home: str, seen: set[Any], n: int) -> list[Any] | None:
    """Run what was not seen before, with one strike: what went wrong, None where there was none."""
    struck = None

    def trace(frame: Any, event: str, arg: Any) -> Any:
        file = frame.f_code.co_filename
        return line if in_place(frame.f_code) or file.startswith(home) else None

    def line(frame: Any, event: str, arg: Any) -> Any:
        nonlocal struck
        now = frame.f_code.co_filename, frame.f_lineno
        if struck or now in seen or event != "line":
            return line
        struck = now
        seen.add(now)
        return (striking.now, line)[1]

    one = torch.ones(n % 500)
    sys.settrace(trace)
    try:
        world.allreduce([one])
        dist.all_reduce(one, async_op=True).wait()
        dist.broadcast_object_list([n], 0)
        dist.isend(one, 1).wait()
        store.set(str(n), "x")
        dist.PrefixStore(str(n), store).check(["a"])
        dist.new_group([0], group_desc=str(n))
        sys.settrace(None)
        for _ in range(3):
            pass
    except (TimeoutError, ValueError, FrozenError) as error:
        return [] if error.__context__ is None else [(struck, error.__context__)]
    finally:
        sys.settrace(None)
    return None if struck is None else [struck]


def asked() -> None:
    """One strikes where the program's own code is asked something, which may be by us."""

    class StopError(Exception):
        pass

    class Work(dist.Work):
        struck = False

        def is_completed(self) -> bool:
            if not self.struck:
                self.struck = True
                me = ctypes.c_ulong(threading.get_ident())
                ctypes.pythonapi.PyThreadState_SetAsyncExc(me, ctypes.py_object(StopError))
                while True:
                    pass
            return True

        def wait(self, timeout: Any = None) -> bool:
            raise TimeoutError("late")

    class Group(dist.ProcessGroup):
        def allreduce(self, tensors: Any, options: Any = None) -> Any:
            return work

    work = Work()
    group = Group(0, 1)

    came = []
    for call in (group.allreduce([tensor]).wait, work.is_completed):
        try:
            call()
        except StopError:
            came.append("StopError")
        except TimeoutError:
            pass
    print(came)


def kept() -> None:
    """One exception is kept and raised again and again: what that costs grows as their number."""

    class KeptError(Exception):
        pass

    ways: dict[str, Callable[[Exception], Any]] = {
        "method": lambda error: OfProgram(error).get("a"),
        "object": lambda error: dist.all_gather_object([None], Raising(error)),
        "exit": lambda error: leave(error),
    }

    def leave(error: Exception) -> None:
        try:
            fail(error)
        except KeptError:
            try:
                sys.exit(3)
            except SystemExit:
                error.__context__ = None

    gc.disable()  # which walks whatever there is
    for way, call in ways.items():
        took = []
        for times in (1000, 4000):
            error, begun = KeptError("a"), time.process_time()
            for _ in range(times):
                try:
                    call(error)
                except KeptError:
                    pass
            took.append(time.process_time() - begun)
        grows = took[1] > 10 * took[0]  # four times as much, not sixteen
        print(way, "grows faster" if grows else "as many", len(place_of(error)))


{
    "passes": passes, "ends": ends, "strikes": strikes, "asked": asked, "kept": kept,
    "named": named, "shapes": shapes,
}[name]()  # fmt: skip
