"""Masks what looks like a secret, before it is written anywhere.

Three kinds of evidence, each a table below: the shape of a token whose issuer gave it one, the
name that a value is given (``--api-key X``, ``hf_token=X``, ``"password": "X"``), and the place in
a URL or header. Shapes are facts taken from what vendors document and from the rules that gitleaks
(https://github.com/gitleaks/gitleaks, config/gitleaks.toml) and detect-secrets
(https://github.com/Yelp/detect-secrets, plugins) publish; entropy alone is no evidence, for hashes,
run ids and checkpoints have it too. What stays readable is listed in ``docs/privacy.md``.
Half of this file are those tables.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any

from disttrace.redact.short_options import ShortOptions, may_be_given

MASK = "***"

_LONGEST = 2_000
"""Characters of one text that are looked at, and kept. Its patterns take linear time
(``tests/test_patterns.py``), but the text is another's: a program raises what it likes."""
_BEHIND = 256
"""Characters behind those by which a secret is known that the end would part."""
_LONGEST_LINE = 64_000
"""Characters of a command line."""

# -- shapes ----------------------------------------------------------------------------------

# Issuer and shape. No shape begins in the middle of a word; each has at least _RUN characters of
# _RUN_OF in a row, by which most texts are passed over.
_SHAPES: tuple[tuple[str, str], ...] = (
    ("AWS access key id", r"A(?:3T[A-Z0-9]|KIA|SIA|BIA|CCA|GPA|IDA|ROA)[A-Z0-9]{16}\b"),
    ("GitHub", r"gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{20,}"),
    ("GitLab", r"gl(?:pat|ptt|dt|rt|cbt|soat|ft|imt|agent|oas|ffct)-[\w-]{16,}"),
    ("GitLab runners", r"GR1348941[\w-]{16,}"),
    ("OpenAI, Anthropic, OpenRouter", r"sk-(?=[\w-]{0,200}\d)[\w-]{16,}"),
    ("Stripe", r"[rs]k_(?:live|test|prod)_[A-Za-z0-9]{10,}|whsec_[A-Za-z0-9]{16,}"),
    ("Slack", r"xox[abeoprs]-[\w-]{10,}|xapp-\d-[\w-]{10,}"),
    ("Slack and Discord webhooks", r"(?:T\w{8,10}/B\w{8,12}/|api/webhooks/\d{17,19}/)[\w-]{20,}"),
    ("Google", r"AIza[\w-]{30,}|ya29\.[\w-]{16,}|GOCSPX-[\w-]{16,}|1//0[\w-]{30,}"),
    ("Hugging Face", r"hf_[A-Za-z0-9]{16,}|api_org_[A-Za-z0-9]{20,}"),
    ("Weights & Biases", r"wandb_v\d_\w{16,}"),
    ("Groq, xAI, Replicate, Perplexity", r"gsk_\w{20,}|xai-\w{20,}|r8_\w{20,}|pplx-\w{20,}"),
    ("npm, PyPI", r"npm_\w{20,}|pypi-AgE[\w-]{16,}"),
    ("NuGet, RubyGems", r"oy2[a-z0-9]{43}|rubygems_\w{40,}"),
    ("SendGrid", r"SG\.[\w-]{16,}\.[\w-]{16,}"),
    ("Mailgun, Mailchimp", r"key-[0-9a-f]{32}|[0-9a-f]{32}-us\d+"),
    ("Twilio", r"(?:SK|AC)[0-9a-f]{32}\b"),
    ("Telegram, Discord bots", r"\d{8,10}:AA[\w-]{30,}|[MNO][\w-]{23,27}\.[\w-]{6}\.[\w-]{27,}"),
    ("Databricks", r"dapi[0-9a-f]{32}\b"),
    ("DigitalOcean", r"do[opr]_v1_[0-9a-f]{32,}"),
    ("HashiCorp", r"hv[sbr]\.[\w-]{16,}|s\.[A-Za-z0-9]{24}\b|[A-Za-z0-9]{14}\.atlasv1\.[\w-]{40,}"),
    ("Doppler, Pulumi", r"dp\.(?:pt|st|ct|sa|scim|audit)\.\w{40,}|pul-[0-9a-f]{40}"),
    ("Grafana", r"gl(?:sa|c)_\w{20,}"),
    ("Atlassian", r"ATATT3[\w=-]{20,}|ATCTT3[\w=-]{20,}"),
    ("Linear, Notion", r"lin_api_\w{20,}|ntn_\w{20,}"),
    ("Shopify, Square", r"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{20,}|sq0(?:atp|csp|idp)-[\w-]{16,}"),
    ("New Relic, Postman", r"NRAK-[A-Z0-9]{20,}|PMAK-[\w-]{30,}"),
    ("Dynatrace", r"dt0c01\.[A-Z0-9]{24}\.\w{20,}"),
    ("PlanetScale", r"pscale_(?:tkn|pw|oauth)_[\w.=-]{16,}"),
    ("Supabase, Neon", r"sb[ps]_\w{20,}|napi_\w{20,}"),
    ("Docker, Artifactory, CircleCI", r"dckr_(?:pat|oat)_[\w-]{16,}|AKCp\w{20,}|CCIPAT_\w{20,}"),
    ("Alibaba, Tencent", r"LTAI[A-Za-z0-9]{12,}\b|AKID[A-Za-z0-9]{13,}\b"),
    ("age, 1Password", r"AGE-SECRET-KEY-1\w{40,}|ops_eyJ[\w=-]{20,}"),
    ("Figma, Netlify", r"figd_[\w-]{20,}|nfp_\w{20,}"),
    ("JSON web tokens", r"eyJ[\w-]{8,23}\.[\w-]{8,}(?:\.[\w-]*)?"),
    ("JSON in base64", r"eyJ[\w+/-]{24,}(?:\.[\w-]{8,}(?:\.[\w-]*)?|={1,2})?"),
)


