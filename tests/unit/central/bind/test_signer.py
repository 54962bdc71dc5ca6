"""Central's key: what it signs, what it disowns, and files that hold none."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from central.bind.signer import load_signer
from lading.errors import ConfigError
from tests.fakes.signing import a_signer


def write(folder: Path, key: Ed25519PrivateKey | ec.EllipticCurvePrivateKey) -> Path:
    path = folder / "key.pem"
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return path


def test_what_it_signed_and_what_it_did_not() -> None:
    signer = a_signer()
    written = signer.sign("text")
    assert not signer.disowns("text", written)
    assert signer.disowns("text2", written)
    assert signer.disowns("text", "")
    assert signer.disowns("text", "ed25519:k1:AAAA")
    assert signer.disowns("text", a_signer().sign("text"))  # says this key, and is not by it


def test_another_key_may_have_been_right_before() -> None:
    assert not a_signer("k2").disowns("text", a_signer("k1").sign("text"))


def test_a_key_from_a_file(tmp_path: Path) -> None:
    key = Ed25519PrivateKey.generate()
    signer = load_signer(write(tmp_path, key), "central-1")
    assert signer.sign("text").startswith("ed25519:central-1:")
    assert not signer.disowns("text", signer.sign("text"))


def test_files_that_hold_none(tmp_path: Path) -> None:
    path = write(tmp_path, ec.generate_private_key(ec.SECP256R1()))
    (tmp_path / "text").write_text("x")
    for file in (path, tmp_path / "text", tmp_path / "none"):
        with pytest.raises(ConfigError, match=file.name):
            load_signer(file, "k1")
    with pytest.raises(ConfigError):
        load_signer(write(tmp_path, Ed25519PrivateKey.generate()), "a key")
