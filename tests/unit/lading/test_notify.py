import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from lading.notify import notify


@pytest.fixture
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """Yield the value of NOTIFY_SOCKET, and the socket of a service manager that listens there."""
    abstract = f"lading-test-{tmp_path.name}"
    text, address = (f"@{abstract}", f"\0{abstract}") if request.param == "abstract" else (str(tmp_path / "n"),) * 2
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as listening:
        listening.bind(address)
        yield text, listening


@pytest.mark.parametrize("manager", ["abstract", "path"], indirect=True)
def test_the_manager_is_reported(manager: tuple[str, socket.socket], monkeypatch: pytest.MonkeyPatch) -> None:
    text, listening = manager
    monkeypatch.setenv("NOTIFY_SOCKET", text)
    notify("READY=1")
    notify("STOPPING=1")
    assert [listening.recv(100), listening.recv(100)] == [b"READY=1", b"STOPPING=1"]


@pytest.mark.parametrize("said", ["", "/absent/notify", "@lading-test-nobody", "/" + "x" * 200])
def test_no_manager_is_no_failure(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", said)
    notify("READY=1")
    monkeypatch.delenv("NOTIFY_SOCKET")
    notify("READY=1")
