"""Sign assignments with central's private key, which never leaves this object, and verify the assignments of bound pods.

Source: lading/signature.py.
"""

from collections.abc import Mapping
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from lading.errors import ConfigError
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
