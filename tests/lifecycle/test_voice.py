"""When a process asks for a companion: where it stands still, or only asks a store."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from disttrace.config import resolve
from disttrace.identity import Identity
from disttrace.lifecycle import meeting as meeting
from disttrace.lifecycle.companion import Companion
from disttrace.lifecycle.voice import Voice
from support.journals import MS

LIMIT_S = 10.0


@pytest.fixture(autouse=True)
def own_place(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left where other processes of this user meet."""
    monkeypatch.setattr(meeting, "PARENT", str(tmp_path_factory.mktemp("meeting")))


@pytest.mark.parametrize(("kind", "started"), [("store", 1), ("collective", 0), (None, 1)])
def test_polling_is_standing_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str | None, started: int
) -> None:
    """Operations begin all the time, of a store alone or not; or none does."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    identity = Identity({}, job="j")
    starts: list[Identity] = []
    monkeypatch.setattr(Companion, "start", lambda _, who, **__: starts.append(who))
    now = [0]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    config, _ = resolve({"dir": tmp_path, "stall": LIMIT_S}, {})
    companion = Companion(config, lambda part, sentence: True)
    asked, got_on = [0], [0]
    voice = Voice(config, companion, lambda: asked[0], lambda code: None, lambda: got_on[0])
    voice.start(identity)
    for look in range(1, 13):  # 6 s: past four tenths of the limit
        now[0] = look * 500 * MS
        asked[0] += kind is not None
        got_on[0] += kind == "collective"
        voice.look()
    assert len(starts) == started


class Ears:
    """A process that is asked by the file of its job and host, and what it does then."""

    def __init__(self, folder: Path, *, on_stall: str | None = "abort", log: str = "text") -> None:
        self.identity = Identity({"DISTTRACE_PARENT": "a" * 32 + ",worker@" + "b" * 32 + ",j"})
        self.ended: list[int] = []
        self.noted = 0
        settings = {"dir": folder, "on_stall": on_stall, "log": log, "stall": LIMIT_S}
        config, _ = resolve(settings, {})
        companion = Companion(config, lambda part, sentence: True)
        self.file = Path(companion.announcements(self.identity))
        self.voice = Voice(config, companion, lambda: 0, self.ended.append, lambda: 0)
        self.voice.sample = self.note

    def note(self) -> None:
        self.noted += 1

    def write(self, **record: Any) -> None:
        with self.file.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def hear(self) -> tuple[list[int], int]:
        """Exit codes with which it was ended, and how often it noted where its threads are."""
        self.voice.look()
        return self.ended, self.noted


def order(ears: Ears) -> None:
    """One that this process obeys, in each form."""
    ears.write(abort=75, **{"for": ["0" * 32, ears.identity.process]})
    ears.write(stacks=1, under="b" * 32)


def test_orders_are_obeyed_by_those_that_they_name(tmp_path: Path) -> None:
    """Each once; the launcher may be the parent's parent."""
    ears = Ears(tmp_path)
    ears.voice.start(ears.identity)
    order(ears)
    assert ears.hear() == ([75], 1)
    assert ears.hear() == ([75], 1)
    ears.write(stacks=1, under="a" * 32)
    assert ears.hear() == ([75], 2)


@pytest.mark.parametrize("named", [None, [], ["0" * 32], "0" * 32, 7, {"0": 1}])
def test_others_orders(tmp_path: Path, capfd: pytest.CaptureFixture[str], named: object) -> None:
    """Nor are those that name nobody, as older companions wrote them."""
    ears = Ears(tmp_path)
    ears.voice.start(ears.identity)
    ears.write(**{"abort": 75, "for": named})
    ears.write(stacks=1, under=named)
    ears.write(abort=75)
    ears.write(stacks=1)
    ears.write(n=1, voice="0" * 32, lines=["for somebody else"])
    assert ears.hear() == ([], 0)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("on_stall", [None, "cat > report"])
def test_who_did_not_ask_to_be_ended_is_not(tmp_path: Path, on_stall: str | None) -> None:
    """Only a process of whom DISTTRACE_ON_STALL=abort was asked itself."""
    ears = Ears(tmp_path, on_stall=on_stall)
    ears.voice.start(ears.identity)
    order(ears)
    assert ears.hear() == ([], 1)


def test_what_was_there_before_stays(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A companion that was killed with its job leaves its file behind, even with our id in it."""
    ears = Ears(tmp_path)
    order(ears)
    ears.write(n=1, voice=ears.identity.process, lines=["of yesterday"])
    ears.voice.start(ears.identity)
    assert ears.hear() == ([], 0)
    ears.write(n=2, voice=ears.identity.process, lines=["of today"])
    ears.hear()
    assert re.fullmatch(r"\ndisttrace: of today \(\d\d:\d\d:\d\d\)\n", capfd.readouterr().err)


def test_lines_begin_where_a_line_begins() -> None:
    """A progress bar leaves its line open."""
    script = (
        "import sys; from disttrace.lifecycle.voice import _print\n"
        "sys.stderr.write('bar 10%'); _print(['stalled: a', 'more: b'])"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stderr
    assert timeless(said) == b"bar 10%\ndisttrace: stalled: a (TIME)\ndisttrace: more: b\n"


def test_programs_read_objects(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """DISTTRACE_LOG=json: one object a line, and no line for people; of an order to end, too."""
    ears = Ears(tmp_path, log="json")
    ears.voice.start(ears.identity)
    found = {"disttrace": 1, "kind": "stalled", "at": 1.5, "summary": "Rank 1 never\x1b joined"}
    me = ears.identity.process
    ears.write(n=1, voice=me, lines=["stalled: Rank 1", "more: x"], objects=[found])
    ears.hear()
    assert json.loads(capfd.readouterr().err) == found
    order(ears)
    assert ears.hear()[0] == [75]
    assert json.loads(capfd.readouterr().err)["kind"] == "ended"


def timeless(said: bytes) -> bytes:
    """``said`` without the time of day, which is there."""
    return re.sub(rb"\(\d\d:\d\d:\d\d\)", b"(TIME)", said)


def test_a_file_in_the_place_of_another_is_read_from_its_start(tmp_path: Path) -> None:
    """The next companion makes one anew, which may be longer by the time somebody looks."""
    ears = Ears(tmp_path)
    ears.write(stacks=1)
    ears.voice.start(ears.identity)
    assert ears.hear() == ([], 0)
    other = ears.file.with_suffix(".new")
    other.touch()
    os.replace(other, ears.file)
    order(ears)
    assert ears.hear() == ([75], 1)
