"""Test keys, as files in a folder and as verdicts."""

import asyncio
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from doctor.config import ConfigReading
from doctor.host import Host
from doctor.keys import KeysReading, decide_keys
from doctor.read_node import read_file, read_key_files
from hooks.daemon.settings import Settings
from hooks.model.assignment import Form
from lading.checks.model import Verdict
from lading.checks.run import ElsewhereError
from lading.errors import ConfigError
from runtimeproxy.settings import Settings as ProxySettings
from tests.unit.doctor.verdicts import states

KEY = Ed25519PrivateKey.generate()
PUBLIC = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
PRIVATE = KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
SIGNED, MANUAL = (Form.SIGNED,), (Form.MANUAL,)


def keys(folder: Path, content: bytes | None, *, assignments: tuple[Form, ...] = SIGNED, mode: int = 0o644) -> KeysReading:
    path = folder / "k1.pem"
    if content is not None:
        path.write_bytes(content)
        path.chmod(mode)
    return read_key_files({"k1": str(path)}, assignments, config=folder / "hooks.toml")


@pytest.mark.parametrize(
    ("content", "mode", "expected", "mend"),
    [
        (PUBLIC, 0o644, [Verdict.OK], ""),
        (PUBLIC, 0o666, [Verdict.FAILED], "chmod go-w"),
        (PRIVATE, 0o600, [Verdict.FAILED], "shred"),
        (b"-----BEGIN PUBLIC KEY-----\n", 0o644, [Verdict.FAILED], "openssl"),
        (None, 0o644, [Verdict.FAILED], "ls -l"),
    ],
)
def test_one_key(tmp_path: Path, content: bytes | None, mode: int, expected: list[Verdict], mend: str) -> None:
    verdicts = tuple(decide_keys(keys(tmp_path, content, mode=mode)))
    assert states(verdicts) == expected
    assert mend in verdicts[0].mend


@pytest.mark.parametrize("name", ["central.key", "keys/signing.pem"])
def test_a_private_key_beside_them(tmp_path: Path, name: str) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / name).write_bytes(PRIVATE)
    verdict, *_ = decide_keys(keys(tmp_path, PUBLIC))
    assert verdict.verdict is Verdict.FAILED
    assert name in verdict.what


def test_keys_of_a_configuration_that_may_not_be_read_are_not_missed(tmp_path: Path) -> None:
    problem = ConfigError("cannot read hooks.toml")
    problem.__cause__ = PermissionError(13, "Permission denied")
    reading = ConfigReading(daemon="lading-hooks", path=tmp_path / "hooks.toml", problem=problem)
    host = Host(hooks=Settings(), proxy=ProxySettings(), configs={"lading-hooks": reading}, root=tmp_path)
    with pytest.raises(ElsewhereError, match="config"):
        asyncio.run(host.keys())


def test_signed_without_a_key_and_no_signature_at_all() -> None:
    assert states(decide_keys(KeysReading(assignments=SIGNED, keys={}))) == [Verdict.FAILED]
    assert states(decide_keys(KeysReading(assignments=MANUAL, keys={}))) == [Verdict.WARNING]


def test_a_file_that_is_none(tmp_path: Path) -> None:
    assert read_file(tmp_path).problem
    assert read_file(tmp_path / "none").problem
