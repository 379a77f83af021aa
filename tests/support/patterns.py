"""Every regular expression of the product, and whether its form takes linear time."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

PARSER: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")

Found = dict[tuple[str | bytes, int], str]
PACKAGES = ("disttrace", "disttrace_viewer")


def of_product() -> Found:
    """(pattern, flags) and where it is compiled, of all modules of recorder and viewer."""
    found: Found = {}
    original = re._compile  # type: ignore[attr-defined]

    def noting(pattern: Any, flags: Any) -> Any:
        caller = sys._getframe(2)
        name = str(caller.f_globals.get("__name__", ""))
        if name.partition(".")[0] in PACKAGES and isinstance(pattern, (str, bytes)):
            found.setdefault((pattern, int(flags)), f"{name}:{caller.f_lineno}")
        return original(pattern, flags)

    re._compile = noting  # type: ignore[attr-defined]
    try:
        for package in PACKAGES:
            for module in modules(package):
                for pattern, flags, line in inside_functions(module):
                    found.setdefault((pattern, flags), f"{module.__name__}:{line}")
    finally:
        re._compile = original  # type: ignore[attr-defined]
    return found


def modules(package: str) -> Iterator[Any]:
    top = importlib.import_module(package)
    for each in pkgutil.walk_packages(top.__path__, f"{package}."):
        if each.name.endswith("__main__"):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield importlib.import_module(each.name)
        except ModuleNotFoundError as error:  # another library's
            if str(error.name).partition(".")[0] in PACKAGES:
                raise


CALLS = frozenset(
    ["compile", "match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer"]
)


def inside_functions(module: Any) -> Iterator[tuple[Any, int, int]]:
    """Patterns that are compiled when a function runs; those that keep theirs are called."""
    path = module.__file__
    if not path or not path.endswith(".py"):
        return
    tree = ast.parse(Path(path).read_text())
    for function in ast.walk(tree):
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        for call in ast.walk(function):
            if not isinstance(call, ast.Call) or not _is_of_re(call.func) or not call.args:
                continue
            try:
                pattern = eval(compile(ast.Expression(call.args[0]), path, "eval"), vars(module))
                words = [*call.args[1:], *(k.value for k in call.keywords if k.arg == "flags")]
                texts = [ast.unparse(word) for word in words]
                given = [text for text in texts if text.startswith("re.")]
                flags = int(eval(given[0], vars(module) | {"re": re})) if given else 0
            except NameError:
                made = getattr(module, function.name, None)
                if hasattr(made, "cache_info") and not function.args.args:
                    made()  # type: ignore[misc]
                    continue
                if function.name != "__init__" or module.__name__ != "disttrace.redact":
                    at = f"{path}:{call.lineno}"
                    raise ValueError(f"{at}: a pattern made in a function") from None
                continue  # the user's own
            if isinstance(pattern, (str, bytes)):
                yield pattern, flags, call.lineno


def _is_of_re(function: ast.expr) -> bool:
    return (
        isinstance(function, ast.Attribute)
        and function.attr in CALLS
        and isinstance(function.value, ast.Name)
        and function.value.id == "re"
    )


# -- what a pattern may not be --------------------------------------------------------------------

MANY = 256
"""A repeat of more counts as one without a bound."""
ALPHABET = frozenset(map(chr, range(128))) | frozenset("é²٣\u2003")
REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")

Node = tuple[Any, Any]
Nodes = list[Node]


def faults(pattern: str | bytes, flags: int = 0) -> list[str]:
    """Why a search with this pattern can take more than linear time; empty where it cannot.

    A repeat without a bound is held to two rules. No character of its own may begin what follows
    (else the text is divided between both in many ways), but once where the pattern begins at the
    start of a text. And before it stands something of which it takes no character (else each place
    of a long run is a new start that reads the whole run again), but for what cannot fail.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parsed = PARSER.parse(pattern, flags)
    look = _Look(flags=int(parsed.state.flags))
    look.sequence(list(parsed.data), after=frozenset(), before=frozenset(), can_fail=False)
    return look.found


Set = frozenset[str]
START: Set = frozenset({"the start"})


