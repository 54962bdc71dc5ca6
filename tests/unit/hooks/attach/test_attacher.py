"""The attacher on a model kernel: what each call does, and that nothing is lost wherever it fails or is killed."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from hooks.assignment.model import Refusal
from hooks.attach.model import RdmaMode, Step, VfConfig, VfSettings
from hooks.attach.plan import describe_release
from hooks.ledger.reconcile import GRACE_S
from lading.log import Event
from lading.reasons import Reason
from lading.threads import in_thread
from lading.vocabulary import SandboxId
from tests.vfs.life import SETTINGS, Node, path_of, pod_of
from tests.vfs.model import UNTOUCHED, Crash, When

MODES = [RdmaMode.SHARED, RdmaMode.EXCLUSIVE]


def run(do: Coroutine[Any, Any, Any]) -> Any:
    """To the end of it, or to the end of the daemon, with which everything that it had begun ends."""
    return asyncio.run(do)


def reason(outcome: object) -> Reason | None:
    return outcome.reason if isinstance(outcome, Refusal) else None


def away(node: Node, number: int = 0) -> str | None:
    found = node.kernel.where(node.vfs[number].bdf)
    return found[0] if found else None


# ---- there and back


@pytest.mark.parametrize("mode", MODES)
def test_a_vf_goes_into_the_pod_and_comes_back_as_it_was(mode: RdmaMode) -> None:
    node = Node(mode=mode)
    node.run("p1-s0")

    async def live() -> None:
        (row,) = await node.attached("p1-s0", 0)
        assert row.step is Step.ATTACHED
        assert row.rdma is (mode is RdmaMode.EXCLUSIVE)
        assert node.row() == row
        assert node.problems() == []
        assert away(node) == path_of("p1-s0")
        pod = node.kernel.pods[path_of("p1-s0")]
        assert pod.addresses == {"rdma0": {"10.0.0.2/24"}}
        assert pod.routes == {"rdma0": set(SETTINGS.routes)}
        assert (pod.ibdevs == {node.vfs[0].ibdev}) is (mode is RdmaMode.EXCLUSIVE)
        await node.stopping("p1-s0")
        assert node.all_free()

    run(live())
    assert node.records.events() == [Event.VF_ATTACHED, Event.VF_RELEASED]


def test_what_nobody_asked_for_is_not_touched() -> None:
    node = Node()
    node.run("p1-s0")
    run(node.attacher.attach(node.wanted(0, settings=VfSettings()), pod_of("p1-s0")))
    assert [change.split()[0] for change in node.kernel.changes] == ["move", "configure"]


def test_the_pf_is_reset_before_the_device_whose_mac_it_insists_on() -> None:
    node = Node()
    node.run("p1-s0")

    async def live() -> None:
        await node.attach("p1-s0", 0)
        node.kernel.changes.clear()
        await node.stopping("p1-s0")

    run(live())
    assert [change.split()[0] for change in node.kernel.changes] == ["move", "set_vf", "set_link", "rename", "set_link"]
    assert node.kernel.changes[1] == "set_vf 0 mac vlan max_tx_rate trust"


def test_what_a_pod_did_to_its_device_is_undone() -> None:
    node = Node()
    node.run("p1-s0")

    async def live() -> None:
        await node.attach("p1-s0", 0)
        links = node.kernel.pods[path_of("p1-s0")].links
        links["rdma0"] = replace(links["rdma0"], mac="02:00:00:00:00:66", mtu=576, up=True)
        await node.stopping("p1-s0")

    run(live())
    assert node.all_free()


def test_several_vfs_have_names_of_their_own_in_the_order_asked() -> None:
    node = Node(4)
    node.run("p1-s0")

    async def live() -> None:
        first = await node.attacher.attach([*node.wanted(3, 2), *node.wanted(0, ifname="rdma0")], pod_of("p1-s0"))
        assert not isinstance(first, Refusal)
        assert [(row.bdf, row.ifname) for row in first] == [
            (node.vfs[3].bdf, "rdma1"),
            (node.vfs[2].bdf, "rdma2"),
            (node.vfs[0].bdf, "rdma0"),
        ]
        (other,) = await node.attached("p1-s0", 1)
        assert other.ifname == "rdma3"
        assert node.problems() == []
        assert await node.attach("p1-s0", 2, 0) == (first[1], first[2])  # the same ones
        await node.stopping("p1-s0")

    run(live())
    assert node.all_free()


def test_asked_again_meanwhile_and_after_it_is_one_attachment() -> None:
    node = Node()
    node.run("p1-s0")

    async def live() -> None:
        outcomes = await asyncio.gather(*(node.attached("p1-s0", 0) for _ in range(3)))
        assert len({row.generation for (row,) in outcomes}) == 1
        changes = list(node.kernel.changes)
        assert await node.attach("p1-s0", 0) == outcomes[0]
        assert node.kernel.changes == changes

    run(live())
    assert node.records.events() == [Event.VF_ATTACHED]


def test_different_pods_go_in_parallel() -> None:
    node = Node(3)
    for number in range(3):
        node.run(f"p{number}-s0")

    async def live() -> None:
        await asyncio.gather(*(node.attach(f"p{number}-s0", number) for number in range(3)))
        assert [away(node, number) for number in range(3)] == [path_of(f"p{number}-s0") for number in range(3)]
        await asyncio.gather(*(node.stopping(f"p{number}-s0") for number in range(3)))

    run(live())
    assert node.all_free()
    steps = [change for change in node.kernel.changes if change.startswith("set_vf")]
    assert [step.split()[1] for step in steps[:3]] == ["0", "1", "2"]  # each had begun before one was done


# ---- what is brought into the pod


def test_without_a_network_device_nothing_has_to_be_done_in_shared_mode() -> None:
    node = Node()
    node.run("p1-s0")
    assert run(node.attacher.attach(node.wanted(0, netdev=False), pod_of("p1-s0"))) == ()
    assert node.kernel.changes == []


def test_without_a_network_device_the_rdma_device_goes_in_exclusive_mode() -> None:
    node = Node(mode=RdmaMode.EXCLUSIVE)
    node.run("p1-s0")

    async def live() -> None:
        await node.attacher.attach(node.wanted(0, netdev=False), pod_of("p1-s0"))
        assert node.kernel.where_ibdev(node.vfs[0].ibdev) == path_of("p1-s0")
        assert away(node) == ""
        assert node.problems() == []
        await node.stopping("p1-s0")

    run(live())
    assert node.all_free()
    assert [change.split()[0] for change in node.kernel.changes] == ["move", "move"]


def test_an_infiniband_vf_may_have_no_network_device() -> None:
    node = Node(ethernet=False)
    node.run("p1-s0")

    async def live() -> None:
        settings = VfSettings(config=VfConfig(trust=True))
        await node.attacher.attach(node.wanted(0, settings=settings), pod_of("p1-s0"))
        row = node.row()
        assert row is not None
        assert row.netdev is None
        assert node.problems() == []
        await node.stopping("p1-s0")

    run(live())
    assert node.all_free()
    assert node.kernel.changes == ["set_vf 0 trust", "set_vf 0 trust"]


# ---- refused


def test_host_network_is_refused() -> None:
    node = Node()

    async def of_the_host(sandbox: SandboxId) -> str:
        return ""

    node.attacher._netns_of = of_the_host
    assert reason(run(node.attach("p1-s0", 0))) is Reason.HOST_NETWORK
    assert node.all_free()


@pytest.mark.parametrize("told", [None, "/run/netns/gone"])
def test_a_namespace_that_is_not_found_is_refused(told: str | None) -> None:
    node = Node()

    async def nowhere(sandbox: SandboxId) -> str | None:
        return told

    node.attacher._netns_of = nowhere
    assert reason(run(node.attach("p1-s0", 0))) is Reason.ATTACH_FAILED
    assert node.all_free()


def test_a_device_that_somebody_else_took_is_not_looked_for() -> None:
    node = Node()
    node.run("p1-s0")
    link = node.kernel.host.links.pop(node.vfs[0].netdev)
    node.kernel.add_netns("/run/netns/other")
    node.kernel.pods["/run/netns/other"].links[link.name] = link
    assert reason(run(node.attach("p1-s0", 0))) is Reason.ATTACH_FAILED
    assert node.journal.rows() == ()
    assert node.kernel.changes == []


def test_a_stopped_sandbox_is_not_attached_to() -> None:
    node = Node()
    node.run("p1-s0")
    node.stopped.add(SandboxId("p1-s0"))
    assert reason(run(node.attach("p1-s0", 0))) is Reason.SANDBOX_STOPPED
    assert node.all_free()


def test_a_late_create_in_a_stopped_sandbox_leaves_the_vf_to_whoever_has_it() -> None:
    node = Node()
    node.run("p1-s0")
    node.run("p2-s0")

    async def live() -> None:
        await node.stopping("p1-s0")
        (row,) = await node.attached("p2-s0", 0)
        assert reason(await node.attach("p1-s0", 0)) is Reason.SANDBOX_STOPPED
        assert node.row() == row

    run(live())
    assert node.problems() == []


def test_another_pod_does_not_get_what_has_not_come_back() -> None:
    node = Node()
    node.run("p1-s0")
    node.run("p2-s0")

    async def live() -> None:
        await node.attach("p1-s0", 0)
        assert reason(await node.attach("p2-s0", 0)) is Reason.DEVICE_HELD
        node.kernel.fail("move_out", count=2)
        await node.stopping("p1-s0")
        node.ready.discard(SandboxId("p1-s0"))
        node.now += GRACE_S
        await node.reconcile()
        assert reason(await node.attach("p2-s0", 0)) is Reason.DEVICE_HELD
        await node.reconcile()
        assert node.all_free()
        await node.attach("p2-s0", 0)
        assert away(node) == path_of("p2-s0")

    run(live())
    assert node.problems() == []


# ---- sandboxes of one pod


def test_the_pods_newer_sandbox_takes_over_what_the_older_one_did_not_return() -> None:
    node = Node()
    node.run("p1-s0")

    async def live() -> None:
        (old,) = await node.attached("p1-s0", 0)
        node.run("p1-s1")
        node.live.add(SandboxId("p1-s0"))
        assert reason(await node.attach("p1-s1", 0)) is Reason.DEVICE_HELD  # nobody has listed yet
        await node.reconcile()
        assert reason(await node.attach("p1-s1", 0)) is Reason.DEVICE_HELD
        node.ready.discard(SandboxId("p1-s0"))
        await node.reconcile()
        assert reason(await node.attach("p1-s1", 0)) is Reason.DEVICE_HELD  # a container of the old one lives
        node.live.clear()
        node.ready.add(SandboxId("p1-s0"))
        await node.reconcile()
        assert reason(await node.attach("p1-s1", 0)) is Reason.DEVICE_HELD
        node.now += GRACE_S
        await node.reconcile()
        assert reason(await node.attach("p1-s1", 0)) is Reason.DEVICE_HELD
        node.ready.discard(SandboxId("p1-s0"))
        node.kernel.fail("move_out")
        await node.reconcile()
        (new,) = await node.attached("p1-s1", 0)
        assert new.generation > old.generation
        assert new.netdev == old.netdev
        assert new.config == old.config

    run(live())
    assert away(node) == path_of("p1-s1")
    assert node.problems() == []


def test_a_late_stop_does_not_touch_the_newer_owner() -> None:
    node = Node()
    node.run("p1-s0")

    async def live() -> None:
        await node.attach("p1-s0", 0)
        node.run("p1-s1")
        node.ready.discard(SandboxId("p1-s0"))
        node.now += GRACE_S
        await node.reconcile()
        await node.attached("p1-s1", 0)
        changes = list(node.kernel.changes)
        await node.stopping("p1-s0")
        assert node.kernel.changes == changes

    run(live())
    assert away(node) == path_of("p1-s1")


def test_a_release_that_waited_finds_another_generation_and_does_nothing() -> None:
    """Begun for the old sandbox, it gets its turn when the VF has a new owner."""
    node = Node()
    node.run("p1-s0")

    async def live() -> None:
        (old,) = await node.attached("p1-s0", 0)
        async with node.attacher._locks[old.bdf]:
            late = asyncio.create_task(node.attacher._release_own(old.bdf, old.generation))
            await asyncio.sleep(0)
            assert await node.attacher._release(old) == ""
            node.journal.begin(replace(old, sandbox=SandboxId("p1-s1"), netns=path_of("p1-s1"), step=Step.RECORDED))
        await late
        row = node.row()
        assert row is not None
        assert (row.sandbox, row.step) == ("p1-s1", Step.RECORDED)

    run(live())


# ---- stop, meanwhile


@pytest.mark.parametrize("turns", range(0, 60, 3))
def test_a_stop_during_an_attach_ends_it_and_returns_the_vf(turns: int) -> None:
    node = Node(mode=RdmaMode.EXCLUSIVE)
    node.run("p1-s0")

    async def live() -> object:
        attaching = asyncio.ensure_future(node.attach("p1-s0", 0))
        for _ in range(turns):
            await asyncio.sleep(0)
        done = attaching.done()
        await node.stopping("p1-s0")
        outcome = await attaching
        assert done or reason(outcome) is Reason.SANDBOX_STOPPED or not isinstance(outcome, Refusal)
        return outcome

    run(live())
    assert node.all_free()


def test_a_sandbox_that_is_stopped_gets_nothing_more() -> None:
    node = Node()
    node.run("p1-s0")
    node.kernel.point = lambda at: node.stopped.add(SandboxId("p1-s0")) if at == "after set_vf" else None
    assert reason(run(node.attach("p1-s0", 0))) is Reason.SANDBOX_STOPPED
    assert "move" not in " ".join(node.kernel.changes)
    assert node.all_free()


def test_two_stops_are_one_release() -> None:
    node = Node()
    node.run("p1-s0")

    async def live() -> None:
        await node.attach("p1-s0", 0)
        node.kernel.fail("move_out")
        await asyncio.gather(node.stopping("p1-s0"), node.stopping("p1-s0"))
        assert node.row() is not None

    run(live())
    assert node.records.events().count(Event.VF_RELEASE_FAILED) == 1


def test_a_call_that_was_given_up_leaves_the_attach_running_and_the_retry_gets_it() -> None:
    node = Node()
    node.run("p1-s0")

    async def live() -> None:
        call = asyncio.ensure_future(node.attach("p1-s0", 0))
        for _ in range(5):
            await asyncio.sleep(0)
        call.cancel()
        (row,) = await node.attached("p1-s0", 0)
        assert row.step is Step.ATTACHED

    run(live())
    assert node.records.events() == [Event.VF_ATTACHED]


def test_a_stop_that_is_not_waited_for_goes_on() -> None:
    node = Node()
    node.run("p1-s0")

    async def live() -> None:
        await node.attach("p1-s0", 0)
        stop = asyncio.ensure_future(node.stopping("p1-s0"))
        for _ in range(3):
            await asyncio.sleep(0)
        stop.cancel()
        await node.attacher.detach_sandbox(SandboxId("p1-s0"))  # awaits the one that is under way

    run(live())
    assert node.all_free()
    assert node.records.events() == [Event.VF_ATTACHED, Event.VF_RELEASED]


# ---- a kernel that fails

ATTACHING = ["rdma_mode", "netns_id", "read_vf", "host_link", "link", "set_vf", "set_link", "move_in", "rdma_devices"]
ATTACHING += ["rdma_move_in", "configure"]
RELEASING = ["netns_id", "host_link", "link", "rdma_devices", "rdma_move_out", "move_out", "set_vf", "set_link", "rename"]


@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("method", ATTACHING)
def test_an_attach_that_fails_is_undone_and_can_be_tried_again(method: str, when: When) -> None:
    node = Node(mode=RdmaMode.EXCLUSIVE)
    node.run("p1-s0")

    async def live() -> None:
        node.kernel.fail(method, when=when)
        assert reason(await node.attach("p1-s0", 0)) is Reason.ATTACH_FAILED
        assert node.all_free()
        (row,) = await node.attached("p1-s0", 0)
        assert row.step is Step.ATTACHED

    run(live())
    assert node.problems() == []
    assert node.records.events()[0] is Event.VF_ATTACH_FAILED


@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("method", RELEASING)
def test_a_release_that_fails_is_journaled_and_tried_again(method: str, when: When) -> None:
    node = Node(mode=RdmaMode.EXCLUSIVE)
    node.run("p1-s0")

    async def live() -> None:
        await node.attach("p1-s0", 0)
        node.kernel.fail(method, when=when, count=2)
        await node.stopping("p1-s0")
        row = node.row()
        assert row is not None
        assert row.step.releasing
        assert row.failure
        await node.reconcile()
        assert node.problems() == []
        await node.reconcile()

    run(live())
    assert node.all_free()
    assert node.records.events().count(Event.VF_RELEASE_FAILED) == 1  # said once, though it failed twice


@pytest.mark.parametrize("method", RELEASING)
def test_an_attach_whose_undoing_fails_too_is_undone_later(method: str) -> None:
    node = Node(mode=RdmaMode.EXCLUSIVE)
    node.run("p1-s0")

    async def live() -> None:
        node.kernel.point = lambda at: node.kernel.fail(method, count=3) if at == "before configure" else None
        node.kernel.fail("configure", when=When.AFTER)
        assert reason(await node.attach("p1-s0", 0)) is Reason.ATTACH_FAILED
        assert node.row() is not None
        node.kernel.heal()
        node.kernel.point = lambda _: None
        (row,) = await node.attached("p1-s0", 0)  # a retry undoes it first
        assert (row.step, row.generation, row.ifname) == (Step.ATTACHED, 2, "rdma0")

    run(live())
    assert node.problems() == []


def test_one_vf_that_fails_leaves_the_others_for_the_retry() -> None:
    node = Node(3)
    node.run("p1-s0")

    async def live() -> None:
        node.kernel.fail("configure")
        assert reason(await node.attach("p1-s0", 0, 1, 2)) is Reason.ATTACH_FAILED
        assert node.problems() == []
        kept = {row.bdf: row.generation for row in node.journal.rows()}
        assert len(kept) == 2
        rows = await node.attached("p1-s0", 0, 1, 2)
        assert kept.items() <= {row.bdf: row.generation for row in rows}.items()
        assert len({row.ifname for row in rows}) == 3

    run(live())
    assert node.problems() == []


def test_an_error_that_is_none_of_the_kernels_is_a_failure_like_any() -> None:
    node = Node()
    node.run("p1-s0")
    configure = node.kernel.configure

    def breaks(*args: Any, **named: Any) -> None:
        node.kernel.configure = configure  # type: ignore[method-assign]
        raise OSError(5, "as the test wants it")

    node.kernel.configure = breaks  # type: ignore[method-assign]

    async def live() -> None:
        assert reason(await node.attach("p1-s0", 0)) is Reason.ATTACH_FAILED
        assert node.all_free()

    run(live())


# ---- a disk that is full


def test_without_a_journal_nothing_is_begun() -> None:
    node = Node()
    node.run("p1-s0")
    node.disk_full = True
    assert reason(run(node.attach("p1-s0", 0))) is Reason.LEDGER_UNAVAILABLE
    assert node.kernel.changes == []
    assert node.all_free()


@pytest.mark.parametrize("change", range(8))
def test_a_disk_that_fills_up_meanwhile_loses_nothing(change: int) -> None:
    node = Node(mode=RdmaMode.EXCLUSIVE)
    node.run("p1-s0")

    def fill(_: str) -> None:
        node.disk_full = len(node.kernel.changes) >= change

    async def live() -> None:
        node.kernel.point = fill
        await node.attach("p1-s0", 0)
        assert node.problems() == []
        await node.stopping("p1-s0")
        assert node.problems() == []
        node.kernel.point = lambda _: None
        node.disk_full = False
        await node.reconcile()

    run(live())
    assert node.all_free()


# ---- a driver that hangs


async def journal_says_failure(node: Node) -> None:
    for _ in range(1000):
        row = node.row()
        if row is not None and row.failure:
            assert row.step is Step.CONFIGURING
            return
        await asyncio.sleep(0.01)
    pytest.fail("nobody said that it hangs")


async def all_is_over() -> None:
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)


def hanging_node() -> tuple[Node, threading.Event]:
    node = Node(2)
    node.run("p1-s0")
    node.run("p2-s0")
    node.start(deadline_s=0.3, in_thread=in_thread)
    return node, node.kernel.hold("set_vf")


def test_a_call_that_hangs_is_said_and_what_it_began_is_undone_when_it_returns() -> None:
    node, gate = hanging_node()

    async def live() -> None:
        hanging = await node.attach("p1-s0", 0)
        assert reason(hanging) is Reason.ATTACH_FAILED
        assert await node.attach("p1-s0", 0) == hanging  # the same one, and it is not waited for another time
        await journal_says_failure(node)
        gate.set()
        await all_is_over()

    run(live())
    assert node.all_free()


def test_a_stop_waits_for_a_call_that_hangs() -> None:
    node, gate = hanging_node()

    async def live() -> None:
        await node.attach("p1-s0", 0)
        stop = asyncio.ensure_future(node.stopping("p1-s0"))
        await asyncio.sleep(0.02)
        assert not stop.done()
        assert node.row() is not None
        gate.set()
        await stop

    run(live())
    assert node.all_free()


def test_a_vf_that_hangs_keeps_no_other_from_its_pod() -> None:
    node, gate = hanging_node()

    async def live() -> None:
        hanging = asyncio.ensure_future(node.attach("p1-s0", 0))
        await asyncio.sleep(0.01)
        other = await node.attacher.attach(node.wanted(1, settings=VfSettings()), pod_of("p2-s0"))
        assert not isinstance(other, Refusal)
        await hanging
        await node.reconcile()
        gate.set()
        await node.stopping("p1-s0")

    run(live())
    assert node.problems() == []


# ---- a driver that is reloaded, or VFs that are made anew


def make_anew(node: Node, name: str) -> None:
    """Its device in the pod is gone, and there is another in the host's namespace; its PF has forgotten what it was set to."""
    pod, one = node.kernel.pods[path_of("p1-s0")], node.vfs[0]
    link = pod.links.pop("rdma0")
    node.kernel.host.links[name] = replace(link, name=name, mac=node.before[one.bdf].link.mac, mtu=1500, up=False)  # type: ignore[union-attr]
    node.kernel.table[one.pf, one.index] = UNTOUCHED


