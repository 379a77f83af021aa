"""At which address of this host the companions of a job meet, and what is answered there."""

from __future__ import annotations

import socket

import pytest

from disttrace_viewer.companion.channel.guest import Guest
from disttrace_viewer.companion.channel.message import Garbled, Message
from disttrace_viewer.companion.channel.places import is_here, to_listen_at


@pytest.mark.parametrize(
    ("address", "here"),
    [
        ("127.0.0.1", True),
        ("127.0.0.2", True),  # the kernel would speak to it from 127.0.0.1
        ("192.0.2.1", False),  # of nobody (RFC 5737)
        ("0.0.0.0", False),
        ("::", False),
        ("2001:db8::1", False),
        ("no address", False),
    ],
)
def test_which_addresses_are_of_this_host(address: str, here: bool) -> None:
    assert is_here(address) is here


def test_whose_store_is_at_a_second_address_listens_there() -> None:
    with socket.create_server(("127.0.0.2", 0)):
        assert to_listen_at("127.0.0.2", ["127.0.0.2"]) == "127.0.0.2"


def test_who_asked_is_told_that_the_answer_was_garbled() -> None:
    """At once, with the end of that hub, and not when the patience of the question is over."""
    asked: list[Message] = []
    guest = Guest(asked.append, lambda *_: None, 0.0)
    answers: list[object] = []
    guest.gather((), 0.0, answers.append)
    number = asked[-1].number("n")
    with pytest.raises(Garbled):
        guest.heard(Message("gathered", {"n": number, "term": 1}, b"\xff"), 1.0, known=True)
    guest.close()
    assert answers == [None]
    assert not guest.leads
