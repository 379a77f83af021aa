"""What companions send each other: at which store they meet, what is sent and believed, and that of
many hosts those that stand out are enough.
"""

from __future__ import annotations

import functools
import os
import random
import re
import zlib
from collections.abc import Callable, Collection
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from benchmarks.viewer.jobs import Shape, make
from disttrace_viewer.analysis.liveness import Observation
from disttrace_viewer.companion import reports, summary
from disttrace_viewer.companion.endpoint import MOST_SUMMARY, PeerReply
from disttrace_viewer.companion.reading import addresses, beside, of_job, unknown_ranks
from disttrace_viewer.companion.reports import Received, hidden, joined, packed, parted, unpacked
from disttrace_viewer.companion.verdict import HERE, MOST_HOSTS, Judge, _going_on, current
from disttrace_viewer.diagnosis.positions import places
from disttrace_viewer.diagnosis.report import report
from disttrace_viewer.diagnosis.verdict import Verdict
from disttrace_viewer.diagnosis.verdict import verdict as judge_states
from disttrace_viewer.states.building import trace_of
from disttrace_viewer.states.folder import of_journals
from disttrace_viewer.states.reduce import WINDOW
from disttrace_viewer.states.state import Merged, State, merge
from disttrace_viewer.wording.sentences import tidy
from reliability import hosts_in_virtual_time as virtual
from support.journals import MS, T0, UNIX_NS, Journal, S
from support.scenes import all_gone, nobody_knows, steps, verdict


@pytest.mark.parametrize("agent_pid", [1, 9])
def test_all_hosts_ask_the_same_store_first(tmp_path: Path, agent_pid: int) -> None:
    """Whichever journal is read first, and also where no group is there yet; not a dead one's."""
    agent = Journal(tmp_path / "host", agent_pid, role="agent")
    worker = Journal(tmp_path / "host", 5, rank=0, world_size=3)
    alone = Journal(tmp_path / "alone", 7, rank=1, world_size=3)
    dead = Journal(tmp_path / "host", 3, rank=2, world_size=3)
    for journal, port in ((agent, 29500), (worker, 1000), (alone, 44031), (dead, 2000)):
        store = journal.tcp_store(port, host="node1")
        journal.run(journal.call("store.get", kind="store", store=store), 1, 2)
    worker.group(worker.tcp_store(44031, host="node1"), default=True, size=3)
    dead.group(dead.tcp_store(2000, host="node1"), default=True, size=3)

    def asked(host: str) -> list[int]:
        merged = of_journals(of_job(str(tmp_path / host), "job"), window=None)
        alive = [p for p in trace_of(merged)[0].processes if p.pid != 3]
        return [port for _, port in addresses(merged, alive)]

    assert asked("host")[0] == 44031
    assert set(asked("host")) == {44031, 29500, 1000}
    assert asked("alone") == [44031]


@pytest.mark.parametrize("in_file", [False, True])
def test_who_answers_nobody_is_read_beside_us(tmp_path: Path, *, in_file: bool) -> None:
    """Bare processes draw a job each; those of another store are strangers. Where they meet in a
    file none can be asked: each said of the other that it has no journal.
    """
    for rank in range(3):
        journal = Journal(tmp_path, job=f"job_{rank}", rank=rank, world_size=2, pid=700 + rank)
        if in_file:
            path = "/shared/rdzv" if rank < 2 else "/shared/other"
            store = journal.numbered("store", name=f"file://{path}", type="FileStore", path=path)
            make = journal.call("FileStore", kind="constructor", store=store)
            journal.run(make, t=MS, d=MS)
        else:
            call = journal.collective(journal.world(29500 if rank < 2 else 29600))
            journal.run(call, t=MS, d=MS, q=1)
        os.utime(journal.definitions, ns=(UNIX_NS + S, UNIX_NS + S))
    ours = of_journals([str(p) for p in tmp_path.glob("job_0-*")])
    (found,) = beside(str(tmp_path), "job_0", ours, ())
    assert found.process["pid"] == 701
    assert beside(str(tmp_path), "job_0", ours, (found,)) == []
    theirs = next(tmp_path.glob("job_1-*.defs.jsonl"))
    theirs.rename(tmp_path / "elsewhere")
    theirs.symlink_to(tmp_path / "elsewhere")
    assert beside(str(tmp_path), "job_0", ours, ()) == []  # nobody's links are followed
    (tmp_path / "elsewhere").replace(theirs)
    os.utime(theirs, ns=(UNIX_NS - S, UNIX_NS - S))
    assert beside(str(tmp_path), "job_0", ours, ()) == []  # it is older: another job's


