"""What programs say of themselves, without importing torch."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

_PROGRAMS = Path(__file__).with_name("programs")


@functools.cache
def docstrings() -> dict[str, str | None]:
    """By the name of each function of the programs."""
    trees = (ast.parse(file.read_text()) for file in sorted(_PROGRAMS.glob("*.py")))
    functions = (node for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef))
    return {node.name: ast.get_docstring(node) for node in functions}
