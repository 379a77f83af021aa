"""What the native core shows of the calls of a stream to other processes of the host."""

from __future__ import annotations

import json
from pathlib import Path

from support.processes import python

_SHOWS = """
import json, os, sys, torch, torch.distributed as dist, disttrace
from disttrace import session
disttrace.install(dir=sys.argv[1])
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
group = dist.new_group([0])
def one(n): dist.all_reduce(torch.ones(n), group=group)
def two(n): dist.all_reduce(torch.ones(n), group=group)
for n in (4, 4, 8): one(n)
two(4)
courses = session._session.recorder.courses
[path] = [p for p in [courses._path] if os.path.exists(p)]
words = memoryview(open(path, "rb").read()).cast("Q")
at = (4096 + 3 * 4096 * (words[0] - 1)) // 8
told = [words[at], words[at + 1], list(words[at + 513:at + 517]), list(words[at + 1025:at + 1029])]
if os.fork() == 0:
    dist.all_reduce(torch.ones(4), group=group, async_op=True)  # the page is the parent's
    os._exit(0)
os.wait()
after = memoryview(open(path, "rb").read()).cast("Q")[at]
fds = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
       if os.path.exists(f"/proc/self/fd/{fd}")]
disttrace.uninstall()
one(4)
print(json.dumps([told, after, any(".calls" in one for one in fds), os.path.exists(path)]))
"""


def test_the_page_of_a_stream_tells_its_newest_calls_and_goes_with_the_process(
    tmp_path: Path,
) -> None:
    """No descriptor is kept for it, and a forked child leaves it alone."""
    told, after, kept, left = json.loads(
        python("-c", _SHOWS, tmp_path / "out", DISTTRACE_CORE="c").check().stdout.splitlines()[-1]
    )
    newest, lines, places, digests = told
    assert (newest, lines, after, kept, left) == (4, 2, 4, False, False)
    assert places[0] == places[1] == places[2] != places[3]
    steps = [(b - a * 0x9E3779B97F4A7C15) % 2**64 for a, b in zip([0, *digests], digests)]
    assert steps[0] == steps[1] == steps[3] != steps[2]
