"""Writing a trace in the form that another tool reads: formats, suffixes, whole files."""

from __future__ import annotations

import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator

from disttrace_viewer.otlp import export as otlp
from disttrace_viewer.trace.errors import ViewerError
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.views import jsonl, parquet
from disttrace_viewer.views.timeline import content, perfetto

FORMATS: dict[str, Callable[[Trace], Iterator[bytes]]] = {
    "html": content.lines,
    "jsonl": jsonl.lines,
    "otlp": otlp.lines,
    "perfetto": perfetto.lines,
}
"""Writers of one stream by name: each gives the output in pieces."""
FOLDERS: dict[str, Callable[[Trace, str], None]] = {
    "parquet": parquet.write,
}
"""Writers of a folder of files."""
SENDERS: dict[str, Callable[[Trace], int]] = {
    "otlp": otlp.send,
}
"""Formats that go to a server where no output is named: each gives the exit code."""
NAMES = tuple(sorted({**FORMATS, **FOLDERS}))
DEFAULT = "jsonl"

SUFFIXES = {
    ".jsonl": ("jsonl", "otlp"),
    ".ndjson": ("jsonl", "otlp"),
    ".json": ("perfetto", "otlp"),
    ".html": ("html",),
    ".htm": ("html",),
    ".parquet": ("parquet",),
}
"""Suffix -> the formats that it may hold, the one that it stands for first."""
GZIP = ".gz"
_LEVEL = 6


def format_of(path: str | None, wanted: str | None) -> str:
    """The format for a path: as asked for, else by its suffix, else jsonl.

    Raises:
        ViewerError: where the two contradict each other, and for a suffix that tells nothing.
    """
    name = "" if path is None else os.path.basename(os.path.normpath(path)).lower()
    packed = name.endswith(GZIP)
    suffix = os.path.splitext(name.removesuffix(GZIP))[1]
    fits = SUFFIXES.get(suffix, ())
    if wanted is not None and wanted not in NAMES:
        raise ViewerError(f"no format {wanted!r}; there are: {', '.join(NAMES)}")
    if wanted is None:
        if fits:
            wanted = fits[0]
        elif suffix and path is not None and not _special(path):
            known = ", ".join(SUFFIXES)
            raise ViewerError(
                f"{suffix} tells no format; name one by --format, or end {path} in one of {known}"
            )
        else:
            wanted = DEFAULT
    elif fits and wanted not in fits:
        raise ViewerError(
            f"{path} says {fits[0]} and --format says {wanted}: leave one of them out"
        )
    if packed and wanted in FOLDERS:
        raise ViewerError(f"{wanted} is compressed by itself: leave {GZIP} out of {path}")
    return wanted


def export(trace: Trace, path: str, wanted: str | None = None, *, source: bool = True) -> None:
    """Write ``path``, which appears when it is complete; ``source``: a page with source lines.

    Raises:
        ViewerError: see ``format_of``; and when it cannot be written.
    """
    chosen = format_of(path, wanted)
    try:
        if chosen in FOLDERS:
            _write_folder(path, lambda folder: FOLDERS[chosen](trace, folder))
        else:
            parts = pieces(trace, chosen, source=source)
            _write(path, _packed(parts) if path.lower().endswith(GZIP) else parts)
    except OSError as error:
        raise ViewerError(f"cannot write {path}: {error.strerror}.") from error


def pieces(trace: Trace, wanted: str, *, source: bool = True) -> Iterator[bytes]:
    """The export for a stream; ``source`` as for ``export``.

    Raises:
        ViewerError: for a format that is a folder.
    """
    if wanted in FOLDERS:
        raise ViewerError(f"{wanted} is a folder of tables: name it by -o, as in -o trace.{wanted}")
    if not source and wanted == "html":
        return content.lines(trace, source=False)
    return FORMATS[wanted](trace)


def _packed(parts: Iterable[bytes]) -> Iterator[bytes]:
    """As gzip, without a time or a name in it: the same trace gives the same bytes."""
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    for part in parts:
        yield packer.compress(part)
    yield packer.flush()


def _special(path: str) -> bool:
    """Whether it is a pipe or a device, whose name says nothing."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def _write(path: str, parts: Iterable[bytes]) -> None:
    """Beside the target first, then in its place: nobody finds half a file."""
    if _special(path):
        # A pipe or a device cannot be replaced.
        with open(path, "wb") as file:
            file.writelines(parts)
        return
    handle, beside = tempfile.mkstemp(
        dir=os.path.dirname(path) or ".", prefix=f".{os.path.basename(path)}."
    )
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(parts)
            os.fchmod(file.fileno(), 0o666 & ~_umask())
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise


def _write_folder(path: str, write: Callable[[str], None]) -> None:
    """The same for a folder, which takes the place of an earlier export only."""
    path = os.path.normpath(path)
    if os.path.exists(path) and not parquet.is_export(path):
        raise ViewerError(f"{path} exists and is no export of ours: name another folder.")
    parent = os.path.dirname(path) or "."
    beside = tempfile.mkdtemp(dir=parent, prefix=f".{os.path.basename(path)}.")
    try:
        write(beside)
        os.chmod(beside, 0o777 & ~_umask())
        if os.path.exists(path):
            shutil.rmtree(path)
        os.replace(beside, path)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