@functools.cache
def _tokens() -> re.Pattern[str]:
    """Of any issuer; made when it is first needed, for that takes as long as a module's import."""
    return re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(shape for _, shape in _SHAPES)})")


_RUN = 13
_RUN_OF = r"[A-Za-z0-9_\-]"
_LONG_RUN = re.compile(rf"{_RUN_OF}{{{_RUN}}}")
# What a text has in which something other than a long run may be masked, or JSON would escape.
_TELLING = '@=: "\\'
_SEPARATES = "".join(
    character
    for character in map(chr, range(0x21, 0x7F))
    if character not in _TELLING and not re.match(_RUN_OF, character)
)
_PLAIN_TEXT = re.compile(rf"(?:{_RUN_OF}|[{re.escape(_SEPARATES)}])*")
_PLAIN_CHARACTERS = bytes(
    2 if re.match(_RUN_OF, chr(n)) else chr(n) in _SEPARATES for n in range(128)
) + bytes([_RUN - 1])

_PRIVATE_KEY = re.compile(r"-----BEGIN[A-Z ]{0,40} PRIVATE KEY-----")
_ITS_END = re.compile(r"-----END[A-Z ]{0,60}-----")

# -- places ----------------------------------------------------------------------------------

_USERINFO = re.compile(
    r"(\b(?:[A-Za-z][A-Za-z0-9+.\-]{0,40})?://)"
    r"([^\s/?#\"'<>@]+(?:@[^\s/?#\"'<>@]*){0,40})@"
)
_USER_AT_HOST = re.compile(
    r"(?<![\w/.+:@%-])(?!mailto:|ssh:|git:)([\w.+-]+:[^\s:/@\"']{3,})@(?!sha256:)"
)
_HEADER = re.compile(
    r"((?:proxy-)?authorization|(?:set-)?cookie)"
    r"(\\?[\"']?\s{0,40}[:=]\s{0,40}\\?[\"']?)([^\"'\r\n\\]+)",
    re.I,
)
_SCHEME = re.compile(
    r"\b(bearer)\s+(?=[^\s\d._]{0,200}[\d._])[\w.~+/=-]{6,}|\b(basic)\s+[\w+/]{8,}={1,2}", re.I
)
_LONGEST_NAMED_USER = 15  # `git@`, but not a token in the place of a user
# Over HTTP a lone user is a token (`https://TOKEN@host`), but for these.
_NAMED_USERS = frozenset({"git", "user", "username", "anonymous", "oauth2", "x-access-token"})