def test_clocks_of_several_hosts_are_set_right_by_what_is_told(tmp_path: Path) -> None:
    """As where all journals lie in one folder: by the exchanges that both hosts have made."""
    steps(tmp_path, 2, 3, apart_ns=20 * S)
    both = ([str(path) for path in tmp_path.glob(f"*-{pid}-*")] for pid in (4000, 4001))
    ours, theirs = map(of_journals, both)
    told = unpacked([answer(packed(theirs))], ours).states
    clocks = trace_of(merge([ours, *told]))[0].clocks
    assert clocks == trace_of(merge([ours, theirs]))[0].clocks
    assert len(clocks) == 2


def test_who_was_killed_before_we_began_is_not_judged_with_us(tmp_path: Path) -> None:
    """All began again at the same address, and a companion of the first run still answers."""
    found = {}
    for run, rank in ((0, 1), (1, 0), (1, 1)):
        folder = tmp_path / f"{run}{rank}"
        journal = Journal(
            folder, rank=rank, world_size=2, pid=700 + 10 * run + rank, job=f"job_{run}{rank}",
            t0=T0 + run * 10 * S,
        )  # fmt: skip
        call = journal.collective(journal.world())
        journal.run(call, t=MS, d=MS, q=1)
        for path in folder.iterdir():
            os.utime(path, ns=(UNIX_NS + (9 + 10 * run) * S,) * 2)
        found[run, rank] = of_journals([str(folder)])
    ours = found[1, 0]
    answers = [
        answer(packed(found[run, 1], lambda _, run=run: Observation(run == 1)), str(run))  # type: ignore[misc]
        for run in (0, 1)
    ]
    told = unpacked(answers, ours)
    assert len(told.states) == 2
    jobs = merge([ours, told.merged]).survey.jobs
    chosen = current(jobs, "job_10", told)
    names = {name for job in jobs if job.id in chosen for name in job.names}
    assert names == {"job_10", hidden("job_11")}


SECRETS = ("hunter2", "/home/me", "tenant", "the shard is gone", "loader-thread")


def host(tmp_path: Path, rank: int = 1) -> Merged:
    """The states of a process that holds what is nobody's business."""
    journal = Journal(
        tmp_path, rank=rank, world_size=3, pid=700 + rank,
        keys={"argv": ["train.py", "--token", "hunter2"], "cwd": "/home/me/project"},
    )  # fmt: skip
    world = journal.world(29500)
    journal.group(desc="undefined", ranks=[1, 2])
    stack = journal.stack(("/home/me/project/train.py", 10, "main"))
    within = journal.stack(
        ("/usr/lib/python3.11/threading.py", 327, "wait"),
        ("/home/me/lib/python3.11/site-packages/tenant/a.py", 5, "call"),
        ("/home/me/project/train.py", 9, "f"),
    )
    call = journal.collective(world, stack=stack, args={"name": "tenant", "size": 2})
    journal.run(call, t=MS, d=MS, q=1)
    store = journal.tcp_store(29500)
    get = journal.call("store.get", kind="store", store=store, stack=within)
    number = journal.begin(get, t=3 * MS, k="tenant/7/ready")
    assert number
    text = "the shard is gone"
    journal.define("failure", t=4 * MS, type="ValueError", text=text, stack=stack, causes=[])
    return of_journals([str(path) for path in tmp_path.iterdir()])


