"""Sign assignments, and verify their signatures.

The signed message is a domain prefix and the exact bytes of the annotation `lading.dev/assignment`, never a re-serialised
object. Two JSON texts that mean the same are two messages. The prefix prevents that a signature made for an assignment is valid
for anything else that the same key may sign. The format is `ed25519:<key id>:<base64>`, so that keys can rotate: a node knows
several keys by id.

This module has only the mechanism, shared by central (signs) and the node (verifies); hooks/forms decides what a node
accepts. Source: RFC 8032 (Ed25519), RFC 4648 §4 (base64), RFC 7468 (PEM).
"""

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from lading.errors import ConfigError

DOMAIN: Final = b"lading.dev/assignment/v1\n"
FORM: Final = "ed25519:<key id>:<base64>"

# 64 bytes are 88 characters of base64. A key id is short: it is in annotations, logs and file names.
_WRITTEN: Final = re.compile(r"ed25519:([A-Za-z0-9][A-Za-z0-9._-]{0,63}):([A-Za-z0-9+/]{86}==)")
_KEY_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

_KEY_ID_IS: Final = "a key id is 1 to 64 letters, digits, dots, dashes and underscores"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    key_id: str
    value: bytes  # 64 bytes


def signed_bytes(text: str) -> bytes:
    """Return the bytes that the key signs for this annotation text. A lone surrogate, which no text from the wire can hold,
    does not raise."""
    return DOMAIN + text.encode("utf-8", "surrogatepass")


def sign(private_key: Ed25519PrivateKey, key_id: str, text: str) -> str:
    """Return the value of the annotation `lading.dev/assignment-signature`. The same key and text always give the same
    value."""
    if not _KEY_ID.fullmatch(key_id):
        raise ConfigError(f"cannot sign with key {key_id!r}: {_KEY_ID_IS}")
    return f"ed25519:{key_id}:{base64.b64encode(private_key.sign(signed_bytes(text))).decode()}"


def parse_signature(written: str) -> Signature | None:
    """Parse `ed25519:<key id>:<base64>`; return None for any other text."""
    match = _WRITTEN.fullmatch(written)
    if match is None:
        return None
    try:
        return Signature(key_id=match[1], value=base64.b64decode(match[2], validate=True))
    except binascii.Error:
        return None


def verifies(signature: Signature, text: str, key: Ed25519PublicKey) -> bool:
    """Return whether this key signed this annotation text."""
    try:
        key.verify(signature.value, signed_bytes(text))
    except InvalidSignature:
        return False
    return True


def read_public_keys(files: Mapping[str, str]) -> dict[str, Ed25519PublicKey]:
    """Return the keys by id, from their PEM files. Raises ConfigError naming the key id that cannot be used."""
    pems = {}
    for key_id, name in files.items():
        try:
            pems[key_id] = Path(name).read_bytes()
        except OSError as e:
            raise ConfigError(f"keys.{key_id}: cannot read {name}: {e.strerror}") from e
    return load_public_keys(pems)


def load_public_keys(pems: Mapping[str, bytes]) -> dict[str, Ed25519PublicKey]:
    """Return the keys by id, from the content of their PEM files. Raises ConfigError naming the key id that cannot be used."""
    return {key_id: _load_public_key(key_id, pem) for key_id, pem in pems.items()}


def _load_public_key(key_id: str, pem: bytes) -> Ed25519PublicKey:
    hint = "openssl pkey -in KEY.pem -pubout prints the public key of a private one"
    if not _KEY_ID.fullmatch(key_id):
        raise ConfigError(
            f"cannot load public key {key_id!r}: a key id is 1 to 64 letters, digits, dots, dashes and underscores"
        )
    if b"PRIVATE KEY-----" in pem:
        raise ConfigError(f"cannot load public key {key_id!r}: this is a private key, which no node may have", hint=hint)
    try:
        key = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm) as e:
        raise ConfigError(f"cannot load public key {key_id!r}: not a PEM public key", hint=hint) from e
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(f"cannot load public key {key_id!r}: not an Ed25519 key", hint="openssl genpkey -algorithm ed25519")
    return key
