"""On or off: the words for it, and the one reading of DISTTRACE.

Start-up asks here, so this imports nothing (see ``startup``).
"""

SWITCH = "DISTTRACE"
"""The variable that switches tracing on."""

ON = frozenset({"1", "on", "true", "yes"})
OFF = frozenset({"0", "off", "false", "no"})

_LONGEST = 80


def parse(word: str) -> bool:
    """Whether ``word`` says on; ValueError where it says neither on nor off."""
    word = word.strip().lower()
    if word not in ON | OFF:
        raise ValueError
    return word in ON


def is_on(value: str | None) -> bool:
    """Whether this value of DISTTRACE switches tracing on; unset and empty are off.

    ValueError for a value that says neither: its text is the sentence for people.
    """
    if value is None or not value.strip():
        return False
    try:
        return parse(value)
    except ValueError:
        raise ValueError(f"{SWITCH} is {shown(value)}; allowed is 1 or 0; not tracing.") from None


def shown(value: object) -> str:
    """A value as a sentence quotes it: of a long one the beginning."""
    text = repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