def answer(data: bytes, sender: str = "b") -> PeerReply:
    return PeerReply(sender, data)


NOBODY = Merged({})


def test_numbers_and_places_are_sent(tmp_path: Path) -> None:
    """Which operation, where in the code, and how it ended; nothing that anybody wrote."""
    data = packed(host(tmp_path))
    text = zlib.decompress(data)
    assert not [secret for secret in SECRETS if secret.encode() in text]
    assert b"train.py" in text
    assert b"ValueError" in text
    (state,) = unpacked([answer(data)], NOBODY).states
    assert state.process["pid"] == 701
    assert [row[6] for row in state.ops][:1] == [1]
    (within,) = (frames for frames in state.numbered["stack"].values() if len(frames) == 3)
    assert [file for file, _, _ in within] == [
        "/lib/python3.11/threading.py", "/site-packages/a.py", "train.py",
    ]  # fmt: skip
    assert {"size": 2} in [call.get("args") for call in state.numbered["call"].values()]
    assert "undefined" in [one.get("desc") for one in state.numbered["group"].values()]


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("the shard of hunter2 is gone", ""),
        ("[gloo/pair.cc:5] Connection closed by peer [10.0.0.7]:9", "Connection closed"),
        ("hunter2: Operation timed out!", "timed out, Operation timed out!"),
    ],
)
def test_of_texts_torchs_own_words_are_sent(tmp_path: Path, text: str, sent: str) -> None:
    """By which the rules tell an echo from a cause."""
    journal = Journal(tmp_path, rank=1, world_size=2, pid=701)
    journal.fail(MS, "RuntimeError", text)
    merged = of_journals([str(path) for path in tmp_path.glob("*.jsonl")])
    (state,) = unpacked([answer(packed(merged))], NOBODY).states
    (failure,) = state.listed["failure"]
    assert tidy(f"RuntimeError: {failure['text']}") == f"RuntimeError{': ' * bool(sent)}{sent}"
    assert tidy(f"E: ~{0:016}; ~{1:016}: {sent}; ~{2:016}") == f"E; {sent}"
    assert "hunter2" not in failure["text"]
    Journal(tmp_path / "ours", rank=0, world_size=2, pid=700).fail(MS, "RuntimeError", text)
    ours = of_journals([str(path) for path in (tmp_path / "ours").iterdir()])
    (known,) = unpacked([answer(packed(merged))], ours).states
    assert known.listed["failure"][0]["text"] == text


def test_who_knows_the_words_reads_them(tmp_path: Path) -> None:
    """Keys and files of our own journals are recognised in what strangers may be told."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    ours, theirs = host(tmp_path / "a", 0), host(tmp_path / "b", 1)
    (state,) = unpacked([answer(packed(theirs))], ours).states
    assert [row[7] for row in state.ops if len(row) > 7 and row[7]] == ["tenant/7/ready"]
    frames = [frame for frames in state.numbered["stack"].values() for frame in frames]
    assert {file for file, _, _ in frames if "train" in file} == {"/home/me/project/train.py"}


def test_what_two_tell_of_one_process_is_not_believed(tmp_path: Path) -> None:
    """Unless all have the secret: then a companion was replaced. No kernel speaks of others', and
    of our own processes we have the journals.
    """
    ours = host(tmp_path)
    data = packed(ours)
    assert unpacked([answer(data)], ours).states == ()
    pair = [answer(data, "b"), answer(data, "liar")]
    assert unpacked(pair, NOBODY).states == ()
    assert len(unpacked(pair, NOBODY, proved=True).states) == 1
    told = orjson.loads(zlib.decompress(data))
    told["seen"] = {"somebody else": [False, -9, None]}
    assert unpacked([answer(zlib.compress(orjson.dumps(told)))], NOBODY).seen == {}


def test_what_hosts_send_is_bounded_in_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As text, which a few kilobytes unpack to."""
    data = packed(host(tmp_path))
    size = len(zlib.decompress(data))
    monkeypatch.setattr(reports, "MOST_TEXT_OF_ALL", 3 * size)
    bombs = [answer(zlib.compress(bytes(2 * size)), f"{n}") for n in range(9)]
    assert len(unpacked([answer(data), *bombs], NOBODY).states) == 1
    whole = [answer(zlib.compress(b" " * 2 * size), "bomb"), answer(data)]
    assert len(unpacked(whole, NOBODY).states) == 1


