"""Start one guest of real kernel objects for all tests: `make test-vm`.

Without LADING_VM, the name of a system in simnode.vm.systems, every test here is skipped, in CI too: a boot without KVM takes
minutes. The waits follow the guest's progress, so that a test's own time limit is only the last resort.
"""

import os
import platform
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from simnode.install import NEEDS, VM_NEEDS, missing_packages
from simnode.vm.guest import Guest
from simnode.vm.image import build_image
from simnode.vm.qemu import find_qemu
from simnode.vm.systems import find_system
from tests.fakes.needs import need
from tests.logs import LOGS
from tests.vm.node import VmNode

SYSTEM: Final = "LADING_VM"
TIMEOUT_S: Final = 3600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session", autouse=True)
def system() -> Iterator[str]:
    name = os.environ.get(SYSTEM)
    if not name:
        pytest.skip(f"needs {SYSTEM}, a system of simnode/vm/systems.py (run: make test-vm)")
    before = signal.signal(signal.SIGTERM, lambda *_: pytest.exit("ended by SIGTERM", 143))  # so that the guest's end runs
    yield name
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def guest(system: str, pytestconfig: pytest.Config) -> Iterator[Guest]:
    need(os.geteuid() == 0, "root")
    need(platform.machine() == "x86_64", "a machine with x86-64")
    packages = missing_packages((*NEEDS, *VM_NEEDS))
    need(not packages, f"{', '.join(packages)} (run: python -m simnode.install --vm)")
    guest = Guest(build_image(find_system(system)), find_qemu())
    pytestconfig.stash.setdefault(LOGS, []).extend([guest.console, guest.log])
    with guest:
        yield guest


@pytest.fixture(scope="session")
def node(guest: Guest) -> VmNode:
    node = VmNode(guest)
    node.await_ready()
    return node
