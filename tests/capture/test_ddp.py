"""DDP with a group of ours in its reducer: the same results, and everything that it issues."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from disttrace.capture.native import hooks
from disttrace.recording.core import NAMES
from support.preloaded import GLOO, launched, preloaded, recorded
from support.raw import RawJournal, read_journals

PROGRAM = Path(__file__).parent / "programs" / "ddp.py"
EACH_CORE = pytest.mark.parametrize("core", NAMES)


def operations(journal: RawJournal) -> list[tuple[str, str]]:
    """(operation, origin) of all collectives, in order of begin."""
    return [(call["op"], call["origin"]) for call in journal.called("collective")]


def ends(journal: RawJournal) -> list[tuple[str, int]]:
    """How each all_reduce of C++ ended ("e": awaited, "c": complete, "-": not), and when, in ns."""
    calls, found = journal.calls(), dict[int, tuple[str, int]]()
    for record in journal.records:
        call = calls.get(record.get("s", 0), {})
        if "b" in record and (call["op"], call["origin"]) == ("all_reduce", "c++"):
            found.setdefault(record["b"], ("-", 0))
        for kind in "ecl":
            if record.get(kind) in found:
                found[record[kind]] = kind, record["d"]
    return list(found.values())


@EACH_CORE
def test_results_are_the_same(tmp_path: Path, core: str) -> None:
    """Gradients, what DDP's logger says, exceptions; each reduction has its end."""
    given: dict[str, Any] = {"DISTTRACE_DIR": str(tmp_path), "DISTTRACE_CORE": core}
    plain, traced = (preloaded(PROGRAM, DISTTRACE=on, **given).check() for on in "01")
    assert traced.stdout == plain.stdout
    (journal,) = read_journals(tmp_path)
    assert journal.of("note") == []
    assert {kind for kind, _ in ends(journal)} <= {"e", "c"}
    # Each pass has one for each bucket; a joined model's Python issues some by itself.
    assert operations(journal).count(("all_reduce", "c++")) > 30
    assert operations(journal).count(("broadcast", "c++")) > 15


PASSES = """
import time
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))

class Last(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        # Parameters are reduced before an input's gradient is there.
        time.sleep(float(sys.argv[3]))
        return gradient

for _ in range(int(sys.argv[4])):
    model(Last.apply(torch.ones(1, 2, requires_grad=True))).sum().backward()
disttrace.uninstall()
dist.destroy_process_group()
"""


@pytest.mark.skipif(hooks.supported(), reason="native hooks see DDP there")
@EACH_CORE
def test_the_end_is_that_of_the_pass(tmp_path: Path, core: str) -> None:
    """The reducer waits for what it issued; the live thread sees few of them before that."""
    _, journal = recorded(GLOO + PASSES, tmp_path, core, "0", "30")
    kinds = [kind for kind, _ in ends(journal)]
    assert len(kinds) == 30
    assert kinds.count("e") > 20


@pytest.mark.skipif(hooks.supported(), reason="native hooks see DDP there")
@EACH_CORE
def test_a_pass_that_is_stuck_is_looked_at(tmp_path: Path, core: str) -> None:
    """What is complete though its pass goes on is not told as if it was under way."""
    _, journal = recorded(GLOO + PASSES, tmp_path, core, "0.9", "3")
    found = ends(journal)
    assert [kind for kind, _ in found] == ["c"] * 3
    assert max(elapsed for _, elapsed in found) < 0.8e9


BESIDE = """
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
model(torch.ones(1, 2)).sum().backward()
table = torch._C._dispatch_dump_table("c10d::allreduce_").splitlines()
print(*(line for line in table if line.startswith(("BackendSelect", "VmapMode"))), sep="\\n")
"""


def test_other_operations_pass_nothing_of_ours(tmp_path: Path) -> None:
    """A process with a reducer pays for ``all_reduce`` what one without pays."""
    told = preloaded("-c", GLOO + BESIDE, tmp_path).check().stdout.splitlines()
    assert len(told) == 2
    assert all("fallthrough" in line for line in told)


UNUSED = """

class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
        self.used, self.head = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
        self.head.register_buffer("seen", torch.ones(3, 1))
    def forward(self, x):
        return self.used(x)

model = torch.nn.parallel.DistributedDataParallel(Branches())
model(torch.ones(1, 2)).sum().backward()

def touched(*args, **kwargs):
    print("touched", flush=True)
    return 0

for name in ("__hash__", "__eq__", "named_parameters", "named_modules", "_named_members"):
    setattr(Branches, name, touched)
model(torch.ones(1, 2))
"""