def test_what_is_handed_on_is_the_same() -> None:
    answers, summaries = [answer(b"one"), answer(b"two", "c")], [answer(b"three", "d")]
    assert parted(joined(answers, summaries)) == (answers, summaries)
    for data in (b"", b"garbage", zlib.compress(b"[]"), zlib.compress(b'[[["a"]],[]]')):
        assert parted(data) == ([], [])


@pytest.mark.parametrize(
    "data",
    [
        b"garbage", zlib.compress(b"[]"), zlib.compress(b'{"states": {}, "seen": []}'),
        zlib.compress(b"[" * 100_000), zlib.compress(bytes(80 << 20)),
    ],
    ids=["bytes", "list", "tables", "deep", "bomb"],
)  # fmt: skip
def test_what_is_no_answer_costs_its_sender_only(tmp_path: Path, data: bytes) -> None:
    """The others are heard."""
    told = unpacked([answer(data, "liar"), answer(packed(host(tmp_path)))], NOBODY)
    assert [*told.senders.values()] == ["b"]


def test_what_is_believed_can_be_judged(tmp_path: Path) -> None:
    """Whatever stands in place of any value: a state is whole, or it is left out."""
    merged = host(tmp_path)
    (state,) = orjson.loads(zlib.decompress(packed(merged)))["states"]
    draw = random.Random(7)
    odd: list[Any] = [None, -1, 1 << 70, 1.5, "x" * 5_000, "\x1b[31m", [], {}, [[]], {"a": 1}, True]
    refused = 0
    for _ in range(400):
        changed = orjson.loads(orjson.dumps(state))
        where: Any = changed
        for _ in range(draw.randint(1, 5)):
            keys = [*where] if isinstance(where, dict) else [*range(len(where))]
            if not keys:
                break
            key = draw.choice(keys)
            if not isinstance(where[key], (dict, list)) or draw.random() < 0.3:
                where[key] = draw.choice(odd)
                break
            where = where[key]
        try:
            text = orjson.dumps({"states": [changed], "seen": {}})
        except TypeError:
            continue  # no JSON holds that number
        told = unpacked([answer(zlib.compress(text))], NOBODY)
        refused += not told.states
        if told.states:
            assert b"\x1b" not in orjson.dumps(told.states[0], option=orjson.OPT_NON_STR_KEYS)
            trace_of(Merged({one.id: one for one in told.states}))
    assert 50 < refused < 390


@pytest.mark.parametrize(
    ("ended", "said"),
    [("nobody", "Ranks 0, 1 communicate again."), ("well", "Ranks 0, 1 went on and ended."),
     ("badly", ""), ("beside", "")],
)  # fmt: skip
def test_who_goes_on_when_a_stall_is_over(tmp_path: Path, ended: str, said: str) -> None:
    """Not the agent that started them, nor who was there and waited in nothing of that."""
    agent = Journal(tmp_path, pid=3999, role="agent")
    for journal, _ in steps(tmp_path, 2, parent=agent.process):
        if ended == "badly" and journal.rank:
            journal.fail(S, "ValueError", "bad batch")
        elif ended == "well":
            journal.leave(S)
    lives = ended in ("nobody", "beside")
    case, _ = verdict(tmp_path, look=nobody_knows if lives else all_gone)
    ranks = [p for p in case.evidence.trace.processes if p.rank is not None]
    alive = {p.index for p in ranks} if lives else set()
    beside = {p.id for p in case.evidence.trace.processes} if ended == "beside" else set()
    assert _going_on(case, alive, set(), beside) == said


