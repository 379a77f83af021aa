"""Value classes that cost little to make, and values by a key of theirs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import asdict, field, fields
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ["asdict", "dataclass", "field", "fields", "replace", "together"]

K = TypeVar("K")
V = TypeVar("V")


def together(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values of each key, both in the order in which they come first."""
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


if TYPE_CHECKING:
    from dataclasses import dataclass, replace
else:

    def replace(value, **changes):
        """The standard library's, in a third of its time."""
        cls = value.__class__
        places, get, ordered = _initial(cls)
        values = [*get(value)]
        for name in changes:
            values[places[name]] = changes[name]
        return cls(*values) if ordered else cls(**dict(zip(places, values)))

    def dataclass(bare=None, /, *, frozen=False, slots=False, eq=True, kw_only=False):
        """The standard library's, with ``__init__`` alone compiled, at its first call: to make
        classes so was a quarter of a command. ``frozen`` ones have a hash; that nobody changes
        them mypy sees to, for to refuse it when they run makes them dear to make."""

        def decorated(cls):
            how = {"slots": slots, "kw_only": kw_only}
            cls = dataclasses.dataclass(init=False, repr=False, eq=False, **how)(cls)
            names = [one.name for one in fields(cls) if one.compare]
            key = attrgetter(*names) if names else type

            def equal(self, other):
                alike = other.__class__ is self.__class__
                return key(self) == key(other) if alike else NotImplemented

            made = {"__init__": _init_of(cls), "__repr__": _repr}
            made |= {"__eq__": equal, "__hash__": None} if eq else {}
            made |= {"__hash__": lambda self: hash(key(self))} if eq and frozen else {}
            for name, method in made.items():
                if cls.__dict__.get(name) is None:
                    setattr(cls, name, method)
            return cls

        return decorated if bare is None else decorated(bare)


@lru_cache
def _initial(cls: Any) -> tuple[dict[str, int], Any, bool]:
    """The places of what ``__init__`` takes, what gets it of a value, and whether by position."""
    taken = [one for one in fields(cls) if one.init]
    names = [one.name for one in taken]
    get = attrgetter(*names) if len(names) > 1 else lambda one: [getattr(one, *names)]
    return {n: at for at, n in enumerate(names)}, get, not any(one.kw_only for one in taken)


def _init_of(cls: Any) -> Any:
    """An ``__init__`` that puts the compiled one in its place."""

    def first(self: Any, *args: Any, **values: Any) -> None:
        known: dict[str, Any] = {"_none": dataclasses.MISSING}
        positional, named, body = ["self"], ["*"], ["pass"]
        for one in fields(cls):
            name, value, default = one.name, one.name, one.default
            if one.default_factory is not dataclasses.MISSING:
                known[f"_make_{name}"], default = one.default_factory, None
                value = f"_make_{name}()" + f" if {name} is _none else {name}" * one.init
            elif not one.init:
                continue
            known[f"_{name}"] = default if value is name else dataclasses.MISSING
            optional = f"=_{name}" * (default is not dataclasses.MISSING)
            (named if one.kw_only else positional).extend([name + optional] * one.init)
            body.append(f"self.{name} = {value}")
        body += ["self.__post_init__()"] * hasattr(cls, "__post_init__")
        head = ", ".join(positional + named * (len(named) > 1))
        exec(f"def __init__({head}):\n " + "\n ".join(body), known)
        cls.__init__ = known["__init__"]
        cls.__init__(self, *args, **values)

    return first


def _repr(self: Any) -> str:
    shown = (f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"
