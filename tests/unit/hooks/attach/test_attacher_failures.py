"""Test the attacher with a kernel that fails or hangs, or a full disk: each change is undone, or journaled and tried again."""

from typing import Any

import pytest

from hooks.model.attachment import RdmaMode, Step
from lading.log import Event
from lading.reasons import Reason
from tests.vfs.life import Node, reason
from tests.vfs.model import When

pytestmark = pytest.mark.simulated_time

# ---- a kernel that fails


ATTACHING = ["rdma_mode", "netns_id", "read_vf", "host_link", "link", "set_vf", "set_link", "move_in", "rdma_devices"]
ATTACHING += ["names", "host_ibdev", "rdma_move_in", "configure"]
RELEASING = [
    "netns_id",
    "host_link",
    "link",
    "rdma_devices",
    "host_ibdev",
    "rdma_move_out",
    "move_out",
    "set_vf",
    "set_link",
    "rename",
]


@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("method", ATTACHING)
async def test_an_attach_that_fails_is_undone_and_can_be_tried_again(method: str, when: When) -> None:
    node = Node(mode=RdmaMode.EXCLUSIVE)
    node.kernel.fail(method, when=when)
    assert reason(await node.attach("p1-s0", 0)) is Reason.ATTACH_FAILED
    assert node.all_free()
    (row,) = await node.attached("p1-s0", 0)
    assert row.step is Step.ATTACHED
    assert node.problems() == []
    assert node.records.events()[0] is Event.VF_ATTACH_FAILED


@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("method", RELEASING)
async def test_a_release_that_fails_is_journaled_and_tried_again(method: str, when: When) -> None:
    node = Node(mode=RdmaMode.EXCLUSIVE)
    await node.attach("p1-s0", 0)
    node.kernel.fail(method, when=when, count=2)
    await node.stopping("p1-s0")
    row = node.attachment()
    assert row.step.releasing
    assert row.failure
    await node.reconcile()
    assert node.problems() == []
    await node.reconcile()
    assert node.all_free()
    assert node.records.events().count(Event.VF_RELEASE_FAILED) == 1  # said once, though it failed twice


@pytest.mark.parametrize("method", RELEASING)
async def test_an_attach_whose_undoing_fails_too_is_undone_later(method: str) -> None:
    node = Node(mode=RdmaMode.EXCLUSIVE)
    node.kernel.point = lambda at: node.kernel.fail(method, count=3) if at == "before configure" else None
    node.kernel.fail("configure", when=When.AFTER)
    assert reason(await node.attach("p1-s0", 0)) is Reason.ATTACH_FAILED
    node.attachment()
    node.kernel.heal()
    node.kernel.point = lambda _: None
    (row,) = await node.attached("p1-s0", 0)  # a retry undoes it first
    assert (row.step, row.generation, row.ifname) == (Step.ATTACHED, 2, "rdma0")
    assert node.problems() == []


async def test_one_vf_that_fails_leaves_the_others_for_the_retry() -> None:
    node = Node(3)
    node.kernel.fail("configure")
    assert reason(await node.attach("p1-s0", 0, 1, 2)) is Reason.ATTACH_FAILED
    assert node.problems() == []
    kept = {row.bdf: row.generation for row in node.journal.rows()}
    assert len(kept) == 2
    rows = await node.attached("p1-s0", 0, 1, 2)
    assert kept.items() <= {row.bdf: row.generation for row in rows}.items()
    assert len({row.ifname for row in rows}) == 3
    assert node.problems() == []


async def test_an_error_that_is_none_of_the_kernels_is_a_failure_like_any() -> None:
    node = Node()
    configure = node.kernel.configure

    def breaks(*args: Any, **named: Any) -> None:
        node.kernel.configure = configure  # type: ignore[method-assign]
        raise OSError(5, "as the test wants it")

    node.kernel.configure = breaks  # type: ignore[method-assign]
    assert reason(await node.attach("p1-s0", 0)) is Reason.ATTACH_FAILED
    assert node.all_free()


# ---- a disk that is full


async def test_without_a_journal_nothing_is_begun() -> None:
    node = Node()
    node.disk_full = True
    assert reason(await node.attach("p1-s0", 0)) is Reason.LEDGER_UNAVAILABLE
    assert node.records.events() == [Event.VF_ATTACH_FAILED]
    assert node.kernel.changes == []
    assert node.all_free()


@pytest.mark.parametrize("change", range(8))
async def test_a_disk_that_fills_up_meanwhile_loses_nothing(change: int) -> None:
    node = Node(mode=RdmaMode.EXCLUSIVE)

    def fill(_: str) -> None:
        node.disk_full = len(node.kernel.changes) >= change

    node.kernel.point = fill
    await node.attach("p1-s0", 0)
    assert node.problems() == []
    await node.stopping("p1-s0")
    assert node.problems() == []
    node.kernel.point = lambda _: None
    node.disk_full = False
    await node.reconcile()
    assert node.all_free()
