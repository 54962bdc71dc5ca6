"""Test the watch over shares, from NVML, /proc and the real share server's status to the node, its log and its report."""

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec
import pytest

from hooks.inventory.read import read_inventory
from hooks.ledger.share_bypass import SUSPECT_S
from hooks.ledger.store import Ledger
from hooks.model.assignment import GrantedDevices, GrantedGpu
from hooks.node.share_watch import SCAN_S, ShareWatch
from hooks.vendors.nvidia.settings import NvidiaSettings
from hooks.vendors.nvidia.vendor import Nvidia
from lading.devices.isolation import IsolationName
from lading.errors import HostError
from lading.log import Event, Log
from lading.sharegrant import FILE, SOCKET, SharedGpu, ShareGrant, folder_name, render_grant
from lading.sharestatus import ShareUse, ask
from lading.sockets import listen
from lading.threads import in_thread
from lading.vocabulary import GpuUuid, PodUid
from shares.policy.fair import Fair
from shares.server import Shares
from shares.status import answer
from shares.wire import Frame, Kind, pack
from simnode.build import SimNode
from simnode.nvml import NvmlState, Running
from simnode.patience import await_until
from tests.conftest import BuildNode
from tests.fakes.holders import grant
from tests.fakes.records import Records
from tests.fakes.runtime import FakeRuntime
from tests.unit.hooks.daemon.test_metrics import Watch, a_node

POD, ID = "pod-a", "a" * 64
CGROUP = f"0::/kubepods/pod{POD}/{ID}\n"


class World:
    def __init__(self, sim: SimNode, nvml: Path, ledger: Ledger, log: Log) -> None:
        self.sim = sim
        vendor = Nvidia(NvidiaSettings(nvml_library=str(nvml)))
        self.show()
        inventory = read_inventory(sim.root, vendors=[vendor])
        self.card = inventory.gpus[0].uuid
        self.node = a_node(ledger, FakeRuntime(), sim.root, log)
        self.node.watch = Watch(inventory)
        self.now = 100.0
        self.uses: Callable[[], Sequence[ShareUse]] = list
        self.watch = ShareWatch(
            node=self.node, vendors=[vendor], ask=self.ask, tolerance_mib=100, log=log, clock=lambda: self.now
        )
        share = GrantedGpu(uuid=self.card, memory_mib=1000, isolation=IsolationName.TOKENS)
        ledger.record(grant(POD, "train", GrantedDevices(gpus=(share,)), containers={ID: "s"}))

    def ask(self) -> Sequence[ShareUse]:
        return self.uses()

    def show(self, *running: Running) -> None:
        for one in running:
            (self.sim.root / f"proc/{one.pid}").mkdir(exist_ok=True)
            (self.sim.root / f"proc/{one.pid}/cgroup").write_text(CGROUP)
            self.run_thread(one.pid, one.pid)
        NvmlState(profile=self.sim.profile, processes={0: running}).write(self.sim.nvml_state)

    def run_thread(self, pid: int, thread: int, *, ending: bool = False) -> None:
        """Have a process with this thread; its name is hostile."""
        folder = self.sim.root / f"proc/{pid}/task/{thread}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "stat").write_text(f"{thread} (a) S 9) S 1 {pid} {pid} 0 -1 {4194304 | 4 * ending} 0 0\n")

    async def look_for(self, seconds: float) -> None:
        for _ in range(int(seconds / SCAN_S) + 1):
            await self.watch.scan()
            self.now += SCAN_S

    @property
    def found(self) -> list[tuple[str, str, tuple[int, ...]]]:
        return [(one.container, one.how, one.process_ids) for one in self.node.share_bypasses]


@pytest.fixture
def world(build_node: BuildNode, fake_nvml: Path, tmp_path: Path, log: Log) -> Iterator[World]:
    with Ledger.open(tmp_path / "state" / "node.db") as ledger:
        yield World(build_node("demo-8gpu"), fake_nvml, ledger, log)


async def test_a_process_that_is_not_connected_is_found_within_five_seconds(world: World) -> None:
    world.show(Running(4711, 10))
    await world.look_for(5.0 - SCAN_S)  # it came just after a look
    assert world.found == [("train", "process", (4711,))]
    world.show()
    await world.watch.scan()
    assert world.found == []


async def test_the_library_that_the_process_uses_is_named(world: World) -> None:
    world.show(Running(4711, 10))
    (world.sim.root / "proc/4711/maps").write_text("7f00-7f01 r-xp 0000 08:01 12  /opt/conda/cuda-compat/libcuda.so.1\n")
    await world.look_for(5.0)
    assert world.node.share_bypasses[0].text.endswith(": process 4711, with /opt/conda/cuda-compat/libcuda.so.1")