@pytest.mark.parametrize("name", ["ens1v0", "eth0", "dev7"])
def test_the_next_container_brings_in_anew_what_came_back_by_itself(name: str) -> None:
    node = Node()
    node.run("p1-s0")

    async def live() -> None:
        (first,) = await node.attached("p1-s0", 0)
        make_anew(node, name)
        (again,) = await node.attached("p1-s0", 0)
        assert again.generation > first.generation
        assert away(node) == path_of("p1-s0")
        assert node.problems() == []
        await node.stopping("p1-s0")

    run(live())
    assert node.all_free()


def test_looking_for_what_is_attached_takes_nothing_away() -> None:
    node = Node()
    node.run("p1-s0")

    async def live() -> None:
        (row,) = await node.attached("p1-s0", 0)
        node.kernel.fail("host_link")
        assert reason(await node.attach("p1-s0", 0)) is Reason.ATTACH_FAILED
        assert node.row() == row
        assert away(node) == path_of("p1-s0")
        pod = node.kernel.pods[path_of("p1-s0")]
        pod.links["mine"] = replace(pod.links.pop("rdma0"), name="mine")  # its pod's choice
        assert await node.attached("p1-s0", 0) == (row,)

    run(live())


def test_an_address_that_is_the_kernels_own_is_not_set() -> None:
    """IPoIB's begins with the number of a queue pair."""
    node = Node()
    node.run("p1-s0")
    address, number = "00:00:10:86:fe:80:00:00:00:00:00:00:00:11:22:33:44:55:66:77", "00:00:10:99"
    node.kernel.host.links["ens1v0"] = replace(node.kernel.host.links["ens1v0"], mac=address)

    async def live() -> None:
        await node.attacher.attach(node.wanted(0, settings=VfSettings(mtu=2044)), pod_of("p1-s0"))
        pod = node.kernel.pods[path_of("p1-s0")]
        pod.links["rdma0"] = replace(pod.links["rdma0"], mac=number + address[11:])
        await node.stopping("p1-s0")

    run(live())
    assert node.journal.rows() == ()
    assert node.kernel.host.links["ens1v0"].mac.startswith(number)


