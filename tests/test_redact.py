"""Secrets are masked wherever they stand, and nothing else is."""

from __future__ import annotations

import base64
import json
import shlex
import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disttrace.redact import MASK, Masker, Unmasked, level_of, split

LINES = Path(__file__).with_name("support") / "command_lines.txt"

HEX = "0123456789abcdef" * 4
B64 = "dGhpcyBpcyBub3QgYSByZWFsIHNlY3JldCBhdCBhbGw"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTYifQ.Zm9vYmFyYmF6cXV4"

# Words of a command line, and what must not be readable afterwards.
GIVEN: list[tuple[list[str], str]] = [
    (["--token", "-abcd"], "-abcd"), (["--token=tok3n"], "tok3n"), (["--api-key", "k3y"], "k3y"),
    (["--key=abc"], "abc"), (["--secret", "s3cr3t"], "s3cr3t"),
    (["--password", "hunter2"], "hunter2"), (["--password=with some spaces"], "some"),
    (["--pwd=hunter2"], "hunter2"), (["--auth=hunter2"], "hunter2"),
    (["--basic-auth", "me:hunter2"], "hunter2"), (["--credential", "hunter2"], "hunter2"),
    (["--credentials=hunter2"], "hunter2"), (["--passphrase", "correct horse"], "horse"),
    (["--bearer", "hunter2"], "hunter2"), (["--jwt=hunter2"], "hunter2"),
    (["--cookie", "session=hunter2"], "hunter2"), (["--pin", "4711"], "4711"),
    (["--signature", "hunter2"], "hunter2"), (["-pSECRET"], "SECRET"), (["-phunter2"], "hunter2"),
    (["--sas", "sig=hunter2"], "hunter2"), (["-p", "hunter2"], "hunter2"),
    (["-P", "SECRET"], "SECRET"), (["-k", "x7Gh2kQ"], "x7Gh2kQ"), (["-pw", "hunter2"], "hunter2"),
    (["--wandb", HEX[:40]], HEX[:40]), (["--wandb=a1b2c3d4"], "a1b2c3d4"),
    (["--hf", "hunter2"], "hunter2"),
    (["https://a.blob.core.windows.net/c?sv=2022&sig=hunter2%3D"], "hunter2"),
    (["--set", "s3.access=hunter2"], "hunter2"), (["--set=s3.secret=hunter2"], "hunter2"),
    (["+wandb.api_key=hunter2"], "hunter2"), (["model.hf_token=hunter2"], "hunter2"),
    (["postgres://user:hunter2@db/x"], "hunter2"), (["https://me:hunter2@host/path"], "hunter2"),
    (["redis://:hunter2@cache:6379/0"], "hunter2"),
    (["amqp://u:p%40ss@mq"], "p%40ss"),
    ([f"https://{HEX[:32]}@o1.ingest.sentry.io/2"], HEX[:32]),
    (["Server=db;User Id=sa;Password=hunter2;"], "hunter2"),
    ([f"DefaultEndpointsProtocol=https;AccountKey={B64}=="], B64),
    (["-H", "Authorization: Bearer hunter2"], "hunter2"),
    (["--header", "Proxy-Authorization: Basic bWU6aHVudGVyMg=="], "bWU6aHVudGVyMg"),
    (["--header=Cookie: session=hunter2"], "hunter2"),
    (["--header", "X-Api-Key: hunter22"], "hunter22"),
    (['{"api_key": "hunter2"}'], "hunter2"),
    (['{"db": {"password": "with \\"quotes\\"", "n": 1}}'], "with"),
    (['{\\"token\\": \\"hunter2\\"}'], "hunter2"),
    (["--tokens", "a1b2", "--api-keys", "first", "second"], "second"),
    (["--secrets", "first", "second"], "second"),
    (["env", "WANDB_API_KEY=hunter2"], "hunter2"),
    (["AWS_SECRET_ACCESS_KEY=hunter2"], "hunter2"),
    (["--aws-access-key-id", "hunter2"], "hunter2"),
    (["--hubToken", "hunter2"], "hunter2"),
    (["--slack-webhook", f"https://hooks.slack.com/services/T01234567/B01234567/{HEX[:24]}"],
     HEX[:24]),
    (["-----BEGIN RSA PRIVATE KEY-----\\nMIIEpAIBAAKCAQEA\\n-----END RSA PRIVATE KEY-----"],
     "MIIE"),
]  # fmt: skip

