"""A node whose VFs are a model: its journal, its kernel, and one daemon's `Attacher` after another."""

import asyncio
import contextlib
import sqlite3
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from hooks.attach.attacher import Attacher
from hooks.attach.steps import InThread
from hooks.ledger.journal import Journal, read_rows
from hooks.ledger.schema import MIGRATIONS
from hooks.model.assignment import Refusal
from hooks.model.attachment import Attachment, PodOf, RdmaMode, Route, VfConfig, VfSettings, WantedVf
from hooks.model.inventory import Vf
from lading.errors import StateError
from lading.log import Level, Log
from lading.reasons import Reason
from lading.vocabulary import PciAddress, PodUid, SandboxId
from tests.fakes.records import Records
from tests.vfs.invariants import HOST, Shown, check
from tests.vfs.model import Held, ModelKernel, vf

T = TypeVar("T")

MODES: Final = (RdmaMode.SHARED, RdmaMode.EXCLUSIVE)

DEADLINE_S: Final = 30.0  # deadline of an attach

SETTINGS: Final = VfSettings(
    config=VfConfig(mac="02:00:5e:10:00:01", vlan=100, max_tx_rate=1000, trust=True),
    mtu=9000,
    addresses=("10.0.0.2/24",),
    routes=(Route("10.1.0.0/16", "10.0.0.1"),),
)


def pod_of(sandbox: str) -> PodOf:
    """`p1-s0` is the first sandbox of pod p1."""
    pod = sandbox.partition("-")[0]
    return PodOf(pod=PodUid(pod), namespace="default", pod_name=f"name-of-{pod}", sandbox=SandboxId(sandbox))


def path_of(sandbox: str) -> str:
    return f"/run/netns/{sandbox}"


async def inline(do: Callable[[], T]) -> T:
    """Call `do` in the loop, in place of a thread. Other tasks run once before it, and go on while it hangs."""
    await asyncio.sleep(0)
    while True:
        try:
            return do()
        except Held as held:
            await held.gate.wait()


def reason(outcome: object) -> Reason | None:
    return outcome.reason if isinstance(outcome, Refusal) else None