class _Look:
    def __init__(self, *, flags: int) -> None:
        self.flags = flags
        self.found: list[str] = []

    def sequence(
        self, nodes: Nodes, *, after: Set, before: frozenset[Set], can_fail: bool
    ) -> frozenset[Set]:
        """Look at one after the other.

        ``after`` may be the first character behind them, and ``can_fail`` tells whether a match
        can end there; ``before`` is what stands before them, a set for each character. Returns that
        of what comes next.
        """
        for index, node in enumerate(nodes):
            rest = nodes[index + 1 :]
            begins, is_empty = self.first(rest)
            follows = begins | after if is_empty else begins
            fails = can_fail or not is_empty or _asserts(rest)
            before = self.node(node, after=follows, before=before, can_fail=fails)
        return before

    def node(
        self, node: Node, *, after: Set, before: frozenset[Set], can_fail: bool
    ) -> frozenset[Set]:
        code, argument = str(node[0]), node[1]
        if code in REPEATS:
            return self.repeat(node, after=after, before=before, can_fail=can_fail)
        if code in ("SUBPATTERN", "ATOMIC_GROUP"):
            inner = list(argument[3] if code == "SUBPATTERN" else argument)
            return self.sequence(inner, after=after, before=before, can_fail=can_fail)
        if code == "BRANCH":
            each = [
                self.sequence(list(branch), after=after, before=before, can_fail=can_fail)
                for branch in argument[1]
            ]
            return (
                frozenset.intersection(*each)
                | {frozenset().union(*(self.characters(list(b)) for b in argument[1]))}
                if not any(self.first(list(b))[1] for b in argument[1])
                else before
            )
        if code in ("ASSERT", "ASSERT_NOT"):
            direction, body = argument
            taken = self.characters(list(body))
            if direction < 0:
                return before | {ALPHABET - taken if code == "ASSERT_NOT" else taken}
            self.sequence(list(body), after=frozenset(), before=before, can_fail=False)
            return before
        if code == "AT" and str(argument) in ("AT_BEGINNING", "AT_BEGINNING_STRING"):
            is_line = str(argument) == "AT_BEGINNING" and self.flags & re.MULTILINE
            return before | {frozenset("\n") if is_line else START}
        if code in ("AT", "GROUPREF", "GROUPREF_EXISTS"):
            return before
        return before | {self.characters([node])}

    def repeat(
        self, node: Node, *, after: Set, before: frozenset[Set], can_fail: bool
    ) -> frozenset[Set]:
        least, most, body = node[1][0], node[1][1], list(node[1][2])
        takes, begins = self.characters(body), self.first(body)[0]
        behind = before | {takes} if least else before
        if most <= MANY:
            for inner in _repeats(body) if most > 1 else ():
                if inner[1][1] <= MANY < most * inner[1][1] and begins & self.characters([inner]):
                    self.fault(node, "of runs that begin alike, many times together", takes)
            self.sequence(body, after=after, before=before, can_fail=can_fail)
            return behind
        if any(inner[1][1] > MANY for inner in _repeats(body)):  # a run within a run
            self.sequence(body, after=begins | after, before=before, can_fail=True)
        if can_fail and all(takes & each for each in before):
            self.fault(node, "without a bound may begin anywhere in its own run", takes)
        if not begins & after:
            return behind
        is_line = frozenset("\n") in before and "\n" not in takes
        if START not in before and not is_line:
            self.fault(node, "without a bound begins like what follows", begins & after)
        return frozenset()  # what follows may begin anywhere

    def fault(self, node: Node, why: str, characters: frozenset[str]) -> None:
        few = "".join(sorted(characters, key=lambda c: (not c.isalnum(), c))[:6])
        self.found.append(f"a repeat {why} ({few!r}): {node}")

    def first(self, nodes: Nodes) -> tuple[frozenset[str], bool]:
        """What may be the first character of these, and whether they may be empty."""
        begins: frozenset[str] = frozenset()
        for code, argument in nodes:
            word = str(code)
            if word in ("ASSERT", "ASSERT_NOT"):
                if word == "ASSERT" and argument[0] > 0:
                    begins |= self.first(list(argument[1]))[0]
                continue
            if word == "AT":
                continue
            if word in REPEATS:
                more, empty = self.first(list(argument[2]))
                empty = empty or argument[0] == 0
            elif word == "SUBPATTERN":
                more, empty = self.first(list(argument[3]))
            elif word == "ATOMIC_GROUP":
                more, empty = self.first(list(argument))
            elif word == "BRANCH":
                each = [self.first(list(branch)) for branch in argument[1]]
                more = frozenset().union(*(characters for characters, _ in each))
                empty = any(is_empty for _, is_empty in each)
            elif word in ("GROUPREF", "GROUPREF_EXISTS"):
                more, empty = ALPHABET, True
            else:
                more, empty = self.characters([(code, argument)]), False
            begins |= more
            if not empty:
                return begins, False
        return begins, True

    def characters(self, nodes: Nodes) -> frozenset[str]:
        """All characters that these may take, of an alphabet that has each class."""
        taken: set[str] = set()
        for code, argument in nodes:
            word = str(code)
            if word == "LITERAL":
                taken |= self._cases(chr(argument))
            elif word == "NOT_LITERAL":
                taken |= ALPHABET - self._cases(chr(argument))
            elif word == "ANY":
                taken |= ALPHABET if self.flags & re.DOTALL else ALPHABET - {"\n"}
            elif word == "IN":
                taken |= self._class(argument)
            elif word in REPEATS:
                taken |= self.characters(list(argument[2]))
            elif word == "SUBPATTERN":
                taken |= self.characters(list(argument[3]))
            elif word == "ATOMIC_GROUP":
                taken |= self.characters(list(argument))
            elif word == "BRANCH":
                for branch in argument[1]:
                    taken |= self.characters(list(branch))
            elif word in ("GROUPREF", "GROUPREF_EXISTS"):
                taken |= ALPHABET
        return frozenset(taken)

    def _class(self, items: Iterable[Node]) -> frozenset[str]:
        taken: set[str] = set()
        is_negated = False
        for code, argument in items:
            word = str(code)
            if word == "NEGATE":
                is_negated = True
            elif word == "LITERAL":
                taken |= self._cases(chr(argument))
            elif word == "RANGE":
                low, high = argument
                inside = {c for c in ALPHABET if low <= ord(c) <= high}
                taken |= inside.union(*map(self._cases, inside))
            elif word == "CATEGORY":
                name = str(argument).removeprefix("CATEGORY_").removeprefix("UNI_")
                plain = name.removeprefix("NOT_")
                letter = {"DIGIT": "d", "SPACE": "s", "WORD": "w"}[plain]
                letter = letter.upper() if plain != name else letter
                one = re.compile(rf"\{letter}", self.flags & re.ASCII)
                taken |= {c for c in ALPHABET if one.match(c)}
        return frozenset(ALPHABET - taken if is_negated else taken)

    def _cases(self, character: str) -> frozenset[str]:
        if self.flags & re.IGNORECASE:
            return frozenset({character.lower(), character.upper()})
        return frozenset({character})


