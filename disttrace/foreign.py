"""The only place that touches exceptions and values that the program made: by slots of C alone.

``str``, ``==``, ``hash``, an attribute or ``isinstance`` may run the program's code, which takes
locks, raises, or never returns. What is read here is read by the interpreter's own slot, past what
a class or a metaclass defines. `tests/test_foreign.py` keeps all other files from it.

What our guards catch was raised by us, or by something of the program's that we read: a property
of a tensor's, for example, that raises. Either way the program did not call it. But a signal
handler or Ctrl-C may strike while our code runs, or another thread have something raised there,
and those go on to the user: each ``except`` asks `ours` whose it is.
"""

from __future__ import annotations

import builtins
import datetime
import functools
import opcode
import os
import sys
import threading
import types
from _signal import getsignal, valid_signals  # type: ignore[import-not-found]  # signal's compare
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard, TypeVar

HOME = os.path.dirname(os.path.abspath(__file__)) + os.sep
"""Where our own files are: frames and exceptions of these are ours, and never the user's."""

_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_KNOWN = sys.stdlib_module_names | {"disttrace", "torch"}
"""Whose classes of exceptions what we call may raise."""
_SILENT = ("MemoryError", "StopIteration", "Empty")
"""Those that C raises without an argument."""

MOST = 200
"""Entries of a traceback that are looked at: one raised again and again has all it ever passed."""

_DEEPEST = 3  # containers within containers that are shown, and callables within callables
_LONGEST, _WIDEST = 10_000, 100  # characters or bits, and items, of what is made a text of
_RAISING = frozenset(opcode.opmap[name] for name in ("RAISE_VARARGS", "RERAISE"))

_T = TypeVar("_T")
_E = TypeVar("_E", bound=BaseException)
_Read = Callable[[Any], Any]
_handled = sys.exc_info
_VARARGS = 4  # in `inspect`, which takes a while to import


def _slot(owner: type, name: str) -> _Read:
    read: _Read = owner.__dict__[name].__get__
    return read


_name_of, _bases_of = _slot(type, "__name__"), _slot(type, "__mro__")
_module_of, _namespace_of = _slot(type, "__module__"), _slot(type, "__dict__")

traceback_of: Callable[[BaseException], types.TracebackType | None]
traceback_of = _slot(BaseException, "__traceback__")
set_traceback: Callable[[BaseException, types.TracebackType | None], None]
set_traceback = BaseException.__dict__["__traceback__"].__set__
set_context: Callable[[BaseException, BaseException | None], None]
set_context = BaseException.__dict__["__context__"].__set__
context_of: Callable[[BaseException], BaseException | None] = _slot(BaseException, "__context__")
cause_of: Callable[[BaseException], BaseException | None] = _slot(BaseException, "__cause__")
args_of: Callable[[BaseException], tuple[Any, ...]] = _slot(BaseException, "args")
attributes_of: Callable[[BaseException], dict[str, Any]] = _slot(BaseException, "__dict__")
exit_code_of: Callable[[SystemExit], Any] = _slot(SystemExit, "code")

_GROUP: type[BaseException] | None = getattr(builtins, "BaseExceptionGroup", None)  # Python 3.11

_UNICODE = ("encoding", "object", "start", "end", "reason")
_FIELDS: Mapping[type, tuple[str, ...]] = {
    BaseException: (),
    KeyError: (),
    ImportError: ("msg",),
    OSError: ("errno", "strerror", "filename", "filename2"),
    SyntaxError: ("msg", "filename", "lineno"),
    UnicodeDecodeError: _UNICODE,
    UnicodeEncodeError: _UNICODE,
    **({} if _GROUP is None else {_GROUP: ("message",)}),
}
_TEXTS = {kind: [_slot(kind, name) for name in names] for kind, names in _FIELDS.items()}
"""What the ``__str__`` of each class reads besides the arguments."""


def is_a(value: object, kind: type[_T] | tuple[type[_T], ...]) -> TypeGuard[_T]:
    """``isinstance``, by what the value is and not by its ``__class__``."""
    return issubclass(type(value), kind)


def type_name(value: object) -> str:
    """The name of its class."""
    return str.__str__(_name_of(type(value)))


def is_of_library(value: object, libraries: frozenset[str]) -> bool:
    """Whether the module of its class is in one of these packages."""
    module = _module_of(type(value))
    return type(module) is str and module.partition(".")[0] in libraries


