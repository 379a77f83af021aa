"""Finds the journals below the given paths and names what else lies there."""

from __future__ import annotations

import atexit
import functools
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence

import disttrace.journal.format as fmt
from disttrace_viewer.load import files
from disttrace_viewer.load.problems import Problems, ViewerError, plural
from disttrace_viewer.trace.plain_text import plain
from disttrace_viewer.trace.values import dataclass, field

_SEGMENT = re.compile(r"^(?P<base>.+)\.(?P<number>\d+)" + re.escape(fmt.OPS_SUFFIX) + "$")
_JSON = (".json", ".jsonl", ".ndjson")
_OURS = (*_JSON, fmt.DEFS_SUFFIX + ".gz", fmt.OPS_SUFFIX + ".gz")
_REMOTE = (*_OURS, ".json.gz")
"""Names that are looked at on remote file systems."""
_NO_EVIDENCE = (
    *(fmt.VERDICTS_SUFFIX, fmt.ANNOUNCEMENTS_SUFFIX, ".minutes.jsonl"),  # the last: of before 0.2.0
    *(".py", ".pyc", ".so", ".pt", ".pth", ".safetensors"),
    *(".bin", ".npy", ".npz", ".gz.part", ".html", ".parquet", ".lock"),
)
"""Names of what holds no evidence, or ours of another kind."""


@dataclass(slots=True)
class Files:
    """The files of one journal: same folder, same name."""

    base: str
    definitions: str | None = None
    segments: dict[int, str] = field(default_factory=dict)

    @property
    def paths(self) -> tuple[str, ...]:
        """All of its files, definitions first."""
        head = () if self.definitions is None else (self.definitions,)
        return head + tuple(self.segments[n] for n in sorted(self.segments))


def search(
    paths: Sequence[str | Files], problems: Problems
) -> tuple[dict[str, Files], list[str], list[str]]:
    """What lies below ``paths``: the journals by their names, files that are none, and those of
    them that count as evidence. Raises ViewerError where a remote folder cannot be listed.
    """
    found = {one.base: one for one in paths if isinstance(one, Files)}
    places = [path for path in paths if isinstance(path, str)]
    others: list[str] = []
    seen: set[str] = set()
    real_folders: dict[str, str] = {}
    roots = tuple(map(os.path.realpath, places))
    for path in _walk(places, problems):
        name = os.path.basename(path)
        if name.endswith(_NO_EVIDENCE) or name.startswith("."):
            continue
        if files.is_remote(path):
            if name.endswith(_REMOTE):
                _sort(path, found, others, problems)
            continue
        linked = os.path.islink(path)  # resolving each file walks down to it again
        if linked and not _inside(path, roots, problems):
            continue
        folder = os.path.dirname(path)
        if folder not in real_folders:
            real_folders[folder] = os.path.realpath(folder)
        real = os.path.realpath(path) if linked else os.path.join(real_folders[folder], name)
        if real in seen:
            continue
        seen.add(real)
        _sort(path, found, others, problems)
    # A journal holds more: beside it other evidence counts only where it is named.
    named = {path for path in places if not os.path.isdir(path)}
    return found, others, [path for path in others if path in named or not found]


def name_strangers(
    paths: Iterable[str], asked: Sequence[str | Files], beside: Collection[str], problems: Problems
) -> None:
    """Name files of no known form that were given, and JSON beside journals or alone."""
    of_folder: dict[str, list[str]] = {}
    for path in paths:
        folder, name = os.path.split(path)
        if path in asked and not name.endswith(_OURS):
            what = "is neither a journal nor a log, stack or dump of a known form."
            problems.add(path, "foreign", what)
        elif name.endswith(_JSON) and (not beside or folder in beside):
            of_folder.setdefault(folder, []).append(name)
    for where, names in of_folder.items():
        one = len(names) == 1
        whose = f"{'bears' if one else 'bear'} no name of a journal and {'was' if one else 'were'}"
        problems.add(
            where,
            "foreign",
            f"{plural(len(names), 'file')} here ({plain(', '.join(sorted(names)[:3]))}"
            f"{', ...' if len(names) > 3 else ''}) {whose} left out.",
        )


