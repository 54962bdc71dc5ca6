"""Check the MPS daemons of cards: whether they run, answer, and take clients.

Take the folders of the daemons, ask each daemon by NVIDIA's own program, and return verdicts. Where lading-shares keeps the
memory of containers (`mps_memory`), ask that too. Nothing is changed.

Source: NVIDIA, Multi-Process Service, appendix "Tools and interface reference".
"""

import asyncio
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hooks.isolation.mps import MpsFolders
from hooks.model.inventory import Gpu
from hooks.mps.control import ANSWER_S, Control
from lading.checks.model import Finding, failed, ok, warning
from lading.devices.isolation import MPS_CLIENTS
from lading.errors import HostError
from lading.sharestatus import ShareUse, ask
from lading.threads import in_thread
from lading.vocabulary import GpuUuid


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonReading:
    """Represent the MPS daemon of one card with a folder. The daemon runs, or should run, or its card is being put back."""

    uuid: GpuUuid
    runs: bool
    problem: str = ""  # error text of a running daemon that does not answer
    clients: int = 0  # number of processes that use the card through the daemon
    fault: bool = False  # whether a fault of one process blocks the card
    servers: tuple[int, ...] = ()  # process IDs of the daemon's servers


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReading:
    """Hold what keeps containers that use cards by MPS to their memory."""

    problem: str = ""  # why lading-shares does not answer
    uses: tuple[ShareUse, ...] = ()
    gpus: tuple[Gpu, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsReading:
    offered: bool  # whether the setting `isolations` has mps
    command: str = ""
    executable: bool = True
    systemd: bool = True
    daemons: tuple[DaemonReading, ...] = ()
    memory: MemoryReading | None = None  # None: MPS itself limits the memory of each process


async def read_mps(folders: MpsFolders, command: str, *, offered: bool, root: Path, answer_s: float = ANSWER_S) -> MpsReading:
    """Read the MPS daemons of all cards with a folder. `answer_s`: seconds to wait for each answer. Raise PermissionError if
    the folders cannot be read."""
    uuids = _list_cards(Path(folders.mps_dir))
    asked = (_read_daemon(Control(uuid=uuid, folders=folders, command=command, answer_s=answer_s)) for uuid in uuids)
    return MpsReading(
        offered=offered,
        command=command,
        executable=os.access(command, os.X_OK),
        systemd=(root / "run/systemd/system").is_dir(),
        daemons=tuple(await asyncio.gather(*asked)),
    )


def _list_cards(folder: Path) -> list[GpuUuid]:
    if not folder.is_dir():
        return []
    if not os.access(folder, os.R_OK | os.X_OK):
        raise PermissionError(f"no permission to read {folder}")
    return sorted(GpuUuid(one.name) for one in folder.glob("GPU-*"))


async def _read_daemon(control: Control) -> DaemonReading:
    if control.pid() is None:
        return DaemonReading(uuid=control.uuid, runs=False)
    try:
        servers = await control.servers()
        clients, fault = await control.count_clients(servers), await control.has_fault(servers)
    except HostError as e:
        return DaemonReading(uuid=control.uuid, runs=True, problem=str(e))
    return DaemonReading(uuid=control.uuid, runs=True, clients=clients, fault=fault, servers=servers)


async def read_memory(shares_socket: Path, gpus: Sequence[Gpu]) -> MemoryReading:
    """Ask lading-shares for the shares that it keeps. `gpus`: the cards, with the memory that their processes have."""
    try:
        return MemoryReading(uses=tuple(await in_thread(lambda: ask(shares_socket))), gpus=tuple(gpus))
    except HostError as e:
        return MemoryReading(problem=str(e))


def decide_mps(reading: MpsReading) -> Iterator[Finding]:
    if not reading.offered and not reading.daemons:
        yield ok("not needed: isolations has no mps")
        return
    problems = [
        *_without_means(reading),
        *(verdict for daemon in reading.daemons for verdict in _decide_daemon(daemon)),
        *(_decide_memory(reading.memory, reading.daemons) if reading.memory else ()),
    ]
    yield from problems
    if not problems:
        clients = sum(daemon.clients for daemon in reading.daemons)
        yield ok(
            f"daemons: {len(reading.daemons)}, processes that use cards by them: {clients}"
            if reading.daemons
            else "no card has a daemon now"
        )


def _without_means(reading: MpsReading) -> Iterator[Finding]:
    if not reading.executable:
        what = f"mps_control {reading.command} cannot be run: no daemon is started or stopped"
        yield failed(what, mend="mps_control in hooks.toml; the driver's package has nvidia-cuda-mps-control")
    if not reading.systemd:
        yield failed("no systemd runs this node: daemons are its services", mend='isolations without "mps" in hooks.toml')


def _decide_daemon(daemon: DaemonReading) -> Iterator[Finding]:
    unit = f"lading-mps-{daemon.uuid}.service"
    if not daemon.runs:
        what = f"the MPS daemon of {daemon.uuid} does not run, and the card is not put back"
        yield failed(what, mend=f"journalctl -u {unit}; journalctl -t lading-hooks LADING_EVENT=mps.failed")
    elif daemon.problem:
        what = f"the MPS daemon of {daemon.uuid} does not answer: {daemon.problem}"
        yield failed(what, mend=f"systemctl kill -s KILL {unit}; its programs end, and lading-hooks starts another daemon")
    elif daemon.fault:
        what = f"a fault of one process blocks {daemon.uuid} until all that share it have ended"
        yield failed(what, mend=f"lading-hooks ledger names the pods of {daemon.uuid}: delete them")
    elif daemon.clients >= MPS_CLIENTS:
        what = f"{daemon.clients} processes use {daemon.uuid} by MPS, and a server takes {MPS_CLIENTS}"
        yield warning(what, mend="fewer processes in a container, or a smaller shares_per_gpu in hooks.toml")


def _decide_memory(memory: MemoryReading, daemons: Sequence[DaemonReading]) -> Iterator[Finding]:
    if memory.problem:
        what = f'mps_memory = "container", and lading-shares keeps no memory: {memory.problem}; no program can start CUDA'
        yield failed(what, mend="systemctl enable --now lading-shares")
    gpus = {gpu.uuid: gpu for gpu in memory.gpus}
    for daemon in (one for one in daemons if one.uuid in gpus):
        gpu = gpus[daemon.uuid]
        server_mib = sum(one.used_mib or 0 for one in gpu.processes or () if one.pid in daemon.servers)
        shares_mib = sum(use.memory_limit_mib for use in memory.uses if use.gpu == gpu.uuid)
        if server_mib and shares_mib + server_mib > gpu.usable_mib:
            what = (
                f"the shares of {gpu.uuid} have {shares_mib} of its {gpu.usable_mib} MiB, and its MPS server {server_mib} "
                "besides: the last share to be filled gets less than its amount"
            )
            yield warning(what, mend=f"shares that leave {server_mib} MiB of each card free")