# -- of very many hosts those that stand out send states, and the verdict is that on all


ALIVE = Observation(alive=True, code=None, state="S")
Hosts = dict[str, Merged]


def hosts_of(folder: Path, **changes: Any) -> Hosts:
    """The states of a job of 64 ranks on 8 hosts, by host: tensor, pipeline and data parallel."""
    make(folder, replace(Shape(2, 4, 8, 3, fault="tp", hosts_apart=False), **changes))
    found: dict[str, dict[str, State]] = {}
    for one, state in of_journals([str(folder)], window=WINDOW).states.items():
        found.setdefault(state.process["host"], {})[one] = state
    return {host: Merged(states) for host, states in sorted(found.items())}


def alive(_process: object) -> Observation:
    return ALIVE


def received(hosts: Hosts, most: int) -> tuple[Received, list[str]]:
    """What the first host gets of the others, states of ``most`` of them; and of which."""
    (_, local), *others = hosts.items()
    summaries = [PeerReply(host, summary.packed(of, alive)) for host, of in others]
    known = summary.read([PeerReply(HERE, summary.packed(local, alive)), *summaries])
    wanted = [one for one in summary.chosen(known, (), most + 1) if one != HERE][:most]
    answers = [PeerReply(host, packed(of, alive)) for host, of in others if host in wanted]
    rest = [one for one in summaries if one.sender not in wanted]
    return Judge._unpacked((answers, rest), local), wanted


def judged(hosts: Hosts, got: Received) -> Verdict:
    """The verdict of the first host with what it got."""
    local = next(iter(hosts.values()))
    look = lambda process: ALIVE if process.id in local.states else got.look(process)  # noqa: E731
    return judge_states(merge([local, got.merged]), look=look)


def by_all(hosts: Hosts) -> Verdict:
    return judge_states(merge([*hosts.values()]), look=alive)


def changed(hosts: Hosts, ranks: Collection[int], change: Callable[[State], None]) -> Hosts:
    """The same with the states of some ranks changed."""

    def one(state: State) -> State:
        found = deepcopy(state)
        if found.identity["rank"] in ranks:
            change(found)
        return found

    return {host: Merged({s.id: one(s) for s in of.states.values()}) for host, of in hosts.items()}


def timeless(text: str) -> str:
    """Without for how long things have lasted: the clock goes on from one verdict to the next."""
    return re.sub(r"\d+ (min|h) \d+ (s|min)|[\d.]+ s\b", "some time", text)


SAID = ("kind", "severity", "certainty", "summary", "hint", "culprit_ranks")
FEW = 12


def said(found: Verdict) -> dict[str, Any]:
    """What people and programs are told, without for how long it has lasted."""
    case = found.case
    rows = [{k: one[k] for k in SAID} for one in report(case, found.findings)["findings"]]
    rows.sort(key=lambda one: str(one["summary"]))
    return {
        "findings": timeless(orjson.dumps(rows).decode()),
        "incomplete": found.incomplete,
        "unknown": unknown_ranks(case.evidence.trace),
        "first": places(case, found.findings)[0].who(case.evidence.trace),
    }


def both(hosts: Hosts) -> tuple[dict[str, Any], dict[str, Any]]:
    """The verdict on all states, and on those of few hosts."""
    few = judged(hosts, received(hosts, FEW)[0])
    assert len(few.case.evidence.trace.processes) <= 8 * (FEW + 1)
    return said(by_all(hosts)), said(few)


long = functools.partial(pytest.param, marks=pytest.mark.long)