def named(names: Iterable[str]) -> list[Files]:
    """The journals of which these are the files, by their names alone."""
    found: dict[str, Files] = {}
    for name in names:
        _sort(name, found, [], Problems())
    return [*found.values()]


def _sort(path: str, found: dict[str, Files], others: list[str], problems: Problems) -> None:
    """Put a file to its journal, or to the others."""
    name = os.path.basename(path)
    if name.endswith(fmt.DEFS_SUFFIX):
        base = path[: -len(fmt.DEFS_SUFFIX)]
        found.setdefault(base, Files(base)).definitions = path
    elif match := _SEGMENT.match(path):
        base = match["base"]
        found.setdefault(base, Files(base)).segments[int(match["number"])] = path
    elif name.endswith((fmt.DEFS_SUFFIX + ".gz", fmt.OPS_SUFFIX + ".gz")):
        problems.add(path, "compressed", "is compressed and was not read; unpack it (gunzip).")
    else:
        others.append(path)


def _inside(path: str, roots: Sequence[str], problems: Problems) -> bool:
    """Whether a file or folder is what it seems, or a link to something that was named too."""
    if not os.path.islink(path):
        return True
    real = os.path.realpath(path)
    if any(real == root or real.startswith(root.rstrip(os.sep) + os.sep) for root in roots):
        return True
    if os.path.exists(path):
        problems.add(
            path,
            "link",
            f"leads out of the folder, to {plain(real)}, and was not followed; name that on the"
            " command line too if it is wanted.",
        )
    return False


def _walk(paths: Sequence[str], problems: Problems) -> Iterator[str]:
    for path in paths:
        if files.is_remote(path):
            yield from files.below(path)
        elif os.path.isdir(path):
            yield from _below(path, tuple(map(os.path.realpath, paths)), problems)
        elif os.path.exists(path):
            yield from _siblings(path)
        else:
            problems.add(
                path,
                "missing",
                "does not exist; run the program with DISTTRACE=1, or give the folder that"
                " DISTTRACE_DIR named.",
            )


def _below(top: str, roots: Sequence[str], problems: Problems) -> Iterator[str]:
    """Files below a folder; a folder is entered once, so that links in a circle end."""

    def report(error: OSError) -> None:
        problems.add(
            str(error.filename), "unreadable", f"cannot be listed ({error.strerror}); left out."
        )

    entered: set[tuple[int, int]] = set()
    for folder, folders, names in os.walk(top, followlinks=True, onerror=report):
        kept = []
        for name in sorted(folders):
            if not _inside(os.path.join(folder, name), roots, problems):
                continue
            try:
                status = os.stat(os.path.join(folder, name))
            except OSError:
                continue
            if (status.st_dev, status.st_ino) not in entered:
                entered.add((status.st_dev, status.st_ino))
                kept.append(name)
        folders[:] = kept
        for name in sorted(names):
            yield os.path.join(folder, name)


def _siblings(path: str) -> Iterator[str]:
    """A single file stands for its whole journal."""
    name = os.path.basename(path)
    match = _SEGMENT.match(name)
    base = match["base"] if match else name.removesuffix(fmt.DEFS_SUFFIX)
    if not match and base == name:
        yield path
        return
    folder = os.path.dirname(path)
    try:
        names = sorted(os.listdir(folder or "."))
    except OSError:  # a file that is known by name in a folder that cannot be listed
        names = [name]
    for other in names:
        if other.startswith(base + "."):
            yield os.path.join(folder, other)


@functools.cache
def opened(path: str) -> str:
    """The path; of an archive of ``collect`` a folder with its files, gone with this process."""
    if not path.endswith((".tar.gz", ".tgz")) or not os.path.isfile(path):
        return path
    import shutil
    import tempfile

    from disttrace_viewer.load import archives

    folder = tempfile.mkdtemp(prefix="disttrace-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if (found := archives.unpack([path], folder)).left_out:
        raise ViewerError(f"{plain(path)}: {'; '.join(found.why)}")
    return folder
