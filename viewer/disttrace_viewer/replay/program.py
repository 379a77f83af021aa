"""A program of plain torch that calls what a job called."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence

from disttrace_viewer.replay.calls import ENDS, FAILS, KILLED, STAYS, Call, Job, Rank
from disttrace_viewer.replay.sequences import ISSUE, MAKES

_HEAD = '''"""{title}

Run: torchrun --nproc-per-node {world} {name}
"""

{imports}

import torch
import torch.distributed as dist


def tensor(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype)

'''
_STORE = 'store = dist.PrefixStore("replay", dist.distributed_c10d._get_default_store())'
STORED = {
    "store.set": 'store.set({key}, "1")',
    "store.add": "store.add({key}, 1)",
    "store.compare_set": 'store.compare_set({key}, "", "1")',
    "store.append": 'store.append({key}, "1")',
    "store.multi_set": 'store.set({key}, "1")',
    "store.get": "store.get({key})",
    "store.wait": "store.wait([{key}])",
}
_MODULES = ("os", "signal", "threading", "time")
_GAP_NS = 1_000_000


def text(job: Job, *, title: str, name: str = "repro.py", speed: float | None = None) -> str:
    """The program. ``speed``: with the pauses between calls, so many times as fast as recorded."""
    lines = []
    for number, rank in sorted(job.ranks.items()):
        lines += ["", *_rank(job, number, rank, speed), ""]
    lines += ["", *_begin(job)]
    which = "dist.get_rank()" if job.joined else 'int(os.environ["RANK"])'
    functions = ", ".join(f"rank{n}" for n in sorted(job.ranks))
    lines += [f"[{functions}][{which}]()", "dist.destroy_process_group()", ""]
    used = [one for one in _MODULES if any(f"{one}." in line for line in lines)]
    head = _HEAD.format(
        title="\n".join(textwrap.wrap(title.replace("\\", "/").replace('"', "'"), 95)),
        world=len(job.ranks),
        name=name,
        imports="\n".join(f"import {one}" for one in used),
    )
    lines.insert(0, head.replace('"""\n\n\n\n', '"""\n\n'))
    return "\n".join(lines)


def _begin(job: Job) -> Iterator[str]:
    """What all do before anything else."""
    if job.joined:
        yield 'dist.init_process_group("gloo")'
    if any(call.op in STORED for call in _calls(job)):
        yield _STORE
    yield "groups = [None]"
    made = {call.group for call in _calls(job) if call.op == MAKES}
    for number, group in enumerate(job.groups[1:], 1):
        is_made = number in made or not job.joined
        yield f"groups.append({None if is_made else f'dist.new_group({_members(group)})'})"


def _calls(job: Job) -> Iterator[Call]:
    for rank in job.ranks.values():
        for steps in rank.threads.values():
            yield from (call for _, call in steps)


def _members(group: Sequence[int]) -> str:
    return repr(list(group))


def _rank(job: Job, number: int, rank: Rank, speed: float | None) -> Iterator[str]:
    yield f"def rank{number}():"
    if rank.port:
        yield '    port = int(os.environ["MASTER_PORT"]) + 1  # another one than the others have'
        yield '    os.environ["MASTER_PORT"] = str(port)'
    if not job.joined and rank.joins is not None:
        yield f'    dist.init_process_group("gloo"{rank.joins})'
    threads = sorted(rank.threads.items())
    for thread, steps in threads[1:]:
        yield f"    def thread{thread}():"
        yield from (f"        {line}" for line in _steps(job, number, steps, speed))
    for thread, _ in threads[1:]:
        yield f"    started{thread} = threading.Thread(target=thread{thread})"
        yield f"    started{thread}.start()"
    if threads:
        yield from (f"    {line}" for line in _steps(job, number, threads[0][1], speed))
    yield from (f"    started{thread}.join()" for thread, _ in threads[1:])
    if rank.end == STAYS and not any(
        not call.over for steps in rank.threads.values() for _, call in steps
    ):
        yield f"    time.sleep(86400)  # stays at {rank.word or 'a line that nobody knows'}"
    elif rank.end == FAILS:
        yield f"    raise RuntimeError({rank.word!r})"
    elif rank.end == KILLED:
        yield "    os.kill(os.getpid(), signal.SIGKILL)"
    elif not threads and rank.end == ENDS:
        yield "    pass"


def _steps(
    job: Job, number: int, steps: Sequence[tuple[str, Call]], speed: float | None
) -> Iterator[str]:
    names: dict[int, str] = {}
    last_ns = 0
    waits = {id(call) for what, call in steps if what != ISSUE}
    for place, (what, call) in enumerate(steps):
        if what == ISSUE:
            if speed and last_ns and call.begin_ns - last_ns > _GAP_NS:
                yield f"time.sleep({(call.begin_ns - last_ns) / 1e9 / speed:.4f})"
            last_ns = call.begin_ns
            comment = f"  # {call.where}" if call.where else ""
            if call.asynchronous:
                names[id(call)] = f"work{place}"
                yield f"work{place} = {_issue(job, number, call)}{comment}"
            else:
                yield f"{_issue(job, number, call)}{comment}"
        elif id(call) in names:
            yield f"{names[id(call)]}.wait()"
    if not waits and not steps:
        yield "pass"


def _issue(job: Job, number: int, call: Call) -> str:
    if call.op == MAKES:
        made = f"dist.new_group({_members(call.ranks or ())})"
        return f"groups[{call.group}] = {made}" if call.group else made
    if call.op in STORED:
        return STORED[call.op].format(key=repr((call.key or ("",))[-1]))
    members = job.groups[call.group]
    size = len(members)
    group = f", group=groups[{call.group}]" if call.group else ""
    if call.message:
        name = call.op if not call.asynchronous else f"i{call.op}"
        peer = "" if call.peer is None else f", {call.peer}"
        tag = f", tag={call.tag}" if call.tag else ""
        return f"dist.{name}({_tensor(call)}{peer}{group}{tag})"
    work = f"{group}, async_op=True" if call.asynchronous else group
    tensor = _tensor(call)
    root = members[0] if call.root is None else call.root
    reduced = f", op=dist.ReduceOp.{call.reduce_op}" if call.reduce_op else ""
    others = f"[{tensor} for _ in range({size})]"
    is_root = number == root
    shape = list(call.shapes[0]) if call.shapes else [1]
    first, rest = (shape or [1])[0], shape[1:]
    forms = {
        "all_reduce": f"{tensor}{reduced}",
        "broadcast": f"{tensor}, {root}",
        "reduce": f"{tensor}, {root}{reduced}",
        "all_gather": f"{others}, {tensor}",
        "all_gather_into_tensor": f"{_shaped(call, [first * size, *rest])}, {tensor}",
        "reduce_scatter": f"{tensor}, {others}{reduced}",
        "reduce_scatter_tensor": (
            f"{_shaped(call, [max(first // size, 1), *rest])}"
            f", {_shaped(call, [max(first // size, 1) * size, *rest])}{reduced}"
        ),
        "all_to_all": f"{others}, {others}",
        "all_to_all_single": (
            f"{_shaped(call, [-(-first // size) * size, *rest])}"
            f", {_shaped(call, [-(-first // size) * size, *rest])}"
        ),
        "gather": f"{tensor}, {others if is_root else None}, {root}",
        "scatter": f"{tensor}, {others if is_root else None}, {root}",
    }
    given = forms.get(call.op)
    if given is None:  # what has no form of its own stands for itself as a barrier
        return f"dist.barrier({work.removeprefix(', ')})"
    return f"dist.{call.op}({given}{work})"


def _tensor(call: Call) -> str:
    shapes = call.shapes or [[1]]
    if len(shapes) == 1:
        return _shaped(call, list(shapes[0]))
    return _shaped(call, [sum(math.prod(shape) for shape in shapes)])


def _shaped(call: Call, shape: Sequence[int]) -> str:
    dtype = call.dtypes[0] if call.dtypes else "float32"
    given = "" if dtype == "float32" else f", dtype=torch.{dtype}"
    return f"tensor({', '.join(map(str, shape))}{given})".replace("(, ", "(")
