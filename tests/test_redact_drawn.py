"""Command lines drawn from ordinary ones, with and without a secret: each part is told apart."""

from __future__ import annotations

import shlex
import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disttrace.redact import MASK, Masker

LINES = Path(__file__).with_name("support") / "command_lines.txt"


def units(line: str) -> list[tuple[str, ...]]:
    """A line's options, each with the words that follow it."""
    found: list[tuple[str, ...]] = []
    for word in shlex.split(line):
        if word.startswith("-") or not found:
            found.append((word,))
        else:
            found[-1] += (word,)
    return found


ORDINARY = sorted({unit for line in LINES.read_text().splitlines() for unit in units(line)[1:]})
PARTS = "model optim trainer data attention key query token tokenizer embed layers head db hub"
ENDS = "lr dim name path size type bias init dropout seed num_layers pad_token max_tokens sort_key"
dotted = st.builds(
    lambda parts, end, value: (f"--{'.'.join(parts)}.{end}={value}",),
    st.lists(st.sampled_from(PARTS.split()), min_size=1, max_size=3),
    st.sampled_from(ENDS.split()),
    st.sampled_from(["0.1", "12", "true", "gelu", "runs/7", "xavier_uniform", "v2-large"]),
)
others = st.sampled_from(
    [
        ("-p", "29500"), ("-p", "debug"), ("-u", "train.py"), ("-u", "1000:1000"),
        ("-H", "worker-3"), ("-a", "resnet50"), ("--user", "alice"), ("-u", "node0:29400"),
        ("git@github.com:org/repo.git",), ("https://example.com/a@b/c",), ("ssh://git@host/x",),
        ("--password.length=12",), ("--secrets.provider", "vault"), ("--auth.type", "basic"),
        ("--key-value", "a"),
    ]
)  # fmt: skip
ordinary = st.lists(st.one_of(st.sampled_from(ORDINARY), dotted, others), max_size=8)

LETTERS = string.ascii_letters + string.digits
secret = st.text(LETTERS, min_size=6, max_size=24).filter(
    lambda text: any(c.isdigit() for c in text) and any(c.isalpha() for c in text)
)
GIVEN = st.sampled_from(
    [
        ("--db.password.value={}",), ("--db.password.value", "{}"), ("--model.api_key.name", "{}"),
        ("model.hf_token.value={}",), ("+logger.wandb.api_key.0={}",),
        ("--services.client_secret.prod={}",), ("--api-key-value", "{}"),
        ("-H", "Authorization: Bearer {}"), ("-H", "X-Api-Key: {}"), ("-u", "me:{}"),
        ("--user", "me:{}"), ("https://{}@example.com/a.git",),
        ("git+https://{}@github.com/org/repo.git",), ("mysql", "-p{}"), ("sshpass", "-p", "{}"),
        ("redis-cli", "-a", "{}"), ("docker", "login", "-p", "{}"), ("curl", "-ume:{}"),
        ("bash", "-c", "train --password {} --lr 3"), ("sh", "-c", "mysql -p{} db"),
    ]
)  # fmt: skip


def flat(parts: list[tuple[str, ...]]) -> list[str]:
    return ["python", "train.py", *(word for part in parts for word in part)]


@settings(max_examples=400, deadline=None, derandomize=True)
@given(ordinary)
def test_ordinary_arguments_are_left_alone(parts: list[tuple[str, ...]]) -> None:
    """In any order, beside each other: no word changes."""
    argv = flat(parts)
    assert Masker().argv(argv) == argv


@settings(max_examples=400, deadline=None, derandomize=True)
@given(ordinary, GIVEN, secret, st.integers(0, 8))
def test_a_secret_among_them_is_masked_alone(
    parts: list[tuple[str, ...]], unit: tuple[str, ...], value: str, place: int
) -> None:
    """And nothing else is: the options before and behind it stay readable."""
    place = min(place, len(parts))
    before, behind = parts[:place], [("--lr", "0.1"), *parts[place:]]
    masked = Masker().argv(flat([*before, tuple(w.format(value) for w in unit), *behind]))
    words = flat(before)
    assert value not in " ".join(masked)
    assert masked[: len(words)] == words
    assert masked[len(words) + len(unit) :] == flat(behind)[2:]
    assert MASK in " ".join(masked[len(words) : len(words) + len(unit)])


@pytest.mark.parametrize(
    "argv",
    [
        ["docker", "run", "-u", "app:staff", "image"],
        ["mysql", "-p", "db"],
        ["bash", "-c", "train.py -p 29500 -u 0:0"],
        ["python", "-c", "x = {'a': 1}; print(x, -3)"],
    ],
)
def test_what_a_short_option_means_is_its_programs(argv: list[str]) -> None:
    assert Masker().argv(argv) == argv
