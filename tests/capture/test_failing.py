"""Every door forced to fail inside: the program's own results, and one sentence per part."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrace.capture.native import hooks
from support.preloaded import preloaded

PROGRAM = Path(__file__).parent / "programs" / "failing.py"
PACKAGE = "disttrace"

# A helper that breaks, and the parts that say so.
HELPERS: tuple[tuple[str, frozenset[str]], ...] = (
    ("capture.instrumentation.constructors:_begin", frozenset({"constructors"})),
    ("capture.objects.groups:Groups.group_made", frozenset({"constructors"})),
    (
        "capture.objects.groups:Groups.of",
        frozenset({"collectives and messages", "composed operations"}),
    ),
    ("capture.calls.call_site:CallTable.find", frozenset({"composed operations"})),
    (
        "capture.calls.call_site:CallSites.stack",
        frozenset({"collectives and messages", "store operations"}),
    ),
    ("capture.instrumentation.store:key_and_size", frozenset({"store operations"})),
    (
        "capture.objects.works:Works.add",
        frozenset({"collectives and messages", "operations issued by C++"}),
    ),
    ("capture.objects.works:Works.over", frozenset({"waits"})),
    ("capture.objects.works:Works.observed", frozenset({"completion without a wait"})),
    ("capture.objects.works:Works.of_result", frozenset({"waits of functional collectives"})),
    ("capture.objects.works:Works.poll", frozenset({"completion without a wait"})),
    ("capture.wrapping.call_definition:begin_issued", frozenset({"operations issued by C++"})),
    ("capture.wrapping.call_definition:issued", frozenset({"operations issued by C++"})),
    ("capture.before_2_15.relays:Relays._of", frozenset({"operations issued by DDP"})),
    ("capture.before_2_15.relays:RelayPart.begin", frozenset({"operations issued by DDP"})),
    ("capture.before_2_15.relays:RelayPart.returned", frozenset({"operations issued by DDP"})),
    ("capture.before_2_15.relays:Awaited.leave", frozenset({"operations issued by DDP"})),
    ("capture.before_2_15.relays:Awaited._pass_is_over", frozenset({"operations issued by DDP"})),
    (
        "capture.native.kernels:OperatorCalls._arm",
        frozenset({"operations issued by C++", "waits of functional collectives"}),
    ),
    ("capture.instrumentation.process_group:_record", frozenset({"calls refused by torch"})),
    ("capture.native.hooks:Hooks.attach", frozenset({"operations issued by C++"})),
    ("capture.instrumentation.functions:_plain", frozenset({"composed operations"})),
    ("capture.instrumentation.subclasses:subclasses", frozenset({"Python subclasses"})),
    ("patching:Engine.attribute", frozenset({"collectives and messages"})),
    ("capture.instrumentation.subclasses:_hook", frozenset({"Python subclasses"})),
)


# Native hooks stand in for the dispatcher kernels, and for relays, where torch has them.
_UNUSED = (
    ("capture.native.kernels:", "capture.before_2_15.")
    if hooks.supported()
    else ("capture.native.hooks:",)
)
# What the native core does by itself; on the plain one it breaks as everywhere.
_PLAIN = tuple(f"capture.objects.works:Works.{name}" for name in ("add", "over", "of_result"))
USED = [(helper, parts) for helper, parts in HELPERS if not helper.startswith(_UNUSED)]


def run(helper: str, folder: Path) -> tuple[str, list[str]]:
    """What the program printed, and disttrace's sentences."""
    core = {"DISTTRACE_CORE": "python"} if helper.endswith(_PLAIN) else {}
    outcome = preloaded("-W", "ignore", PROGRAM, helper, folder, timeout=120, **core).check()
    sentences = [line for line in outcome.stderr.splitlines() if line.startswith("disttrace:")]
    assert "Traceback" not in outcome.stderr, outcome.stderr
    return outcome.stdout, sentences


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    stdout, sentences = run("none", tmp_path_factory.mktemp("whole"))
    assert sentences == []
    return stdout


@pytest.mark.parametrize(("helper", "parts"), USED, ids=[helper for helper, _ in USED])
def test_a_program_goes_on(tmp_path: Path, whole: str, helper: str, parts: frozenset[str]) -> None:
    """Same results, and each part that failed is named once."""
    stdout, sentences = run(f"{PACKAGE}.{helper}", tmp_path)
    assert stdout == whole
    named = [sentence.partition(" are no longer traced")[0] for sentence in sentences]
    assert len(named) == len(set(named))
    missing = [part for part in parts if f"disttrace: {part}" not in named]
    assert missing == [], sentences
