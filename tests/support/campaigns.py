"""What scripts that try many cases share: options, cases beside each other, counts of draws."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

A = TypeVar("A")
B = TypeVar("B")
RIGHT, UNDECIDED, WRONG = "right", "undecided", "wrong"


def options(doc: str | None, **defaults: Any) -> argparse.Namespace:
    """What the command line asks for. ``some_name=20`` is ``--some-name N``; False is a flag, a
    type an option without a default, a list one that takes several, as many as its first is like.
    """
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=doc, formatter_class=plain)
    for name, default in defaults.items():
        keys: dict[str, Any] = {"default": default}
        one = default[0] if isinstance(default, list) else default
        if default is False:
            keys["action"] = "store_true"
        else:
            keys["type"] = one if isinstance(one, type) else type(one)
        if isinstance(default, list):
            keys |= {"action": "extend", "nargs": "*", "default": None}
        if isinstance(one, type):
            keys["default"] = None
        parser.add_argument("--" + name.replace("_", "-"), **keys)
    chosen = parser.parse_args()
    for name, default in defaults.items():
        if isinstance(default, list) and getattr(chosen, name) is None:
            setattr(chosen, name, [] if isinstance(default[0], type) else default)
    return chosen


def beside(run: Callable[[A], B], cases: Iterable[A], jobs: int) -> Iterator[B]:
    """What comes of each case, in their order; so many run at a time."""
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(run, cases)


def counted(
    draw: Callable[[int], tuple[str, str]], numbers: Iterable[int], *, verbose: bool
) -> bool:
    """Whether anything was said wrongly of drawn cases: each a result, and a text about it."""
    counts: Counter[str] = Counter()
    for number in numbers:
        result, text = draw(number)
        counts[result] += 1
        if result == WRONG or verbose:
            print(f"{result} {text}", flush=True)
    print(", ".join(f"{counts[one]} {one}" for one in (RIGHT, UNDECIDED, WRONG)))
    return bool(counts[WRONG])
