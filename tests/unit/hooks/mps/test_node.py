"""Test a node with MPS: from annotations to a daemon and a compute mode, until the pod has ended."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from hooks.attach.share_folders import ShareFolders, write_grant
from hooks.daemon.daemon import read_configured
from hooks.daemon.parts import make_rules, make_vendors
from hooks.daemon.settings import MpsMemory, Settings, mps_folders, read_trust
from hooks.inventory.watch import InventoryWatch
from hooks.ledger.store import Ledger
from hooks.model.assignment import Form, Refusal
from hooks.model.container import Answer, Container, EnvVar, Sandbox
from hooks.mps import daemons as daemons_module
from hooks.mps.control import Control
from hooks.mps.daemons import MpsDaemons
from hooks.node.node import Node
from hooks.vendors.nvidia.inject import GpuMode
from hooks.vendors.nvidia.restore import set_exclusive
from lading.devices.isolation import IsolationName
from lading.log import Event, Log
from lading.reasons import Reason
from lading.selinux import make_label
from lading.sharegrant import FILE, parse_grant
from simnode.build import SimNode
from simnode.mps import SYSTEMD_RUN, client, install_fake_mps
from simnode.nvml import NvmlState
from tests.conftest import BuildNode
from tests.fakes.holders import BOOT
from tests.fakes.records import Records
from tests.fakes.runtime import FakeRuntime


class Rig:
    def __init__(self, folder: Path, simulated: SimNode, library: Path, log: Log) -> None:
        NvmlState(profile=simulated.profile).write(simulated.nvml_state)
        self.modes = Path(f"{simulated.nvml_state}.modes")
        self.card = simulated.profile.gpus[0][1].uuid
        self.command = install_fake_mps(folder / "bin")
        self.folder = folder
        self.library = library
        self.log = log
        self.runtime = FakeRuntime()
        self.sandboxes: dict[str, str] = {}
        self.settings = Settings(
            host_root=str(simulated.root),
            state_dir=str(folder),
            assignments=(Form.MANUAL,),
            isolations=(IsolationName.MPS,),
            nvml_library=str(library),
            mps_control=str(self.command),
            mps_dir=f"{folder}/mps",
            mps_shm_dir=f"{folder}/shm",
            shares_dir=f"{folder}/shares",
            share_libraries="/opt/lading",
        )

    @asynccontextmanager
    async def node(self) -> AsyncIterator[Node]:
        settings = self.settings
        vendors = make_vendors(settings)
        rules = make_rules(settings, read_trust(settings), vendors, cdi_refusal="")
        folders = mps_folders(settings)
        run = str(self.command.with_name(SYSTEMD_RUN))
        with Ledger.open(self.folder / "state" / "node.db") as ledger:
            daemons = MpsDaemons(
                folders=folders,
                control=lambda uuid: Control(
                    uuid=uuid, folders=folders, command=settings.mps_control, systemd_run=run, answer_s=20.0
                ),
                set_exclusive=partial(set_exclusive, library=self.library),
                grants=ledger.grants,
                log=self.log,
            )
            fill_folder = partial(write_grant, label=make_label(self.folder))
            shares = ShareFolders(root=Path(settings.shares_dir), isolations=frozenset({IsolationName.MPS}), fill=fill_folder)
            node = Node(
                ledger=ledger,
                lists=self.runtime.lists,
                host_root=Path(settings.host_root),
                boot_id=BOOT,
                log=self.log,
                rules=lambda: rules,
                reconcile_interval_s=3600.0,
                preparers=(daemons, shares),
            )
            node.watch = InventoryWatch(
                partial(read_configured, settings, vendors),
                on_change=node.inventory_changed,
                on_failure=node.inventory_failed,
                on_read=node.inventory_read,
            )
            await node.watch.start()
            try:
                assert await node.reconcile()
                yield node
            finally:
                await node.watch.close()

    def sandbox(self, pod: str, annotations: Mapping[str, str] | None = None) -> Sandbox:
        return Sandbox(id=self.sandboxes[pod], uid=pod, name=pod, namespace="default", annotations=annotations or {})

    async def ask(self, node: Node, pod: str, gpus: str, *env: str) -> Answer | Refusal:
        if pod not in self.sandboxes:
            self.sandboxes[pod] = self.runtime.run(pod)
        sandbox = self.sandbox(pod, {"lading.dev/gpus": gpus})
        answer = node.adjust_container(sandbox, Container(name="train", env=tuple(map(EnvVar, env))))
        answer = answer if isinstance(answer, Answer | Refusal) else await answer
        if isinstance(answer, Answer):
            self.runtime.create(sandbox.id, "train", wears=answer.adjustment.annotations["lading.dev/grant"])
        return answer

    async def stop(self, node: Node, pod: str) -> None:
        sandbox = self.sandbox(pod)
        node.stopping(sandbox)
        self.runtime.stop(sandbox.id)
        node.stopped(sandbox)
        assert await node.reconcile()
        assert not node.preparers[0].holdings()


@pytest.fixture
def rig(programs: Path, build_node: BuildNode, fake_nvml: Path, log: Log) -> Rig:
    return Rig(programs, build_node("demo-8gpu"), fake_nvml, log)


@pytest.fixture
async def node(rig: Rig) -> AsyncIterator[Node]:
    async with rig.node() as node:
        yield node


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a slow machine finish within one comparison."""
    monkeypatch.setattr(daemons_module, "_SCAN_S", 30.0)