def text_of(error: BaseException) -> str:
    """What ``str`` gives, where that runs nothing but the interpreter; else nothing."""
    args, kind = args_of(error), type(error)
    for own in _bases_of(kind):
        if "__str__" in _namespace_of(own):
            break
    reads = _TEXTS.get(own) if type(own) is type else None
    if reads is None:
        return ""
    if len(args) == 1 and type(args[0]) is str and own is BaseException:
        return args[0]  # however long
    if own is not _GROUP and not _is_plain(args):
        return ""
    text: str = own.__str__(error) if all(_is_plain(read(error)) for read in reads) else ""
    return text


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Whether its text is made by the interpreter alone, and soon."""
    kind = type(value)
    if kind is tuple or kind is list:
        few = depth < _DEEPEST and len(value) <= _WIDEST
        return few and all(_is_plain(item, depth + 1) for item in value)
    if kind is int:
        return bool(value.bit_length() <= _LONGEST)
    return kind in _SHORT or (kind in (str, bytes) and len(value) <= _LONGEST)


_SHORT = frozenset({float, bool, complex, type(None)})


def entries_of(error: BaseException) -> list[types.TracebackType]:
    """Its traceback from the outermost frame on. (A generator that is left is closed, and where
    memory is scarce what that raises is lost.)"""
    found: list[types.TracebackType] = []
    entry = traceback_of(error)
    while entry is not None and len(found) < MOST:
        found.append(entry)
        entry = entry.tb_next
    return found


def innermost(error: BaseException) -> types.TracebackType | None:
    """Where ``error`` was raised."""
    entries = entries_of(error)
    return entries[-1] if entries else None


def raises(where: types.TracebackType | types.FrameType) -> bool:
    """Whether the code there raised by itself: neither did what it called, nor was it struck."""
    if type(where) is types.FrameType:
        frame, at = where, where.f_lasti
    else:
        frame, at = where.tb_frame, where.tb_lasti
    code = frame.f_code.co_code
    return 0 <= at < len(code) and code[at] in _RAISING


def members_of(error: BaseException) -> tuple[BaseException, ...]:
    """The exceptions of a group of them."""
    if _GROUP is None or not is_a(error, _GROUP):
        return ()
    members: tuple[BaseException, ...] = _slot(_GROUP, "exceptions")(error)
    return members


def code_of(function: Any) -> types.CodeType | None:
    """What runs when ``function`` is called, as far as that is Python's."""
    for _ in range(_DEEPEST):
        if is_a(function, _PARTIAL):
            function = _CALLED(function)
        elif type(function) is types.MethodType:
            function = _METHOD(function)
        elif type(function) is types.FunctionType:
            code: types.CodeType = _CODE(function)
            return code
        else:
            function = of_class(type(function), "__call__")
    return None


def of_class(kind: type, name: str) -> Any:
    """What the first of its bases has under this name, as it stands there; None without any."""
    for base in _bases_of(kind):
        if name in _namespace_of(base):
            return _namespace_of(base)[name]
    return None


_PARTIAL = functools.partial  # a program may have another one there by now
_CALLED, _METHOD = _slot(_PARTIAL, "func"), _slot(types.MethodType, "__func__")
_CODE = _slot(types.FunctionType, "__code__")


def plain(value: Any) -> Any:
    """``value`` as JSON holds it where it is of a type with a meaning by itself, or of one
    that is made from such; time-outs in seconds; else None. So are integers beyond 64 bits, and
    lists but those of integers, or of lists of such, up to 2^17 in all.
    """
    kind = type(value)
    if kind is bool or value is None:
        return value
    if issubclass(kind, int):
        return integer(value)
    for base, read in _SCALARS:
        if issubclass(kind, base):
            return read(value)
    flat = _integers(value, _MANY)
    if flat is not None or not issubclass(kind, (list, tuple)):
        return flat
    nested: list[list[int]] = []
    left = _MANY
    for item in items_of(value)[:_MANY]:
        row = _integers(item, left)
        if row is None:
            return None
        nested.append(row)
        left -= len(row) + 1
    return nested


_MANY = 1 << 17


def _integers(value: Any, most: int) -> list[int] | None:
    if not is_a(value, (list, tuple)):
        return None
    items = items_of(value)[: max(most, 0) + 1]
    found = [n for item in items if (n := integer(item)) is not None]
    return found if len(found) == len(items) <= most else None


def integer(value: Any) -> int | None:
    """``value`` where it is a number of 64 bits, of whatever class that is made from ``int``."""
    if not is_a(value, int) or type(value) is bool:
        return None
    number = int.__index__(value)
    return number if -(1 << 63) <= number < 1 << 63 else None


_SCALARS: tuple[tuple[type, _Read], ...] = (
    (float, float.__float__),
    (str, str.__str__),
    (datetime.timedelta, datetime.timedelta.total_seconds),
)


def items_of(value: Any) -> list[Any]:
    """The items of a list or a tuple, of whatever class that is made from one."""
    return list(list.__iter__(value) if is_a(value, list) else tuple.__iter__(value))


def threads() -> dict[int, tuple[str, int | None]]:
    """Name and native id by ident of threads in `threading`, without its lock or greenlets."""
    listed = dict.copy(vars(threading)["_active"])
    found = {ident: _fields_of(one) for ident, one in listed.items() if is_a(one, _THREAD)}
    return {
        ident: (plain(dict.get(one, "_name")) or "", dict.get(one, "_native_id"))
        for ident, one in found.items()
    }


