"""Check the life of VFs by random schedules on a model of the kernel.

Pods are created, stopped and created again; the daemon is killed between any two steps; the kernel fails; namespaces are
deleted; the machine reboots. `tests.vfs.invariants` holds at every moment: the journal describes each VF correctly, and a VF
without a row has its original state. At the end of each schedule, without faults and pods, the journal is empty.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from hooks.attach.plan import parking_name
from hooks.ledger.reconcile import GRACE_S
from hooks.model.attachment import RdmaMode, Step
from lading.vocabulary import PciAddress, SandboxId
from tests.depth import repeats
from tests.vfs.invariants import HOST
from tests.vfs.life import Node, path_of
from tests.vfs.model import Crash, When, vf

PODS = ("p1", "p2", "p3")
METHODS = (
    *("netns_id", "host_link", "link", "read_vf", "set_vf", "set_link", "rename", "move_in", "move_out", "configure"),
    *("rdma_mode", "rdma_devices", "rdma_move_in", "rdma_move_out", "host_ibdev", "rdma_rename", "names", "set_altnames"),
    *("read_kept", "restore_kept", "take_mac", "release_mac", "confirm_mac"),
)
ALTNAMES = (*(vf(number).netdev for number in (0, 1)), *(parking_name(vf(number).bdf) for number in (0, 1)), "rdma1")
ENOUGH = 400  # turns of the loop in which an attach and a release are done

pods = st.sampled_from(PODS)
numbers = st.integers(0, 1)
turns = st.one_of(st.just(ENOUGH), st.integers(0, 80))


class VfLife(RuleBasedStateMachine):
    @initialize(
        mode=st.sampled_from([RdmaMode.SHARED, RdmaMode.EXCLUSIVE]),
        parents=st.booleans(),
        driver=st.sampled_from(["mlx5_core", "igb"]),
        own_macs=st.booleans(),
    )
    def begin(self, mode: RdmaMode, parents: bool, driver: str, own_macs: bool) -> None:
        self.node = Node(2, mode=mode, parents=parents, driver=driver, own_macs=own_macs, sandboxes=())
        self.node.kernel.point = self.passed
        self.loop = new_loop()
        self.sandboxes: list[str] = []
        self.owners: dict[int, tuple[PciAddress, SandboxId]] = {}  # VF and sandbox by generation of the attachment
        self.attached: set[int] = set()  # generations that were seen to be
        self.die_in = 0

    # ---- the daemon, and time

    def passed(self, _: str) -> None:
        self.die_in -= 1
        if self.die_in == 0:
            self.node.kernel.die()

    def call(self, do: Coroutine[Any, Any, Any], turns: int) -> None:
        """Start a coroutine, and run all started coroutines for this many turns of the event loop."""
        task = self.loop.create_task(do)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.turn(turns)

    @rule(turns=turns)
    def turn(self, turns: int) -> None:
        self.loop.run_until_complete(pass_time(turns))
        if self.node.kernel.dead:
            self.restart()

    def restart(self) -> None:
        """Restart the daemon: all its unfinished work is lost."""
        self.node.kernel.dead = True
        self.die_in = 0
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(pass_time(5))
        self.loop.close()
        self.loop = new_loop()
        self.node.start()

    # ---- kubelet and the runtime

    @rule(pod=pods, number=numbers, turns=turns)
    def live_on(self, pod: str, number: int, turns: int) -> None:
        """Take the next step of a pod: create its sandbox, create a container (repeatedly), stop the sandbox, remove it."""
        sandbox = self.newest(pod)
        if sandbox is None or SandboxId(sandbox) not in self.node.ready:
            self.node.run(self.add(pod))
        elif SandboxId(sandbox) in self.node.stopped:
            self.node.end(sandbox)
        elif SandboxId(sandbox) in self.node.live:
            self.call(self.node.stopping(sandbox), turns)
        else:
            self.call(self.create_container(sandbox, number), turns)

    @rule(pod=pods, number=numbers, turns=turns)
    def create_anew(self, pod: str, number: int, turns: int) -> None:
        """Create a container in a new sandbox, while older sandboxes of the pod may still exist."""
        sandbox = self.add(pod)
        self.node.run(sandbox)
        self.call(self.create_container(sandbox, number), turns)

    @rule(pod=pods, number=numbers, meanwhile=st.integers(0, 80), turns=turns)
    def take_over(self, pod: str, number: int, meanwhile: int, turns: int) -> None:
        """End the newest sandbox, whose VFs cannot be released. A newer sandbox gets them, while the old one is stopped."""
        if old := self.newest(pod):
            self.node.end(old)
            self.node.kernel.fail("netns_id")
            self.reconcile(GRACE_S, ENOUGH)
            self.create_anew(pod, number, meanwhile)
            self.call(self.node.stopping(old), turns)

    @rule(data=st.data(), number=numbers, turns=turns)
    def create(self, data: st.DataObject, number: int, turns: int) -> None:
        """Create a container in any earlier or present sandbox. The caller may have given up before the answer."""
        if self.sandboxes:
            self.call(self.create_container(data.draw(st.sampled_from(self.sandboxes)), number), turns)

    async def create_container(self, sandbox: str, number: int) -> None:
        rows = await self.node.attach(sandbox, number)
        if isinstance(rows, tuple) and SandboxId(sandbox) in self.node.ready:
            self.node.live.add(SandboxId(sandbox))
            self.attached |= {row.generation for row in rows}
            self.owners |= {row.generation: (row.bdf, row.sandbox) for row in rows}

    @rule(data=st.data(), turns=turns)
    def stop(self, data: st.DataObject, turns: int) -> None:
        """Stop any sandbox, perhaps late."""
        if self.sandboxes:
            self.call(self.node.stopping(data.draw(st.sampled_from(self.sandboxes))), turns)

    @rule(data=st.data(), failed_kill=st.booleans())
    def end(self, data: st.DataObject, failed_kill: bool) -> None:
        """End a sandbox: it is not ready, and its namespace is deleted. Its containers may survive (`failed_kill`)."""
        if self.sandboxes:
            sandbox = SandboxId(data.draw(st.sampled_from(self.sandboxes)))
            live = sandbox in self.node.live
            self.node.end(sandbox)
            if live and failed_kill:
                self.node.live.add(sandbox)

    @rule(later=st.sampled_from([0, GRACE_S]), turns=turns)
    def reconcile(self, later: int, turns: int) -> None:
        self.node.now += later
        self.call(self.node.reconcile(), turns)

    def add(self, pod: str) -> str:
        self.sandboxes.append(f"{pod}-s{sum(one.startswith(pod) for one in self.sandboxes)}")
        return self.sandboxes[-1]

    def newest(self, pod: str) -> str | None:
        return next((one for one in reversed(self.sandboxes) if one.startswith(pod)), None)

    # ---- what goes wrong

    @rule(moments=st.integers(0, 60))
    def crash(self, moments: int) -> None:
        """Kill the daemon now, or after this many of its next steps."""
        self.die_in = moments
        if not moments:
            self.restart()

    @rule(method=st.sampled_from(METHODS), when=st.sampled_from(When), count=st.sampled_from([0, 1, 2, 50]))
    def fail(self, method: str, when: When, count: int) -> None:
        self.node.kernel.heal()
        if count:
            self.node.kernel.fail(method, when=when, count=count)

    @rule(late=st.booleans())
    def come_late(self, late: bool) -> None:
        """End a namespace: for a while, its devices are in no namespace."""
        self.node.kernel.late = late
        if not late:
            self.node.kernel.arrive()

    @rule(data=st.data(), what=st.integers(0, 3))
    def break_down(self, data: st.DataObject, what: int) -> None:
        """Reboot the machine, or delete a namespace before the runtime notices."""
        if what == 0:
            self.restart()
            self.node.reboot()
        elif self.sandboxes:
            self.node.kernel.end_netns(path_of(data.draw(st.sampled_from(self.sandboxes))))

    @rule(data=st.data(), altnames=st.sets(st.sampled_from(ALTNAMES)))
    def name(self, data: st.DataObject, altnames: set[str]) -> None:
        """Rename devices as a pod may: names and alternative names of network devices, names of RDMA devices."""
        kernel = self.node.kernel
        if pod := kernel.pods.get(path_of(data.draw(st.sampled_from(self.sandboxes)))) if self.sandboxes else None:
            for name, link in pod.links.items():
                free = altnames - kernel.names_in(pod, but=name)
                pod.links[name] = replace(link, altnames=tuple(sorted(free)))
            for ibdev in sorted(pod.ibdevs):
                kernel.rename_ibdev(ibdev, f"{ibdev}x" if len(ibdev) < 10 else ibdev[:8])

    @rule(number=numbers, setting=st.sampled_from([("flags", "noarp promisc"), ("xdp", "driver:7"), ("ring-rx", "64")]))
    def change_kept(self, number: int, setting: tuple[str, str]) -> None:
        """Change settings of a network device as a pod may; the device keeps them in other namespaces."""
        bdf = self.node.vfs[number].bdf
        where = self.node.kernel.where(bdf)
        if where is not None and where[0] != HOST:
            self.node.kernel.change_kept(bdf, *setting)

    # ---- what has to hold

    @invariant()
    def nothing_is_wrong(self) -> None:
        assert self.node.problems() == []
        rows = {row.generation: row for row in self.node.journal.rows()}
        for generation in self.attached:
            if self.node.may_keep(self.owners[generation][1]):
                assert rows[generation].step is Step.ATTACHED, "it was taken from its owner"
        self.attached = {row.generation for row in rows.values() if row.step is Step.ATTACHED}
        for row in rows.values():
            assert self.owners.setdefault(row.generation, (row.bdf, row.sandbox)) == (row.bdf, row.sandbox)

    def teardown(self) -> None:
        self.die_in = 0
        self.node.kernel.heal()
        self.node.kernel.late = False
        self.node.kernel.arrive()
        self.loop.run_until_complete(self.empty(orderly=len(self.sandboxes) % 2 == 0))
        self.loop.close()
        assert self.node.problems() == []
        assert self.node.journal.rows() == ()

    async def empty(self, *, orderly: bool) -> None:
        """End every pod: stop it while its namespace exists (`orderly`), or delete it and leave the rest to reconciliation."""
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)
        if orderly:
            await asyncio.gather(*map(self.node.stopping, self.sandboxes))
            return
        for sandbox in self.sandboxes:
            self.node.end(sandbox)
        self.node.now += GRACE_S
        await self.node.reconcile()


async def pass_time(turns: int) -> None:
    for turn in range(turns):
        if turn % 20 == 0 and len(asyncio.all_tasks()) == 1:
            return  # nothing else is begun
        await asyncio.sleep(0)


def new_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # ignore errors of tasks of a killed daemon
    return loop


VfLife.TestCase.settings = settings(
    max_examples=repeats(40, long=1_000),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestVfLife = pytest.mark.repeats(pytest.mark.timeout(900)(VfLife.TestCase))


def test_a_crash_is_no_exception() -> None:
    """Check that handlers of `Exception` in the daemon do not catch its simulated crash."""
    assert not issubclass(Crash, Exception)
