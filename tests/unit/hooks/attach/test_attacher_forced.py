"""Test a release that a person forces: its messages, what it keeps, and what it gives up."""

import pytest

from hooks.attach.plan import describe_release
from hooks.model.attachment import RdmaMode
from tests.vfs.life import MODES, Node, path_of

pytestmark = pytest.mark.simulated_time


async def test_a_person_is_reported_what_a_release_would_do_and_what_it_did() -> None:
    node = Node()
    vf = node.vfs[0].bdf
    assert await node.attacher.force_release(vf, 1) == []
    (row,) = await node.attached("p1-s0", 0)
    message = describe_release(row)
    assert any(path_of("p1-s0") in text for text in message)
    assert any("vlan 7" in text for text in message)
    assert await node.attacher.force_release(vf, row.generation + 1) == []
    node.attachment()
    assert await node.attacher.force_release(vf, row.generation) == message
    assert node.all_free()


async def test_what_cannot_be_released_now_is_kept_while_its_namespace_is_there() -> None:
    node = Node()
    (row,) = await node.attached("p1-s0", 0)
    node.kernel.fail("move_out")
    (reason, *_) = await node.attacher.force_release(row.bdf, row.generation)
    assert "move_out" in reason
    node.attachment()
    await node.reconcile()
    assert node.all_free()


@pytest.mark.parametrize("broken", [False, True])
async def test_what_is_deleted_for_good_is_given_up_by_a_person(broken: bool) -> None:
    node = Node()
    node.kernel.late = True
    (row,) = await node.attached("p1-s0", 0)
    node.end("p1-s0")
    if broken:
        node.kernel.fail("set_vf")
    await node.attacher.force_release(row.bdf, row.generation)
    assert node.journal.rows() == ()
    one = node.vfs[0]
    assert (node.kernel.table[one.pf, one.index] == node.before[one.bdf].config) is not broken


@pytest.mark.parametrize("mode", MODES)
async def test_what_came_back_by_itself_is_not_given_up_before_it_is_reset(mode: RdmaMode) -> None:
    """Check that the VF is reset first: otherwise the next pod would have the VLAN of the previous one."""
    node = Node(mode=mode)
    (row,) = await node.attached("p1-s0", 0)
    node.end("p1-s0")
    node.kernel.fail("set_vf", count=2)
    await node.attacher.force_release(row.bdf, row.generation)
    node.attachment()
    node.kernel.heal()
    await node.reconcile()
    assert node.all_free()
