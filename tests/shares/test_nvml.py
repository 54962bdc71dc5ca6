"""NVML in a container: it shows the share, and takes no place of a process that computes."""

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from shares.server import MAX_PROCESSES
from tests.fakes.share_rig import Client
from tests.shares.site import MIB, SOCKET, Container, Site, eventually

TIMEOUT = 10  # NVML_ERROR_TIMEOUT: no share server answers
SYSTEM_NOT_READY = 802


@pytest.fixture
def container(site: Site) -> Container:
    return site.container("a", mib=100)


@pytest.fixture
def clients(site: Site, container: Container) -> Iterator[list[Client]]:
    """Connect so many processes that compute that two more are allowed."""
    site.admit(os.getpid())
    with ExitStack() as ends:
        clients = [ends.enter_context(Client(container.folder / SOCKET)) for _ in range(MAX_PROCESSES - 2)]
        for client in clients:
            client.greet()
            assert client.ask(0, held=True)
        yield clients


def test_nvml_shows_the_share(container: Container) -> None:
    process = container.start()
    assert process.call("alloc", "plain", 30 * MIB) == 0
    eventually(lambda: process.call("nvml_memory") == [0, 100 * MIB, 70 * MIB, 30 * MIB])
    assert container.start(init=False).call("nvml_memory") == [0, 100 * MIB, 70 * MIB, 30 * MIB]


def test_nvml_follows_a_server_that_restarts(site: Site, container: Container) -> None:
    process = container.start(init=False)
    assert process.call("nvml_memory")[0] == 0
    site.server.kill()
    eventually(lambda: process.call("nvml_memory") == [TIMEOUT])
    site.server.start()
    eventually(lambda: process.call("nvml_memory") == [0, 100 * MIB, 100 * MIB, 0])


def test_as_many_processes_may_compute_where_each_asks_nvml_too(container: Container, clients: list[Client]) -> None:
    processes = [container.start() for _ in range(2)]
    assert [process.call("nvml_memory")[0] for process in processes] == [0, 0]
    assert container.start(init=False).call("init") == SYSTEM_NOT_READY  # there is no place left


def test_a_process_that_only_asks_nvml_takes_no_place(container: Container, clients: list[Client]) -> None:
    processes = [container.start(init=False) for _ in range(2)]
    assert [process.call("nvml_memory")[0] for process in processes] == [0, 0]
    assert [process.call("init") for process in processes] == [0, 0]
