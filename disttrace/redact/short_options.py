"""Secrets behind short options, which only the program that takes them gives a meaning.

``-p`` is a port to one program and a password to another. Where a program that takes a password is
on the same command line, whatever follows is masked; else what does not look like a port, a path, a
name or a plain word. ``-u NAME:WORD`` is what curl taught everybody, and the container tools, which
take a user and a group there, are the exception.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


def _table(rows: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    return {name: options for names, options in rows.items() for name in names.split()}


# Programs, and the options by which they take a secret: as the next word, or attached.
_NEXT = _table(
    {
        "sshpass": ("-p",),
        "mongo mongosh mongodump mongorestore mongoexport mongoimport": ("-p",),
        "redis-cli": ("-a",),
        "ldapsearch ldapadd ldapmodify ldapdelete ldapwhoami ldappasswd": ("-w",),
        "sqlcmd bcp zip unzip mosquitto_pub mosquitto_sub": ("-P",),
    }
)
_LOGIN = frozenset(
    ["docker", "podman", "nerdctl", "buildah", "skopeo", "helm", "oras", "crane", "az"]
)
"""With the word ``login``, ``-p`` is a password."""
_ATTACHED = _table(
    {
        "mysql mysqldump mysqladmin mysqlimport mysqlsh mariadb mariadb-dump 7z 7za 7zz": ("-p",),
        "sshpass mongo mongosh mongodump mongorestore": ("-p",),
        "redis-cli": ("-a",),
        "zip unzip": ("-P",),
    }
)
_USER_AND_WORD = re.compile(r"([^\s:/@=,]{1,200}:)(?!//|\d{1,20}$)\S{3,}")
"""``user:password``, but no URL, no ``host:port`` and no ``uid:gid``."""
_USER = frozenset({"-u", "-U", "--user", "--proxy-user"})
_GROUP = frozenset(
    ["docker", "podman", "nerdctl", "buildah", "chroot", "setpriv", "install", "chown"]
)
"""``-u`` and ``--user`` name a user and a group to these."""
_OFTEN = _set(
    "-p -P -pw -pwd -pass -tok --pw --pass --tok --login --wandb --hf --huggingface --hub "
    "--neptune --comet --clearml --mlflow --openai --anthropic --github --gitlab --azure --aws "
    "--gcp --s3 --slack --telegram --sentry"
)
"""Options that name no secret but are often given one: a letter, or a service's name."""
_AT_TIMES = _set("-k -K -t -T -w -W -s -S")
_READABLE = re.compile(
    r"[-+]?\d[\d.,:x+-]{0,60}(?:[a-zA-Z]{1,3}|/[a-z]{1,9})?"  # ports, addresses, sizes, times
    r"|[A-Z]?[a-z]{1,40}(?:[\s_.,:/+-][A-Z]?[a-z]{1,40}){0,20}"  # words
    r"|[a-z][\w.-]{0,40}(?:[\[(].*|=.*)|[a-z]{1,9}://.*"  # what has its own name
    r"|(?:\.{0,2}|~)/.*|[\w./-]{1,200}\.[a-z]{2,5}|-.*|[<$].*|\W*"  # paths, options
)
_NUMBERED = re.compile(r"[a-z]{1,20}[_-]?\d{1,4}")
_HTTPIE = _set("http https xh")
_SHELLS = _set("sh bash dash zsh ksh")
_COMMAND = re.compile(r"-[a-z]{0,20}c")


def may_be_given(option: str, value: str) -> bool:
    """Whether ``value`` may be a secret behind an option whose name does not show it."""
    if option in _OFTEN:
        return _READABLE.fullmatch(value) is None
    if option in _AT_TIMES:  # `-w node01` and `-k 5`, but `-k x7Gh2`
        return not (_READABLE.fullmatch(value) or _NUMBERED.fullmatch(value))
    return False


class ShortOptions:
    """What the words of one command line mean to the programs that are named before them."""

    def __init__(self) -> None:
        self._before = ""
        self._programs: set[str] = set()
        self._next: set[str] = set()
        self._attached: set[str] = set()

    def read(self, argument: str, mask: str) -> str:
        """The next word, without the secret that it holds by its place."""
        before, self._before = self._before, argument
        if before in self._next:
            self._took(before)
            return mask
        if not argument.startswith("-"):
            self._name(os.path.basename(argument))
        if before in self._users and (found := _USER_AND_WORD.fullmatch(argument)):
            return f"{found[1]}{mask}"
        lead, rest = argument[:2], argument[2:]
        if rest and lead in self._attached:
            self._took(lead)
            return f"{lead}{mask}"
        if lead in _USER and "curl" in self._programs and (found := _USER_AND_WORD.fullmatch(rest)):
            return f"{lead}{found[1]}{mask}"
        return argument

    def takes_command(self, option: str) -> bool:
        """Whether the word behind an option is a command line of its own."""
        return _COMMAND.fullmatch(option) is not None and not self._programs.isdisjoint(_SHELLS)

    def _took(self, option: str) -> None:
        """A program takes one password; what follows may be another's port."""
        self._next.discard(option)
        self._attached.discard(option)

    def _name(self, program: str) -> None:
        self._programs.add(program)
        self._next.update(_NEXT.get(program, ()))
        self._attached.update(_ATTACHED.get(program, ()))
        if program == "login" and not self._programs.isdisjoint(_LOGIN):
            self._next.add("-p")

    @property
    def _users(self) -> frozenset[str]:
        if not self._programs.isdisjoint(_GROUP):
            return frozenset()
        return _USER if self._programs.isdisjoint(_HTTPIE) else _USER | {"-a"}