# ---- a namespace that is gone


@pytest.mark.parametrize("mode", MODES)
def test_a_namespace_that_is_gone_still_gets_all_reset(mode: RdmaMode) -> None:
    node = Node(mode=mode)
    node.run("p1-s0")
    node.kernel.late = True

    async def live() -> None:
        await node.attach("p1-s0", 0)
        node.end("p1-s0")
        await node.stopping("p1-s0")
        row = node.row()
        assert row is not None
        assert row.failure
        assert node.problems() == []
        node.kernel.arrive()
        await node.reconcile()

    run(live())
    assert node.all_free()


def test_another_namespace_at_the_same_path_is_not_entered() -> None:
    node = Node()
    node.run("p1-s0")

    async def live() -> None:
        await node.attach("p1-s0", 0)
        node.end("p1-s0")
        node.run("p1-s0")
        node.kernel.pods[path_of("p1-s0")].links["rdma0"] = replace(node.kernel.host.links["rdma0"], index=99)
        await node.stopping("p1-s0")
        assert "rdma0" in node.kernel.pods[path_of("p1-s0")].links

    run(live())
    assert node.all_free()


def test_nor_is_it_when_an_attach_goes_on_after_a_crash() -> None:
    node = Node(parents=False)
    node.run("p1-s0")
    node.kernel.point = lambda at: node.kernel.die() if at == "before configure" else None
    with pytest.raises(Crash):
        run(node.attach("p1-s0", 0))
    node.kernel.point = lambda _: None
    node.end("p1-s0")
    node.run("p1-s0")
    pod = node.kernel.pods[path_of("p1-s0")]
    other = pod.links["rdma0"] = replace(node.kernel.host.links["rdma0"], index=99)
    node.start()
    assert reason(run(node.attach("p1-s0", 0))) is Reason.ATTACH_FAILED
    assert pod.links == {"rdma0": other}
    assert node.all_free()


