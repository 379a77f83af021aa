"""Secrets behind short options, which only the program that takes them gives a meaning.

``-p`` is a port to one program and a password to another, so it tells something only where that
program is on the same command line. ``-u NAME:WORD`` is what curl taught everybody, and the
container tools, which take a user and a group there, are the exception.
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
_USER_AND_WORD = re.compile(r"([^\s:/@=,]+:)(?!//|\d+$)[^\s]{3,}")
"""``user:password``, but no URL, no ``host:port`` and no ``uid:gid``."""
_USER = frozenset({"-u", "-U", "--user", "--proxy-user"})
_GROUP = frozenset(
    ["docker", "podman", "nerdctl", "buildah", "chroot", "setpriv", "install", "chown"]
)
"""``-u`` and ``--user`` name a user and a group to these."""
_HTTPIE = _set("http https xh")
_SHELLS = _set("sh bash dash zsh ksh")
_COMMAND = re.compile(r"-[a-z]*c")


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
