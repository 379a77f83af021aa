"""The patch engine: applies patches, remembers what stood there, and puts exactly that back.

Two kinds. A class attribute is replaced by a wrapper; what is put back is the entry of the class's
``__dict__``, because what ``getattr`` returns is unbound and breaks calls when set again. A Python
function keeps its identity and gets other code: that also reaches everyone who imported the name
before, and dynamo, which recognises some functions by identity.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from disttrace import dynamo, errors, foreign

Undo = Callable[[], None]
_RUNS_LATER = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


@dataclass(slots=True)
class _Patch:
    part: str
    what: str
    undo: Undo
    active: bool = True


class Engine:
    """What is patched, by which part of the capture."""

    def __init__(self) -> None:
        self._patches: list[_Patch] = []

    def attribute(
        self, part: str, owner: type, name: str, make: Callable[[Callable[..., Any]], Any]
    ) -> bool:
        """Replace ``owner.name`` by ``make(original as a function)``; False: no such method."""
        entry = owner.__dict__.get(name)
        if not _is_method(entry):
            return False
        original = getattr(owner, name)
        wrapper = make(original)
        function: Any = wrapper.__func__ if isinstance(wrapper, staticmethod) else wrapper
        if isinstance(function, types.FunctionType):
            rename(function, name, owner)
            _document(function, original)
            if isinstance(original, types.FunctionType):  # which has more to offer
                functools.update_wrapper(function, original)
                # Dynamo compiles that instead: a program that wants a single graph gets it.
                function._torchdynamo_inline = original  # type: ignore[attr-defined]
        setattr(owner, name, wrapper)

        def undo() -> None:
            # A library that patched after us keeps its wrapper around ours, which is inert by then.
            if owner.__dict__.get(name) is wrapper:
                setattr(owner, name, entry)

        self._patches.append(_Patch(part, f"{owner.__name__}.{name}", undo))
        return True

    def function(
        self, part: str, function: Any, make: Callable[[types.FunctionType], Callable[..., Any]]
    ) -> bool:
        """Give the innermost function under ``function``'s decorators code that runs
        ``make(original)``; False where there is no Python function."""
        inner = inspect.unwrap(function)
        if not isinstance(inner, types.FunctionType) or inner.__closure__:
            return False
        code = inner.__code__
        original = types.FunctionType(
            code, inner.__globals__, inner.__name__, inner.__defaults__, inner.__closure__
        )
        original.__kwdefaults__ = inner.__kwdefaults__
        replacement = make(original)
        swapped = _trampoline(code, replacement)
        dynamo.skip(swapped)
        inner.__code__ = swapped

        def undo() -> None:
            if inner.__code__ is swapped:
                inner.__code__ = code

        self._patches.append(_Patch(part, f"{inner.__module__}.{inner.__qualname__}", undo))
        return True

    def value(self, part: str, holder: Any, name: str, replacement: Any) -> Any:
        """Set ``holder.name``, a plain attribute such as ``sys.excepthook``; also where pickle
        looks for it, as `posix._exit` for `os._exit`. Returns what stands there."""
        original = getattr(holder, name)
        places = [(holder, name)]
        if isinstance(replacement, types.FunctionType):
            _document(replacement, original)
            replacement.__qualname__ = getattr(original, "__qualname__", replacement.__qualname__)
            replacement.__annotations__ = getattr(original, "__annotations__", {})
            # Whose signature it is.
            replacement.__wrapped__ = original  # type: ignore[attr-defined]
            home, own = sys.modules.get(replacement.__module__), replacement.__qualname__
            if home is not None and home is not holder and vars(home).get(own) is original:
                places.append((home, own))
            if isinstance(original, types.BuiltinFunctionType):
                replacement = _builtin(replacement, original)
        for module, attribute in places:
            setattr(module, attribute, replacement)

        def undo() -> None:
            for module, attribute in places:
                if getattr(module, attribute) is replacement:
                    setattr(module, attribute, original)

        self._patches.append(_Patch(part, f"{holder.__name__}.{name}", undo))
        return replacement

    def on_undo(self, part: str, what: str, undo: Undo) -> None:
        self._patches.append(_Patch(part, what, undo))

    def undo(self, part: str | None = None) -> None:
        """Put back what ``part`` replaced (everything without a part), newest first."""
        for patch in reversed(self._patches):
            if patch.active and part in (None, patch.part):
                patch.active = False
                patch.undo()
        self._patches = [patch for patch in self._patches if patch.active]

    def names(self, part: str) -> list[str]:
        return [patch.what for patch in self._patches if patch.part == part]


def _is_method(entry: Any) -> bool:
    """Whether an entry of a class's ``__dict__`` is called with the object first, and runs then.
    Subclasses may have anything there; only C's static methods are ours to replace."""
    if isinstance(entry, types.FunctionType):
        return not entry.__code__.co_flags & _RUNS_LATER
    inner = getattr(entry, "fget", entry)  # torch's options are properties
    inner = getattr(inner, "__func__", inner)
    descriptors = types.MethodDescriptorType | types.WrapperDescriptorType
    return isinstance(inner, types.BuiltinFunctionType | descriptors)