# -- names -----------------------------------------------------------------------------------

_NAMED = re.compile(
    r"(?<![\w.\-])(?P<name>[A-Za-z_][\w.\-]*)(?P<closed>\\{0,16}[\"']?)(?P<sep>\s*[=:]\s*)"
)
_QUOTE = re.compile(r"\\{0,16}([\"'])")
_BARE = re.compile(r"[^\s\"',;&|)\]}]+")
_WORD = re.compile(r"[sS]3|[A-Z]?[a-z]+|[A-Z]{1,200}(?![a-z])|\d+")


def _set(words: str, *more: None) -> frozenset[str | None]:
    return frozenset((*words.split(), *more))


# Last words of a name whose value is secret whatever it looks like.
_ALWAYS = _set(
    "password passwords passwd passphrase passcode pwd secret secrets credential credentials cred "
    "creds apikey apikeys accesskey secretkey privatekey authtoken bearer jwt cookie cookies sas "
    "sig signature otp totp psk authorization"
)
_JOINED = ("apikey", "secretkey", "accesskey", "authtoken", "password", "passwd", "passphrase")

# Last words whose value is secret after these others (None: without any), if it may be one.
_AFTER: Mapping[str, frozenset[str | None]] = {
    "key": _set(
        "account access admin api app application auth aws azure client cohere comet consumer "
        "crypto decryption deploy encryption gcp google hf hmac ingest license master mlflow "
        "neptune openai anthropic private project read root rsa s3 secret server service "
        "session shared sign signing ssh storage subscription wandb webhook write",
        None,
    ),
    "keys": _set("access api auth private secret signing ssh"),
    "tokens": _set("access api auth bearer hf refresh secret session"),
    "pass": _set("admin db ftp http mysql pg redis root smtp sudo user", None),
    "access": _set("aws blob cos gcs minio oss s3 storage"),
}
# ``token`` is secret except after the words of language models.
_NO_TOKEN = _set(
    "answer assistant audio begin blank bos boundary by chat class cls context control decoder "
    "dist domain each empty encoder end eos eot fim first group image infill initializer instance "
    "lang language last learnable mask max middle min modifier new next num pad per placeholder "
    "prefix prev prompt query register role sentinel sep separator silence sos source speaker "
    "special start stop sub suffix system target task think tool trigger unk video word"
)
# What stands behind the name of a secret without changing what it names: `api_key_value`.
_VALUE = _set("value val string plain plaintext literal raw")
# Of a secret, and itself none: `--secret.path`, `--password.length`.
_ABOUT = _set(
    "age algorithm algo backend cache char chars class count dir directory enabled env expires "
    "expiry file folder format hasher id kind len length level lifetime limit manager max method "
    "min mode module num optional path policy prompt provider py required retries rotation scheme "
    "scope size source store timeout ttl type url uri version"
)
_PARTS = re.compile(r"[./:]|__")
_FLAG = _set("no enable disable ask prompt require without has use with skip")