# ---- a pod that may configure its network


def test_a_device_that_a_pod_made_under_our_name_stays_there() -> None:
    node = Node()
    node.run("p1-s0")

    async def live() -> None:
        await node.attach("p1-s0", 0)
        pod = node.kernel.pods[path_of("p1-s0")]
        pod.links["mine"] = replace(pod.links.pop("rdma0"), name="mine")
        pod.links["rdma0"] = replace(pod.links["mine"], name="rdma0", index=99, parent="")
        await node.stopping("p1-s0")
        row = node.row()
        assert row is not None
        assert (row.step, bool(row.failure)) == (Step.RETURNING, True)
        assert "rdma0" in pod.links
        node.end("p1-s0")  # with its namespace it comes back, by whatever name
        await node.reconcile()

    run(live())
    assert node.all_free()


@pytest.mark.parametrize("parents", [True, False])
@pytest.mark.parametrize("crashed", [Step.MOVING, Step.RETURNING])
def test_a_device_that_was_moved_and_not_renamed_is_found(crashed: Step, parents: bool) -> None:
    """Linux moves first and renames then; a daemon that was killed meanwhile, by a name that was taken, leaves it so."""
    node = Node(parents=parents)
    node.run("p1-s0")

    async def live() -> None:
        (row,) = await node.attached("p1-s0", 0)
        pod = node.kernel.pods[path_of("p1-s0")]
        name = node.vfs[0].netdev
        pod.links[name] = replace(pod.links.pop("rdma0"), name=name, up=False)
        node.journal.reach(row.bdf, row.generation, crashed)
        node.start()
        if crashed is Step.MOVING:
            (row,) = await node.attached("p1-s0", 0)
            assert row.generation == 1
            assert node.problems() == []
        await node.stopping("p1-s0")

    run(live())
    assert node.all_free()


