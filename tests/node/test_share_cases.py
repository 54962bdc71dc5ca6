"""Run the tests of tests/shares in real containers, with shares and the library from the hook, and a fake libcuda."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from simnode.containerd import PrivateContainerd
from simnode.cuda import CudaDriver
from simnode.daemons import LadingNode
from tests.node.conftest import StartLading
from tests.node.share_site import ERRORS, ContainerSite, install_python
from tests.node.site import eventually, open_site
from tests.shares import test_failures, test_kills, test_lost, test_memory, test_turns
from tests.started import Started

pytestmark = [pytest.mark.node, pytest.mark.long]

# These make their own grants, cgroups or share server: test_memory_limits.py and test_shares.py have some with the hook's.
NOT_HERE: Final = {
    "test_a_server_that_ends_before_it_counted_a_process_gives_it_no_memory_twice",
    "test_where_the_driver_limits_memory_programs_are_told_and_not_refused",
    "test_a_process_of_another_pod_has_no_cuda_and_is_told_why",
    "test_two_jobs_of_two_ranks_on_the_same_two_cards_do_not_wait_for_each_others_turns",
}
for _module in (test_failures, test_memory, test_kills, test_lost, test_turns):
    globals().update({name: test for name, test in vars(_module).items() if name.startswith("test_") and name not in NOT_HERE})


@pytest.fixture(scope="module")
def running(share_lading: StartLading) -> LadingNode:
    return share_lading(tokens=True)


@pytest.fixture(scope="module")
def run_folder(pytestconfig: pytest.Config) -> Iterator[Path]:
    with Started(pytestconfig) as started:
        folder = started.folder()
        install_python(folder)
        started.show(folder / ERRORS)
        yield folder


@pytest.fixture
def site(running: LadingNode, driver: CudaDriver, containerd: PrivateContainerd, run_folder: Path) -> Iterator[ContainerSite]:
    driver.reset()
    with open_site(running, containerd) as node:
        site = ContainerSite(running, driver, node, run_folder)
        yield site
        site.close()
    eventually(node.check_nothing_granted)
    eventually(lambda: _check_unused(site))


def _check_unused(site: ContainerSite) -> None:
    assert site.uses() == []