# What is no secret under any name; and under the names that are not secret always.
_HARMLESS = re.compile(
    r"[^A-Za-z0-9]*|true|false|none|null|yes|no|on|off|auto|<.{0,200}>|\[[A-Z_]+\]|\$\{?\w+\}?",
    re.I,
)
_PATH = re.compile(r"(?:~|\.{0,2})(?:/[\w.@+-]+)+")
_SUFFIX = re.compile(r"[\w.@+-]\.\w{1,5}\Z")
_FILE = re.compile(r"[\w.-]+")
_OF_FILES = re.compile(
    r"[\w.-]\.(?:py|pem|crt|cert|cfg|conf|ini|json|yaml|yml|toml|txt|env|key|pub)\Z", re.I
)
_PLAIN = re.compile(
    r"[-+]?\d{1,40}(?:\.\d{1,40})?(?:e-?\d{1,9})?[kmb]?"
    r"|basic|digest|oauth2?|kerberos|ldap|iam|sasl|ssl|m?tls|ntlm|negotiate|jwt|default",
    re.I,
)
_NUMBER = re.compile(r"\d")
_PASSWORD = re.compile(r"pass(?:word|wd|phrase|code)|pwd|secret", re.I)
_OPTION = re.compile(r"-{0,2}[+~]{0,2}[A-Za-z_][\w.\-/@:]*")
_HEADER_LINE = re.compile(r"((?<![\w-])([\w-]+):\s{0,40}).+")
_SHORT_P = re.compile(r"-p(?=.{5})(?=.{0,200}[A-Z0-9])(?![a-z][a-z_-]{0,200}(?:=|$)|\d{1,200}$).+")

ALWAYS, MAYBE, NEVER = 2, 1, 0


