"""Keys and registrations, as files in a folder and as verdicts."""

import asyncio
import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from doctor.config import ConfigSeen
from doctor.files import KeysSeen, RegistrationSeen, decide_keys, decide_registration
from doctor.host import Host
from doctor.model import State
from doctor.read_node import read_file, read_key_files, read_registrations
from doctor.reading import ElsewhereError
from hooks.daemon.registration import render_registration
from hooks.daemon.settings import Settings
from hooks.model.assignment import Form
from lading.errors import ConfigError
from runtimeproxy.settings import Settings as ProxySettings
from tests.unit.doctor.verdicts import states

KEY = Ed25519PrivateKey.generate()
PUBLIC = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
PRIVATE = KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
SIGNED, MANUAL = (Form.SIGNED,), (Form.MANUAL,)


def keys(folder: Path, content: bytes | None, *, assignments: tuple[Form, ...] = SIGNED, mode: int = 0o644) -> KeysSeen:
    path = folder / "k1.pem"
    if content is not None:
        path.write_bytes(content)
        path.chmod(mode)
    return read_key_files({"k1": str(path)}, assignments, config=folder / "hooks.toml")


@pytest.mark.parametrize(
    ("content", "mode", "expected", "mend"),
    [
        (PUBLIC, 0o644, [State.OK], ""),
        (PUBLIC, 0o666, [State.FAILED], "chmod go-w"),
        (PRIVATE, 0o600, [State.FAILED], "shred"),
        (b"-----BEGIN PUBLIC KEY-----\n", 0o644, [State.FAILED], "openssl"),
        (None, 0o644, [State.FAILED], "ls -l"),
    ],
)
def test_one_key(tmp_path: Path, content: bytes | None, mode: int, expected: list[State], mend: str) -> None:
    verdicts = tuple(decide_keys(keys(tmp_path, content, mode=mode)))
    assert states(verdicts) == expected
    assert mend in verdicts[0].mend


@pytest.mark.parametrize("name", ["central.key", "keys/signing.pem"])
def test_a_private_key_beside_them(tmp_path: Path, name: str) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / name).write_bytes(PRIVATE)
    verdict, *_ = decide_keys(keys(tmp_path, PUBLIC))
    assert verdict.state is State.FAILED
    assert name in verdict.what


def test_keys_of_a_configuration_that_may_not_be_read_are_not_missed(tmp_path: Path) -> None:
    problem = ConfigError("cannot read hooks.toml")
    problem.__cause__ = PermissionError(13, "Permission denied")
    seen = ConfigSeen(daemon="lading-hooks", path=tmp_path / "hooks.toml", problem=problem)
    host = Host(hooks=Settings(), proxy=ProxySettings(), configs={"lading-hooks": seen}, root=tmp_path)
    with pytest.raises(ElsewhereError, match="config"):
        asyncio.run(host.keys())


def test_signed_without_a_key_and_no_signature_at_all() -> None:
    assert states(decide_keys(KeysSeen(assignments=SIGNED, keys={}))) == [State.FAILED]
    assert states(decide_keys(KeysSeen(assignments=MANUAL, keys={}))) == [State.WARNING]


def test_a_file_that_is_none(tmp_path: Path) -> None:
    assert read_file(tmp_path).problem
    assert read_file(tmp_path / "none").problem


# ---- the registration

OURS = Settings()


def registered(folder: Path, files: dict[str, object], settings: Settings = OURS) -> RegistrationSeen:
    for name, content in files.items():
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    found = tuple(read_file(path) for path in sorted(folder.glob("*.json")))
    return RegistrationSeen(folder=folder, files=found, endpoint=settings.listen, expected=render_registration(settings))


RENDERED = render_registration(OURS)


@pytest.mark.parametrize(
    ("files", "expected", "word"),
    [
        ({"50-lading.json": RENDERED}, [State.OK], ""),
        ({"a.json": RENDERED | {"remote-endpoint": "unix:///run/lading/hooks.sock"}}, [State.WARNING], "remote-endpoint"),
        ({"a.json": RENDERED | {"deadlines": {}}}, [State.WARNING], "deadlines"),
        ({"a.json": RENDERED | {"failure-policy": "Ignore"}}, [State.WARNING], "failure-policy"),
        ({"other.json": {"remote-endpoint": "/run/other.sock"}}, [State.FAILED], "/run/lading/hooks.sock"),
        ({"a.json": RENDERED, "b.json": "{"}, [State.FAILED, State.OK], "b.json"),
        ({"a.json": "[]"}, [State.FAILED, State.FAILED], "a.json"),
        ({"50-lading.json": "{"}, [State.FAILED], "50-lading.json"),  # which is why nobody asks us
        ({}, [State.FAILED], "/run/lading/hooks.sock"),
    ],
)
def test_registrations(tmp_path: Path, files: dict[str, object], expected: list[State], word: str) -> None:
    verdicts = tuple(decide_registration(registered(tmp_path, files)))
    assert states(verdicts) == expected
    assert word in verdicts[0].what


def test_each_damaged_file_has_its_own_mend(tmp_path: Path) -> None:
    """What would be written over another program's file is none."""
    ours, other = decide_registration(registered(tmp_path, {"50-lading.json": "{", "60-other.json": "{"}))
    assert ours.mend == f"lading-hooks registration --write {tmp_path}/50-lading.json"
    assert "lading-hooks registration" not in other.mend
    assert f"{tmp_path}/60-other.json" in other.mend


def test_a_folder_of_registrations_that_may_not_be_read_is_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "50-lading.json").write_text("{}")
    assert [file.path.name for file in read_registrations(tmp_path)] == ["50-lading.json"]
    assert read_registrations(tmp_path / "gone") == ()

    def denied(_: object) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.listdir", denied)
    with pytest.raises(PermissionError):
        read_registrations(tmp_path)