class Node:
    """A node: what outlives a daemon, and the newest daemon."""

    def __init__(
        self,
        vfs: int = 2,
        *,
        mode: RdmaMode = RdmaMode.SHARED,
        parents: bool = True,
        ethernet: bool = True,
        driver: str = "mlx5_core",
        own_macs: bool = False,
        sandboxes: Iterable[str] = ("p1-s0",),
    ) -> None:
        """`own_macs`: no one gave their PF a MAC for the VFs. `sandboxes`: those that run."""
        self.vfs: list[Vf] = [vf(number, ethernet=ethernet) for number in range(vfs)]
        self.kernel = ModelKernel(self.vfs, mode=mode, parents=parents, driver=driver, own_macs=own_macs)
        self.before = self.shown()
        self.stopped: set[SandboxId] = set()
        self.ready: set[SandboxId] = set()
        self.live: set[SandboxId] = set()
        self.boot_id = "boot-1"
        self.now = 1_000_000
        self.disk_full = False
        self.records = Records()
        self.netns: dict[SandboxId, str | None] = {}  # the runtime's answers that are not the sandbox's own namespace
        self.db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)  # closed by any thread
        weakref.finalize(self, self.db.close)
        for statement in MIGRATIONS[1]:
            self.db.execute(statement)
        self.start()
        for sandbox in sandboxes:
            self.run(sandbox)

    # ---- the daemon

    def start(self, *, in_thread: InThread = inline) -> None:
        """A daemon, after the one before died."""
        self.kernel.dead = False
        self.journal = Journal(read_rows(self.db), self._transaction)
        self.attacher = Attacher(
            journal=self.journal,
            kernel=self.kernel,
            netns_of=self._netns_of,
            stopped=self.stopped.__contains__,
            boot_id=self.boot_id,
            log=Log(self.records, Level.DEBUG),
            clock=lambda: self.now,
            deadline_s=DEADLINE_S,
            in_thread=in_thread,
        )

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        if self.kernel.dead:
            self.kernel.die()
        if self.disk_full:
            raise StateError("cannot write ledger: as the test wants it")
        self.kernel.point("before commit")
        self.db.execute("BEGIN")
        try:
            yield self.db
            self.db.execute("COMMIT")
        finally:
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
        self.kernel.point("after commit")

    async def _netns_of(self, sandbox: SandboxId) -> str | None:
        return self.netns.get(sandbox, path_of(sandbox) if path_of(sandbox) in self.kernel.pods else None)

    # ---- what kubelet and the runtime do

    def run(self, sandbox: str) -> PodOf:
        self.ready.add(SandboxId(sandbox))
        self.kernel.add_netns(path_of(sandbox))
        return pod_of(sandbox)

    def wanted(self, *numbers: int, settings: VfSettings = SETTINGS, ifname: str = "", netdev: bool = True) -> list[WantedVf]:
        return [WantedVf(vf=self.vfs[n], ifname=ifname, settings=settings, netdev=netdev) for n in numbers]

    async def attach(self, sandbox: str, *numbers: int) -> tuple[Attachment, ...] | Refusal:
        return await self.attacher.attach(self.wanted(*numbers), pod_of(sandbox))

    async def attached(self, sandbox: str, *numbers: int) -> tuple[Attachment, ...]:
        rows = await self.attach(sandbox, *numbers)
        assert not isinstance(rows, Refusal), rows
        return rows

    async def stopping(self, sandbox: str) -> None:
        self.stopped.add(SandboxId(sandbox))
        await self.attacher.detach_sandbox(SandboxId(sandbox))

    def end(self, sandbox: str) -> None:
        """It has stopped: its namespace goes."""
        self.ready.discard(SandboxId(sandbox))
        self.live.discard(SandboxId(sandbox))
        self.kernel.end_netns(path_of(sandbox))

    async def reconcile(self) -> None:
        known = frozenset(row.generation for row in self.journal.rows())
        await self.attacher.reconcile(ready=frozenset(self.ready), live=frozenset(self.live), known=known)

    def reboot(self) -> None:
        self.kernel.boot()
        self.boot_id += "+"
        self.ready.clear()
        self.live.clear()
        self.start()

    def may_keep(self, sandbox: SandboxId) -> bool:
        """No one may take from it what it has."""
        return sandbox in self.ready and sandbox not in self.stopped

    # ---- what is seen

    def row(self, number: int = 0) -> Attachment | None:
        return self.journal.find(self.vfs[number].bdf)

    def attachment(self, number: int = 0) -> Attachment:
        """Return the VF's row; fail if it has none."""
        row = self.row(number)
        assert row is not None
        return row

    def place(self, number: int = 0) -> str | None:
        """The path of the namespace that its network device is in; empty for the host's."""
        result = self.kernel.where(self.vfs[number].bdf)
        return result[0] if result else None

    def shown(self) -> dict[PciAddress, Shown]:
        shown = {}
        for one in self.vfs:
            where = self.kernel.where(one.bdf)
            shown[one.bdf] = Shown(
                netns=where[0] if where else None,
                link=where[1] if where else None,
                config=self.kernel.table[one.pf, one.index],
                rdma_netns=self.kernel.where_ibdev(ibdev := self.kernel.ibdev_of(one.bdf)),
                ibdev=ibdev,
                mac_fixed=(one.pf, one.index) in self.kernel.fixed,
                kept=dict(self.kernel.kept[self.kernel.indexes[one.bdf]]),
            )
        return shown

    def problems(self) -> list[str]:
        """Compare with the journal on disk, which has to agree with memory."""
        rows = read_rows(self.db)
        problems = check(rows, before=self.before, now=self.shown(), namespaces=[HOST, *self.kernel.pods])
        if sorted(self.journal.rows(), key=lambda row: row.generation) != list(rows):
            problems.append(f"memory says {self.journal.rows()}, disk {rows}")
        return problems

    def all_free(self) -> bool:
        return not self.journal.rows() and not self.problems()