# ---- killed


def points_of(mode: RdmaMode) -> list[str]:
    """Every moment of one attach and release at which a daemon can be killed."""
    node = Node(mode=mode)
    seen: list[str] = []
    node.kernel.point = seen.append
    node.run("p1-s0")

    async def live() -> None:
        await node.attach("p1-s0", 0)
        await node.stopping("p1-s0")

    run(live())
    return seen


async def nothing_more(node: Node) -> None:
    """kubelet never comes back to this sandbox: reconciliation alone."""
    node.end("p1-s0")
    node.now += GRACE_S
    await node.reconcile()


async def stop_again(node: Node) -> None:
    await node.stopping("p1-s0")


async def create_and_stop_again(node: Node) -> None:
    if "p1-s0" not in node.stopped:
        (row,) = await node.attached("p1-s0", 0)
        assert row.step is Step.ATTACHED
        assert node.problems() == []
    await node.stopping("p1-s0")


async def create_in_a_newer_sandbox(node: Node) -> None:
    node.end("p1-s0")
    node.run("p1-s1")
    node.now += GRACE_S
    await node.reconcile()
    (row,) = await node.attached("p1-s1", 0)
    assert row.step is Step.ATTACHED
    assert node.problems() == []
    await node.stopping("p1-s0")
    assert node.problems() == []
    await node.stopping("p1-s1")


