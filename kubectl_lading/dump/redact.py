"""Redact objects for a sysdump: keep only the fields in a shape, and remove apparent secrets from texts. Pure.

A *shape* (`kubectl_lading.dump.shapes`) lists the fields of an object to keep. All other fields are dropped, also those that
future versions of Kubernetes add. In addition, every kept text is *scrubbed*: credentials in URLs, tokens, private keys, and
values with a name such as "secret" or "token" are removed.

A secret that looks like an ordinary word, such as one in the name of a pod, cannot be detected.
"""

import re
from collections.abc import Callable
from typing import Any, Final

REMOVED: Final = "[removed]"
REDACTED: Final = "[redacted]"

Json = Any
Keep = Callable[[Any], Any]
Shape = Keep | dict[str, "Shape"] | tuple["Shape"]  # a tuple of one shape: applies to each element of a list


# ---- texts

_NAMES: Final = r"(?:secret|token|passw(?:or)?d|passphrase|credential|api[-_.]?key|access[-_.]?key|private[-_.]?key)"
_PRIVATE_KEY: Final = re.compile(
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)", re.DOTALL
)
# The bounds and the lookbehinds keep the search time linear: one very long word must not take longer than other texts.
_IN_URL: Final = re.compile(r"((?<![\w+.-])[a-z][a-z0-9+.-]{0,20}://)[^\s\"'<>]{0,2000}@", re.IGNORECASE)
_AUTHORIZATION: Final = re.compile(r"\b(bearer|basic)(\s+)[\w.~+/=-]{6,}", re.IGNORECASE)
_NAME: Final = rf"[\w.-]{{0,80}}{_NAMES}[\w.-]{{0,80}}"
# A value is a string, a string escaped within another string, a word, or the rest of a string with its end cut off.
_VALUE: Final = r"""(?:"(?:[^"\\]|\\.)*"|(?P<quote>\\+").{0,4000}?(?P=quote)|'[^']*'|["'\\]*[^\s,;}&"'\\]+)"""
_NAMED: Final = re.compile(rf"((?<![\w.-]){_NAME}\\*[\"']?\s{{0,20}}[:=]\s{{0,20}}){_VALUE}", re.IGNORECASE)
_FLAG: Final = re.compile(rf"((?<![\w.-])--?{_NAME}\s{{1,20}})(?!-)\S+", re.IGNORECASE)
_OPEN_FLAGS: Final = frozenset({"--config", "--log-level", "--v", "-v", "--vmodule", "--feature-gates"})
_SHAPED: Final = re.compile(
    r"(?<![\w-])(?:eyJ[\w-]{5,}\.[\w-]+\.[\w-]*"  # a JSON web token, such as that of a service account
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}\b|gh[pousr]_\w{20,}|glpat-[\w-]{16,}|hf_\w{20,}|sk-[\w-]{20,}|xox[abp]-[\w-]{10,})"
)


def scrub(text: str) -> str:
    """Return the text without secrets. Scrubbing its result again changes nothing."""
    text = _PRIVATE_KEY.sub(REDACTED, text)
    text = _IN_URL.sub(rf"\1{REDACTED}@", text)
    text = _AUTHORIZATION.sub(rf"\1\2{REDACTED}", text)
    text = _NAMED.sub(rf"\1{REDACTED}", text)
    text = _FLAG.sub(rf"\1{REDACTED}", text)
    return _SHAPED.sub(REDACTED, text)


def arguments(value: Json) -> Json:
    """Return a command line with the names of all flags, but values only for flags that never hold a secret."""
    text = [str(one) for one in value] if isinstance(value, list) else []
    return [_argument(before, word) for before, word in zip(["", *text], text, strict=False)]


def _argument(before: str, word: str) -> str:
    name, equals, text = word.partition("=")
    if not name.startswith("-"):
        return scrub(word) if before in _OPEN_FLAGS else REMOVED
    return name + equals + (scrub(text) if name in _OPEN_FLAGS else REMOVED if text else "")


def is_secret_name(name: str) -> bool:
    """Return whether a key of a ConfigMap suggests that its value, a whole file, is secret."""
    return re.search(rf"{_NAMES}|key|auth|\.pem$", name, re.IGNORECASE) is not None


# ---- shapes


def keep(value: Json, shape: Shape) -> Json:
    if callable(shape):
        return shape(value)
    if isinstance(shape, tuple):
        return [keep(one, shape[0]) for one in value] if isinstance(value, list) else []
    return {key: keep(value[key], inner) for key, inner in shape.items() if key in value} if isinstance(value, dict) else {}


def verbatim(value: Json) -> Json:
    return value


def scrubbed(value: Json) -> Json:
    """Return the whole value with every text scrubbed, or redacted under a secret name."""
    match value:
        case str():
            return scrub(value)
        case list() | tuple():
            return [scrubbed(one) for one in value]
        case dict():
            return {key: REDACTED if _is_named(key, one) else scrubbed(one) for key, one in value.items()}
        case _:
            return value


def _is_named(key: str, value: Json) -> bool:
    return isinstance(value, str) and re.search(_NAMES, key, re.IGNORECASE) is not None
