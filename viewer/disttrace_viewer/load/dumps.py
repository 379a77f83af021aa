"""Stacks that ``faulthandler`` wrote into the definitions while its process could not write.

One of its threads held the GIL, or SIGTERM ended it (the recorder's ``gil_free_stacks``). The text
is that of CPython's ``traceback.c``; earlier versions wrote all threads, from the newest to the
main one.
"""

from __future__ import annotations

import re

import disttrace.journal.format as fmt

Lines = list[tuple[str, int, str]]

_THREAD = re.compile(
    rb"^(Stack|(Current thread|Thread) 0x[0-9a-f]+(?: \[.*\])?) \(most recent call first\):$"
)
_FRAME = re.compile(rb'^  File "(.*)", line (\d+) in (.*)$')
_OTHER = re.compile(rb"^(Timeout \(.*\)!|  <no Python frame>|  File .*|  \.\.\.|\.\.\.)$")
_OVER = b'{"%s":"%s"' % (fmt.DEF.encode(), fmt.DUMPED.encode())
_OURS = re.compile(r"[/\\]disttrace[/\\](capture|lifecycle|patching|recording)[/\\]")
_DEPTH = 16


class Dumps:
    """The newest dump among the lines of a definitions file, of which the last thread is kept."""

    def __init__(self) -> None:
        self.main: Lines = []
        """Frames of the main thread, innermost first; empty where nothing is known."""

    def take(self, line: bytes) -> bool:
        """Take a line that is no record, or says that dumps are over; False if it is neither."""
        if line.startswith(_OVER):
            self.main = []
            return True
        if _THREAD.match(line):
            self.main = []
            return True
        if found := _FRAME.match(line):
            file = found[1].decode("utf-8", "replace")
            if len(self.main) < _DEPTH and not _OURS.search(file):
                self.main.append((file, int(found[2][-9:]), found[3].decode("utf-8", "replace")))
            return True
        if line == b"...":
            self.main = []  # more than a hundred threads: the main one is not among those
        return bool(_OTHER.match(line))
