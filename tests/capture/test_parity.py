"""With and without tracing a program gets the same results and the same exceptions."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.preloaded import GLOO, preloaded, recorded, to_its_end
from support.processes import free_port
from support.raw import read_journals

PROGRAMS = Path(__file__).parent / "programs"
OVERRIDDEN = ("all_reduce", "barrier", "broadcast")


def outputs(
    program: str, folder: Path, switch: str = "DISTTRACE", **variables: str
) -> tuple[str, str]:
    def run(traced: str) -> str:
        given = {switch: traced, "DISTTRACE_DIR": str(folder), **variables}
        return to_its_end(PROGRAMS / program, timeout=150, **given).check().stdout

    with ThreadPoolExecutor(2) as pool:
        plain, traced = pool.map(run, "01")
    return plain, traced


@pytest.mark.parametrize("debug", ["OFF", "DETAIL"])
def test_every_operation_gives_the_same(tmp_path: Path, debug: str) -> None:
    """Results, types and texts of exceptions, plain and under the debug wrapper."""
    plain, traced = outputs("parity.py", tmp_path, TORCH_DISTRIBUTED_DEBUG=debug)
    assert len(plain.splitlines()) > 35
    assert traced.splitlines() == plain.splitlines()
    (journal,) = read_journals(tmp_path)
    assert journal.of("note") == []


def test_compiled_functions_break_where_they_did(tmp_path: Path) -> None:
    """Graph breaks, frames and recompilations are those of a run without tracing."""
    plain, traced = outputs("compiled.py", tmp_path)
    assert traced == plain
    (journal,) = read_journals(tmp_path)
    calls = journal.calls().values()
    assert {"python", "c++"} == {call["origin"] for call in calls if call["op"] == "all_reduce"}


def test_compiled_graphs_are_the_same(tmp_path: Path) -> None:
    """Functional collectives, also differentiated, as one graph: code, results, recompilations."""
    plain, traced = outputs("graphs.py", tmp_path)
    assert traced == plain
    assert plain.count("_c10d_functional.all_reduce") >= 4
    (journal,) = read_journals(tmp_path)
    assert journal.of("note") == []
    origins = {call["origin"] for call in journal.calls().values() if call["kind"] == "collective"}
    assert origins == {"c++"}


def test_python_subclasses(tmp_path: Path) -> None:
    """Overriding none, some or all: same results, no recursion, each operation once."""
    plain, traced = outputs("subclasses.py", tmp_path, "LATER")
    assert traced == plain
    assert "RecursionError" not in traced
    (journal,) = read_journals(tmp_path)
    kinds = {group["n"]: group["type"] for group in journal.of("group") if "type" in group}
    found = [(kinds[call["group"]], call["op"]) for call in journal.called("collective")]
    each = [(kind, op) for kind in ("Before", "All", "NoneOf") for op in OVERRIDDEN]
    assert found == [*each, ("ProcessGroup", "all_reduce")]
    # Not what gloo writes into its store by itself.
    own = [call["op"] for call in journal.called() if call["origin"] == "python"]
    assert [own.count(f"store.{op}") for op in ("set", "get", "append")] == [1, 2, 2]


PROGRAM = Path(__file__).parent / "programs" / "inductor.py"
TO_THE_LETTER = """
import torch, torch.distributed as dist
from torch._ops import OpOverload
import torch.distributed._functional_collectives
operators = torch.ops._c10d_functional
known = operators.all_reduce_.default, operators.wait_tensor.default
def unchanged():
    return all(type(one) is OpOverload for one in known)
