"""Journals packed on one host and put together on another; archives that somebody else wrote."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import tarfile
from pathlib import Path

import pytest

from disttrace.cli import main
from disttrace_viewer.load import archives
from disttrace_viewer.load.announcements import path_of
from disttrace_viewer.load.problems import ViewerError
from support.journals import Journal, training
from support.processes import python


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def archive(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    """An archive as somebody else may write it."""
    with tarfile.open(path, "w:gz") as file:
        for member, data in members:
            member.size = len(data)
            file.addfile(member, io.BytesIO(data))
    return path


def named(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, link
    return member


JOURNAL = "job-host-17-0123456789ab.defs.jsonl"


def test_two_hosts_become_one_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each host packs its own under a name of its own; merged, the files are what they were."""
    monkeypatch.chdir(tmp_path)
    all_of_them: dict[str, bytes] = {}
    for host in ("a", "b"):
        folder = tmp_path / host
        for rank in range(2):
            Journal(folder, pid=10 + rank, rank=rank, world_size=2, host=host, job="run.7")
        all_of_them |= files(folder)
        monkeypatch.setattr(os, "uname", lambda host=host: os.uname_result(("", host, "", "", "")))
        assert main(["collect", str(folder)]) == 0
    assert main(["collect", "run.7-a.tar.gz", "run.7-b.tar.gz", "-o", "all"]) == 0
    assert len(all_of_them) == 8
    assert files(tmp_path / "all") == all_of_them
    assert capsys.readouterr().out.splitlines()[-1] == "all: 8 files of 2 archives"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "a", "all", "b", "run.7-a.tar.gz", "run.7-b.tar.gz",
    ]  # fmt: skip
    assert (tmp_path / "run.7-a.tar.gz").stat().st_mode & 0o077 == 0


def test_only_the_newest_job_is_packed_unless_another_is_named(tmp_path: Path) -> None:
    """What lies in the folder of earlier runs stays there."""
    folder = tmp_path / "journals"
    Journal(folder, pid=1, job="old", t0=10**12)
    Journal(folder, pid=2, job="new", t0=10**12 + 10**15)
    for job, options in (("new", []), ("old", ["--job", "old"])):
        main(["collect", str(folder), *options, "-o", str(tmp_path / f"{job}.tar.gz")])
        with tarfile.open(tmp_path / f"{job}.tar.gz") as packed:
            assert {name.partition("-")[0] for name in packed.getnames()} == {job}


def test_a_later_state_of_a_journal_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    """Collected while it hangs and once more afterwards, in any order; zeros are no content."""
    early = archive(tmp_path / "early.tar.gz", (named(JOURNAL), b'{"a":1}\n\0\0\0\0\0\0\0\0\0\0'))
    late = archive(tmp_path / "late.tar.gz", (named(JOURNAL), b'{"a":1}\n{"b":2}\n'))
    for order in ([early, late], [late, early]):
        out = tmp_path / order[0].name.removesuffix(".tar.gz")
        archives.unpack(map(str, order), str(out))
        assert files(out) == {JOURNAL: b'{"a":1}\n{"b":2}\n'}


def test_other_content_under_a_name_that_is_there_is_left_out(tmp_path: Path) -> None:
    """A file of the user is never overwritten by another one."""
    out = tmp_path / "out"
    out.mkdir()
    (out / JOURNAL).write_bytes(b"mine\n")
    packed = archive(tmp_path / "x.tgz", (named(JOURNAL), b"its\n"))
    found = archives.unpack([str(packed)], str(out))
    assert (found.files, found.left_out) == (0, 1)
    assert files(out) == {JOURNAL: b"mine\n"}


@pytest.mark.parametrize(
    "member",
    [
        named("../" + JOURNAL), named("/" + JOURNAL), named("sub/" + JOURNAL), named(".bashrc"),
        named("train.py"), named("-rf-job-host-17-0123456789ab.defs.jsonl"), named(JOURNAL + "\n"),
        named(JOURNAL, tarfile.SYMTYPE, "/etc/passwd"),
        named(JOURNAL, tarfile.LNKTYPE, "/etc/passwd"), named(JOURNAL, tarfile.FIFOTYPE),
        named(JOURNAL, tarfile.CHRTYPE), named(JOURNAL, tarfile.DIRTYPE),
        named(JOURNAL, tarfile.GNUTYPE_SPARSE),
    ],
    ids=lambda member: f"{member.type.decode()} {member.name[:12]!r}",
)  # fmt: skip
def test_nothing_but_journals_comes_out(tmp_path: Path, member: tarfile.TarInfo) -> None:
    """No path, link, pipe, device or folder, and no other file."""
    out = tmp_path / "out" / "in"
    hostile = archive(tmp_path / "hostile.tar.gz", (member, b""))
    try:
        found = archives.unpack([str(hostile)], str(out))
    except ViewerError:
        pass  # not even a header of it was understood
    else:
        assert (found.files, found.left_out) == (0, 1)
    assert [path.name for path in tmp_path.rglob("*") if path != hostile] == ["out", "in"]


