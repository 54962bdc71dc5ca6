"""No container gets a byte beyond its share: every call that allocates, in one process and in several."""

import pytest

from tests.shares.site import MIB, Site, eventually

OK, OUT_OF_MEMORY, NOT_INITIALIZED, NOT_SUPPORTED = 0, 2, 3, 801
BEYOND = {"pitch": 2100, "array": 32768 * 32768 * 4 // MIB}  # MiB: rows of 1 MiB, and the largest array of floats; else 2049
KINDS = ["plain", "managed", "async", "pool", "pitch", "create", "array", "array3d", "mipmapped"]


@pytest.mark.parametrize("kind", KINDS)
def test_an_allocation_beyond_the_share_is_refused_and_the_device_is_not_asked(site: Site, kind: str) -> None:
    process = site.container("a", mib=2048).start()
    assert process.call("alloc", kind, BEYOND.get(kind, 2049) * MIB) == OUT_OF_MEMORY
    if site.card.is_fake:
        assert process.call("counts")[1] == 0
    assert process.call("alloc", kind, 2048 * MIB) == OK
    assert site.use("a").memory_used_mib == 2048
    assert process.do(["free", 0], ["trim"]) == [OK, OK]
    eventually(lambda: site.use("a").memory_used_mib == 0)


@pytest.mark.parametrize("way", ["graph node", "any graph node", "captured", "version 1", "locality domain"])
def test_what_cannot_be_counted_is_refused(site: Site, way: str) -> None:
    process = site.container("a", mib=2048).start()
    assert process.call("uncounted", way) == NOT_SUPPORTED
    if site.card.is_fake:
        assert process.call("counts") == [0, 0]


def test_a_program_sees_its_share_as_the_card(site: Site) -> None:
    process = site.container("a", mib=2048).start()
    calls = [["alloc", "plain", mib * MIB] for mib in (1024, 1025)] + [["alloc", "async", 500 * MIB]]
    assert process.do(*calls) == [OK, OUT_OF_MEMORY, OK]
    eventually(lambda: process.call("info") == [524 * MIB, 2048 * MIB])
    assert process.call("total") == 2048 * MIB
    site.admit(process.call("execute"))
    first, *child = process.call("in_child", ["init"], ["info"], ["alloc", "plain", 600 * MIB], ["alloc", "plain", 400 * MIB])
    assert (first, child) == (OK, [[524 * MIB, 2048 * MIB], OUT_OF_MEMORY, OK])
    eventually(lambda: process.call("info")[0] == 524 * MIB)


def test_a_forked_child_of_a_program_that_uses_cuda_cannot_and_counts_nothing(site: Site) -> None:
    process = site.container("a", mib=2048).start()
    assert process.call("alloc", "plain", 1000 * MIB) == OK
    site.admit(process.call("fork"))
    calls = [["alloc", kind, 100 * MIB] for kind in ("plain", "async", "create", "array")]
    assert process.call("in_child", ["init"], *calls) == [NOT_INITIALIZED] * 5
    eventually(lambda: process.call("info")[0] == 1048 * MIB)


def test_a_forked_child_shares_with_its_parent_until_it_ends(site: Site) -> None:
    process = site.container("a", mib=2048).start(init=False)
    site.admit(process.call("fork"))
    assert process.do(["init"], ["alloc", "plain", 1000 * MIB]) == [OK, OK]
    eventually(lambda: process.call("info")[0] == 1048 * MIB)
    first, *child = process.call("in_child", ["init"], ["info"], ["alloc", "plain", 1100 * MIB], ["alloc", "plain", 900 * MIB])
    assert (first, child) == (OK, [[1048 * MIB, 2048 * MIB], OUT_OF_MEMORY, OK])
    eventually(lambda: process.call("info")[0] == 1048 * MIB)


def test_the_memory_of_a_killed_process_is_free(site: Site) -> None:
    container = site.container("a", mib=2048)
    first, second = container.start(), container.start()
    assert first.call("alloc", "plain", 1500 * MIB) == OK
    assert second.call("alloc", "plain", 1024 * MIB) == OUT_OF_MEMORY
    first.kill()
    eventually(lambda: site.use("a").processes == 1)
    assert second.call("alloc", "plain", 1024 * MIB) == OK


def test_exactly_the_share_fits_after_all_was_freed(site: Site) -> None:
    process = site.container("a", mib=2048).start()
    for kind in KINDS:
        assert process.call("alloc", kind, 64 * MIB) == OK
    assert process.do(["free_all"], ["free_unknown"]) == [OK, 1]
    blocks = process.do(*[["alloc", "plain", 64 * MIB]] * 33)
    assert blocks == [OK] * 32 + [OUT_OF_MEMORY]


def test_memory_of_a_handle_lives_until_its_last_mapping_is_gone(site: Site) -> None:
    process = site.container("a", mib=100).start()
    assert process.do(["alloc", "create", 100 * MIB], ["map", 0], ["map", 0], ["free", 0], ["unmap", 0]) == [OK] * 5
    assert process.call("alloc", "plain", MIB) == OUT_OF_MEMORY
    assert process.do(["retain", 0], ["unmap", 0], ["alloc", "plain", MIB]) == [OK, OK, OUT_OF_MEMORY]
    assert process.do(["free", 0], ["alloc", "plain", 100 * MIB]) == [OK, OK]


@pytest.mark.fake_card("how much it has allocated")
def test_threads_that_get_one_anothers_addresses_are_counted_truly(site: Site) -> None:
    process = site.container("a", mib=20).start(FAKE_CUDA_FREE_US="200")
    assert process.do(*[["alloc", "plain", 2 * MIB]] * 8) == [OK] * 8
    assert process.call("churn", 4, 200) <= 20 * MIB
    eventually(lambda: site.use("a").memory_used_mib == 16)


@pytest.mark.fake_card("a limit of its memory")
def test_where_the_driver_limits_memory_programs_are_told_and_not_refused(site: Site) -> None:
    container = site.container("a", mib=100, driver_limits=True)
    process = container.start(FAKE_CUDA_MIB="300")  # this driver gives no more
    assert process.do(["total"], ["alloc", "plain", 150 * MIB], ["alloc", "managed", 100 * MIB]) == [100 * MIB, OK, OK]
    assert process.call("alloc", "plain", 51 * MIB) == OUT_OF_MEMORY
    eventually(lambda: process.call("info") == [0, 100 * MIB])
    assert site.use("a").memory_used_mib == 250
    assert process.do(["uncounted", "graph node"], ["uncounted", "captured"], ["uncounted", "version 1"]) == [OK] * 3
    site.server.kill()
    assert process.do(["free_all"], ["alloc", "plain", 150 * MIB]) == [OK, OK]


def test_two_containers_of_a_card_have_amounts_of_their_own(site: Site) -> None:
    a, b = site.container("a", mib=100).start(), site.container("b", mib=200).start()
    assert a.do(["alloc", "plain", 100 * MIB], ["alloc", "plain", 1]) == [OK, OUT_OF_MEMORY]
    assert b.do(["alloc", "plain", 200 * MIB], ["alloc", "plain", 1]) == [OK, OUT_OF_MEMORY]