async def reboot(node: Node) -> None:
    node.reboot()
    await node.reconcile()


@pytest.mark.parametrize("then", [nothing_more, stop_again, create_and_stop_again, create_in_a_newer_sandbox, reboot])
@pytest.mark.parametrize("mode", MODES)
def test_killed_at_any_moment_nothing_is_lost(mode: RdmaMode, then: Callable[[Node], Coroutine[Any, Any, None]]) -> None:
    points = points_of(mode)
    assert {f"{at} {what}" for at in ("before", "after") for what in ("commit", "move_in", "move_out", "rename")} <= set(points)
    for number in range(len(points)):
        node = Node(mode=mode)
        node.run("p1-s0")
        passed = 0

        def kill(_: str, node: Node = node, number: int = number) -> None:
            nonlocal passed
            passed += 1
            if passed == number + 1:
                node.kernel.die()

        node.kernel.point = kill

        async def live(node: Node = node) -> None:
            await node.attach("p1-s0", 0)
            await node.stopping("p1-s0")

        with contextlib.suppress(Crash):
            run(live())
        assert node.kernel.dead
        node.kernel.point = lambda _: None
        node.start()
        assert node.problems() == [], (number, points[number])
        run(then(node))
        assert node.all_free(), (number, points[number], node.journal.rows(), node.problems())