_THREAD = _bases_of(threading.Thread)[-2]  # the first: gevent puts a class made from it there
_fields_of = _slot(_THREAD, "__dict__")


def of_torch(value: Any, name: str) -> Any:
    """An attribute of ``value`` as a class of torch defines it. Raises AttributeError where there
    is none, or a class of the program's has its own."""
    for kind in _bases_of(type(value)):
        if name in _namespace_of(kind):
            module = _module_of(kind)
            if type(module) is not str or module.partition(".")[0] != "torch":
                break
            found = _namespace_of(kind)[name]
            return found.__get__(value, kind) if hasattr(found, "__get__") else found
    raise AttributeError(name)


def ours(*kinds: type[_E]) -> tuple[type[_E], ...]:
    """What an ``except`` takes: these classes if what is handled now `is_ours`, else none."""
    error = _handled()[1]
    return kinds if is_a(error, kinds) and is_ours(error) else ()


def attempt(question: Callable[..., _T], *args: Any) -> _T | None:
    """The answer; None where the question raises by itself. What strikes meanwhile goes on."""
    try:
        return question(*args)
    except ours(Exception):
        return None


def is_ours(error: BaseException) -> bool:
    """Whether ``error``, which a guard of ours caught, may be swallowed: code of ours or of those
    that it called raised it, or C did in an instruction of theirs, and it is of a class that C
    raises there. Else a signal handler did, or another thread had it raised here
    (``PyThreadState_SetAsyncExc``, which can give no argument): it loses what it bears of us, and
    goes on to the user.

    Raises RecursionError or MemoryError where too little is left to find that out.
    """
    ours, programs = is_a(error, Exception), False
    last, own, handlers = None, None, None
    for entry in entries_of(error):
        last, frame = entry, entry.tb_frame
        if is_our_code(frame.f_code):
            own = entry
            continue
        if handlers is None:
            handlers = [code_of(getsignal(n)) for n in valid_signals()]
        if _interrupted(frame, handlers):
            set_traceback(error, entry)
            _forget_our_own(error)
            return False
        programs = programs or not is_library(frame.f_code.co_filename)
    if ours and last is not None and not raises(last):
        shown = args_of(error) or type_name(error) in _SILENT
        ours = bool(shown) and is_of_library(error, _KNOWN)
    if not ours:
        if not programs and own is not None:  # the next guard of ours has to see that it struck
            own.tb_next = None
            set_traceback(error, own)
        _forget_our_own(error)
    return ours


def _forget_our_own(error: BaseException) -> None:
    """Nothing of ours was being handled when ``error`` was raised, as far as the user knows."""
    context = context_of(error)
    while context is not None and _is_of_our_own(context):
        context = context_of(context)
        set_context(error, context)


def _is_of_our_own(error: BaseException) -> bool:
    entry = traceback_of(error)
    inner = innermost(error)
    if entry is None or inner is None:
        return False
    return all(is_our_code(each.tb_frame.f_code) for each in (entry, inner))


def is_library(path: str) -> bool:
    """Whether it is the source of a module of Python's or torch's."""
    if path.startswith("<frozen "):
        return True
    in_library = path.startswith(_LIBRARY) and "-packages" not in path[len(_LIBRARY) :]
    return in_library or f"{os.sep}torch{os.sep}" in path


def _interrupted(frame: types.FrameType, handlers: list[types.CodeType | None]) -> bool:
    """Whether the interpreter called this function in the middle of another: a signal handler, a
    debugger. It then got the frame of that other."""
    code = frame.f_code
    for handler in handlers:
        if code is handler:
            return True
    passed = [frame.f_locals.get(name) for name in code.co_varnames[: code.co_argcount]]
    if code.co_flags & _VARARGS:
        rest = frame.f_locals.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount])
        passed += rest if type(rest) is tuple else ()
    return any([type(value) is types.FrameType for value in passed])  # noqa: C419 - no generator


def is_our_file(path: str) -> bool:
    """Whether it is a source file of disttrace's recorder."""
    return path.startswith(HOME)


def is_our_code(code: types.CodeType) -> bool:
    """Whether code is of the recorder, also where a function of torch's runs it in place of its own
    and it bears that function's name and file."""
    constants = code.co_consts
    in_place = bool(constants) and type(constants[-1]) is InPlace
    return in_place or code.co_filename.startswith(HOME)


def caller(frame: types.FrameType | None) -> types.FrameType | None:
    """The nearest frame from this one on that runs no code of ours; None: there is none."""
    while frame is not None and is_our_code(frame.f_code):
        frame = frame.f_back
    return frame


class InPlace:
    """The last constant of code that runs in place of a function's own: by that we know it (as
    `_frames.c` does, by this name), and nothing is put into torch's namespaces. It hashes, as each
    constant does: a library that looks a frame's code up in a dictionary would get a TypeError of
    ours otherwise.
    """

    __slots__ = ("run", "take_off")

    def __init__(self, run: Callable[..., Any], take_off: Callable[[], None]) -> None:
        self.run, self.take_off = run, take_off