# Tokens that are known by their shape, wherever they stand.
TOKENS = [
    "AKIAIOSFODNN7EXAMPLE", "ASIAIOSFODNN7EXAMPLE", "ghp_" + HEX[:36], "gho_" + HEX[:36],
    "github_pat_11ABCDEFG0" + HEX[:40], "glpat-" + HEX[:20], "sk-" + HEX[:48],
    "sk-proj-" + HEX[:40], "sk-ant-api03-" + HEX[:40], "sk_live_" + HEX[:24], "rk_test_" + HEX[:24],
    "xoxb-123456789012-" + HEX[:24], "AIza" + "SyA1234567890abcdefghijklmnopqrstu",
    "ya29.a0Af" + HEX[:40], "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz12345678", "npm_" + HEX[:36],
    "pypi-AgEIcHlwaS5vcmc" + HEX[:40],
    "SG.abcdefghij0123456789AB.abcdefghij0123456789ABCDEFGHIJ",
    "key-" + HEX[:32],
    "SK" + HEX[:32],
    "123456789:AAabcdefghijklmnopqrstuvwxyz0123456",
    "dapi" + HEX[:32], "dop_v1_" + HEX, "hvs." + "CAESIabcdefghij0123456789", "gsk_" + HEX[:52],
    "r8_" + HEX[:37], "lin_api_" + HEX[:40], "ATATT3xFfGF0" + HEX[:40], "shpat_" + HEX[:32],
    "NRAK-ABCDEFGHIJKLMNOPQRSTUVWXYZ1", "glsa_" + HEX[:32], "pul-" + HEX[:40],
    "dckr_pat_" + HEX[:27], "LTAI5tABCDEFGHIJKLMN", JWT,
    base64.b64encode(json.dumps({"api_address": "https://x", "k": 1}).encode()).decode(),
]  # fmt: skip


@pytest.mark.parametrize(("argv", "secret"), GIVEN, ids=lambda value: str(value)[:40])
def test_a_secret_on_the_command_line_is_masked(argv: list[str], secret: str) -> None:
    """By the option before it, by its name, or by its place; the program around it stays."""
    masked = Masker().argv(["python", "train.py", *argv, "--lr", "0.1"])
    assert secret not in " ".join(masked)
    assert MASK in " ".join(masked)
    assert masked[:2] == ["python", "train.py"]
    assert masked[-2:] == ["--lr", "0.1"]


@pytest.mark.parametrize(
    "text", ["{}", "--x={}", "cannot log in with {}, status 401", "run/{}/0", "tcp://h:1?t={}"]
)
def test_a_token_is_known_by_its_shape(text: str) -> None:
    """Whatever it is called, in command lines, errors, keys and addresses alike."""
    for token in TOKENS:
        masked = Masker().text(text.format(token))
        assert token[6:] not in masked
        assert masked == text.format(MASK) or token is TOKENS[-1]


def test_ordinary_command_lines_stay_as_they_are() -> None:
    """200 of them: launchers, trainers and tools of this field, with options like --eos-token."""
    lines = [*map(shlex.split, LINES.read_text().splitlines())]
    assert len(lines) == 200
    assert [Masker().argv(argv) for argv in lines] == lines


@pytest.mark.parametrize(
    "text",
    [
        "default_pg/0//cpu//0/1",
        "torch.rendezvous.none.0/rank_address/3",
        "worker/attempt_1/default_pg/0//cuda//2:3",
        "KeyError: 'token'",
        "RuntimeError: unexpected key: encoder.layer.0.attention.self.query.weight",
        "ValueError: invalid signature: expected (Tensor, int)",
        "DistStoreError: Timed out after 31 seconds waiting for clients. 1/2 clients joined.",
        "wait timeout after 3000ms, keys: /default_pg/0//cpu//0/1",
        "ModuleNotFoundError: No module named 'secrets_of_training'",
        "tcp://10.0.0.1:29500",
        "git@github.com:org/repo.git",
        "ssh://git@github.com/org/repo",
        "nvcr.io/nvidia/pytorch:24.01-py3@sha256:0123456789abcdef0123456789abcdef",
        "/home/me/.venv/lib/python3.11/site-packages/sk-learn-contrib/module.py",
        "6b1f0d3c-6f0f-4a55-9d6c-3f2f9f0c1a11",
        "f(key=name, token=tokenizer.pad_token)",
        "step 12: loss=0.25 lr=1e-4 tokens=4096 max_token=12",
    ],
)
def test_ordinary_texts_stay_as_they_are(text: str) -> None:
    """Keys, errors, addresses, paths."""
    assert Masker().text(text) == text


