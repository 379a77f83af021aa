"""The only place that touches exceptions and values that the program made: by slots of C alone.

``str``, ``==``, ``hash``, an attribute or ``isinstance`` may run the program's code, which takes
locks, raises, or never returns. What is read here is read by the interpreter's own slot, past what
a class or a metaclass defines. `tests/test_foreign.py` keeps all other files from it.
"""

from __future__ import annotations

import builtins
import datetime
import functools
import opcode
import threading
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard, TypeVar

MOST = 200
"""Entries of a traceback that are looked at. An exception that is kept and raised again and again
has all that it ever passed, and what it passed last comes first."""

_DEEPEST = 3  # containers within containers that are shown, and callables within callables
_LONGEST, _WIDEST = 10_000, 100  # characters or bits, and items, of what is made a text of
_RAISING = frozenset(opcode.opmap[name] for name in ("RAISE_VARARGS", "RERAISE"))

_T = TypeVar("_T")
_Read = Callable[[Any], Any]


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
errno_of: Callable[[OSError], Any] = _slot(OSError, "errno")

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
"""What the interpreter's own ``__str__`` reads besides the arguments, by the class that defines
it."""


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
    """Name and native id of the threads that `threading` lists, by ident. Its lock is not taken,
    and what a library of greenlets lists there is no thread.
    """
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
