"""What a traced program says of its secrets is in no file of ours and in no sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.preloaded import preloaded
from support.raw import read_journals

PROGRAM = Path(__file__).with_name("programs") / "secrets_everywhere.py"
TOKEN = "ghp_0123456789abcdefABCDEF0123456789abcd"


@pytest.mark.parametrize(("mask", "patterns"), [("on", ""), ("off", ""), ("on", "acme[0-9]+")])
def test_no_secret_is_written(tmp_path: Path, mask: str, patterns: str) -> None:
    """Command line, keys, prefixes, addresses, names, errors; the operations are all there."""
    secret = "acme31415926" if patterns else TOKEN
    # Newer interpreters show this line in a traceback, where nothing of ours is to be seen.
    start = "import importlib, runpy, sys; importlib.import_module('dist' 'trace.startup').main();"
    start += " sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    words = ["-c", start, str(PROGRAM), secret, "--password", "hunter2", "--db=pg://u:hunter2@db"]
    variables = {"DISTTRACE_DIR": str(tmp_path / "out"), "DISTTRACE_MASK": mask}
    variables |= {"DISTTRACE": "1", "DISTTRACE_REDACT": patterns, "TMPDIR": str(tmp_path)}
    outcome = preloaded(*words, timeout=60.0, **variables)
    assert (outcome.stdout, outcome.code) == ("done\n", 1), f"{outcome}"
    assert "disttrace" not in outcome.stderr.replace("disttrace.annotate", "")
    written = b"".join(path.read_bytes() for path in (tmp_path / "out").iterdir()).decode()
    assert (secret in written) == (mask == "off")
    assert ("hunter2" in written) == (mask == "off")
    (journal,) = read_journals(tmp_path / "out")
    names = [name for name, _, _ in journal.operations()]
    for name in ("store.set", "store.check", "annotate", "FileStore", "all_reduce"):
        assert name in names
    assert names.count("store.set") >= 3