def _inside(nodes: Nodes) -> Iterator[Node]:
    """These, and all that is within them."""
    for node in nodes:
        yield node
        code, argument = str(node[0]), node[1]
        if code in REPEATS:
            yield from _inside(list(argument[2]))
        elif code in ("SUBPATTERN", "ATOMIC_GROUP"):
            yield from _inside(list(argument[3] if code == "SUBPATTERN" else argument))
        elif code == "BRANCH":
            yield from _inside([each for branch in argument[1] for each in branch])
        elif code in ("ASSERT", "ASSERT_NOT"):
            yield from _inside(list(argument[1]))


def _repeats(nodes: Nodes) -> list[Node]:
    return [node for node in _inside(nodes) if str(node[0]) in REPEATS]


def _asserts(nodes: Nodes) -> bool:
    return any(str(code) in ("AT", "ASSERT", "ASSERT_NOT") for code, _ in _inside(nodes))


def main() -> int:
    """Print what is wrong by their form with patterns of the product."""
    given = of_product()
    wrong = [
        f"{where}: {pattern!r}: {each}"
        for (pattern, flags), where in given.items()
        for each in faults(pattern, flags)
    ]
    print(*wrong, f"{len(given)} patterns", sep="\n")
    return min(len(wrong), 100)


if __name__ == "__main__":
    sys.exit(main())
