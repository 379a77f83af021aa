"""Reports in the forms that programs read: JSON, annotations of GitHub, JUnit's XML, SARIF."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from disttrace_viewer.views.ci import github, junit, sarif

FORMS = ("json", "github", "junit", "sarif")


def encoded(reports: Sequence[Mapping[str, Any]], form: str) -> bytes:
    """The values of reports (``Report.to_dict``), one per job, in one of ``FORMS``.

    JSON is of the one report that there is, or a list. Files of GitHub's and SARIF's are named from
    the checkout (``GITHUB_WORKSPACE``, else the working directory).
    """
    import orjson

    if form == "json":
        values = reports[0] if len(reports) == 1 else list(reports)
        return orjson.dumps(values, option=orjson.OPT_INDENT_2) + b"\n"
    if form == "junit":
        return junit(reports).encode()
    root = os.environ.get("GITHUB_WORKSPACE") or os.getcwd()
    if form == "sarif":
        return orjson.dumps(sarif(reports, root), option=orjson.OPT_INDENT_2) + b"\n"
    lines = [line for values in reports for line in github(values, root)]
    return "".join(f"{line}\n" for line in lines).encode()
