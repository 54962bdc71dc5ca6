"""A container has of a card what the card loses by it: contexts, whole blocks, and what is freed late.

The driver's own figure of each process, by NVML, is compared with the share. A context takes what one was seen to take on an
H200 with driver 580: 518 MiB, 4 of them from cuInit on.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.shares.calls import call
from tests.shares.program import BLOCK
from tests.shares.site import MIB, Site, eventually, new_site

pytestmark = pytest.mark.fake_card("that a context takes as much as on an H200")
OK, OUT_OF_MEMORY = 0, 2
CONTEXT_MIB: Final = 514
INITIAL_MIB: Final = 4
IN_ALL_MIB: Final = CONTEXT_MIB + INITIAL_MIB


@pytest.fixture
def site(library: Path) -> Iterator[Site]:
    with new_site(library, context_mib=CONTEXT_MIB) as site:
        yield site


def test_eight_shares_fill_a_card(site: Site) -> None:
    containers = [site.container(f"c{number}", mib=1000, request=12) for number in range(8)]
    processes = [one.start(FAKE_CUDA_MIB="8000") for one in containers]
    assert [process.call("fill", BLOCK) for process in processes] == [(1000 - IN_ALL_MIB) // 2] * 8
    assert [site.driver_mib(process) for process in processes] == [1000] * 8


def test_a_context_counts_when_the_first_memory_in_it_is_requested(site: Site) -> None:
    process = site.container("a", mib=1000).start()
    too_much = (1000 - IN_ALL_MIB + 2) * MIB
    assert process.do(["alloc", "plain", too_much], ["alloc", "plain", too_much - BLOCK]) == [OUT_OF_MEMORY, OK]
    assert site.use("a").memory_used_mib == 1000
    assert process.call("info") == [0, 1000 * MIB]


def test_a_context_is_refused_where_the_share_has_no_place_for_it(site: Site) -> None:
    container = site.container("a", mib=1000)
    first, second = container.start(), container.start(init=False)
    assert first.call("alloc", "plain", BLOCK) == OK
    assert second.do(call("cuInit", 0), call("cuDevicePrimaryCtxRetain", "&p", 0)) == [OK, OUT_OF_MEMORY]
    assert f"no context can be made: it takes {IN_ALL_MIB} MiB" in site.errors.read_text()
    assert second.do(call("cuCtxCreate_v2", "&c", 0, 0)) == [OUT_OF_MEMORY]
    first.kill()
    eventually(lambda: second.do(call("cuDevicePrimaryCtxRetain", "&p", 0)) == [OK])


def test_a_share_that_is_smaller_than_a_context_gets_no_memory_and_the_log_has_the_amount(site: Site) -> None:
    process = site.container("a", mib=500).start()
    assert process.call("alloc", "plain", BLOCK) == OUT_OF_MEMORY
    assert f"has no place for a context, which takes {IN_ALL_MIB} MiB" in site.server.log.read_text()
    assert site.container("b", mib=500).start(init=False).do(call("cuInit", 0), call("cuCtxCreate_v2", "&c", 0, 0)) == [
        OK,
        OUT_OF_MEMORY,
    ]


def test_each_context_counts_until_it_ends(site: Site) -> None:
    process = site.container("a", mib=1600).start()
    assert process.do(["alloc", "plain", BLOCK], call("cuCtxCreate_v2", "&c", 0, 0), ["alloc", "plain", BLOCK]) == [OK] * 3
    eventually(lambda: site.use("a").memory_used_mib == IN_ALL_MIB + CONTEXT_MIB + 4)
    assert process.do(call("cuCtxCreate_v2", "&d", 0, 0), call("cuCtxDestroy_v2", "c"), ["enter"]) == [OK, OK, None]
    assert process.do(call("cuCtxDestroy_v2", "d"), ["enter"]) == [OK, None]
    eventually(lambda: site.use("a").memory_used_mib == IN_ALL_MIB + 2)
    assert process.do(["alloc", "plain", (1600 - IN_ALL_MIB - 2) * MIB]) == [OK]


def test_contexts_count_after_a_restart_of_the_server(site: Site) -> None:
    process = site.container("a", mib=1000).start()
    assert process.call("alloc", "plain", 100 * MIB) == OK
    site.server.kill()
    site.server.start()
    eventually(lambda: site.use("a").memory_used_mib == 100 + IN_ALL_MIB)
    left = (1000 - 100 - IN_ALL_MIB) * MIB
    assert process.do(["alloc", "plain", left + BLOCK], ["alloc", "plain", left]) == [OUT_OF_MEMORY, OK]


@pytest.mark.parametrize(
    ("size", "taken_mib"), [(BLOCK + 1, 64), (5 * MIB, 96), (MIB, 16), (3 * MIB // 2, 32)], ids=["2 MiB + 1", "5", "1", "1.5"]
)
def test_memory_counts_in_blocks_as_the_card_has_it(site: Site, size: int, taken_mib: int) -> None:
    """16 allocations of these sizes took so much on a card; that of 1.5 MiB follows from the others."""
    process = site.container("a", mib=IN_ALL_MIB + taken_mib).start()
    assert process.do(*[["alloc", "plain", size]] * 17) == [OK] * 16 + [OUT_OF_MEMORY]
    assert site.driver_mib(process) == IN_ALL_MIB + taken_mib
    assert process.do(["free_all"], ["alloc", "plain", taken_mib * MIB]) == [OK, OK]


def test_small_allocations_fit_into_the_blocks_of_a_share_that_is_full(site: Site) -> None:
    process = site.container("a", mib=IN_ALL_MIB + 2).start()
    assert process.do(*[["alloc", "plain", MIB // 2]] * 5) == [OK] * 4 + [OUT_OF_MEMORY]
    assert process.do(["free", 1], ["alloc", "plain", MIB // 2], ["alloc", "plain", 512]) == [OK, OK, OUT_OF_MEMORY]
    assert process.do(["free_all"], ["alloc", "plain", BLOCK]) == [OK, OK]


def test_what_only_the_driver_shows_counts(site: Site) -> None:
    """Small arrays are in no block that the library sees."""
    process = site.container("a", mib=1000).start()
    small = call("cuArrayCreate_v2", "&a", ["QQiI", 600, 1024, 0x20, 1])  # 2.3 MiB take 4
    tiny = call("cuArrayCreate_v2", "&a", ["QQiI", 300, 1024, 0x20, 1])  # 1.2 MiB take 2
    assert process.do(*[small, tiny] * 10) == [OK] * 20
    eventually(lambda: site.use("a").memory_used_mib == IN_ALL_MIB + 60)


def test_contexts_do_not_count_where_the_setting_says_so(library: Path) -> None:
    with new_site(library, context_mib=CONTEXT_MIB, count_contexts=False) as site:
        process = site.container("a", mib=100).start()
        assert process.call("fill", BLOCK) == 50
        assert site.use("a").memory_used_mib == 100


def test_memory_that_is_freed_late_stops_counting_without_another_call(site: Site) -> None:
    process = site.container("a", mib=1000).start()
    begin = [call("cuDeviceGetMemPool", "&p", 0), call("cuMemAllocAsync", "&a", 400 * MIB, None)]
    assert process.do(*begin, call("cuMemFreeAsync", "a", None), call("cuMemPoolTrimTo", "p", 0)) == [OK] * 4
    assert site.use("a").memory_used_mib == IN_ALL_MIB + 400
    assert process.do(call("cuStreamSynchronize", None)) == [OK]  # the library does not see this call
    eventually(lambda: site.use("a").memory_used_mib == IN_ALL_MIB)