# ---- what reconciliation does by itself


def test_an_attach_that_a_crash_interrupted_is_left_for_the_retry_for_a_while() -> None:
    node = Node()
    node.run("p1-s0")
    node.kernel.point = lambda at: node.kernel.die() if at == "after move_in" else None
    with pytest.raises(Crash):
        run(node.attach("p1-s0", 0))
    node.kernel.point = lambda _: None
    node.start()
    row = node.row()
    run(node.reconcile())
    assert node.row() == row
    node.now += GRACE_S
    run(node.reconcile())
    assert node.all_free()


def test_an_attach_that_goes_on_is_not_taken_for_one_that_was_given_up() -> None:
    node = Node()
    node.run("p1-s0")
    node.kernel.point = lambda at: node.kernel.die() if at == "after move_in" else None
    with pytest.raises(Crash):
        run(node.attach("p1-s0", 0))
    node.kernel.point = lambda _: None
    node.start()
    node.now += GRACE_S

    async def live() -> None:
        retry = asyncio.ensure_future(node.attached("p1-s0", 0))
        await asyncio.sleep(0)
        await asyncio.gather(node.reconcile(), retry)

    run(live())
    row = node.row()
    assert row is not None
    assert (row.step, row.generation) == (Step.ATTACHED, 1)
    assert node.problems() == []


