"""How large the house is: ceilings that only fall. What a feature adds another one gives up.

``python tests/test_size.py`` prints the figures as they are.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from pathlib import Path

import orjson

sys.path[:0] = [str(Path(__file__).parent)] if __name__ == "__main__" else []

from support.journals import S  # noqa: E402
from support.processes import ROOT, python  # noqa: E402
from support.scenes import hang_without  # noqa: E402

ROOMS: dict[str, int] = {
    "disttrace": 3_490,
    "disttrace/capture": 7_760,
    "disttrace/commands": 630,
    "disttrace/integrations": 125,
    "disttrace/journal": 2_015,
    "disttrace/lifecycle": 2_540,
    "disttrace/recording": 1_575,
    "disttrace/redact": 600,
    "disttrace/testing": 860,
    "viewer/disttrace_viewer": 90,
    "viewer/disttrace_viewer/analysis": 3_920,
    "viewer/disttrace_viewer/api": 1_880,
    "viewer/disttrace_viewer/attach": 590,
    "viewer/disttrace_viewer/commands": 1_005,
    "viewer/disttrace_viewer/companion": 6_170,
    "viewer/disttrace_viewer/diagnosis": 1_820,
    "viewer/disttrace_viewer/evidence": 3_030,
    "viewer/disttrace_viewer/findings": 6_660,
    "viewer/disttrace_viewer/load": 6_710,
    "viewer/disttrace_viewer/merge": 2_175,
    "viewer/disttrace_viewer/otlp": 1_530,
    "viewer/disttrace_viewer/replay": 600,
    "viewer/disttrace_viewer/states": 1_800,
    "viewer/disttrace_viewer/trace": 1_270,
    "viewer/disttrace_viewer/views": 4_430,
    "viewer/disttrace_viewer/wording": 860,
}
"""Lines of Python by the two outermost folders of a file. They are ceilings: what is added to one
room another gives up, since all of them together have less than the sum of these."""
PRODUCT, TESTS = 64_000, 57_000
WORDS = re.compile(r"\b(?:told|asked|say|said|says|nobody|somebody|whoever|whom)\b", re.IGNORECASE)
MOST_WORDS = 400
"""What a reader takes for a person where a rank, a record or a message is meant."""
FILES = 301
NAMED_TWICE = 0
FILES_ENTERED, MODULES, CLIMBS = 84, 108, 2
"""By the diagnosis of a hang of two ranks, which stand in one folder of journals."""


def _sources(top: str) -> list[Path]:
    return sorted((ROOT / top).rglob("*.py"))


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def _rooms() -> Counter[str]:
    """Lines by the two outermost folders of a file."""
    found: Counter[str] = Counter()
    for top in ("disttrace", "viewer/disttrace_viewer"):
        for path in _sources(top):
            found["/".join((top, *path.relative_to(ROOT / top).parts[:-1][:1]))] += _lines(path)
    return found


def _named_twice() -> list[str]:
    """Names that classes of two or more files of the product bear."""
    names = Counter(
        node.name
        for top in ("disttrace", "viewer")
        for path in _sources(top)
        for node in ast.parse(path.read_bytes()).body
        if isinstance(node, ast.ClassDef)
    )
    return sorted(name for name, count in names.items() if count > 1)


def test_lines_of_rooms() -> None:
    """What a feature adds to one room, another room gives up."""
    found = _rooms()
    assert {room: lines for room, lines in found.items() if lines > ROOMS.get(room, 0)} == {}
    assert sum(found.values()) <= PRODUCT
    assert sum(map(_lines, _sources("tests"))) <= TESTS


def test_the_fields_words() -> None:
    sources = (*_sources("disttrace"), *_sources("viewer"))
    assert sum(len(WORDS.findall(path.read_text())) for path in sources) <= MOST_WORDS


def test_files() -> None:
    assert len(_sources("disttrace")) + len(_sources("viewer")) <= FILES


def test_one_class_of_a_name() -> None:
    """Two classes of one name are two things that a reader takes for one."""
    assert len(_named_twice()) <= NAMED_TWICE


def _hang(folder: Path) -> dict[str, int]:
    """What the diagnosis of two ranks enters of which one never came."""
    for journal, _ in hang_without(folder, 2, 1):
        journal.stand(3 * S, "/src/loader.py", 9, "load")
    outcome = python("-m", "support.entered", str(folder), PYTHONPATH=f"{ROOT}/tests:{ROOT}/viewer")
    found = orjson.loads(outcome.check().stdout)
    assert found["code"] == 1, "it is a hang"
    return found  # type: ignore[no-any-return]


def test_what_a_diagnosis_enters(tmp_path: Path) -> None:
    """A reader who follows a verdict through the code has so many files to open."""
    found = _hang(tmp_path)
    assert found["files"] <= FILES_ENTERED
    assert found["modules"] <= MODULES + (sys.version_info >= (3, 15))  # it imports our start
    assert len(found["climbs"]) <= CLIMBS, found["climbs"]  # type: ignore[arg-type]


if __name__ == "__main__":
    import tempfile

    for place, number in sorted(_rooms().items()):
        print(f'    "{place}": {number:_},')
    tests = sum(map(_lines, _sources("tests")))
    print(sum(_rooms().values()), "lines of the product,", tests, "of tests")
    print(len(_sources("disttrace")) + len(_sources("viewer")), "files")
    print(_named_twice())
    with tempfile.TemporaryDirectory() as scratch:
        print(_hang(Path(scratch)))
