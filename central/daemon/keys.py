"""Sign assignments with central's private key, and make the pair of keys: `lading-central new-key`.

The private key never leaves a `Signer`, which also verifies the assignments of bound pods (lading/signature.py). The command
takes a key id and a folder. It writes ID.pem for central alone and ID.pub.pem for every node, and prints the next steps on
stdout. It refuses an id that a signature cannot contain, and existing files. docs/install.md describes how keys are exchanged
and revoked.

Source: RFC 8410 (Ed25519 in PEM), RFC 5208 (PKCS #8).
"""

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from lading.errors import ConfigError, HostError
from lading.signature import parse_signature, sign, verifies


class Signer:
    def __init__(self, key: Ed25519PrivateKey, key_id: str, others: Mapping[str, Ed25519PublicKey] | None = None) -> None:
        """Create the signer. `others`: public keys by id that signed assignments of running pods."""
        self._key = key
        self._key_id = key_id
        self._public = {**(others or {}), key_id: key.public_key()}
        sign(key, key_id, "")  # an invalid key id is an error now, not at the first pod

    def sign(self, text: str) -> str:
        return sign(self._key, self._key_id, text)

    def accepts(self, text: str, written: str) -> bool:
        """Return whether a configured key signed this text."""
        signature = parse_signature(written)
        key = self._public.get(signature.key_id) if signature else None
        return signature is not None and key is not None and verifies(signature, text, key)


def load_signer(path: Path, key_id: str, others: Mapping[str, Ed25519PublicKey] | None = None) -> Signer:
    """Load the key that signs assignments. Raise ConfigError for a file that cannot be read or holds another kind of key."""
    hint = "openssl genpkey -algorithm ed25519 -out KEY.pem"
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except OSError as e:
        raise ConfigError(f"signing_key: cannot read {path}: {e.strerror}", hint=hint) from e
    except (ValueError, TypeError, UnsupportedAlgorithm) as e:
        raise ConfigError(f"signing_key: {path} is no PEM private key without a password", hint=hint) from e
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"signing_key: {path} is not an Ed25519 key", hint=hint)
    return Signer(key, key_id, others)


_ON_NODES: Final = "/etc/lading/keys"
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")  # TOML keys that need no quotes


def new_key(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="lading-central new-key",
        description="Makes a key that signs assignments: ID.pem for central, ID.pub.pem for the nodes.",
    )
    parser.add_argument("--id", required=True, help="the key's name in signatures and on nodes; one that no other key ever had")
    parser.add_argument("--out", type=Path, default=Path(), help="folder to write both files to (default: this one)")
    args = parser.parse_args(argv)
    private, public = write_pair(args.out, args.id)
    print(_next_steps(args.id, private, public))


def write_pair(folder: Path, key_id: str) -> tuple[Path, Path]:
    """Write a key pair. Return the file of the private key, which only its owner can read, and the file of the public key.
    Neither file may exist."""
    pair = make_pair(key_id)
    private, public = folder / f"{key_id}.pem", folder / f"{key_id}.pub.pem"
    _write_new(public, pair[1], mode=0o644)
    _write_new(private, pair[0], mode=0o600)  # written last: if the private key exists, so does the public one
    return private, public


def make_pair(key_id: str) -> tuple[bytes, bytes]:
    """Return a new private key and its public key, as PEM. Raise ConfigError for an id that a signature cannot contain."""
    key = Ed25519PrivateKey.generate()
    sign(key, key_id, "")
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return private, key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _write_new(path: Path, content: bytes, *, mode: int) -> None:
    try:
        with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, mode), "wb") as file:
            file.write(content)
    except FileExistsError as e:
        raise ConfigError(f"cannot write {path}: it is there, and a key is never overwritten", hint="another --id") from e
    except OSError as e:
        raise HostError(f"cannot write {path}: {e.strerror}") from e


def _next_steps(key_id: str, private: Path, public: Path) -> str:
    name = key_id if _BARE.fullmatch(key_id) else f'"{key_id}"'
    return f"""\
{public}: to every node, as {_ON_NODES}/{public.name}. In hooks.toml, below [keys]:
    {name} = "{_ON_NODES}/{public.name}"
then: systemctl restart lading-hooks

{private}: for central alone. When every node has the other one:
    kubectl -n lading-system create secret generic lading-central-signing --from-file=private.pem={private}
and in central.toml: key_id = "{key_id}\""""
