"""Sign assignments with a key that is made for this test run."""

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from central.daemon.keys import Signer


def a_signer(key_id: str = "k1") -> Signer:
    return Signer(Ed25519PrivateKey.generate(), key_id)
