"""Replays of CUDA graphs as operations, on a class that imitates torch's."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest

from disttrace.capture.devices import graphs
from support.device import Device


class Graph:
    """As ``torch.cuda.CUDAGraph``, without a device."""

    def __init__(self) -> None:
        self.replayed = 0

    def capture_begin(self, pool: object = None) -> None:
        return None

    def capture_end(self) -> None:
        return None

    def replay(self) -> None:
        self.replayed += 1


class Events:
    """What would be asked of the device: replays are over when a test says so."""

    def __init__(self) -> None:
        self.over = False

    def after(self, stream: object) -> Any:
        return lambda: self.over


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Events:
    """In the place of those of CUDA."""
    made = Events()
    monkeypatch.setattr(graphs, "after", made.after)
    return made


def watched(device: Device) -> type[Graph]:
    """A class of graphs whose captures and replays are seen."""
    kind = type("CUDAGraph", (), dict(Graph.__dict__))
    device.operations.graphs.watch(SimpleNamespace(CUDAGraph=kind))
    return kind


def captured(device: Device, graph: Graph, *groups: int) -> Graph:
    """A graph with one all_reduce in each of these groups."""
    graph.capture_begin()
    for group in groups:
        device.issue(group)
    graph.capture_end()
    return graph


def replays(device: Device) -> list[tuple[str, int]]:
    calls = {d["n"]: d for d in device.journal.definitions if d["def"] == "call"}
    found = []
    for line in device.journal.lines:
        if line.startswith(b'{"b":') and b'"s":' in line:
            call = calls[int(line.split(b'"s":')[1].split(b",")[0].rstrip(b"}\n"))]
            if call["op"].startswith("graph_replay"):
                found.append((call["op"], call["group"]))
    return found


def test_a_replay_is_an_operation_of_each_group_in_it(events: Events) -> None:
    """In flight until its event says that the device is through."""
    device = Device()
    graph = captured(device, watched(device)(), 1, 2, 2)
    graph.replay()
    assert graph.replayed == 1
    assert replays(device) == [("graph_replay(all_reduce)", 1), ("graph_replay(2 all_reduce)", 2)]
    assert device.poll(2)
    events.over = True
    assert not device.poll()
    assert sum(line.startswith(b'{"c":') for line in device.journal.lines) == 2


def test_a_graph_without_collectives_costs_nothing(events: Events) -> None:
    """And one that is gone is forgotten."""
    device = Device()
    kind = watched(device)
    captured(device, kind()).replay()
    graph = captured(device, kind(), 1)
    del graph
    gc.collect()
    assert (replays(device), device.operations.graphs._names.entries) == ([], {})


def test_a_replay_that_raises_has_failed(events: Events, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exception is the program's."""

    def raises(self: Graph) -> None:
        raise ValueError("not now")

    monkeypatch.setattr(Graph, "replay", raises)
    device = Device()
    graph = captured(device, watched(device)(), 1)
    with pytest.raises(ValueError, match="not now"):
        graph.replay()
    assert any(line.startswith(b'{"e":') and b'"f":1' in line for line in device.journal.lines)


def test_other_contents_are_another_operation() -> None:
    """Of graphs with many runs a checksum tells them apart."""
    many = ["all_reduce", "all_gather"] * 20
    contents = graphs._contents
    assert contents(["all_reduce"] * 3 + ["barrier"]) == "3 all_reduce, barrier"
    assert contents(many) != contents([*many, "all_reduce"])
    assert len(contents(many)) < 200