class Masker:
    """Masks by the tables above and by further patterns, regular expressions of the user's."""

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        """Raises re.error for a pattern that is none."""
        self._patterns = [re.compile(pattern) for pattern in patterns]
        self.plain = _PLAIN_CHARACTERS if not self._patterns else None
        """What may be known of most texts by their characters: 128 bytes, one for each character of
        ASCII (0: look closer, 1: plain, 2: plain, and one of a run), and how long a run may be. A
        text of plain characters without longer runs is masked nowhere, and needs no escape in
        JSON. None where that cannot be known."""

    def is_plain(self, text: str) -> bool:
        """Whether ``text`` is masked nowhere, and needs no escape in JSON; False if in doubt."""
        is_short = self.plain is not None and _LONG_RUN.search(text) is None
        return is_short and _PLAIN_TEXT.fullmatch(text) is not None

    def text(self, text: str) -> str:
        """``text`` with what looks like a secret replaced by ``***``."""
        if len(text) > _LONGEST:
            return self._masked(text[: _LONGEST + _BEHIND])[:-_BEHIND] + "..."
        return self._masked(text)

    def _masked(self, text: str) -> str:
        for pattern in self._patterns:
            text = pattern.sub(MASK, text)
        if _LONG_RUN.search(text) is not None:
            text = _without_keys(text)
            text = _tokens().sub(MASK, text)
        if "@" in text:
            text = _USERINFO.sub(_without_user, text)
            text = _USER_AT_HOST.sub(f"{MASK}@", text)
        if "=" in text or ":" in text:
            text = _HEADER.sub(rf"\1\2{MASK}", text)
            text = _without_named(text)
        if " " in text:
            text = _SCHEME.sub(lambda m: f"{m[1] or m[2]} {MASK}", text)
        return text

    def argv(self, argv: list[str]) -> list[str]:
        """A command line: an option may tell of the words that follow it."""
        result: list[str] = []
        level = NEVER  # of the option whose values these words may be
        short = ShortOptions()
        left = _LONGEST_LINE
        for before, argument in zip(["", *argv], argv):
            left -= len(argument) + 1
            if left < 0:
                result.append("...")
                break
            argument = short.read(argument[: _LONGEST + _BEHIND], MASK)
            if short.takes_command(before):
                result.append(self._words(argument))
                continue
            if before in ("-H", "--header"):
                argument = _HEADER_LINE.sub(_without_header, argument)
            if level and not _is_option(argument) and not is_harmless(argument, level):
                result.append(MASK)
                continue
            level = NEVER
            if may_be_given(before, argument) and not is_harmless(argument, MAYBE):
                argument = MASK
            if _SHORT_P.fullmatch(argument):  # as database clients take it
                argument = f"-p{MASK}"
            name, equals, value = argument.partition("=")
            is_name = _OPTION.fullmatch(name) and (equals or name.startswith("-"))
            known = (level_of(name) or level_within(name)) if is_name else NEVER
            if known and equals:
                if not is_harmless(value, known) and (name != "key" or _is_mixed(value)):
                    argument = f"{name}={MASK}"
            elif equals and may_be_given(name, value) and not is_harmless(value, MAYBE):
                argument = f"{name}={MASK}"
            elif known and not _is_flag(name):
                level = known
            result.append(self.text(argument))
        return result

    def _words(self, command: str) -> str:
        """A command line in one word, as a shell gets it."""
        words = re.split(r"(\s+)", command)
        words[::2] = self.argv(words[::2])
        return self.text("".join(words))

    def record(self, value: Any) -> Any:
        """``value`` with every text in its lists and dictionaries masked, names of keys aside."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):  # an ABC runs Python, at which torch.compile would look
            return {k: v if type(v) is int else self._member(k, v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [each if type(each) is int else self.record(each) for each in value]
        return value

    def _member(self, key: object, value: Any) -> Any:
        if isinstance(value, str) and isinstance(key, str) and level_of(key) == ALWAYS:
            return MASK
        return self.record(value)


class Unmasked(Masker):
    """Leaves everything as it is: DISTTRACE_MASK is off."""

    def text(self, text: str) -> str:
        return text

    def argv(self, argv: list[str]) -> list[str]:
        return argv

    def record(self, value: Any) -> Any:
        return value


@functools.lru_cache(maxsize=1024)
def level_of(name: str) -> int:
    """Whether a value of this name is secret: ALWAYS, MAYBE (unless it is harmless) or NEVER."""
    words = [word.lower() for word in _WORD.findall(name)]
    while len(words) > 1 and words[-1].isdecimal():
        words.pop()
    while len(words) > 1 and words[-1] in _VALUE and words != ["key", "value"]:
        words.pop()
    if not words:
        return NEVER
    last, before = words[-1], words[-2] if len(words) > 1 else None
    if last in _ALWAYS or last.endswith(_JOINED) or words[-3:] == ["access", "key", "id"]:
        return ALWAYS
    if last == "pin":
        return ALWAYS if before in (None, "card", "sim", "user") else NEVER
    if last == "token":
        return NEVER if before in _NO_TOKEN else MAYBE
    if last == "auth":
        return MAYBE
    return MAYBE if before in _AFTER.get(last, ()) else NEVER


@functools.lru_cache(maxsize=1024)
def level_within(name: str) -> int:
    """The level of a name with a telling earlier part (``db.password.x``) of several words."""
    *parts, last = _PARTS.split(name)
    if set(map(str.lower, _WORD.findall(last))) & _ABOUT:
        return NEVER
    levels = (level_of(part) for part in parts)
    known = (n for part, n in zip(parts, levels) if n == ALWAYS or len(_WORD.findall(part)) > 1)
    return max(known, default=NEVER)


def is_harmless(value: str, level: int) -> bool:
    """Whether ``value`` is no secret under a name of this level."""
    if _HARMLESS.fullmatch(value) or (_PATH.fullmatch(value) and _SUFFIX.search(value)):
        return True
    if _FILE.fullmatch(value) and _OF_FILES.search(value):
        return True
    return level == MAYBE and _PLAIN.fullmatch(value) is not None


def _without_user(found: re.Match[str]) -> str:
    user = found[2]
    over_http = found[1].lower().endswith(("http://", "https://")) and user not in _NAMED_USERS
    secret = over_http or ":" in user or len(user) > _LONGEST_NAMED_USER or user == MASK
    return f"{found[1]}{MASK}@" if secret else found[0]


def _without_header(found: re.Match[str]) -> str:
    return f"{found[1]}{MASK}" if level_of(found[2]) else found[0]


def _without_keys(text: str) -> str:
    """Mask private keys, each as far as its last line, or the text, goes."""
    parts: list[str] = []
    position = 0
    while (found := _PRIVATE_KEY.search(text, position)) is not None:
        parts += [text[position : found.start()], MASK]
        end = _ITS_END.search(text, found.end())
        position = end.end() if end is not None else len(text)
    return "".join(parts) + text[position:]


def _without_named(text: str) -> str:
    """Mask the values in ``name=value``, ``name: value`` and ``"name": "value"``."""
    parts: list[str] = []
    position = 0
    while (found := _NAMED.search(text, position)) is not None:
        level = level_of(found["name"])
        if not level and found["sep"] == "=":
            level = level_within(found["name"])
        start, end = _value(text, found.end()) if level else (0, 0)
        value = text[start:end]
        if level and value and _is_given(found, level, value) and not is_harmless(value, level):
            parts += [text[position:start], MASK]
            position = end
        else:  # the value may itself be a name and a value
            parts.append(text[position : found.end()])
            position = found.end()
    return "".join(parts) + text[position:] if parts else text


def _value(text: str, start: int) -> tuple[int, int]:
    """From where to where the value goes that begins here: to its own quote, or as a word."""
    opened = _QUOTE.match(text, start)
    if opened is None:
        bare = _BARE.match(text, start)
        return bare.span() if bare is not None else (start, start)
    start = opened.end()
    end = text.find(opened[1], start)
    line = text.find("\n", start, end if end >= 0 else len(text))
    if line >= 0:
        return start, line
    if end < 0:
        return start, len(text)
    return start, start + len(text[start:end].rstrip("\\"))


def _is_given(found: re.Match[str], level: int, value: str) -> bool:
    """Whether a text gives a secret away: "invalid key: weight" and "f(key=name)" do not, ``"name":
    "value"`` and ``long_name=value`` do; else letters and digits must be mixed."""
    name, assigned = found["name"], "=" in found["sep"]
    if found["closed"].strip("\\") or _PASSWORD.search(name):
        return True
    if assigned and (level == ALWAYS or len(_WORD.findall(name)) > 1) and " " not in found["sep"]:
        return True
    return _is_mixed(value) and len(value) >= (6 if assigned else 8)


def _is_mixed(value: str) -> bool:
    """Whether letters and digits are mixed, in what is no path, call or number."""
    return (
        _NUMBER.search(value) is not None and not value.isdecimal() and not set("/.()") & set(value)
    )


def _is_option(argument: str) -> bool:
    """Whether a word is the next option, and not a value that begins with a hyphen."""
    if argument.startswith("--"):
        return True
    return argument.startswith("-") and (len(argument) < 4 or "=" in argument)


def _is_flag(name: str) -> bool:
    """Whether an option takes no value, by its name: ``--no-password``, ``--use-auth-token``."""
    words = _WORD.findall(name)
    return bool(words) and words[0].lower() in _FLAG


def split(text: str) -> list[str]:
    """Regular expressions in a list with commas or on lines. A comma in brackets, or behind a
    backslash, belongs to its pattern."""
    parts, depth, escaped = [""], 0, False
    for character in text:
        if character in ",\n" and not depth and not escaped:
            parts.append("")
            continue
        if not escaped:
            depth = max(0, depth + (character in "([{") - (character in ")]}"))
        escaped = character == "\\" and not escaped
        parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


# -- of this process -------------------------------------------------------------------------

current: Masker = Masker()
"""What this process's records and sentences go through."""


def use(masker: Masker) -> None:
    """Mask with this from now on."""
    global current
    current = masker
