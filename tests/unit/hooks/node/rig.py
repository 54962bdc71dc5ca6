"""Run a node with a real ledger beside a runtime of two lists; its devices are the test's, and its attacher moves nothing."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from hooks.attach.preparer import Operation, VfPreparer
from hooks.grant.decide import Rules
from hooks.inventory.watch import InventoryWatch
from hooks.ledger.store import Ledger
from hooks.model.assignment import Refusal
from hooks.model.container import Answer, Container, Sandbox
from hooks.model.inventory import Inventory, Vf
from hooks.node.node import Node
from lading.log import Log
from lading.reasons import Reason
from tests.fakes.attacher import FakeAttacher
from tests.fakes.holders import BOOT
from tests.fakes.runtime import FakeRuntime
from tests.unit.hooks.inventories import gpu, inventory, vf
from tests.unit.hooks.rules import RULES

DEVICES = inventory(gpus=(gpu(0), gpu(1)), vfs=(vf(0), vf(1)))
GPU_0 = {"lading.dev/gpus": "0"}


class Rig:
    """Hold a node beside a runtime, and act as kubelet."""

    attacher: FakeAttacher  # the newest node has it, and `vfs`
    vfs: VfPreparer

    def __init__(self, folder: Path, log: Log, *, rules: Rules = RULES, devices: Inventory = DEVICES) -> None:
        self.folder = folder
        self.log = log
        self.runtime = FakeRuntime()
        self.clock: Callable[[], float] = time.time
        self.rules = rules
        self.devices = devices  # the result of the next reading
        self.moved: list[tuple[Operation, bool]] = []  # each movement, and whether it succeeded

    @asynccontextmanager
    async def node(self, devices: Inventory | None = None, *, reconciled: bool = True) -> AsyncIterator[Node]:
        """Yield a node; unless `reconciled` is False, its ledger has been compared with the runtime."""
        self.devices = devices or self.devices
        with Ledger.open(self.folder / "state" / "node.db") as ledger:
            self.attacher = FakeAttacher(ledger.journal)
            self.vfs = VfPreparer(
                journal=ledger.journal,
                attacher=self.attacher,
                policy=self.rules.netdev,
                moved=lambda operation, _, succeeded: self.moved.append((operation, succeeded)),
            )
            node = Node(
                ledger=ledger,
                lists=self.runtime.lists,
                host_root=self.folder,
                boot_id=BOOT,
                log=self.log,
                rules=lambda: self.rules,
                reconcile_interval_s=3600.0,
                preparers=(self.vfs,),
                clock=self.time,
            )
            watch = node.watch = InventoryWatch(
                lambda: self.devices,
                on_change=node.inventory_changed,
                on_failure=node.inventory_failed,
                on_read=node.inventory_read,
            )
            await watch.start()
            try:
                if reconciled:
                    await node.reconcile()
                yield node
            finally:
                await watch.close()

    def time(self) -> float:
        return self.clock()

    async def read_inventory(self, node: Node, *vfs: Vf) -> None:
        self.devices = replace(self.devices, pfs=inventory(vfs=vfs).pfs)
        assert node.watch is not None
        await node.watch.refresh_now()

    def ask(
        self, node: Node, pod: str, sandbox: str, annotations: dict[str, str] = GPU_0, name: str = "train"
    ) -> Answer | Refusal:
        """Ask for what is answered at once."""
        answer = node.adjust_container(sandbox_of(pod, sandbox, annotations), Container(name=name))
        assert isinstance(answer, Answer | Refusal)
        return answer

    def create(self, node: Node, pod: str, sandbox: str, annotations: dict[str, str] = GPU_0, name: str = "train") -> str:
        """Ask for a container, create it with the answer, and return its id."""
        answer = self.ask(node, pod, sandbox, annotations, name)
        assert isinstance(answer, Answer), answer
        return self.runtime.create(sandbox, name, wears=answer.adjustment.annotations.get("lading.dev/grant"))

    def run_pod(self, node: Node, pod: str) -> str:
        """Create a sandbox, and a container with GPU 0 in it; return the sandbox's id."""
        sandbox = self.runtime.run(pod)
        self.create(node, pod, sandbox)
        return sandbox

    def stop(self, node: Node, pod: str, sandbox: str, *, but: str = "") -> None:
        node.stopping(sandbox_of(pod, sandbox))
        self.runtime.stop(sandbox, but=but)
        node.stopped(sandbox_of(pod, sandbox))


def sandbox_of(pod: str, sandbox: str, annotations: dict[str, str] | None = None, *, host_network: bool = False) -> Sandbox:
    name, text = f"name-of-{pod}", annotations or {}
    return Sandbox(id=sandbox, uid=pod, name=name, namespace="default", annotations=text, host_network=host_network)


def holders(node: Node) -> set[str]:
    return {grant.pod for grant in node.ledger.grants()}


def reason(answer: Answer | Refusal) -> Reason:
    assert isinstance(answer, Refusal), answer
    return answer.reason
