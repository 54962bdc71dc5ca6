import stat
import tomllib
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from central.daemon.keys import Signer, load_signer, write_pair
from central.main import main
from lading.errors import ConfigError
from lading.signature import load_public_keys, parse_signature, verifies
from tests.fakes.signing import a_signer


@pytest.mark.parametrize("key_id", ["central-2", "2026.11"])
def test_a_node_verifies_with_the_public_key_what_central_signed(tmp_path: Path, key_id: str) -> None:
    private, public = write_pair(tmp_path, key_id)
    written = load_signer(private, key_id).sign("an assignment")
    signature = parse_signature(written)
    assert signature
    assert verifies(signature, "an assignment", load_public_keys({key_id: public.read_bytes()})[key_id])
    assert (private.name, public.name) == (f"{key_id}.pem", f"{key_id}.pub.pem")


def test_the_private_key_is_its_owners_alone(tmp_path: Path) -> None:
    private, _ = write_pair(tmp_path, "k2")
    assert stat.S_IMODE(private.stat().st_mode) == 0o600


@pytest.mark.parametrize("there", ["k2.pem", "k2.pub.pem"])
def test_a_key_is_never_overwritten(tmp_path: Path, there: str) -> None:
    (tmp_path / there).write_text("precious")
    with pytest.raises(ConfigError, match=there):
        write_pair(tmp_path, "k2")
    assert (tmp_path / there).read_text() == "precious"


@pytest.mark.parametrize("key_id", ["", "../k2", "two words", "ed25519:k2"])
def test_an_id_that_a_signature_cannot_carry(tmp_path: Path, key_id: str) -> None:
    with pytest.raises(ConfigError):
        write_pair(tmp_path, key_id)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("key_id", ["k2", "2026.11"])
def test_the_line_for_the_nodes_is_toml(tmp_path: Path, capsys: pytest.CaptureFixture[str], key_id: str) -> None:
    main(["new-key", "--id", key_id, "--out", str(tmp_path)])
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.endswith('.pub.pem"'))
    assert tomllib.loads(f"[keys]\n{line}") == {"keys": {key_id: f"/etc/lading/keys/{key_id}.pub.pem"}}


def write(folder: Path, key: Ed25519PrivateKey | ec.EllipticCurvePrivateKey) -> Path:
    path = folder / "key.pem"
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return path


def test_a_signer_accepts_its_own_signatures_alone() -> None:
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


def test_a_signer_signs_with_the_key_of_a_file(tmp_path: Path) -> None:
    key = Ed25519PrivateKey.generate()
    signer = load_signer(write(tmp_path, key), "central-1")
    assert signer.sign("text").startswith("ed25519:central-1:")
    assert signer.accepts("text", signer.sign("text"))


def test_a_file_without_a_fitting_key_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path, ec.generate_private_key(ec.SECP256R1()))
    (tmp_path / "text").write_text("x")
    for file in (path, tmp_path / "text", tmp_path / "none"):
        with pytest.raises(ConfigError, match=file.name):
            load_signer(file, "k1")
    with pytest.raises(ConfigError):
        load_signer(write(tmp_path, Ed25519PrivateKey.generate()), "a key")
