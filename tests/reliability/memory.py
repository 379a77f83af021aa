"""What each command needs of memory for 50 MB of input of the most expensive kinds.

    python tests/reliability/memory.py [--mb 50] [--kind calls] [--command view] [--limit-mb 1536]

Writes one folder of journals per kind, runs every command on each in a process of its own, and
prints the peak of resident memory. 1 where one needs more than the limit, does not end in time, or
ends by a signal, a traceback or another code than 0, 1 or 2. `make memory` runs it.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.campaigns import options
from support.journals import MS, Journal, training

CODES = (0, 1, 2)
SECONDS = 300


def _fill(path: Path, lines: Iterator[str], size: int) -> None:
    with path.open("a") as file:
        while size > 0:
            line = next(lines)
            file.write(line + "\n")
            size -= len(line) + 1


def _definitions(
    line: Callable[[int], str], *, segment: bool = False
) -> Callable[[Path, int], None]:
    """A healthy job, and one journal whose definitions, or a segment, are filled up."""

    def make(folder: Path, size: int) -> None:
        journal = training(folder)[0]
        path = journal.segments[0] if segment else journal.definitions
        _fill(path, (line(n) for n in range(1000, 1 << 40)), size)

    return make


_segment = functools.partial(_definitions, segment=True)


def _many_journals(folder: Path, size: int) -> None:
    for number in range(size // 1100):
        one = Journal(folder, pid=5000 + number, rank=number, world_size=size // 1100)
        world = one.group(one.tcp_store(29500), ranks=[{"from": 0, "to": size // 1100 - 1}])
        one.run(one.collective(world, "all_reduce"), MS, MS, q=1)


def _bulk(folder: Path, size: int) -> None:
    from support.journals import bulk

    bulk(folder, size // 75, world_size=8)


def _ranges(n: int) -> str:
    ranges = ",".join(f'{{"from":{i},"to":{i + 2000000},"step":1}}' for i in range(40))
    return f'{{"def":"group","n":{n},"name":"g{n}","ranks":[{ranges}],"size":1048576}}'


KINDS: dict[str, Callable[[Path, int], None]] = {
    "operations": _bulk,
    "journals": _many_journals,
    "begins": _segment(lambda n: f'{{"b":{n},"t":{n},"s":1,"q":{n}}}'),
    "keys": _segment(lambda n: f'{{"b":{n},"t":{n},"s":1,"k":"{n}{"k" * 60_000}"}}'),
    "overrides": _segment(
        lambda n: f'{{"b":{n},"t":{n},"s":1,"a":{{"name":"x{n}","args":{{"a":[{n},[{n}]]}}}}}}'
    ),
    "samples": _segment(lambda n: f'{{"at":{n},"h":{n % 60000},"k":1}}'),
    "deep": _segment(lambda n: '{"b":1,"t":1,"s":1,"a":' + "[" * 50_000 + "]" * 50_000 + "}"),
    "calls": _definitions(lambda n: f'{{"def":"call","n":{n},"op":"o{n}","group":1,"stack":1}}'),
    "shapes": _definitions(
        lambda n: f'{{"def":"call","n":{n},"op":"o","group":1,"shapes":[[[{n},2],[3]]]}}'
    ),
    "strings": _definitions(lambda n: f'{{"def":"string","n":{n},"v":"{n}"}}'),
    "long strings": _definitions(lambda n: f'{{"def":"string","n":{n},"v":"{"s" * 7_000_000}"}}'),
    "stacks": _definitions(lambda n: f'{{"def":"stack","n":{n},"frames":[[1,{n % 9999},2]]}}'),
    "groups": _definitions(lambda n: f'{{"def":"group","n":{n},"name":"g{n}","size":8,"rank":0}}'),
    "ranges": _definitions(_ranges),
    "stores": _definitions(
        lambda n: f'{{"def":"store","n":{n},"type":"PrefixStore","name":"s{n}","prefix":["{n}"]}}'
    ),
    "failures": _definitions(
        lambda n: f'{{"def":"failure","t":{n},"type":"E{n}","text":"{"x" * 500}","h":0}}'
    ),
    "workers": _definitions(
        lambda n: f'{{"def":"worker","t":{n},"pid":{n},"event":"failed","rank":{n % 30000}}}'
    ),
    "notes": _definitions(lambda n: f'{{"def":"note","t":{n},"text":"note {n}"}}'),
    "processes": _definitions(
        lambda n: f'{{"def":"process","format":2,"process":"{n:032x}","pid":{n % 30000},"job":"j"}}'
    ),
}
"""By name: fills a folder with about so many bytes."""

COMMANDS: dict[str, tuple[str, ...]] = {
    "view": ("view", "--last", "99999"), "diagnose": ("diagnose",),
    "stats": ("stats",), "jobs": ("jobs",), "top": ("top", "--once"),
    "reduce": ("reduce", "-o", "{out}/states"), "collect": ("collect", "-o", "{out}/all.tar.gz"),
    "jsonl": ("export", "--format", "jsonl", "-o", "{out}/jsonl"),
    "perfetto": ("export", "--format", "perfetto", "-o", "{out}/perfetto"),
    "html": ("export", "--format", "html", "-o", "{out}/html"),
    "parquet": ("export", "--format", "parquet", "-o", "{out}/parquet"),
    "otlp": ("export", "--format", "otlp", "-o", "{out}/otlp"),
}  # fmt: skip


def measured(arguments: tuple[str, ...], folder: Path) -> tuple[float, int | None, float, str]:
    """Peak of resident memory in MB, exit code (None: too long), seconds, end of stderr."""
    with tempfile.TemporaryDirectory() as out, tempfile.TemporaryFile() as said:
        words = [word.format(out=out) for word in arguments]
        begun = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "disttrace", *words, str(folder)], stdout=subprocess.DEVNULL,
            stderr=said, start_new_session=True,
        )  # fmt: skip
        status, usage = None, None
        while status is None and time.monotonic() - begun < SECONDS:
            pid, found, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                status = found
            else:
                time.sleep(0.05)
        if status is None:
            os.killpg(process.pid, signal.SIGKILL)
            _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0 if status is None else os.waitstatus_to_exitcode(status)
        said.seek(0)
        text = said.read()[-2000:].decode(errors="replace")
        code = None if status is None else process.returncode
        assert usage is not None
        return usage.ru_maxrss / 1024, code, time.monotonic() - begun, text


def main() -> int:
    """A line per kind and command."""
    chosen = options(__doc__, mb=50.0, limit_mb=1536.0, kind=list(KINDS), command=list(COMMANDS))
    worst: dict[str, float] = {}
    failed = 0
    for kind in chosen.kind:
        folder = Path(tempfile.mkdtemp())
        try:
            KINDS[kind](folder, int(chosen.mb * 2**20))
            for name in chosen.command:
                peak, code, took, text = measured(COMMANDS[name], folder)
                bad = code not in CODES or peak > chosen.limit_mb or "Traceback" in text
                failed += bad
                worst[name] = max(worst.get(name, 0.0), peak)
                how = "too long" if code is None else f"code {code}"
                mark = "FAILED " if bad else ""
                print(f"{mark}{kind}, {name}: {peak:,.0f} MB, {how}, {took:.0f} s", flush=True)
                if bad and text:
                    print(text, flush=True)
        finally:
            shutil.rmtree(folder)
    print(json.dumps({name: round(peak) for name, peak in worst.items()}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
