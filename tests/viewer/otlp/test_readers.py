"""The reader of whole files and the one that follows them know the same of every operation."""

from __future__ import annotations

from pathlib import Path

from support.both_readers import batch, differences, streaming
from support.journals import MS, workers


def test_each_kind_of_record_is_read_alike(tmp_path: Path) -> None:
    """Issued, waits, completions, ends, losses, overrides, errors, sources, nesting, segments."""
    rank, other = workers(tmp_path, 2)
    group = rank.world()
    reduce = rank.collective(group)
    later = rank.collective(group, asynchronous=True)
    device = rank.collective(group, asynchronous=True, backend="nccl", device="cuda")
    anywhere = rank.message(group, "recv", None)
    towards = rank.message(group, "send", 1, **{"async": False})
    store = rank.prefix_store(1, "p", "q")
    get = rank.call("store.get", kind="store", store=store, origin="python", **{"async": False})
    many = rank.call("store.wait", kind="store", store=store, origin="c++", **{"async": False})
    step = rank.call("annotate", kind="composed", name="step", **{"async": False})
    kernel = rank.call("all_gather", kind="collective", group=group, backend="gloo", args={"n": 1})
    string = rank.string("RuntimeError: no peer")
    thread = rank.numbered("thread", native=7, name="loader")

    around = rank.begin(step, 1 * MS)
    rank.run(reduce, 2 * MS, 1000, q=1, p=around)
    waited = rank.begin(reduce, 3 * MS, q=2, h=thread, a={"shapes": [[8]], "bytes": 32})
    rank.end(waited, 5000, u=10, v=20)
    rank.end(around, 6 * MS, u=6 * MS)
    issued = rank.issue(later, 7 * MS, q=3, d=5)
    rank.record(w=issued, d=10)
    rank.end(issued, 4000)
    polled = rank.issue(later, 8 * MS, q=4, d=5)
    rank.record(c=polled, d=700)
    then_waited = rank.issue(later, 9 * MS, q=5, d=5)
    rank.record(c=then_waited, d=600)
    rank.record(w=then_waited, d=800)
    rank.end(then_waited, 900)
    on_device = rank.issue(device, 10 * MS, q=1, d=5)
    rank.record(w=on_device, d=9)
    rank.record(c=on_device, d=4000, g=50, z=300)
    dropped = rank.issue(later, 11 * MS, q=6, d=5)
    rank.record(l=dropped, d=100)
    asked = rank.begin(later, 12 * MS, q=7)
    rank.record(l=asked, d=100, o=1)
    seen_then_lost = rank.begin(later, 13 * MS, q=8)
    rank.record(c=seen_then_lost, d=50)
    rank.record(l=seen_then_lost, d=100)
    source = rank.begin(anywhere, 14 * MS)
    rank.record(e=source, d=100, u=5, y=1, q=1, n=16)
    rank.run(towards, 15 * MS, 50, q=1)
    rank.end(rank.begin(reduce, 16 * MS, q=9), 100, u=5, x=string)
    rank.end(rank.begin(reduce, 17 * MS, q=10), 100, x=string, f=1)
    rank.record(e=rank.begin(get, 18 * MS, k="key"), d=100, u=10, n=5)
    rank.run(many, 19 * MS, 100, k=["one", "two"])
    rank.run(kernel, 20 * MS, 100, q=1, a={"args": {"more": 2}})
    for last in (False, True):
        again = rank.begin(later, 20 * MS + 1000, q=11)
        rank.record(w=again, d=10)
        rank.record(e=again, d=2000, x=string, r=1)
        rank.record(w=again, d=3000)
        rank.record(e=again, d=4000, **({"x": string, "r": 1} if last else {}))
    pending = {"b": rank.begin(later, 21 * MS, q=11), "t": 21 * MS, "s": later, "q": 11}
    rank.segment(22 * MS, [pending])
    rank.record(i=pending["b"], d=2 * MS)
    rank.begin(999, 23 * MS)  # of a call that nobody defined
    rank.begin(reduce, 24 * MS, q=12)
    other.run(other.collective(other.world()), 2 * MS, 1000, q=1)
    followed, whole = streaming(tmp_path), batch(tmp_path)
    assert len(followed) == 23
    assert differences(followed, whole) == []
