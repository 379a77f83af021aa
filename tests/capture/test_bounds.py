"""A program that makes stores, groups and streams for ever is recorded within a bound."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrace.capture.objects.groups import Groups
from disttrace.capture.objects.registry import GONE
from disttrace.capture.objects.stores import Stores
from disttrace.recording import interning
from support.cores import recorder
from support.preloaded import preloaded
from support.processes import ROOT
from support.raw import read_journals

FEW = 40


class Thing:
    """Stands for a store or a group: something that can be referred to weakly."""


def test_definitions_of_stores_and_groups_come_to_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the bound they have no definition, and the calls on them no group and no store."""
    made = recorder(tmp_path, max_bytes=1 << 24)
    monkeypatch.setattr(interning, "MOST", FEW)
    stores = Stores(made)
    groups = Groups(made, stores)
    base, alive = Thing(), []
    for number in range(10 * FEW):
        store, group = Thing(), Thing()
        stores.prefixed(store, str(number), base)
        alive.append(groups.group_made(group, store, 0, 2))
    assert alive[0].n == 1
    assert alive[-1].n < 0
    assert alive[-1].stream_counter("send", 1, 7, "gloo", new=not made.exhausted) is None
    last = alive[-1].n
    call, extra = made.call("x", synchronous=True, counter=None, kind="collective", group=last)
    assert (call.group, extra) == (None, b"")
    made.close()
    (journal,) = read_journals(tmp_path)
    defined = len(journal.of("store")) + len(journal.of("group"))
    assert 2 * FEW - 2 < defined <= 2 * FEW  # a thread's counts too
    assert all("group" not in record for record in journal.of("call"))


def test_what_is_kept_of_a_store_goes_with_it(tmp_path: Path) -> None:
    """A child's journal repeats what is alive: stores, their servers, and places of groups."""
    made = recorder(tmp_path, max_bytes=1 << 24)
    stores = Stores(made)
    groups = Groups(made, stores)
    base, place, group, kept = Thing(), Thing(), Thing(), Thing()
    for number in range(100):
        stores.prefixed(Thing(), str(number), base)
    stores.prefixed(place, "place", base)
    groups.group_made(group, place, 0, 2)
    stores.prefixed(kept, "kept", base)
    del place
    definitions = groups.definitions()
    known = {d["n"]: d for d in definitions if d["def"] == "store"}
    assert [d["prefix"] for d in known.values()] == [[], ["place"], ["kept"]]
    (described,) = [d for d in definitions if d["def"] == "group"]
    assert known[described["store"]]["prefix"] == ["place"]


def test_groups_that_went_away_are_forgotten_in_the_end(tmp_path: Path) -> None:
    """The last of them stay: C++ may hand out a new object for one. Those alive all stay."""
    made = recorder(tmp_path, max_bytes=1 << 24)
    groups = Groups(made, Stores(made))
    lasting = [Thing() for _ in range(20)]
    entries = [groups.group_made(group, None, 0, 2) for group in lasting]
    for _ in range(10 * GONE):
        last = groups.group_made(Thing(), None, 0, 2)
    assert len(groups.definitions()) < 4 * GONE
    assert all(groups.by_number(entry.n) is entry for entry in (*entries, last))
    assert groups.by_number(len(entries) + 1) is None


@pytest.mark.parametrize("core", ["c", "python"])
def test_calls_on_what_has_no_definition_go_on(tmp_path: Path, core: str) -> None:
    """In a real program, with both cores: every call is on record, and nothing is switched off."""
    program = ROOT / "benchmarks" / "recorder" / "different_calls.py"
    counts = "--calls", "9000", "--folder", str(tmp_path)
    outcome = preloaded(
        program, *("--work", "prefixes"), *counts, DISTTRACE="1", DISTTRACE_DIR=str(tmp_path),
        DISTTRACE_MAX_MB="1", DISTTRACE_CORE=core,
    ).check()  # fmt: skip
    assert outcome.stderr == ""
    (journal,) = read_journals(tmp_path)
    last = [r for r in journal.records if "b" in r][-1]
    assert last["b"] >= 9000
    assert len(journal.of("store")) < 6000
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 1.1 * 2**20


STORES_FOR_EVER = """
import sys, torch.distributed as dist

def blocks(times):
    for _ in range(times):
        store = dist.HashStore()
        store.set("a", "1")
        store.get("a")
    return sys.getallocatedblocks()

before = blocks(1000)
print("more blocks of memory:", blocks(1500) - before > 1500)
"""


def test_stores_that_went_away_keep_no_memory(tmp_path: Path) -> None:
    """Nor do the calls on them, with both cores: as untraced."""
    for on, core in (("0", "c"), ("1", "c"), ("1", "python")):
        out = str(tmp_path / "out")
        variables = {"DISTTRACE": on, "DISTTRACE_CORE": core, "DISTTRACE_DIR": out}
        outcome = preloaded("-c", STORES_FOR_EVER, timeout=120, **variables).check()
        assert outcome.stdout == "more blocks of memory: False\n", (on, core)
