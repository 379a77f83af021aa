"""Our dataclasses do what those of the standard library do, and cost less to make."""

from __future__ import annotations

import builtins
import copy
import pickle
from typing import Any

import pytest

from disttrace_viewer.trace.values import asdict, dataclass, field, replace


@dataclass(frozen=True, slots=True)
class _Call:
    rank: int
    lines: list[str] = field(default_factory=list)
    noted: int = field(default=3, compare=False)


@dataclass(frozen=True)
class _Kept:
    rank: int


@dataclass(slots=True, kw_only=True)
class _Open:
    rank: int
    own: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.own = [self.rank]


def test_they_are_dataclasses() -> None:
    """Equal by their fields, also copied and sent to another process; frozen ones have a hash."""
    call = _Call(1, ["a"])
    assert call == _Call(1, ["a"], 5) != _Call(2, ["a"])
    assert pickle.loads(pickle.dumps(call)) == copy.deepcopy(call) == replace(call) == call
    assert asdict(_Call(1)) == {"rank": 1, "lines": [], "noted": 3}
    assert repr(_Open(rank=4)) == "_Open(rank=4, own=[4])"
    assert pickle.loads(pickle.dumps(_Open(rank=4))) == _Open(rank=4)
    assert replace(_Open(rank=4), rank=5) == _Open(rank=5)
    assert len({_Kept(1), _Kept(1), _Kept(2)}) == 2
    with pytest.raises(TypeError):
        _Call()  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        hash(_Open(rank=4))


def test_making_one_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command makes a hundred classes and uses half of them."""
    compiled: list[Any] = []
    kept = exec

    def noted(*args: Any) -> None:
        compiled.append(args)
        kept(*args)

    monkeypatch.setattr(builtins, "exec", noted)

    @dataclass(frozen=True, slots=True)
    class Made:
        rank: int

    before = len(compiled)
    # Python's own decorator compiles one without fields since 3.14.
    assert [one for one in compiled if "rank" in str(one[0])] == []
    assert Made(rank=1) == Made(1)
    assert len(compiled) == before + 1, "its __init__, once"
