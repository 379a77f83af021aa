"""What a program says to us: `disttrace.operation` is recorded as communication of c10d, and gets
its verdicts, `annotate` is a name around operations, and `allow` gives more time.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import disttrace
from disttrace.capture.objects.groups import changes_limit
from support.preloaded import preloaded
from support.raw import read_journals

DECLARES = """
import disttrace
with disttrace.operation("untraced"):
    pass
disttrace.install()
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
with disttrace.operation("symmetric_memory.put", peers=[1]):
    pass
for _ in range(2):
    with disttrace.operation("pynccl.all_reduce", tokens=4):
        dist.barrier()
try:
    with disttrace.operation("failing"):
        raise LookupError("gone")
except LookupError:
    pass
else:
    raise SystemExit("an exception was swallowed")
"""


def test_what_is_recorded(tmp_path: Path) -> None:
    """In a sequence of the group with its fields, and with peers in none; errors pass."""
    preloaded("-c", DECLARES, DISTTRACE_DIR=str(tmp_path)).check()
    (journal,) = read_journals(tmp_path)
    calls = journal.calls()
    begun = [(calls[record["s"]], record) for record in journal.records if "b" in record]
    told = [(call, begin) for call, begin in begun if call.get("backend") == "declared"]
    assert [
        (call["op"], call["kind"], call.get("args"), begin.get("q")) for call, begin in told
    ] == [
        ("symmetric_memory.put", "composed", {"ranks": [1]}, None),
        ("pynccl.all_reduce", "collective", {"tokens": 4}, 1),
        ("pynccl.all_reduce", "collective", {"tokens": 4}, 2),
        ("failing", "collective", None, 3),
    ]
    barriers = [begin for call, begin in begun if call["op"] == "barrier"]
    assert [one["p"] for one in barriers] == [begin["b"] for _, begin in told[1:3]]


ANNOTATES = """
import disttrace
@disttrace.annotate("early")
def early():
    return 7
with disttrace.annotate("untraced"):
    assert early() == 7
disttrace.install()
import torch.distributed as dist
store = dist.HashStore()
with disttrace.annotate("outer"):
    assert early() == 7
    store.set("k", "v")
try:
    with disttrace.annotate("failing"):
        raise LookupError("gone")
except LookupError:
    pass
else:
    raise SystemExit("annotate swallowed an exception")
"""


def test_an_annotation_is_the_parent_of_what_happens_in_it(tmp_path: Path) -> None:
    """Traced from `install` on, also where decorated before, at the user's line; errors pass."""
    pytest.importorskip("torch")
    outcome = preloaded("-c", ANNOTATES, DISTTRACE_DIR=str(tmp_path)).check()
    assert outcome.stderr == ""
    (journal,) = read_journals(tmp_path)
    calls = journal.calls()
    begun = {one["b"]: (calls[one["s"]], one) for one in journal.records if "b" in one}
    names = {number: call.get("name") for number, (call, _) in begun.items()}
    assert [
        (call["op"], call.get("name"), names.get(begin.get("p"))) for call, begin in begun.values()
    ] == [
        ("HashStore", None, None), ("annotate", "outer", None), ("annotate", "early", "outer"),
        ("store.set", None, "outer"), ("annotate", "failing", None),
    ]  # fmt: skip
    strings = journal.strings()
    assert [strings[r["x"]] for r in journal.records if "x" in r] == ["LookupError: gone"]


# -- what limits a wait is recorded as torch has it, and `disttrace.allow` extends it when asked


