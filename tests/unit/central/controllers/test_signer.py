"""Test central's key: which data it signs, which keys are accepted, and files without a key."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from central.controllers.signer import Signer, load_signer
from lading.errors import ConfigError
from tests.fakes.signing import a_signer


def write(folder: Path, key: Ed25519PrivateKey | ec.EllipticCurvePrivateKey) -> Path:
    path = folder / "key.pem"
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return path


def test_what_it_signed_and_what_it_did_not() -> None:
    signer = a_signer()
    written = signer.sign("text")
    assert signer.accepts("text", written)
    assert not signer.accepts("text2", written)
    assert not signer.accepts("text", "")
    assert not signer.accepts("text", "ed25519:k1:AAAA")
    assert not signer.accepts("text", a_signer().sign("text"))  # says this key, and is not by it


def test_assignments_of_a_configured_earlier_key_are_accepted() -> None:
    earlier = Ed25519PrivateKey.generate()
    written = Signer(earlier, "k1").sign("text")
    assert Signer(Ed25519PrivateKey.generate(), "k2", {"k1": earlier.public_key()}).accepts("text", written)
    assert not a_signer("k2").accepts("text", written)


def test_a_key_from_a_file(tmp_path: Path) -> None:
    key = Ed25519PrivateKey.generate()
    signer = load_signer(write(tmp_path, key), "central-1")
    assert signer.sign("text").startswith("ed25519:central-1:")
    assert signer.accepts("text", signer.sign("text"))


def test_files_that_hold_none(tmp_path: Path) -> None:
    path = write(tmp_path, ec.generate_private_key(ec.SECP256R1()))
    (tmp_path / "text").write_text("x")
    for file in (path, tmp_path / "text", tmp_path / "none"):
        with pytest.raises(ConfigError, match=file.name):
            load_signer(file, "k1")
    with pytest.raises(ConfigError):
        load_signer(write(tmp_path, Ed25519PrivateKey.generate()), "a key")
