"""Runs ranks that are at work and ranks that are stuck while others wait; judges what is reported.

python tests/reliability/working.py                    all 48, two at a time
python tests/reliability/working.py --match stuck --jobs 4
python tests/reliability/working.py --limits            when a time limit strikes, to the second
python tests/reliability/working.py --load 20           beside so many processes that compute

Rank 0 does what its program says, rank 1 waits for it in `all_reduce`. Right is `waiting:` and the
state `moves` of one at work, and `stalled:` and no `moves` of one that is stuck. A framework that
is not installed is passed over. With `--limits` a wait ends by its limit, and the program prints
when.
"""

from __future__ import annotations

import argparse
import contextlib
import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests"))

from support.processes import clean_environ, kill_family  # noqa: E402

STALL_S, PATIENCE_S = 10.0, 150.0
LATER_S = {"gil held, computing": 90.0}
"""Once one has been reported, until it is judged: it might be a long call."""
HEAD = """
import datetime, os, sys, time, threading, tempfile
import torch, torch.distributed as dist
RANK, FOLDER, URL = int(os.environ["RANK"]), sys.argv[1], sys.argv[2]
def start(seconds=1800):
    dist.init_process_group("gloo", store=dist.FileStore(FOLDER + "/store", 2), rank=RANK,
                            world_size=2, timeout=datetime.timedelta(seconds=seconds))
    dist.barrier()
"""
TAIL = """
if __name__ == "__main__":
    start()
    if RANK == 0:
        work()
    dist.all_reduce(torch.ones(1))
"""
WORK = {
    "map": """
def tokenize(line):
    found = []
    for word in line.split():
        found.append(hash(word) % 50_000)
    return found
def work():
    while True:
        [tokenize("the quick brown fox jumps over " * 50) for _ in range(100)]
""",
    "regular expressions": """
import re
WORD = re.compile(r"\\w+|[^\\w\\s]")
def work():
    kept = {}
    for number in range(10**9):
        for word in WORD.findall("the quick, brown fox; jumps over. " * 20):
            kept[word] = number
""",
    "save": """
def work():
    state = {str(n): torch.ones(4 << 20) for n in range(8)}
    while True:
        torch.save(state, FOLDER + "/model.pt")
""",
    "save slowly": """
def work():
    with open(FOLDER + "/model.bin", "wb") as file:
        while True:
            file.write(bytes(256 << 10))
            file.flush()
            os.fsync(file.fileno())
            file.seek(0)
            time.sleep(0.3)
""",
    "compile": """
def work():
    for n in range(1000):
        torch._dynamo.reset()
        layers = [torch.nn.Linear(8 + n, 8 + n) for _ in range(6)]
        torch.compile(torch.nn.Sequential(*layers, torch.nn.GELU()))(torch.ones(4, 8 + n))
""",
    "evaluate": """
def work():
    model = torch.nn.TransformerEncoderLayer(256, 4, batch_first=True).eval()
    with torch.no_grad():
        while True:
            loss = model(torch.ones(8, 128, 256)).sum()
            assert loss == loss
""",
    "download": """
import urllib.request
def work():
    data = urllib.request.urlopen(URL).read()
""",
    "download pieces": """
import urllib.request
def work():
    answer = urllib.request.urlopen(URL)
    while piece := answer.read(4096):
        pass
""",
    "loader": """
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 10**6
    def __getitem__(self, index):
        until = time.monotonic() + 3
        while time.monotonic() < until:
            sum(range(1000))
        return index
def work():
    for _ in torch.utils.data.DataLoader(Slow(), batch_size=4, num_workers=2):
        pass
""",
    "subprocess": """
import subprocess
def work():
    subprocess.run([sys.executable, "-c", "while True: sum(range(1000))"])
""",
    "many subprocesses": """
import subprocess
def work():
    while True:
        subprocess.run([sys.executable, "-c", "for _ in range(3000): sum(range(1000))"])
""",
    "pool": """
import multiprocessing
def square(n):
    for _ in range(2000):
        sum(range(1000))
    return n
def work():
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(square, range(10**5))
""",
    "compress": """
import gzip
def work():
    with gzip.open(FOLDER + "/data.gz", "wb") as file:
        while True:
            file.write(os.urandom(1 << 20))
""",
    "sort": """
import random
def work():
    while True:
        found = sorted([random.random() for _ in range(10**6)])
""",
    "pickle": """
import pickle
def work():
    big = [{"a": n, "b": str(n)} for n in range(300_000)]
    while True:
        with open(FOLDER + "/big", "wb") as file:
            pickle.dump(big, file)
""",
    "database": """
import sqlite3
def work():
    base = sqlite3.connect(FOLDER + "/base")
    base.execute("create table t (a, b)")
    while True:
        base.executemany("insert into t values (?, ?)", [(n, "x" * 50) for n in range(5000)])
        base.commit()
""",
    "copy": """
import shutil
def work():
    with open(FOLDER + "/from", "wb") as file:
        file.write(os.urandom(64 << 20))
    while True:
        shutil.copyfile(FOLDER + "/from", FOLDER + "/to")
""",
    "checksum": """
import hashlib
def work():
    with open(FOLDER + "/from", "wb") as file:
        file.write(os.urandom(32 << 20))
    while True:
        with open(FOLDER + "/from", "rb") as file:
            hashlib.sha256(file.read())
""",
    "dcp": """
import torch.distributed.checkpoint as dcp
def work():
    state = {str(n): torch.ones(1 << 20) for n in range(16)}
    for n in range(10**6):
        dcp.save(state, checkpoint_id=f"{FOLDER}/dcp{n % 2}", no_dist=True)
""",
    "executor": """
from concurrent.futures import ThreadPoolExecutor
def count():
    while True:
        sum(n * n for n in range(1000))
def work():
    with ThreadPoolExecutor(1) as pool:
        pool.submit(count).result()
""",
    "thread, looked at": """
def count():
    while True:
        sum(n * n for n in range(1000))
def work():
    one = threading.Thread(target=count, daemon=True)
    one.start()
    while one.is_alive():
        time.sleep(0.01)
""",
    "gil held": """
def work():
    while True:
        sum(range(10**9))
""",
    "accelerate": """
import accelerate
def work():
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    state = accelerate.PartialState(cpu=True)
    with state.main_process_first():
        while True:
            {n: str(n) for n in range(10_000)}
""",
    "lightning": """
import lightning
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(512, 512)
    def validation_step(self, batch, index):
        for _ in range(200):
            batch = self.layer(batch)
    def training_step(self, batch, index):
        return self.layer(batch).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
def work():
    data = torch.utils.data.DataLoader(torch.ones(10**5, 512), batch_size=64)
    lightning.Trainer(accelerator="cpu", devices=1, num_sanity_val_steps=-1, logger=False,
                      enable_checkpointing=False, max_epochs=1).fit(Model(), data, data)
""",
    "transformers": """
import transformers
def work():
    model = transformers.BertModel(transformers.BertConfig(num_hidden_layers=8))
    while True:
        model.save_pretrained(FOLDER + "/bert")
""",
}
STUCK = {
    "lock": "def work():\n    lock = threading.Lock()\n    lock.acquire()\n    lock.acquire()\n",
    "recv": """
import socket
def work():
    one, other = socket.socketpair()
    one.recv(1)
""",
    "silent server": """
import urllib.request
def work():
    urllib.request.urlopen(URL + "silent").read()
""",
    "accept": """
import socket
def work():
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.accept()
""",
    "select": """
import select, socket
def work():
    one, other = socket.socketpair()
    select.select([one], [], [])
""",
    "fifo open": 'def work():\n    os.mkfifo(FOLDER + "/fifo")\n    open(FOLDER + "/fifo")\n',
    "fifo read": """
def work():
    os.mkfifo(FOLDER + "/fifo")
    fd = os.open(FOLDER + "/fifo", os.O_RDWR)
    os.read(fd, 1)
""",
    "stopped": "import signal\ndef work():\n    os.kill(os.getpid(), signal.SIGSTOP)\n",
    "gil held": "import ctypes\ndef work():\n    ctypes.PyDLL(None).sleep(600)\n",
    "gil held, computing": 'import re\ndef work():\n    re.match(r"(a+)+$", "a" * 60 + "b")\n',
    "turns": "def work():\n    while True: pass\n",
    "turns, looking": """
def work():
    one = threading.Event()
    while not one.is_set():
        pass
""",
    "turns, with pauses": """
import queue
def work():
    one = queue.Queue()
    while not one.empty() is False:
        time.sleep(0.001)
""",
    "queue": "import queue\ndef work():\n    queue.Queue().get()\n",
    "queue of processes": """
import multiprocessing
def work():
    multiprocessing.get_context("spawn").Queue().get()
""",
    "condition": """
def work():
    with (one := threading.Condition()):
        one.wait()
""",
    "event, again and again": """
def work():
    one = threading.Event()
    while not one.wait(1):
        pass
""",
    "file lock": """
import fcntl
def work():
    first = open(FOLDER + "/lock", "w")
    if (child := os.fork()) == 0:
        held = open(FOLDER + "/lock")  # a lock ends with its file
        fcntl.flock(held, fcntl.LOCK_EX)
        time.sleep(600)
    time.sleep(0.5)
    fcntl.flock(first, fcntl.LOCK_EX)
""",
    "child": """
import subprocess
def work():
    subprocess.run(["sleep", "600"])
""",
    "loader": """
class Stuck(torch.utils.data.Dataset):
    def __len__(self):
        return 100
    def __getitem__(self, index):
        threading.Event().wait()
def work():
    for _ in torch.utils.data.DataLoader(Stuck(), num_workers=2):
        pass
""",
    "poll": """
def work():
    while not os.path.exists(FOLDER + "/ready"):
        time.sleep(0.25)
""",
    "thread": """
def work():
    thread = threading.Thread(target=threading.Event().wait, daemon=True)
    thread.start()
    thread.join()
""",
}
MADE = "start()\ngroup = dist.new_group(timeout=datetime.timedelta(seconds=25))\n"
LIMITS = {
    **{
        f"{name}, {seconds} s": f"start({seconds})\nif RANK: time.sleep(90)\nbegun()\n{call}\n"
        for name, seconds, call in (
            ("all_reduce", 22, "dist.all_reduce(torch.ones(4))"),
            ("barrier", 27, "dist.barrier()"),
            ("broadcast", 31, "dist.broadcast(torch.ones(4), 1)"),
            ("all_gather", 25, "dist.all_gather([torch.ones(4)] * 2, torch.ones(4))"),
            ("reduce", 23, "dist.reduce(torch.ones(4), 0)"),
            ("gather", 24, "dist.gather(torch.ones(4), [torch.ones(4)] * 2)"),
            ("scatter", 26, "dist.scatter(torch.ones(4), None, 1)"),
            ("all_to_all_single", 28, "dist.all_to_all_single(torch.ones(4), torch.ones(4))"),
            ("recv", 29, "dist.recv(torch.ones(4), 1)"),
            ("objects", 30, "dist.all_gather_object([None] * 2, 4)"),
            ("asynchronous", 21, "dist.all_reduce(torch.ones(4), async_op=True).wait()"),
            (
                "asynchronous, later",
                33,
                "work = dist.all_reduce(torch.ones(4), async_op=True); time.sleep(4); work.wait()",
            ),
        )
    },
    "a group's own": f"""{MADE}
if RANK: time.sleep(90)
begun()
dist.all_reduce(torch.ones(4), group=group)
""",
    "changed": """
start(900)
dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=24))
if RANK: time.sleep(90)
begun()
dist.all_reduce(torch.ones(4))
""",
    "allowed": """
import disttrace
start(12)
disttrace.allow(0.25)
if RANK: time.sleep(90)
begun()
dist.all_reduce(torch.ones(4))
""",
    "monitored_barrier": """
start()
if RANK: time.sleep(90)
begun()
dist.monitored_barrier(timeout=datetime.timedelta(seconds=23))
""",
    "store.wait": """
start()
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
if RANK: time.sleep(90)
begun()
store.wait(["key"], datetime.timedelta(seconds=22))
""",
    "store.get": """
start()
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
store.set_timeout(datetime.timedelta(seconds=25))
if RANK: time.sleep(90)
begun()
store.get("key")
""",
    "a prefix store": """
start()
base = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
store = dist.PrefixStore("a", base)
store.set_timeout(datetime.timedelta(seconds=24))
if RANK: time.sleep(90)
begun()
store.get("key")
""",
    "workers of a store": """
if RANK: time.sleep(90)
begun()
dist.TCPStore("127.0.0.1", 0, 2, True, datetime.timedelta(seconds=26))
""",
}
ENDS = """
def begun():
    import atexit
    atexit.register(lambda: print("ended at", time.time(), flush=True))
"""