before = unchanged()
import torch._inductor.ir
print(before, unchanged())
"""


def test_inductor_meets_operators_of_torchs_own_class(tmp_path: Path) -> None:
    """It asks by ``type(...) is``, which no class of ours can pass."""
    traced = preloaded("-c", TO_THE_LETTER, DISTTRACE="1", DISTTRACE_DIR=str(tmp_path / "out"))
    assert traced.check().stdout == "False True\n"


@pytest.mark.long
def test_a_compiled_collective(tmp_path: Path) -> None:
    """The traced program prints what its untraced twin does; both calls are on record."""
    printed = [
        preloaded(
            "-W", "ignore", PROGRAM, timeout=200, DISTTRACE=traced,
            DISTTRACE_DIR=str(tmp_path / "out"),
            TORCHINDUCTOR_CACHE_DIR=str(tmp_path / f"cache{traced}"),
        )
        .check()
        .stdout
        for traced in "01"
    ]  # fmt: skip
    assert printed[0] == printed[1] == "[1.0, 1.0]\n" * 2
    (journal,) = read_journals(tmp_path / "out")
    assert [call["op"] for call in journal.called()].count("all_reduce") == 2


PROGRAM_LOADERS = """
functional, name = torch.ops._c10d_functional, dist.group.WORLD.group_name
x = torch.ones(2)
kept = dist.all_reduce(x, async_op=True)
pending = functional.all_reduce(x, "sum", name)
loader = torch.utils.data.DataLoader(
    list(range(8)), batch_size=2, num_workers=2, multiprocessing_context="fork"
)
seen = []
for batch in loader:
    seen += batch.tolist()
    dist.all_reduce(torch.ones(1))
kept.wait()
functional.wait_tensor(pending)
print(seen)
dist.destroy_process_group()
"""


def test_forked_workers(tmp_path: Path) -> None:
    """All samples come, every operation is over, and workers that use no c10d leave no journal."""
    outcome, journal = recorded(GLOO + PROGRAM_LOADERS, tmp_path)
    assert outcome.stdout == "[0, 1, 2, 3, 4, 5, 6, 7]\n"
    assert "disttrace:" not in outcome.stderr
    reduces = [(seq, over) for op, seq, over in journal.operations() if op == "all_reduce"]
    assert reduces == [(seq, True) for seq in range(1, 7)]


PROGRAM_RPC = Path(__file__).parent / "programs" / "remote_calls.py"


def test_remote_calls_are_as_untraced(tmp_path: Path) -> None:
    """The same results and exceptions; their store and groups are recorded as everybody's."""
    printed = []
    for where in ("", str(tmp_path)):
        done = preloaded(str(PROGRAM_RPC), str(free_port()), where, timeout=120).check()
        printed.append(done.stdout)
    assert printed[0] == printed[1]
    assert printed[0].splitlines() == ["2 3", "4 False", "5", "ValueError('no 5')", "True"]
    (journal,) = read_journals(tmp_path)
    made = {call["op"] for call in journal.called()}
    assert {"TCPStore", "ProcessGroupGloo", "barrier"} <= made
    assert not [op for op in made if "rpc" in op or op in ("remote", "to_here")]


PROGRAM_SECRETS = Path(__file__).with_name("programs") / "secrets_everywhere.py"
TOKEN = "ghp_0123456789abcdefABCDEF0123456789abcd"


@pytest.mark.parametrize(("mask", "patterns"), [("on", ""), ("off", ""), ("on", "acme[0-9]+")])
def test_no_secret_is_written(tmp_path: Path, mask: str, patterns: str) -> None:
    """Command line, keys, prefixes, addresses, names, errors; the operations are all there."""
    secret = "acme31415926" if patterns else TOKEN
    # Newer interpreters show this line in a traceback, where nothing of ours is to be seen.
    start = "import importlib, runpy, sys; importlib.import_module('dist' 'trace.startup').main();"
    start += " sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    url = "--db=pg://u:hunter2@db"
    words = ["-c", start, str(PROGRAM_SECRETS), secret, "--password", "hunter2", url]
    variables = {"DISTTRACE_DIR": str(tmp_path / "out"), "DISTTRACE_MASK": mask}
    variables |= {"DISTTRACE": "1", "DISTTRACE_REDACT": patterns, "TMPDIR": str(tmp_path)}
    outcome = preloaded(*words, timeout=60.0, **variables)
    assert (outcome.stdout, outcome.code) == ("done\n", 1), f"{outcome}"
    assert "disttrace" not in outcome.stderr.replace("disttrace.annotate", "")
    written = b"".join(path.read_bytes() for path in (tmp_path / "out").iterdir()).decode()
    assert (secret in written) == (mask == "off")
    assert ("hunter2" in written) == (mask == "off")
    (journal,) = read_journals(tmp_path / "out")
    names = [name for name, _, _ in journal.operations()]
    for name in ("store.set", "store.check", "annotate", "FileStore", "all_reduce"):
        assert name in names
    assert names.count("store.set") >= 3
