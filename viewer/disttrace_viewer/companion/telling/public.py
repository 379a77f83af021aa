"""What of a state is told to whom has not shown that it is of our job: numbers and places.

Where each process stands (operation, group, number, shapes, file and line), which process it is,
and how it ended. No command lines, folders, texts of exceptions, values of arguments, names of
threads, and of keys, prefixes and names a hash (``words.py``).
"""

from __future__ import annotations

import os.path
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import orjson

from disttrace_viewer.companion.telling.words import with_words
from disttrace_viewer.states.form.alike import Like, only
from disttrace_viewer.states.form.hidden import hidden
from disttrace_viewer.states.form.state import State

_PROCESS = ("process", "job", "job_source", "run", "host", "boot_id", "role")
_ENV = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_PORT")
_LISTED = {
    "clock": ("t", "unix_ns", "error_ns"),
    "failure": ("t", "type", "stack", "h"),
    "handling": ("t", "type", "stack", "h"),
    "exit": ("t", "how", "code", "stack"),
    "seen": ("t", "state", "code", "others"),
    "trouble": ("t", "ago", "by", "where", "name", "code", "mine"),
    "dropped": ("t", "segment", "from_t", "to_t", "operations"),
    "worker": ("t", "pid", "event", "local_rank", "rank", "attempt", "code", "signal", "journal"),
    "rendezvous": ("t", "event", "state", "rank"),
}
_CALL = (
    *("op", "kind", "group", "backend", "device", "async", "shapes", "dtypes", "bytes", "splits"),
    *("reduce_op", "root", "peer", "tag", "store", "origin", "stack"),
)
_ARGS = ("ranks", "src", "dst", "group_src", "group_dst")


def public(state: State) -> State:
    """That part of a state."""
    state = with_words(state, hidden)
    numbered = state.numbered
    built = orjson.loads(state.built)
    built["call"] = {n: _call(call) for n, call in built["call"].items()}
    host, pid = state.named.get("host", ""), state.named.get("pid", "")
    return replace(
        state,
        base=f"{host}-{pid}-{state.id[:12]}",
        process=_process(state.process),
        identity={
            name: value
            for name, value in state.identity.items()
            if isinstance(value, int) or name in ("role", "run")
        },
        versions={},
        listed={
            kind: [only(one, _LISTED[kind]) for one in found]
            for kind, found in state.listed.items()
            if kind in _LISTED
        },
        numbered={
            **numbered,
            "string": {n: _kind_of(text) for n, text in numbered.get("string", {}).items()},
            "stack": {n: _places(frames) for n, frames in numbered.get("stack", {}).items()},
            "thread": {n: {} for n in numbered.get("thread", {})},
            "call": {n: _call(call) for n, call in numbered.get("call", {}).items()},
        },
        built=orjson.dumps(built, option=orjson.OPT_NON_STR_KEYS).decode(),
        problems=[],
    )


def hushed(likes: Iterable[Like]) -> tuple[Like, ...]:
    """Whom it is told whom they are like, without the names of their groups."""
    return tuple(
        replace(like, own=tuple((at, own._replace(name=hidden(own.name))) for at, own in like.own))
        for like in likes
    )


def revealed(state: State, words: Mapping[str, str], files: Mapping[str, str]) -> State:
    """What another host told, with the words and files that are known here by their own names."""
    state = with_words(state, lambda word: words.get(word, word))
    stacks = state.numbered.get("stack", {})
    named = {
        n: [[files.get(file, file), line, name] for file, line, name in frames]
        for n, frames in stacks.items()
    }
    return replace(state, numbered={**state.numbered, "stack": named})


def known_files(states: Iterable[State]) -> dict[str, str]:
    """Files in stacks by their names without folders, where there is one of that name."""
    found: dict[str, set[str]] = {}
    for state in states:
        for frames in state.numbered.get("stack", {}).values():
            for file, _, _ in frames:
                found.setdefault(os.path.basename(file), set()).add(file)
    return {name: next(iter(paths)) for name, paths in found.items() if len(paths) == 1}


def _process(record: Mapping[str, Any]) -> dict[str, Any]:
    """Whose it is, in numbers."""
    found = {k: v for k, v in record.items() if isinstance(v, int) or k in _PROCESS}
    env = record.get("env") or {}
    return {**found, "env": {n: env[n] for n in _ENV if str(env.get(n, "")).isdecimal()}}


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    found = only(call, _CALL)
    args = call.get("args")
    if isinstance(args, dict) and (numbers := only(args, _ARGS)):
        found["args"] = numbers
    return found


def _kind_of(text: str) -> str:
    """The class of an exception, without what it says."""
    name = text.partition(":")[0].strip()
    return name if name.replace(".", "_").isidentifier() else "an exception"


def _places(frames: Iterable[Any]) -> list[list[Any]]:
    """Frames without the folders of their files."""
    return [[os.path.basename(file), line, name] for file, line, name in frames]