@pytest.mark.parametrize("piece", ["sk-", "a:", "token:", "a='", "://a@", "a.a-", "eyJ-", 'x="\\'])
def test_a_long_text_is_cut_before_it_is_read(piece: str) -> None:
    """Whatever a program raises, sets as a key, or is started with."""
    text = f"password=hunter2 {piece * 200_000}"
    assert len(Masker().text(text)) < 2_100
    assert "hunter2" not in Masker().text(text)
    assert len(" ".join(Masker().argv(["train.py", *[text] * 50]))) < 70_000


def test_a_secret_at_the_cut_is_masked() -> None:
    """What is cut is looked at a little further than it is kept."""
    for length in range(1_900, 2_300, 2):
        masked = Masker().text("a " * (length // 2) + TOKENS[2] + " b" * 2_000)
        assert TOKENS[2][:12] not in masked


@pytest.mark.parametrize(
    "line",
    [
        "-p 8080 -p 8080:80/tcp -p 127.0.0.1:80:80 -p debug -p gpu-long -p lr=0.1 -p no:xdist -p",
        "-m pkg.module2 -k 5 -t 4h -t 01:00:00 -w node01 -w node[01-04] -s 42 -t 1e-4 -P 4 -p 0.5",
        "--wandb offline --wandb my-project --aws eu-west --hf gpt -p /data/x1 -p x.py -p Adam",
    ],
)
def test_ports_modules_and_words_behind_short_options_stay(line: str) -> None:
    argv = ["python", "train.py", *line.split()]
    assert Masker().argv(argv) == argv


def test_records_are_masked_inside_and_keep_their_types() -> None:
    """Every text in lists and dictionaries, and values under names that tell."""
    record = {"def": "call", "n": 1, "args": {"init_method": "tcp://u:pw@h:1", "password": "x"}}
    masked = Masker().record({**record, "async": False, "shapes": [[4], []], "v": TOKENS[2]})
    assert masked["args"] == {"init_method": "tcp://***@h:1", "password": MASK}
    plain = (masked["n"], masked["async"], masked["shapes"], masked["v"])
    assert plain == (1, False, [[4], []], MASK)


def test_further_patterns_and_none() -> None:
    """DISTTRACE_REDACT adds, DISTTRACE_MASK=off takes all away."""
    assert Masker(["acme-[0-9]{3,5}"]).text("run acme-1234 of acme-x") == "run *** of acme-x"
    assert Masker().text("run acme-1234") == "run acme-1234"
    for argv, _ in GIVEN:
        assert Unmasked().argv(argv) == argv


@pytest.mark.parametrize(
    ("text", "patterns"),
    [
        ("acme-[0-9]{3,5}", ["acme-[0-9]{3,5}"]),
        ("a,b\nc,,", ["a", "b", "c"]),
        (r"(x,y)\,z,[,]+", [r"(x,y)\,z", "[,]+"]),
    ],
)
def test_patterns_are_a_list(text: str, patterns: list[str]) -> None:
    """Split at commas that are not the pattern's own."""
    assert split(text) == patterns


PLAIN = "max_tokens eos-token pad_token_id sort_key pin_memory tokenizer author keyboard num_keys"
LEVELS = (
    f"{PLAIN} signature_columns", "token api-key hfToken key --auth S3_ACCESS",
    "DB_PASSWORD APIKEY clientSecret pin password2",
)  # fmt: skip


def test_names_tell_by_their_last_word() -> None:
    for level, names in enumerate(LEVELS):
        words = names.split()
        assert {name: level_of(name) for name in words} == dict.fromkeys(words, level)


# -- command lines drawn from ordinary ones, with and without a secret: each part is told apart


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
DRAWN = st.sampled_from(
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
@given(ordinary, DRAWN, secret, st.integers(0, 8))
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
