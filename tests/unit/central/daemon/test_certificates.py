"""Test that `new-certificates` prints what kube-scheduler and central need, and no key of an authority."""

import base64
import ssl
from pathlib import Path
from typing import Any

import pytest
import yaml

from central.daemon.certificates import SCHEDULER
from central.http import server_tls
from central.main import main
from lading.vocabulary import CENTRAL


@pytest.fixture
def folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Path]:
    """Write the Secrets' files as they are mounted."""
    main(["new-certificates", "--namespace", "elsewhere"])
    secrets: list[dict[str, Any]] = [one for one in yaml.safe_load_all(capsys.readouterr().out) if one]
    assert {one["metadata"]["namespace"] for one in secrets} == {"elsewhere"}
    return {one["metadata"]["name"]: mounted(tmp_path / one["metadata"]["name"], one["data"]) for one in secrets}


def mounted(folder: Path, data: dict[str, str]) -> Path:
    folder.mkdir()
    for name, content in data.items():
        (folder / name).write_bytes(base64.b64decode(content))
    return folder


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> dict[str, Any]:
    """Return the client's certificate as the server sees it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    ours = client.wrap_bio(to_client, to_server, server_hostname=host)
    for end in (ours, theirs, ours, theirs):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return theirs.getpeercert() or {}


def test_the_scheduler_and_central_know_one_another(folders: dict[str, Path]) -> None:
    central, scheduler = folders[f"{CENTRAL}-tls"], folders[f"{SCHEDULER}-tls"]
    server = server_tls(*(str(central / name) for name in ("tls.crt", "tls.key", "ca.crt")))
    client = ssl.create_default_context(cafile=str(scheduler / "ca.crt"))
    client.load_cert_chain(scheduler / "tls.crt", scheduler / "tls.key")
    assert server is not None
    shown = shake_hands(server, client, f"{CENTRAL}.elsewhere.svc")
    assert shown["subject"] == ((("commonName", SCHEDULER),),)


def test_the_key_of_the_authority_is_nowhere(folders: dict[str, Path]) -> None:
    files = {path.name for folder in folders.values() for path in folder.iterdir()}
    assert files == {"tls.crt", "tls.key", "ca.crt"}
    assert all(b"PRIVATE" not in (folder / "ca.crt").read_bytes() for folder in folders.values())