@pytest.mark.parametrize(
    "fault", ["tp", "world", *map(long, ("msg", "mp", "dp_scatter", "dp_gather"))]
)
def test_it_is_the_verdict_on_all(tmp_path: Path, fault: str) -> None:
    """The same words and ranks, whatever group the others wait in."""
    every, few = both(hosts_of(tmp_path, fault=fault, pp=2, dp=16, tp=8))
    assert few == every


def _other_shape(state: State) -> None:
    for row in filter(summary.is_pending, state.ops):
        state.numbered["call"][row[1]]["shapes"] = [[7]]


def _other_operation(state: State) -> None:
    for row in filter(summary.is_pending, state.ops):
        state.numbered["call"][row[1]].update(op="broadcast", root=0)


def _later(state: State) -> None:
    for row in filter(summary.is_pending, state.ops):
        row[6] = None if row[6] is None else row[6] + 1


FEW_ODD, MANY = (11, 19, 100), range(40, 140)
MORE = (("dp_scatter", FEW_ODD), ("world", FEW_ODD), ("world", MANY), ("mp", MANY))
CHANGES = (_other_shape, _other_operation, _later)


@pytest.mark.parametrize(
    ("fault", "odd", "change"),
    [
        ("world", FEW_ODD, _other_operation), ("dp_scatter", FEW_ODD, _other_shape),
        *(long(*one, change) for one in MORE for change in CHANGES),
    ],
)  # fmt: skip
def test_ranks_that_disagree_are_counted(
    tmp_path: Path, fault: str, odd: range, change: Callable[[State], None]
) -> None:
    """How many members of a group say what decides which of them is odd."""
    hosts = changed(hosts_of(tmp_path, fault=fault, pp=2, dp=16, tp=8), odd, change)
    every, few = both(hosts)
    assert few == every


def _starting(folder: Path, rank: int, size: int, *, comes: bool) -> Merged:
    """A rank that waits for others to come, or does something else."""
    journal = Journal(folder / f"{rank}", pid=700 + rank, rank=rank, world_size=size)
    store = journal.prefix_store(journal.tcp_store(29500, server=not rank), "default_pg", "0/")
    if comes:
        init = journal.call("init_process_group", kind="composed", args={"backend": "gloo"})
        args = {"rank": rank, "size": size, "timeout": 1800.0}
        keys = {"store": store, "stack": ("train.py", 10, "main"), "args": args}
        made = journal.call("ProcessGroupGloo", kind="constructor", **keys)
        journal.begin(made, t=2 * MS, p=journal.begin(init, t=MS))
    return of_journals([str(folder / f"{rank}")], window=WINDOW)


@pytest.mark.parametrize("seen", [True, False])
def test_a_start_of_many_waits_for_one(tmp_path: Path, *, seen: bool) -> None:
    """Whether or not the host of the missing rank answers, and whichever hosts send states."""
    hosts = {
        f"h{rank:02}": _starting(tmp_path, rank, 40, comes=rank != 23)
        for rank in range(40)
        if seen or rank != 23
    }
    every, few = (said(by_all(hosts)), said(judged(hosts, received(hosts, 5)[0])))
    assert few == every
    assert "39 of 40 have arrived (ranks 0-22, 24-39)" in str(every["findings"])


def test_a_summary_is_bounded_whatever_the_ranks(tmp_path: Path) -> None:
    (whole,) = hosts_of(tmp_path, pp=2, dp=8, tp=8, per_host=128).values()
    data = summary.packed(whole, alive)
    assert len(data) <= MOST_SUMMARY
    found = summary.read([PeerReply("a", data)]).get("a")
    assert found is not None
    assert found.ranks == frozenset(range(128))


def test_a_host_that_is_not_heard_of_is_missed(tmp_path: Path) -> None:
    """Its ranks are not known, and no others are."""
    hosts = hosts_of(tmp_path, fault="world", pp=2, dp=8, tp=8)
    lost = [*hosts][10]
    ranks = [s.identity["rank"] for s in hosts.pop(lost).states.values()]
    trace = judged(hosts, received(hosts, FEW)[0]).case.evidence.trace
    assert unknown_ranks(trace) == tuple(sorted(ranks))