def refused(answer: Answer | Refusal) -> Reason:
    assert isinstance(answer, Refusal), answer
    return answer.reason


def pipe_of(answer: Answer | Refusal) -> Path:
    """Return the folder of the pipes that the answer mounts."""
    assert isinstance(answer, Answer)
    return next(Path(m.host_path) for m in answer.adjustment.mounts if m.container_path == "/run/lading/mps")


async def test_a_share_by_mps_from_its_annotation_to_its_end(rig: Rig, node: Node, records: Records) -> None:
    with client(pipe_of(await rig.ask(node, "a", "0:memory=8Gi,limit=60", "LD_PRELOAD"))) as program:
        assert program.answer()[2:] == ["60.0", "8192M"]
    assert rig.modes.read_text() == f"{rig.card} 3\n"
    assert refused(await rig.ask(node, "b", "0")) is Reason.DEVICE_HELD
    await rig.stop(node, "a")
    assert rig.modes.read_text() == f"{rig.card} 3\n{rig.card} 0\n"
    assert node.watch is not None
    await node.watch.refresh_now()  # a slow machine needs longer than a call waits for it
    assert isinstance(await rig.ask(node, "b", "0"), Answer)
    assert {Event.MPS_STARTED, Event.MPS_STOPPED, Event.ENV_PRELOADS} <= set(records.events())


async def test_the_share_server_keeps_a_container_to_its_memory_and_gives_it_no_turns(rig: Rig) -> None:
    rig.settings = replace(
        rig.settings, mps_memory=MpsMemory.CONTAINER, gpu_mode=GpuMode.DEVICES, driver_root=rig.settings.host_root
    )
    grants = Path(rig.settings.shares_dir)
    async with rig.node() as node:
        answer = await rig.ask(node, "a", "0:memory=8Gi,core=20,limit=60")
        assert isinstance(answer, Answer), answer
        mounts = {mount.container_path: mount.host_path for mount in answer.adjustment.mounts}
        with client(Path(mounts["/run/lading/mps"])) as program:
            assert program.answer()[2:] == ["60.0", "8192M"]
        assert "/opt/lading/libcuda.so.1" in mounts.values()
        assert mounts["/.lading/gpu/share"] == f"{grants}/a_"
        grant = parse_grant((grants / "a_" / FILE).read_bytes())
        assert [(gpu.uuid, gpu.memory_mib, gpu.turns) for gpu in grant.gpus] == [(rig.card, 8192, False)]
        await rig.stop(node, "a")
        assert not (grants / "a_").exists()


async def test_a_fault_refuses_the_card_to_others(rig: Rig, node: Node) -> None:
    with client(pipe_of(await rig.ask(node, "a", "0:memory=8Gi"))) as program:
        program.answer()
        program.fault()
        assert await node.reconcile()
        assert refused(await rig.ask(node, "b", "0:memory=8Gi")) is Reason.DEVICE_UNHEALTHY
        assert node.unhealthy
    assert await node.reconcile()
    assert isinstance(await rig.ask(node, "b", "0:memory=8Gi"), Answer)