def test_parameters_without_a_gradient_are_named(tmp_path: Path) -> None:
    """As DDP numbers them, frozen ones not; the program's methods are not called for it."""
    done = preloaded("-c", GLOO + UNUSED, tmp_path)
    assert (done.code, "touched" in done.stdout) == (1, False)
    (journal,) = read_journals(tmp_path)
    (failure,) = journal.of("failure")
    assert failure["parameters"] == ["head.weight", "head.bias"]
    assert "for rank 0: 2 3" in " ".join(failure["lines"])
    shared = [
        call["args"] for call in journal.called("collective") if "module" in call.get("args", ())
    ]
    assert shared == [{"module": "", "parameters": ["frozen[2]", "head.seen[3, 1]"]}]


MODULES = """
import sys
if sys.argv[1] == "traced":
    import disttrace
    disttrace.install(dir=sys.argv[2])
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

torch.manual_seed(0)
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
mesh = dist.init_device_mesh("cpu", (2,))
model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)), torch.nn.LayerNorm(4))
for layer in model[:2]:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
model[1].bias.requires_grad_(False)
for step in range(2):
    model(torch.ones(2, 4)).square().sum().backward()
    print([None if p.grad is None else p.grad.to_local().tolist() for p in model.parameters()])
    model.zero_grad()
for layer in model[0].modules():
    layer.register_forward_hook(lambda *_: 1 / 0)
try:
    model(torch.ones(2, 4))
except ZeroDivisionError as error:
    print(repr(error))
"""


def test_what_fsdp_calls_bears_the_name_of_its_module(tmp_path: Path) -> None:
    """Each call has its module and the parameters whose gradients it reduces; results stay."""
    (tmp_path / "modules.py").write_text(MODULES)
    folder = tmp_path / "journals"
    plain = preloaded(tmp_path / "modules.py", "plain", folder).check()
    traced = preloaded(tmp_path / "modules.py", "traced", folder).check()
    assert traced.stdout == plain.stdout
    (journal,) = read_journals(folder)
    assert journal.of("note") == []
    calls = [call for call in journal.calls().values() if "module" in call.get("args", {})]
    rest = ["2.weight", "2.bias", "3.weight", "3.bias"]
    assert {(c["op"][:10], c["args"]["module"], *c["args"]["parameters"]) for c in calls} == {
        ("all_gather", "2, 3", *rest), ("reduce_sca", "2, 3", *rest),
        ("all_gather", "0", "0.weight", "0.bias"), ("reduce_sca", "0", "0.weight", "0.bias"),
        ("all_gather", "1", "1.weight", "1.bias"), ("reduce_sca", "1", "1.weight"),
    }  # fmt: skip


HELD = """
import sys, tracemalloc
import disttrace
disttrace.install(dir=sys.argv[1])
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
mesh = dist.init_device_mesh("cpu", (2,))
class Many(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for n in range(199):
            self.register_parameter(f"weight_{n}", torch.nn.Parameter(torch.ones(2)))
    def forward(self, x):
        return x + sum(one.sum() for one in self.parameters())
def held(count):
    model = torch.nn.Sequential(*(Many() for _ in range(count)))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    tracemalloc.start()
    model(torch.ones(1)).sum().backward()
    ours = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/disttrace/*")])
    tracemalloc.stop()
    return sum(one.size for one in ours.statistics("filename"))
held(1)
print((held(9) - held(3)) / (6 * 199))
"""


def test_names_take_less_than_50_bytes_a_parameter(tmp_path: Path) -> None:
    """So those of a model of 100,000 take less than 5 MB."""
    assert float(preloaded("-c", HELD, tmp_path).check().stdout.split()[0]) < 50


UNREDUCED = """
import contextlib
import disttrace
disttrace.install()
import torch
import torch.distributed as dist
def train(how):
    group = dist.new_group([0, 1])
    net = torch.nn.Linear(4, 2)
    model = torch.nn.parallel.DistributedDataParallel(net, process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(16):
        off = how == "no_sync" or (how == "accumulates" and step % 4 < 3)
        with model.no_sync() if off else contextlib.nullcontext():
            (model.module if how == "module" else model)(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    return model
dist.init_process_group("gloo")
models = [train(how) for how in ("model", "module", "accumulates", "no_sync")]
"""


