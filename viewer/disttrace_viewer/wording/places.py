"""How a source file is called in a sentence."""

from __future__ import annotations

import os

from disttrace.journal.code_files import in_package


def file_name(path: str) -> str:
    """``train.py``; ``lightning/.../ddp.py`` where it is a package's, for that name alone says
    nothing. What follows the name (``:42``) stays.
    """
    package = in_package(path)
    if package is None:
        return os.path.basename(path)
    first, *between, last = package.split("/") if "/" in package else ("", package)
    return "/".join(filter(None, (first, "..." if between else "", last)))
