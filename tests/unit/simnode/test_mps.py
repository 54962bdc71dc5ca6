"""Test that the simulated MPS behaves as observed of the real one."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from simnode.mps import client, install_fake_mps
from tests.node.site import eventually


class Card:
    def __init__(self, folder: Path, command: Path) -> None:
        self.pipe = folder
        self.command = command
        self.env = {"PATH": os.environ["PATH"], "CUDA_MPS_PIPE_DIRECTORY": str(folder)}
        folder.mkdir(parents=True)

    def run(self, *options: str, text: str = "") -> tuple[int, str]:
        done = subprocess.run(
            [self.command, *options], env=self.env, input=text, capture_output=True, text=True, timeout=30, check=False
        )
        return done.returncode, done.stdout.strip()

    def start(self, *options: str) -> int:
        assert self.run("-d", *options) == (0, "")
        return eventually(self.pid)

    def pid(self) -> int:
        file = self.pipe / "nvidia-cuda-mps-control.pid"
        return int(file.read_text() or 0) if file.exists() else 0


@pytest.fixture
def sockets() -> Iterator[Path]:
    """Return a short folder: pytest's own folders are too long for a socket's path."""
    with tempfile.TemporaryDirectory(prefix="lading-") as folder:
        yield Path(folder)


@pytest.fixture
def card(sockets: Path) -> Iterator[Card]:
    yield Card(sockets / "pipe", install_fake_mps(sockets / "bin"))
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        if path.exists() and f"{sockets}/bin/".encode() in path.read_bytes():
            os.kill(int(path.parent.name), signal.SIGKILL)


NO_DAEMON = (1, "Cannot find MPS control daemon process")


def test_a_second_start_ends_with_an_error(card: Card) -> None:
    card.start()
    assert card.run("-d") == (1, "An instance of this daemon is already running")


def test_without_a_daemon_nothing_answers(card: Card) -> None:
    assert card.run(text="get_server_list\n") == NO_DAEMON


def test_a_path_that_is_too_long_is_as_no_daemon(card: Card, sockets: Path) -> None:
    longer = Card(sockets / ("x" * 107), card.command)
    assert longer.run("-d") == NO_DAEMON
    assert longer.run(text="get_server_list\n") == NO_DAEMON


@pytest.mark.parametrize(("limit", "read_back"), [("1044M", "1G"), ("512M", "512M"), ("3G", "3G"), ("4095M", "3G")])
def test_an_amount_is_read_back_in_whole_gib(card: Card, limit: str, read_back: str) -> None:
    card.start()
    text = f"set_default_device_pinned_mem_limit 0 {limit}\nget_default_device_pinned_mem_limit 0\n"
    assert card.run(text=text) == (0, f"{read_back}\n{read_back}")


def test_defaults_bind_the_next_server_alone(card: Card) -> None:
    card.start()
    with client(card.pipe) as first, client(card.pipe) as second:
        assert first.answer()[2:] == ["100.0", "none"]
        card.run(text="set_default_active_thread_percentage 30\n")
        assert second.answer()[2:] == ["100.0", "none"]


def test_the_socket_outlives_the_daemon(card: Card) -> None:
    card.start()
    with client(card.pipe) as one:
        server = one.answer()[1]
    assert card.run(text="get_server_list\n") == (0, server)
    assert card.run(text="quit\n") == (0, "")
    assert (card.pipe / "control").exists()
    assert card.run(text="get_server_list\n") == NO_DAEMON


def test_quit_waits_for_clients_unless_it_has_a_time(card: Card) -> None:
    card.start()
    with client(card.pipe) as one:
        one.answer()
        with pytest.raises(subprocess.TimeoutExpired):
            subprocess.run([card.command], env=card.env, input="quit\n", text=True, timeout=0.5, check=False)
        assert card.run(text="quit -t 0.1\n") == (0, "")


def test_another_user_waits_for_the_first_ones_clients(card: Card) -> None:
    card.start()
    with client(card.pipe, uid=1) as first:
        server = first.answer()[1]
        with client(card.pipe, uid=2, wait_s=0.3) as other, pytest.raises(TimeoutError):
            other.answer()
        with client(card.pipe, uid=2) as second:
            first.close()
            assert second.answer()[1] != server


def test_a_fault_refuses_clients_until_those_of_the_fault_are_deleted(card: Card) -> None:
    card.start()
    with client(card.pipe) as one:
        server = one.answer()[1]
        assert card.run(text=f"get_server_status {server}\n") == (0, "ACTIVE")
        one.fault()
        assert card.run(text=f"get_server_status {server}\n") == (0, "FAULT")
        with client(card.pipe) as late:
            assert late.answer() == ["refused", "807"]
    eventually(lambda: card.run(text=f"get_server_status {server}\n") == (0, "ACTIVE"))
    with client(card.pipe) as next_one:
        assert next_one.answer()[:2] == ["server", server]