def subclasses(owner: type) -> Iterator[type]:
    """Every class below ``owner`` that exists now."""
    child: type
    for child in owner.__subclasses__():
        yield child
        yield from subclasses(child)


def rename(function: Any, name: str, owner: type) -> None:
    """Give the wrapper's code the method's name. When C++ asks a trampoline class, pybind11 takes a
    Python function on it for an override; it stops the recursion that follows only where the
    calling frame has the method's name, and the object as its first argument."""
    function.__code__ = function.__code__.replace(co_name=name)
    dynamo.skip(function.__code__)  # only the other code was marked
    function.__name__ = name
    function.__qualname__ = f"{owner.__name__}.{name}"


def _document(function: types.FunctionType, original: Any) -> None:
    """What ``help`` shows is what it showed before."""
    function.__name__ = getattr(original, "__name__", function.__name__)
    function.__doc__ = getattr(original, "__doc__", None)
    function.__module__ = getattr(original, "__module__", None) or function.__module__


def _builtin(function: types.FunctionType, original: types.BuiltinFunctionType) -> Any:
    """Calls ``function``, and is no method as an attribute of a class (``leave = sys.exit``)."""
    kind: type = type(original)
    behaviour: dict[str, Any] = {
        "__call__": staticmethod(function),
        "__class__": property(lambda _: kind),
        "__reduce__": lambda made: made.__qualname__,
        "__repr__": lambda _: repr(original),
    }
    made: Any = type(kind.__name__, (), behaviour)()
    vars(made).update(vars(function), __self__=original.__self__)
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(made, name, getattr(function, name))
    return made


def _take_off(finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
    if finalizing():  # a generator that is closed at last: modules are empty by then
        return
    error = sys.exc_info()[1]
    assert error is not None
    errors.take_off(error)


def _trampoline(code: types.CodeType, replacement: Callable[..., Any]) -> types.CodeType:
    """Code with the signature of ``code`` that passes everything to ``replacement``."""
    names = code.co_varnames
    count = code.co_argcount
    keyword_only = names[count : count + code.co_kwonlyargcount]
    rest = count + code.co_kwonlyargcount
    parameters = [*names[: code.co_posonlyargcount]]
    if code.co_posonlyargcount:
        parameters.append("/")
    parameters += names[code.co_posonlyargcount : count]
    passed = [*names[:count]]
    if code.co_flags & inspect.CO_VARARGS:
        parameters.append(f"*{names[rest]}")
        passed.append(f"*{names[rest]}")
        rest += 1
    elif keyword_only:
        parameters.append("*")
    parameters += keyword_only
    passed += [f"{name}={name}" for name in keyword_only]
    if code.co_flags & inspect.CO_VARKEYWORDS:
        parameters.append(f"**{names[rest]}")
        passed.append(f"**{names[rest]}")
    holder = foreign.InPlace(replacement, _take_off)
    run = "yield from" if code.co_flags & inspect.CO_GENERATOR else "return"
    source = (
        f"def f({', '.join(parameters)}):\n try: {run} (...).run({', '.join(passed)})\n"
        " except:\n  (...).take_off()\n  raise\n"
    )
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    made: types.CodeType = namespace["f"].__code__
    constants = tuple(holder if constant is ... else constant for constant in made.co_consts)
    return made.replace(
        co_consts=(*constants, holder),
        co_name=code.co_name,
        co_filename=code.co_filename,
        co_firstlineno=code.co_firstlineno,
        **({"co_qualname": code.co_qualname} if hasattr(code, "co_qualname") else {}),
    )