@pytest.mark.skipif(hooks.supported(), reason="relays see what is reduced")
@EACH_CORE
def test_what_changes_and_is_not_reduced_is_on_record(tmp_path: Path, core: str) -> None:
    """Two of four ways to train leave each rank alone."""
    program = tmp_path / "unreduced.py"
    program.write_text(UNREDUCED)
    launched(program, 2, DISTTRACE_DIR=str(tmp_path / "journals"), DISTTRACE_CORE=core)
    journal, _ = read_journals(tmp_path / "journals")
    assert journal.of("note") == []
    records = {one["group"]: one for one in journal.of("unreduced")}
    assert [*records] == [3, 5]  # of `module` and `no_sync`; the default group is 1
    for one in records.values():
        (stack,) = (s for s in journal.of("stack") if s["n"] == one["stack"])
        assert (stack["frames"][0][1], one["bytes"], one["changes"] >= 8) == (10, 40, True)


WITHOUT = """
import contextlib, os
import disttrace
disttrace.install()
import torch
import torch.distributed as dist
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (torch.nn.Linear(2, 2) for _ in "abc")
    def forward(self, x, off):
        return sum(getattr(self, name)(x).sum() for name in "abc".replace(off, ""))
def train(off, mb, last=3):
    ranks = dist.new_group([0, 1])
    model = torch.nn.parallel.DistributedDataParallel(Net(), process_group=ranks, bucket_cap_mb=mb)
    for step in range(last + 1):
        model.zero_grad()
        odd = step == last and dist.get_rank() == 0
        if odd or step < last or mb < 1:
            model(torch.ones(1, 2), off if odd else "-").backward()
    return model
dist.init_process_group("gloo")
kept = train("a", 25)
pair = dist.new_group([0, 1])
one, two = (
    torch.nn.parallel.DistributedDataParallel(Net(), process_group=pair) for _ in range(2)
)
for step in range(4):
    for model in one, two:
        model.zero_grad()
        if step < 3 or (model is one and dist.get_rank() == 0):
            model(torch.ones(1, 2), "c" if step == 3 else "-").backward()
        elif dist.get_rank() == 0:
            model(torch.ones(1, 2), "-")
with contextlib.suppress(RuntimeError):  # of the rank that waits
    train("b", 1e-5, int(os.environ["LAST"]))
"""


@pytest.mark.skipif(hooks.supported(), reason="relays see what is reduced")
@pytest.mark.parametrize("last", [1, 3])
def test_what_has_no_gradient_is_on_record_with_its_bucket(tmp_path: Path, last: int) -> None:
    """Of the rank that left it out alone: at the end of its pass, or where nothing moves. How many
    buckets the second pass has is not known during it."""
    (tmp_path / "without.py").write_text(WITHOUT)
    settings = {"DISTTRACE_DIR": str(tmp_path / "journals"), "LAST": str(last)}
    launched(tmp_path / "without.py", 2, **settings)
    other, odd = sorted((j.of("unreduced") for j in read_journals(tmp_path / "journals")), key=len)
    found = {one["group"]: (one["bucket"], one["changes"], one["parameters"]) for one in odd}
    assert found == {
        2: (0, 4, ["a.weight", "a.bias"]), 3: (0, 4, ["c.weight", "c.bias"]),
        4: (1, last + 1, ["b.weight", "b.bias"]),
    }  # fmt: skip
    assert [one["group"] for one in odd if one.get("settled")] == [3]
    assert other == []


SPOILT = """
import disttrace
disttrace.install()
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
model = torch.nn.parallel.DistributedDataParallel(net)
for step in range(3):
    if step == 2 and dist.get_rank() == 1:
        net[0].bias.register_hook(lambda gradient: gradient / 0)
    model(torch.ones(1, 2)).sum().backward()
"""


@pytest.mark.skipif(hooks.supported(), reason="relays see what is reduced")
def test_gradients_that_are_not_finite_are_named(tmp_path: Path) -> None:
    """Of the rank whose they are, by its digest of each input."""
    (tmp_path / "spoilt.py").write_text(SPOILT)
    settings = {"DISTTRACE_DIR": str(tmp_path / "journals"), "DISTTRACE_DIGEST": "1"}
    launched(tmp_path / "spoilt.py", 2, **settings)
    found = [one for j in read_journals(tmp_path / "journals") for one in j.of("nonfinite")]
    assert [(one["op"], one["parameters"]) for one in found] == [("all_reduce", ["0.bias"])]