def test_what_is_used_is_left_alone_whatever_its_age() -> None:
    node = Node()

    async def live() -> None:
        for sandbox, number in (("p1-s0", 0), ("p2-s0", 1)):
            node.run(sandbox)
            await node.attach(sandbox, number)
        node.ready.clear()
        node.live = {SandboxId("p1-s0")}
        await node.reconcile()
        assert len(node.journal.rows()) == 2  # the lists may be older than the rows
        node.now += GRACE_S
        await node.reconcile()

    run(live())
    assert [row.sandbox for row in node.journal.rows()] == ["p1-s0"]
    assert node.problems() == []


def test_a_reboot_undid_everything() -> None:
    node = Node()
    node.run("p1-s0")
    run(node.attach("p1-s0", 0))
    node.reboot()
    node.kernel.changes.clear()
    run(node.reconcile())
    assert node.all_free()
    assert node.kernel.changes == []


@pytest.mark.parametrize("sandbox", ["p1-s0", "p2-s0"])
def test_after_a_reboot_nobody_has_anything(sandbox: str) -> None:
    """Also the sandbox that had it: a simulated node, and a runtime that keeps its state, may show the same one again."""
    node = Node()
    node.run("p1-s0")
    run(node.attach("p1-s0", 0))
    node.reboot()
    node.run(sandbox)
    (row,) = run(node.attached(sandbox, 0))
    assert (row.sandbox, row.generation) == (sandbox, 2)
    assert node.problems() == []


# ---- a person


def test_a_person_is_told_what_a_release_would_do_and_what_it_did() -> None:
    node = Node()
    node.run("p1-s0")
    vf = node.vfs[0].bdf

    async def live() -> None:
        assert await node.attacher.force_release(vf, 1) == []
        (row,) = await node.attached("p1-s0", 0)
        words = describe_release(row)
        assert any(path_of("p1-s0") in text for text in words)
        assert any("vlan 7" in text for text in words)
        assert await node.attacher.force_release(vf, row.generation + 1) == []
        assert node.row() is not None
        assert await node.attacher.force_release(vf, row.generation) == words

    run(live())
    assert node.all_free()


def test_what_can_not_be_released_now_is_kept_while_its_namespace_is_there() -> None:
    node = Node()
    node.run("p1-s0")

    async def live() -> None:
        (row,) = await node.attached("p1-s0", 0)
        node.kernel.fail("move_out")
        (why, *_) = await node.attacher.force_release(row.bdf, row.generation)
        assert "move_out" in why
        assert node.row() is not None
        await node.reconcile()

    run(live())
    assert node.all_free()


@pytest.mark.parametrize("broken", [False, True])
def test_what_is_gone_for_good_is_given_up_by_a_person(broken: bool) -> None:
    node = Node()
    node.run("p1-s0")
    node.kernel.late = True

    async def live() -> None:
        (row,) = await node.attached("p1-s0", 0)
        node.end("p1-s0")
        if broken:
            node.kernel.fail("set_vf")
        await node.attacher.force_release(row.bdf, row.generation)

    run(live())
    assert node.journal.rows() == ()
    one = node.vfs[0]
    assert (node.kernel.table[one.pf, one.index] == node.before[one.bdf].config) is not broken


@pytest.mark.parametrize("mode", MODES)
def test_what_came_back_by_itself_is_not_given_up_before_it_is_reset(mode: RdmaMode) -> None:
    """Else the next pod would have the VLAN of the one before."""
    node = Node(mode=mode)
    node.run("p1-s0")

    async def live() -> None:
        (row,) = await node.attached("p1-s0", 0)
        node.end("p1-s0")
        node.kernel.fail("set_vf", count=2)
        await node.attacher.force_release(row.bdf, row.generation)
        assert node.row() is not None
        node.kernel.heal()
        await node.reconcile()

    run(live())
    assert node.all_free()