PROGRAM = """
import datetime, os, sys, time
import disttrace, torch, torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
store, minutes = sys.argv[1], float(sys.argv[2])
def rank(number):
    dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=number, world_size=2,
                            timeout=datetime.timedelta(seconds=20))
    dist.barrier()
    c10d._set_pg_timeout(datetime.timedelta(seconds=1))
    if minutes:
        print(f"now {disttrace.allow(minutes) * 60:.0f} s", flush=True)
    time.sleep(2.5 * number)
    try:
        dist.all_reduce(torch.ones(3))
    except RuntimeError:
        print("given up", flush=True)
        os._exit(0)
    print("through", flush=True)
child = os.fork()
rank(int(child == 0))
os._exit(0) if child == 0 else os.waitpid(child, 0)
"""


@pytest.mark.parametrize(
    ("minutes", "through", "limit_s"), [(0.5, 2, 31.0), (0, 0, 1.0)], ids=["more", "nothing"]
)
def test_more_time_is_more_time(
    tmp_path: Path, minutes: float, through: int, limit_s: float
) -> None:
    """Two ranks with a second, and one comes later; journals hold the limit that was last."""
    words = ("-c", PROGRAM, str(tmp_path / "store"), str(minutes))
    outcome = preloaded(*words, DISTTRACE="1", DISTTRACE_DIR=str(tmp_path / "traced")).check()
    assert outcome.stdout.count("through") == through
    assert limits(tmp_path / "traced") == [limit_s, limit_s]


def limits(folder: Path) -> list[float]:
    given = [
        [g["timeout"] for g in one.of("group") if "timeout" in g] for one in read_journals(folder)
    ]
    return [each[-1] / 1e9 for each in given if each]


WAITS = """
import datetime, torch.distributed as dist
store = dist.HashStore()
for wait in (lambda: store.wait(["a"], datetime.timedelta(seconds=0.25)),
             lambda: store.wait(["b"], datetime.timedelta(seconds=0.5))):
    try:
        wait()
    except RuntimeError:
        pass
store.set_timeout(datetime.timedelta(seconds=7))
store.set("a", "1")
store.wait(["a"])
"""


@pytest.mark.parametrize("core", ["c", "python"])
def test_limits_of_stores(tmp_path: Path, core: str) -> None:
    """That of a call stands with it, that of the store in its definition."""
    preloaded("-c", WAITS, DISTTRACE="1", DISTTRACE_DIR=str(tmp_path), DISTTRACE_CORE=core).check()
    (journal,) = read_journals(tmp_path)
    begins = [record for record in journal.records if "k" in record]
    given = [(b["k"], b.get("a")) for b in begins]
    assert given == [
        (["a"], {"args": {"timeout": 0.25}}), (["b"], {"args": {"timeout": 0.5}}), ("a", None),
        (["a"], None),
    ]  # fmt: skip
    assert [one["timeout"] for one in journal.of("store") if "timeout" in one] == [7e9]


@pytest.mark.parametrize(
    ("name", "methods", "changes"),
    [
        ("ProcessGroupGloo", ["_set_default_timeout"], False),  # before torch 2.9
        ("ProcessGroupGloo", ["_set_default_timeout", "set_timeout"], True),
        ("ProcessGroupNCCL", ["_set_default_timeout"], True),
        ("FakeProcessGroup", [], False),
    ],
)
def test_whose_limit_torch_can_change(name: str, methods: list[str], changes: bool) -> None:
    """An old gloo takes another limit, reports it, and keeps to the one that it had."""
    assert changes_limit(type(name, (), dict.fromkeys(methods))) is changes


def test_what_cannot_be_extended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a group, without a member, of a backend without a limit, below nothing."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    with pytest.raises(ValueError, match="has not been initialized"):
        disttrace.allow(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        with pytest.raises(RuntimeError, match="no way to change its time limit: pass timeout="):
            disttrace.allow(1)
        with pytest.raises(ValueError, match="no member"):
            disttrace.allow(1, dist.GroupMember.NON_GROUP_MEMBER)
    finally:
        dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert disttrace.allow(-10) == 20
        with pytest.raises(ValueError, match="-20 minutes leave nothing"):
            disttrace.allow(-20)
    finally:
        dist.destroy_process_group()
