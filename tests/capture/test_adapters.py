"""Libraries that communicate past c10d: imitations of them hang on CPU and get c10d's verdicts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.preloaded import preloaded
from support.processes import Outcome, missing
from support.raw import read_journals

PYNCCL = """
class PyNcclCommunicator:
    def __init__(self, group, device):
        self.group, self.device, self.disabled = group, device, False
    def all_reduce(self, in_tensor, out_tensor=None, op=0, stream=None):
        meet(self.group)
        return in_tensor
    def send(self, tensor, dst, stream=None):
        return None
    def broadcast(self, tensor, src, stream=None):
        return self.all_reduce(tensor)  # a call in a call
"""
DEEP_EP = """
class Buffer:
    def __init__(self, group):
        self.group = group
    def dispatch(self, x, handle=None):
        meet(self.group)
        return x
"""
SYMMETRIC = """
def _low_contention_all_gather(tensor, group_name):
    meet(None)
    return tensor
"""
MEET = """
import torch.distributed as dist
def meet(group):  # as a kernel that waits for the others: no call of torch that would be seen
    import os, time
    folder, mine = os.environ["MEET"], os.environ["NUMBER"]
    n = meet.n = getattr(meet, "n", 0) + 1
    open(os.path.join(folder, f"{mine}-{n}"), "w").close()
    while not all(os.path.exists(os.path.join(folder, f"{r}-{n}")) for r in range(2)):
        time.sleep(0.02)
"""
IMITATIONS = {
    "vllm/distributed/device_communicators/pynccl.py": PYNCCL,
    "sglang/srt/distributed/device_communicators/pynccl.py": PYNCCL, "deep_ep/buffer.py": DEEP_EP,
    "deep_ep/__init__.py": "from deep_ep.buffer import Buffer\n", "symmetric.py": SYMMETRIC,
}  # fmt: skip
PACKAGES = """
import os, sys, time
sys.path.insert(0, os.environ["PACKAGES"])
"""
START = """
import disttrace
disttrace.install(job="imitated", stall=1)
import torch, torch.distributed as dist
rank = int(os.environ["NUMBER"])
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1], 2), rank=rank, world_size=2)
x = torch.ones(3)
"""
CALL = """
from sglang.srt.distributed.device_communicators.pynccl import PyNcclCommunicator
call = PyNcclCommunicator(dist.group.WORLD, "cpu").all_reduce
call(x)
while rank == 1 and not os.path.exists(sys.argv[2]):
    time.sleep(0.05)
call(x)
"""


@pytest.fixture
def imitated(tmp_path: Path) -> Path:
    """A folder with packages of the libraries' names."""
    folder = tmp_path / "packages"
    for name, text in IMITATIONS.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for above in path.relative_to(folder).parents:
            if str(above) != ".":
                (folder / above / "__init__.py").touch()
        path.write_text(text if "__init__" in name else MEET + text)
    (tmp_path / "meet").mkdir()
    return folder


def environ_of(tmp_path: Path, imitated: Path, rank: int) -> dict[str, str]:
    return {
        "DISTTRACE_DIR": str(tmp_path / "out"), "PACKAGES": str(imitated),
        "MEET": str(tmp_path / "meet"), "NUMBER": str(rank),
    }  # fmt: skip


def test_a_rank_that_does_not_come_is_told(tmp_path: Path, imitated: Path) -> None:
    """By rank, operation and line, as for a collective of c10d's."""
    words = ("-c", PACKAGES + START + CALL, tmp_path / "store", tmp_path / "over")

    def run(rank: int) -> Outcome:
        return preloaded(*words, timeout=100.0, **environ_of(tmp_path, imitated, rank))

    with ThreadPoolExecutor(2) as pool:
        ranks = [pool.submit(run, rank) for rank in range(2)]
        try:
            found = missing(tmp_path / "out", "--stall", "1")
        finally:
            (tmp_path / "over").touch()
    assert [one.result().code for one in ranks] == [0, 0]
    told = (found["op"], found["culprit_ranks"], found["seq"])
    assert told == ("pynccl.all_reduce", [1], 2)


PLANTS = """
import symmetric, torch.distributed._symmetric_memory as memory
symmetric.meet = lambda group: None
# In the place of the function that needs a device, before the adapter has seen the module.
memory.__dict__.update(_low_contention_all_gather=symmetric._low_contention_all_gather)
"""
ALONE = (
    PACKAGES
    + PLANTS
    + START.replace("], 2)", "], 1)").replace("world_size=2", "world_size=1")
    + """
import vllm.distributed.device_communicators.pynccl as module
from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator
module.meet = lambda group: None
made = PyNcclCommunicator(dist.group.WORLD, "cpu")
made.broadcast(x, src=0)
made.send(x, 1)
made.disabled = True
made.all_reduce(x)
made.disabled = False
try:
    made.all_reduce()
except TypeError as error:
    print("raised", error)
PyNcclCommunicator(object(), "cpu").all_reduce(x)
import deep_ep.buffer
deep_ep.buffer.meet = lambda group: None
deep_ep.Buffer(dist.group.WORLD).dispatch(x)
memory._low_contention_all_gather(x, dist.group.WORLD.group_name)
disttrace.uninstall()
print(PyNcclCommunicator.all_reduce.__code__.co_filename.endswith("pynccl.py"))
"""
)


def test_what_a_call_calls_is_part_of_it_and_nothing_stays(tmp_path: Path, imitated: Path) -> None:
    """One record per call, none of one that is disabled; errors are the library's."""
    words = ("-c", ALONE, str(tmp_path / "store"))
    outcome = preloaded(*words, timeout=60.0, **environ_of(tmp_path, imitated, 0)).check()
    assert outcome.stdout.splitlines()[0].startswith("raised")
    assert "all_reduce() missing" in outcome.stdout
    assert outcome.stdout.splitlines()[-1] == "True"
    (journal,) = read_journals(tmp_path / "out")
    ours = ("pynccl.", "deep_ep.", "symmetric_memory.")
    assert [(c["op"], c["kind"]) for c in journal.called() if c["op"].startswith(ours)] == [
        ("pynccl.broadcast", "collective"),
        ("pynccl.send", "composed"),
        ("pynccl.all_reduce", "composed"),  # of a group that is not c10d's
        ("deep_ep.dispatch", "collective"),
        ("symmetric_memory.low_contention_all_gather", "collective"),
    ]