class _Slow(http.server.BaseHTTPRequestHandler):
    """Sends 20 kB in a second for ever, or nothing."""

    def do_GET(self) -> None:
        with contextlib.suppress(OSError):
            while self.path.endswith("silent"):
                time.sleep(1)
            self.send_response(200)
            self.end_headers()
            while True:
                self.wfile.write(bytes(4096))
                time.sleep(0.2)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextlib.contextmanager
def server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Slow) as one:
        one.daemon_threads = True
        threading.Thread(target=one.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{one.server_port}/"
        one.shutdown()


def said(text: str) -> list[dict[str, Any]]:
    """The objects on stderr."""
    lines = (line for line in text.splitlines() if line.startswith('{"disttrace"'))
    return [json.loads(line) for line in lines]


@contextlib.contextmanager
def ranks(name: str, code: str, url: str) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """Both of them, with a folder; ended with all that they started."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        program = Path(folder) / f"p_{name.replace(' ', '_').replace(',', '')}.py"
        program.write_text(code)
        started = []
        for rank in (0, 1):
            environ = clean_environ(
                DISTTRACE="1", DISTTRACE_DIR=f"{folder}/traced", DISTTRACE_LOG="json",
                DISTTRACE_STALL=str(STALL_S), DISTTRACE_JOB="working", OMP_NUM_THREADS="1",
                RANK=str(rank), WORLD_SIZE="2", PYTHONPATH=os.environ.get("PYTHONPATH", ""),
            )  # fmt: skip
            with (
                open(f"{folder}/out{rank}", "wb") as out,
                open(f"{folder}/err{rank}", "wb") as err,
            ):
                command = [sys.executable, str(program), folder, url]
                started.append(
                    subprocess.Popen(command, env=environ, stdout=out, stderr=err,
                                     stdin=subprocess.DEVNULL, start_new_session=True)
                )  # fmt: skip
        try:
            yield Path(folder), started[0]
        finally:
            for one in started:
                kill_family(one)


def heard(folder: Path, *kinds: str) -> list[dict[str, Any]]:
    """What both have said so far of these kinds, by time."""
    texts = [(folder / f"err{rank}").read_text(errors="replace") for rank in (0, 1)]
    found = [one for text in texts for one in said(text) if one["kind"] in kinds]
    return sorted(found, key=lambda one: one["at"])


def judged(name: str, code: str, url: str, *, works: bool) -> str:
    """Empty where all is right."""
    with ranks(name, HEAD + code + TAIL, url) as (folder, process):
        until = time.monotonic() + PATIENCE_S
        while not (found := heard(folder, "waiting", "stalled")):
            error = (folder / "err0").read_text(errors="replace")
            if "ModuleNotFoundError" in error:
                return "not installed"
            if process.poll() is not None or time.monotonic() > until:
                return f"nothing was said: {error[-300:]}"
            time.sleep(0.2)
        time.sleep(LATER_S.get(name, 2 * STALL_S))  # it stays so
        found = heard(folder, "waiting", "stalled")
    kinds = [one["kind"] for one in found]
    did = [one["state"] for one in found[-1]["finding"]["activity"]]
    right = kinds[-1] == ("waiting" if works else "stalled") and (did == ["moves"]) == works
    if works and "stalled" in kinds:
        right = False
    if right and did != ["unknown"]:
        return ""
    return f"{kinds}, {did}: {found[-1]['summary']}"


def struck(name: str, code: str, url: str) -> str:
    """Empty where the limit struck when it was told to, to the second."""
    with ranks(name, HEAD + ENDS + code, url) as (folder, process):
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            return "it did not end"
        found = heard(folder, "starting", "waiting", "stalled")
        words = (folder / "out0").read_text().split()
        if not found or "ended" not in words:
            return f"{len(found)} said; {(folder / 'err0').read_text(errors='replace')[-300:]}"
        ended = float(words[-1])
    told = [one["finding"]["deadline"] for one in found]
    if None in told:
        return f"no deadline: {found[0]['summary']}"
    off = max(abs(one["at"] - ended) for one in told)
    return "" if off < 1 else f"{off:.1f} s off ({told[0]['whose']}, {told[0]['limit_s']:g} s)"


def main() -> int:
    """Run them, print a line for each that is wrong, and how many were right."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--match", default="")
    parser.add_argument("--limits", action="store_true")
    parser.add_argument("--load", type=int, default=0)
    asked = parser.parse_args()
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(asked.load)]
    rows = [("limit", name, code) for name, code in LIMITS.items()] if asked.limits else [
        *(("work", name, code) for name, code in WORK.items()),
        *(("stuck", name, code) for name, code in STUCK.items()),
    ]  # fmt: skip
    rows = [row for row in rows if asked.match in f"{row[0]} {row[1]}"]
    right, out = 0, 0

    def one(row: tuple[str, str, str]) -> tuple[tuple[str, str, str], str]:
        what, name, code = row
        run = struck if what == "limit" else judged
        return row, run(name, code, url, **({} if what == "limit" else {"works": what == "work"}))

    try:
        with server() as url, ThreadPoolExecutor(asked.jobs) as pool:
            for (what, name, _), wrong in pool.map(one, rows):
                out += wrong == "not installed"
                right += not wrong
                print(f"{'WRONG' if wrong else 'right'}  {what} {name}  {wrong}", flush=True)
    finally:
        for process in busy:
            process.kill()
    print(f"{right} of {len(rows) - out} right, {out} passed over")
    return 0 if right == len(rows) - out else 1


if __name__ == "__main__":
    sys.exit(main())