def test_a_link_in_the_folder_is_not_written_through(tmp_path: Path) -> None:
    """Somebody put one where a journal is about to come."""
    victim = tmp_path / "victim"
    out = tmp_path / "out"
    out.mkdir()
    (out / JOURNAL).symlink_to(victim)
    packed = archive(tmp_path / "x.tar.gz", (named(JOURNAL), b"{}\n"))
    found = archives.unpack([str(packed)], str(out))
    assert (found.left_out, found.why) == (1, [f"{JOURNAL} would be written through a link"])
    assert not victim.exists()
    victim.write_bytes(b"")
    assert archives.unpack([str(packed)], str(out)).left_out == 1
    assert victim.read_bytes() == b""


def test_limits_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Much from little, by number, by size, by the free disk or by a header, is refused."""
    other = JOURNAL.replace("17", "18")
    two = archive(tmp_path / "x.tar.gz", (named(JOURNAL), b"0" * 2000), (named(other), b"1" * 2000))
    for limit, most in (("MOST_FILES", 1), ("MOST_BESIDES", -2000), ("MOST_OF_DISK", 0.0)):
        monkeypatch.setattr(archives, limit, most)
        with pytest.raises(
            ViewerError, match=r"x.tar.gz was not read to its end: it holds more than"
        ):
            archives.unpack([str(two)], str(tmp_path / limit))
        assert not files(tmp_path / limit)
        monkeypatch.undo()
    long = named("x")
    long.pax_headers = {"comment": "x" * (1 << 20)}
    with pytest.raises(ViewerError, match="a header is too long"):
        archives.unpack([str(archive(tmp_path / "h.tar.gz", (long, b"")))], str(tmp_path / "h"))


def test_a_bad_archive_keeps_no_other_from_being_read(tmp_path: Path) -> None:
    """One that is cut off and one that swells, before one that is well; a sentence names both."""
    bad = tmp_path / "bad.tar.gz"
    bad.write_bytes(archive(tmp_path / "x.tar.gz", (named(JOURNAL), b"{}")).read_bytes()[:40])
    bomb = archive(tmp_path / "bomb.tgz", (named(JOURNAL), b"x" * (90 << 20)))
    good = archive(tmp_path / "good.tar.gz", (named(JOURNAL.replace("17", "18")), b"{}"))
    with pytest.raises(ViewerError, match=r"bad.tar.gz was .*; .*bomb.tgz was .* checksums.*: 0"):
        archives.unpack(map(str, (bad, bomb, good)), str(tmp_path / "out"))
    assert files(tmp_path / "out") == {JOURNAL.replace("17", "18"): b"{}"}


def test_zeros_take_no_disk(tmp_path: Path) -> None:
    """Reserved blocks at the end are not written; those before something else are a hole."""
    hole = bytes(20 << 20) + b"{}"
    two = [(named(JOURNAL), b"{}\n" + bytes(1 << 20)), (named(JOURNAL.replace("17", "18")), hole)]
    archives.unpack([str(archive(tmp_path / "x.tar.gz", *two))], str(tmp_path / "out"))
    assert (tmp_path / "out" / JOURNAL).read_bytes() == b"{}\n"
    other = tmp_path / "out" / JOURNAL.replace("17", "18")
    assert other.read_bytes() == hole
    assert other.stat().st_blocks * 512 < 1 << 20


def test_a_name_that_comes_twice_counts_once(tmp_path: Path) -> None:
    """The second one is named and left out."""
    twice = archive(tmp_path / "x.tar.gz", (named(JOURNAL), b"{}"), (named(JOURNAL), b"{}{}"))
    found = archives.unpack([str(twice)], str(tmp_path / "out"))
    assert (found.files, found.why) == (1, [f"{JOURNAL} comes twice"])
    assert files(tmp_path / "out") == {JOURNAL: b"{}"}


def test_what_the_job_said_comes_along(tmp_path: Path) -> None:
    """Of each host, and once; ``diagnose`` of what was collected tells it."""
    said = [
        b'{"disttrace":1,"kind":"stalled","at":%d,"certainty":"certain","summary":"s%d"}\n' % (n, n)
        for n in range(3)
    ]
    packed: list[Path] = []
    for host, lines in (("a", said[:2]), ("b", said[1:])):
        journal = Journal(tmp_path / host, pid=10 + len(packed), rank=len(packed), host=host)
        path = Path(path_of(str(tmp_path / host), journal.job))
        path.write_bytes(b"".join(lines))
        packed.append(tmp_path / f"{host}.tar.gz")
        assert main(["collect", str(tmp_path / host), "-o", str(packed[-1])]) == 0
    for _ in range(2):
        assert main(["collect", *map(str, packed), "-o", str(tmp_path / "all")]) == 0
        assert files(tmp_path / "all")[path.name] == b"".join(said)


@pytest.mark.parametrize("own", [True, False], ids=["collect", "tar"])
def test_no_damaged_byte_gets_into_the_folder(tmp_path: Path, own: bool) -> None:
    """Wherever one byte is wrong or all others are missing, what is written is what was packed."""
    source = tmp_path / "journals"
    source.mkdir()
    names = [JOURNAL.replace("17", str(pid)) for pid in range(20, 25)]
    for name in names:
        (source / name).write_bytes(
            b"".join(b'{"of": "%s", "n": %d}\n' % (name.encode(), n) for n in range(60))
        )
        os.utime(source / name, (0, 0))  # which is packed: what is cut where depends on it
    before = files(source)
    packed = tmp_path / "x.tar.gz"
    if own:
        archives.pack([str(source / name) for name in names], str(packed))
    else:
        archive(packed, *[(named(name), before[name]) for name in names])
    whole = packed.read_bytes()
    kept: dict[str, list[int]] = {"wrong": [], "cut": []}
    for at in range(10, len(whole), 3):
        manners = {"cut": whole[:at]}
        if at % 2:
            manners["wrong"] = whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :]
        for manner, data in manners.items():
            packed.write_bytes(data)
            out = tmp_path / f"{manner}-{at}"
            with contextlib.suppress(ViewerError):
                archives.unpack([str(packed)], str(out))
            found = files(out)
            assert all(content == before[name] for name, content in found.items()), (manner, at)
            kept[manner].append(len(found))
    # A file of ours is proven by what comes behind it, those of tar by the end alone.
    assert (max(kept["cut"]) > 2) == own
    assert max(kept["wrong"]) > 0
    assert kept["cut"] == sorted(kept["cut"])


def test_a_journal_that_changes_while_it_is_packed(tmp_path: Path) -> None:
    """One that is gone is left out; one that was put there as a link is refused."""
    (tmp_path / "here").write_bytes(b"0123456789")
    (tmp_path / "link").symlink_to(tmp_path / "here")
    packed = tmp_path / "x.tar.gz"
    assert archives.pack([str(tmp_path / "gone"), str(tmp_path / "here")], str(packed)) == 1
    with pytest.raises(OSError, match="symbolic"):  # what it leads to may be no journal
        archives.pack([str(tmp_path / "link")], str(packed))


def test_mistakes_are_sentences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing to pack, both at once, another suffix, a folder that is none, a damaged archive."""
    folder, packed = tmp_path / "journals", tmp_path / "x.tar.gz"
    training(folder)
    assert main(["collect", str(folder), "-o", str(packed)]) == 0
    damaged, whole = tmp_path / "damaged.tgz", packed.read_bytes()
    for data in (whole[:200], whole[:200] + bytes(9) + whole[209:], b"", b"hello\n" * 200):
        damaged.write_bytes(data)
        assert main(["collect", str(damaged), "-o", str(tmp_path / "out")]) == 2
        assert "damaged.tgz was not read to its end" in capsys.readouterr().err
    for argv, sentence in (
        ([str(tmp_path)[:-1]], "no journals in"),
        ([str(folder), str(packed)], "give either"),
        ([str(folder), "-o", "x.zip"], "ends in .tar.gz"),
        ([str(packed), "-o", str(packed)], "File exists"),
        ([str(tmp_path / "no.tar.gz")], "No such file"),
    ):
        assert main(["collect", *argv]) == 2
        assert sentence in capsys.readouterr().err