async def test_a_bypass_is_logged_once(records: Records, world: World) -> None:
    world.show(Running(4711, 10))
    await world.look_for(20.0)
    assert [fields["container"] for fields in records.fields(Event.SHARE_BYPASSED)] == ["train"]


async def test_too_much_memory_is_found(world: World) -> None:
    world.show(Running(4711, 1101))
    world.uses = lambda: [known(4711)]
    await world.look_for(5.0 - SCAN_S)
    assert world.found == [("train", "memory", ())]


async def test_the_memory_of_contexts_is_kept_for_the_next_shares(world: World) -> None:
    world.uses = lambda: [msgspec.structs.replace(known(4711), gpu=world.card, context_mib=518)]
    await world.watch.scan()
    world.uses = lambda: [known(4711)]
    await world.watch.scan()
    assert world.node.share_contexts == {world.card: 518}


def known(*pids: int) -> ShareUse:
    return ShareUse(
        namespace="default", pod="x", pod_uid=POD, container="train", gpu="", request_percent=10, limit_percent=100,
        held_s=0.0, has_turn=False, waiters=0, memory_used_mib=0, memory_limit_mib=1000, processes=len(pids), process_ids=pids,
    )  # fmt: skip


@pytest.mark.parametrize("error", [HostError("cannot ask"), ZeroDivisionError()])
async def test_no_bypass_is_reported_while_the_share_server_does_not_answer(
    records: Records, error: Exception, world: World
) -> None:
    def down() -> Sequence[ShareUse]:
        raise error

    world.show(Running(4711, 10))
    await world.look_for(SUSPECT_S - SCAN_S)
    world.uses = down
    await world.look_for(20.0)
    assert world.found == []
    world.uses = list  # it restarted, and the process is not connected again yet
    await world.watch.scan()
    assert world.found == []
    assert records.events().count(Event.SHARE_WATCH_FAILED) == 1


async def test_an_ending_process_is_no_bypass_unless_a_thread_of_it_goes_on(world: World) -> None:
    """Check a process whose connection is closed before the driver forgets the process."""
    world.show(Running(4711, 10))
    world.run_thread(4711, 4711, ending=True)
    await world.look_for(20.0)
    assert world.found == []
    world.run_thread(4711, 4712)
    await world.look_for(20.0)
    assert world.found == [("train", "process", (4711,))]


async def test_no_bypass_is_reported_outside_the_hosts_pid_namespace(world: World) -> None:
    world.show(Running(4711, 10))
    (world.sim.root / "proc/self/ns/pid").unlink()
    await world.look_for(20.0)
    assert world.found == []


async def test_the_share_servers_status_names_the_processes_that_are_connected(tmp_path: Path, log: Log, world: World) -> None:
    """Check the process of this test, which NVML shows as one of the pod's."""
    world.show(Running(os.getpid(), 10))
    folder = tmp_path / "shares"
    own = folder / folder_name(POD, "train")
    own.mkdir(parents=True)
    gpu = SharedGpu(uuid=GpuUuid(world.card), memory_mib=1000, total_mib=80_000, request_percent=10, limit_percent=100)
    given = ShareGrant(pod=PodUid(POD), container="train", namespace="default", pod_name="p", gpus=(gpu,))
    (own / FILE).write_bytes(render_grant(given))
    shares = Shares(folder, policy=Fair, log=log, host_root=world.sim.root)
    path = tmp_path / "status.sock"
    with listen(path, rejected=lambda _: None) as listener:
        server = await answer(listener, shares.usage)
        shares.start()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(str(own / SOCKET))
            connection.sendall(pack(Frame(Kind.HELLO, a=1, c=1)))
            (use,) = await until_connected(path)
            assert (use.processes, use.process_ids) == (1, (os.getpid(),))
            world.uses = partial(ask, path)
            await world.look_for(5.0)
            assert world.found == []
        await world.look_for(5.0)
        assert world.found == [("train", "process", (os.getpid(),))]
        server.close()
        shares.close()


async def until_connected(path: Path) -> Sequence[ShareUse]:
    uses: Sequence[ShareUse] = ()

    async def connected() -> bool:
        nonlocal uses
        uses = await in_thread(partial(ask, path))
        return any(use.processes for use in uses)

    await await_until(connected, "a connected process", idle_s=10.0)
    return uses
