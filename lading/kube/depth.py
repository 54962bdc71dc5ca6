"""Limit how deep the JSON of an API server's answer is nested.

The API server stores objects of up to 10,000 levels: a user who may create pods can nest `metadata.managedFields[].fieldsV1`
that deep. Decoders that recurse fail on it, at a depth that depends on the interpreter and on the caller's stack. `limit_depth`
replaces values nested deeper than `MAX_DEPTH` by null, so that every reader behind the client may recurse. Lading reads nothing
that is nested deeper than 20 levels.

Source: RFC 8259, section 9 (a parser may limit the depth); sigs.k8s.io/json, `maxNestingDepth`.
"""

import asyncio
import re
from itertools import accumulate
from typing import Final

# Two Python frames for each of these levels are below the interpreter's limit of 1,000 frames.
MAX_DEPTH: Final = 300

_INLINE: Final = 64 << 10  # bytes; up to 3 ms
_CHUNK: Final = 64 << 10  # brackets; some 3 ms

_STEPS: Final = {ord("{"): 1, ord("["): 1, ord("}"): -1, ord("]"): -1}
_NOT_STRUCTURE: Final = bytes(set(range(256)) - set(b'"[]{}'))
_TOKENS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[][{}]', re.DOTALL)


async def limit_depth(text: bytes) -> bytes:
    """Return the JSON text, with null in place of each array and object below level `MAX_DEPTH`.

    A text that is long and has many brackets is read in a thread: 1.5 MB, the most that etcd stores, takes up to half a second.
    """
    if text.count(b"{") + text.count(b"[") <= MAX_DEPTH:
        return text
    return _limited(text) if len(text) <= _INLINE else await asyncio.to_thread(_limited, text)


def _limited(text: bytes) -> bytes:
    return _cut(text) if _is_deep(text) else text


def _is_deep(text: bytes) -> bool:
    """Return whether the depth exceeds the limit. Strings are dropped first, because they may contain brackets."""
    plain = text.replace(rb"\\", b"").replace(rb"\"", b"") if b"\\" in text else text
    brackets = b"".join(plain.translate(None, _NOT_STRUCTURE).split(b'"')[::2])
    depth = 0
    for start in range(0, len(brackets), _CHUNK):  # chunks give other threads their turns
        depths = list(accumulate(map(_STEPS.__getitem__, brackets[start : start + _CHUNK]), initial=depth))
        if max(depths) > MAX_DEPTH:
            return True
        depth = depths[-1]
    return False


def _cut(text: bytes) -> bytes:
    kept: list[bytes] = []
    depth = start = 0
    for token in _TOKENS.finditer(text):
        match token[0]:
            case b"{" | b"[":
                depth += 1
                if depth == MAX_DEPTH + 1:
                    kept += text[start : token.start()], b"null"
            case b"}" | b"]":
                if depth == MAX_DEPTH + 1:
                    start = token.end()
                depth -= 1
    return b"".join([*kept, text[start:]])