def test_it_needs_no_extra(tmp_path: Path) -> None:
    """Where the job runs only the recorder is installed."""
    training(tmp_path / "journals")
    code = (
        "import sys; from disttrace.cli import main\n"
        f"assert main(['collect', {str(tmp_path / 'journals')!r}, '-o', '{tmp_path}/x.tgz']) == 0\n"
        f"assert main(['collect', '{tmp_path}/x.tgz', '-o', '{tmp_path}/out']) == 0\n"
        "assert not {'polars', 'rich', 'torch'} & set(sys.modules)"
    )
    python("-c", code).check()


def test_a_small_archive_does_not_fill_a_disk(tmp_path: Path) -> None:
    """A file that is sent by mail holds some MB more than journals of its size at most."""
    several = [JOURNAL.replace("-17-", f"-{n}-") for n in range(80)]
    bomb = archive(tmp_path / "x.tar.gz", *((named(name), b"x" * (1 << 20)) for name in several))
    assert bomb.stat().st_size < 120_000
    with pytest.raises(ViewerError, match="holds more than"):
        archives.unpack([str(bomb)], str(tmp_path / "out"))
    assert not files(tmp_path / "out")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archives, "MOST_TIMES", 2000)
        assert archives.unpack([str(bomb)], str(tmp_path / "more")).files == len(several)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def listener(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


def test_what_is_no_file_holds_nobody_up(tmp_path: Path) -> None:
    """By the name of an archive, or of states: a sentence, at once."""
    commands = []
    for make in (os.mkfifo, device, listener):
        packed, states = tmp_path / f"{make.__name__}.tar.gz", tmp_path / f"{make.__name__}.states"
        make(packed)
        make(states)
        commands += [f"collect {packed}", f"diagnose {states}", f"view {packed}"]
    program = "import sys; from disttrace.cli import main"
    program += "; print(*[main(words.split()) for words in sys.argv[1:]])"
    done = python("-c", program, *commands, timeout=60)
    assert (done.stdout.split(), done.hung) == (["2"] * 9, False)
    assert sum(line.startswith("disttrace: ") for line in done.stderr.splitlines()) == 9
