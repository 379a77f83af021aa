"""When a process asks for a companion: where it stands still, or only asks a store."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from disttrace.config import resolve
from disttrace.identity import Identity, identify
from disttrace.lifecycle.companion import Companion
from disttrace.lifecycle.voice import Voice
from support.journals import MS, Journal

LIMIT_S = 10.0


@pytest.mark.parametrize(("kind", "started"), [("store", 1), ("collective", 0), (None, 1)])
def test_polling_is_standing_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str | None, started: int
) -> None:
    """Operations begin all the time, of a store alone or not; or none does."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    identity = identify({}, job="j")
    journal = Journal(
        tmp_path, pid=identity.pid, rank=0, world_size=2, job="j", host=identity.host,
        process=identity.process,
    )  # fmt: skip
    assert journal.base.name == identity.base_name()
    group = journal.world()
    calls = {
        "store": journal.call("store.check", kind="store", store=1),
        "collective": journal.collective(group),
    }
    journal.run(calls["collective"], 100 * MS, MS, q=1)
    starts: list[Identity] = []
    monkeypatch.setattr(Companion, "start", lambda _, who, **__: starts.append(who))
    now, begun = [0], [0]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    config, _ = resolve({"dir": tmp_path}, {})
    companion = Companion(config, lambda part, sentence: True)
    voice = Voice(companion, LIMIT_S, lambda: begun[0], lambda code: None)
    voice.start(identity)
    for look in range(1, 13):  # 6 s: past four tenths of the limit
        now[0] = look * 500 * MS
        if kind is not None:
            journal.run(
                calls[kind], now[0], MS, **({"q": look + 1} if kind == "collective" else {})
            )
            begun[0] += 1
        voice.look()
    assert len(starts) == started