def test_hosts_that_claim_one_rank_are_both_looked_at(tmp_path: Path) -> None:
    """Whichever of them is a stranger: no summary decides it."""
    hosts = hosts_of(tmp_path, fault="world", pp=2, dp=8, tp=8)
    names = [*hosts]
    hosts["stranger"] = Merged({f"{one:0>32}": s for one, s in hosts[names[9]].states.items()})
    _, wanted = received(hosts, FEW)
    assert {"stranger", names[9]} <= {*wanted}


def _one(**fields: object) -> bytes:
    return orjson.dumps({"ranks": [], "trouble": None, "groups": [], "waits": []} | fields)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"[" * 5000, _one(ranks=[{"from": 0, "to": 1 << 40}]),
        _one(ranks=[{"from": 0, "to": (1 << 63) - 1}]), _one(ranks=[[0, 1, 1]]),
        _one(groups=[[[], [{"from": 0, "to": 1 << 40}], None, None]]),
        _one(groups=[[[], [{"from": 0, "to": (1 << 63) - 1}], None, None]]),
    ],
)  # fmt: skip
def test_what_is_no_summary_is_none(data: bytes) -> None:
    assert summary.read([PeerReply("b", data)]) == {}


def test_no_host_says_what_a_group_is_but_what_names_it(tmp_path: Path) -> None:
    """Its name is a hash of its members and its store: with other ranks it is another group."""
    hosts = hosts_of(tmp_path, fault="tp")
    value = orjson.loads(summary.packed(hosts[max(hosts)], lambda _: ALIVE))
    sound = summary.read([PeerReply("a", orjson.dumps(value))]).get("a")
    value["groups"][0][1] = [0, 1]
    forged = summary.read([PeerReply("a", orjson.dumps(value))]).get("a")
    assert sound is not None
    assert forged is not None
    assert len({*sound.groups} - {*forged.groups}) == 1


SIZES = (8, 128)


@functools.cache
def stall(hosts: int, case: str) -> virtual.Outcome:
    return virtual.stall(hosts, case, until_s=34.0 if case == "partition" else 24.0)


@pytest.mark.parametrize("hosts", SIZES)
@pytest.mark.parametrize("case", ["normal", "a tenth stops"])
def test_one_voice_tells_all_within_fifteen_seconds(case: str, hosts: int) -> None:
    """That of the store's host; of hosts that do not answer it says so."""
    found = stall(hosts, case)
    gone = 0 if case == "normal" else max(1, hosts // 10)
    (voice,) = found.voices
    assert (voice.host, voice.alone, voice.known) == (0, False, hosts - gone)
    assert voice.at_s < 15
    most = MOST_HOSTS * virtual.STATES_BYTES + hosts * virtual.SUMMARY_BYTES
    assert voice.bytes <= most, "states of few hosts are read, however many there are"


@pytest.mark.parametrize("hosts", SIZES)
@pytest.mark.parametrize("case", ["server dies", "server stops"])
def test_without_the_server_each_host_speaks_for_itself(case: str, hosts: int) -> None:
    """Once, within twenty seconds of the wait's begin."""
    found = stall(hosts, case)
    assert sorted(voice.host for voice in found.voices) == [*range(1, hosts)]
    assert all(voice.alone for voice in found.voices)
    assert max(voice.at_s for voice in found.voices) < 20


@pytest.mark.parametrize("hosts", SIZES)
def test_a_network_that_was_parted_is_one_again(hosts: int) -> None:
    """The part of the server speaks once, the others each for itself; then the whole does."""
    found = stall(hosts, "partition")
    served = [(voice.host, voice.known) for voice in found.voices if not voice.alone]
    assert served == [(0, hosts // 2), (0, hosts)]
    assert sum(voice.alone for voice in found.voices) == hosts // 2
