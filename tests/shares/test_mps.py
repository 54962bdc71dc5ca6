"""Containers whose kernels an MPS server runs: the share server keeps each to its memory, and gives no turns.

The daemon is the simulated one (simnode/fake_mps.py), of which the fake card's programs are clients.
"""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest

from simnode.mps import install_fake_mps
from tests.shares.calls import call
from tests.shares.program import BLOCK
from tests.shares.site import MIB, Container, Process, Site, eventually

pytestmark = pytest.mark.fake_card("that a program is a client of the simulated MPS daemon")
OK, OUT_OF_MEMORY, ILLEGAL_ADDRESS, MPS_SERVER_NOT_READY = 0, 2, 700, 807
CONTEXT_MIB: Final = 514
IN_ALL_MIB: Final = 518
LONG_MS: Final = 20


@pytest.fixture
def site(library: Path) -> Iterator[Site]:
    with TemporaryDirectory(prefix="lading-") as folder, Site(Path(folder), library, context_mib=CONTEXT_MIB) as site:
        yield site


@pytest.fixture
def pipe() -> Iterator[Path]:
    """Run the daemon of the card, and return the folder of its socket."""
    with TemporaryDirectory(prefix="lading-") as name:
        folder = Path(name)
        control, env = install_fake_mps(folder / "bin"), {"PATH": os.environ["PATH"], "CUDA_MPS_PIPE_DIRECTORY": str(folder)}
        subprocess.run([control, "-d", "-multiuser-server"], env=env, check=True, timeout=30)
        pid_file = folder / "nvidia-cuda-mps-control.pid"
        eventually(lambda: pid_file.exists() and pid_file.read_text())
        yield folder
        subprocess.run([control], env=env, input="quit -t 0\n", text=True, check=True, timeout=30)  # ends the server too


def start(container: Container, pipe: Path, *, mib: int = 8000, init: bool = True, **env: str) -> Process:
    """Start a client. `mib`: MPS limits the process to so much memory."""
    limit = f"0={mib}M"
    return container.start(init=init, CUDA_MPS_PIPE_DIRECTORY=str(pipe), CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=limit, **env)


def test_launches_wait_for_no_turn_and_are_not_held_back_from_the_queue(site: Site, pipe: Path) -> None:
    """A hundred kernels of 20 ms are 2 s of work: with turns, at most one of them is queued beside another container's."""
    quick, busy = (start(site.container(name, turns=False), pipe) for name in ("a", "b"))
    busy.call("begin", LONG_MS * 1000, 1)
    quick.call("launch", 1)
    began = time.monotonic()
    assert quick.call("launch_many", LONG_MS * 1000, 100) == OK
    assert time.monotonic() - began < 1
    assert site.held() == {"a": 0, "b": 0}
    assert not any(use.turns for use in site.uses())


def test_without_the_share_server_launches_are_not_slowed_down(site: Site, pipe: Path) -> None:
    container = site.container("a", request=10, turns=False)
    process = start(container, pipe)
    site.server.kill()
    began = time.monotonic()
    assert process.do(["launch_many", 1000, 500], ["sync"]) == [OK, OK]  # half a second of the card; 5 s at the request
    assert time.monotonic() - began < 2


def test_processes_of_a_container_keep_to_its_share_together_with_their_contexts(site: Site, pipe: Path) -> None:
    """Processes that only MPS limits would each have as much as the share."""
    container, mib = site.container("a", mib=2000, turns=False), 2000
    first, second = start(container, pipe, mib=mib), start(container, pipe, mib=mib)
    assert first.call("alloc", "plain", 600 * MIB) == OK
    left_mib = mib - 2 * IN_ALL_MIB - 600
    assert second.do(["alloc", "plain", (left_mib + 2) * MIB], ["alloc", "plain", left_mib * MIB]) == [OUT_OF_MEMORY, OK]
    assert [site.driver_mib(one) for one in (first, second)] == [600 + IN_ALL_MIB, left_mib + IN_ALL_MIB]
    assert second.call("info") == [0, mib * MIB]
    first.kill()
    eventually(lambda: second.call("alloc", "plain", 600 * MIB) == OK)


def test_shares_fill_a_card_and_none_has_less_than_its_amount(site: Site, pipe: Path) -> None:
    containers = [site.container(f"c{number}", mib=1000, request=0, turns=False) for number in range(4)]
    processes = [start(one, pipe, FAKE_CUDA_MIB="4000") for one in containers]
    assert [process.call("fill", BLOCK) for process in processes] == [(1000 - IN_ALL_MIB) // 2] * 4


def test_a_process_that_takes_another_library_is_limited_by_mps(site: Site, pipe: Path, driver_folder: Path) -> None:
    """It takes the driver's own, so that the share server counts nothing of it."""
    container = site.container("a", mib=1000, turns=False)
    process = start(container, pipe, mib=1000, LD_LIBRARY_PATH=str(driver_folder))
    assert process.call("fill", BLOCK) == (1000 - IN_ALL_MIB) // 2
    assert site.use("a").processes == 0


def test_a_fault_of_one_ends_all_that_share_the_card_and_none_may_start_before(site: Site, pipe: Path) -> None:
    """So this is for tenants who trust one another."""
    faulty, other = (start(site.container(name, mib=1000, turns=False), pipe) for name in ("a", "b"))
    assert faulty.do(["fault"], ["sync"]) == [OK, ILLEGAL_ADDRESS]
    eventually(lambda: other.call("sync") == ILLEGAL_ADDRESS)
    third = start(site.container("c", mib=1000, turns=False), pipe, init=False)
    assert third.do(call("cuInit", 0)) == [MPS_SERVER_NOT_READY]
    for process in (faulty, other):
        process.kill()
    eventually(lambda: third.do(call("cuInit", 0)) == [OK])
    assert third.do(["init"], ["alloc", "plain", BLOCK]) == [OK, OK]
