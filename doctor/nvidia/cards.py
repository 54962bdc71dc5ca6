"""Read the GPUs of a node from NVML in a separate process, so that a driver that hangs blocks only that process.

`read_cards` starts `python -m doctor.nvidia.cards`, which prints its result as JSON. A process that hangs in the driver cannot
be ended, so it is left behind after the deadline. A thread would not do: while it hangs in the driver, `lading-doctor` itself
could not end.

Source: NVML API reference (nvmlDeviceGetPersistenceMode); the driver's nv-procfs.c (/proc/driver/nvidia/version).
"""

import contextlib
import math
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import pynvml

from hooks.host.attributes import read_attribute, read_names
from hooks.host.devnodes import Cause
from hooks.model.inventory import Gpu
from hooks.vendors.nvidia.nvml import find_bad_nodes, read_gpus
from hooks.vendors.nvidia.procfs import is_driver_loaded
from lading.driverfiles import read_module_version
from lading.errors import HostError
from lading.vocabulary import GpuUuid

ANSWER_S: Final = 8.0  # seconds to wait for the process on a quiet node
KILLED_S: Final = 0.5  # seconds to wait for the process after SIGKILL
LEFT_S: Final = 2  # seconds that the process may run longer than the wait for its answer
_NVIDIA: Final = "0x10de"
_DISPLAY: Final = ("0x0300", "0x0302")  # VGA and 3D controllers: cards, not their audio functions or NVSwitches


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlReading:
    """Hold the answer of the process that reads NVML."""

    error: int = 0  # nvmlReturn_t of opening an NVML session; 0: success
    why: str = ""
    library_version: str = ""
    gpus: tuple[Gpu, ...] = ()
    problems: tuple[str, ...] = ()
    not_persistent: tuple[GpuUuid, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BadNode:
    """Represent a device node that cannot be used."""

    path: str
    cause: Cause
    why: str
    card: int | None = None  # minor number of the card; None for a node of the driver


@dataclass(frozen=True, slots=True, kw_only=True)
class CardsReading:
    on_bus: tuple[str, ...] = ()  # PCI addresses of NVIDIA's cards
    loaded: bool = False  # whether the kernel module is loaded
    module_version: str = ""
    bad_nodes: tuple[BadNode, ...] = ()  # nodes of cards are included only if NVML or the driver's procfs reports their minors
    nvml: NvmlReading | None = None  # None: NVML gave no answer in time

    @property
    def version(self) -> str:
        """Return the driver's version: of the loaded kernel module, else of NVML's library; empty if neither is known."""
        return self.module_version or (self.nvml.library_version if self.nvml else "")


def read_cards(host_root: Path, *, library: str, driver_root: str = "", slowness: float = 1.0) -> CardsReading:
    """Read the cards from the bus, the kernel and NVML. Wait for NVML at most ANSWER_S seconds times `slowness`."""
    on_bus = tuple(name for name in read_names(host_root / "sys/bus/pci/devices") if _is_card(host_root, name))
    nvml = _ask(host_root, library, driver_root, ANSWER_S * slowness)
    return CardsReading(
        on_bus=on_bus,
        loaded=is_driver_loaded(host_root),
        module_version=read_module_version(host_root),
        bad_nodes=_read_bad_nodes(host_root, [gpu.minor for gpu in nvml.gpus] if nvml else [], driver_root),
        nvml=nvml,
    )


def _read_bad_nodes(host_root: Path, minors: Sequence[int], driver_root: str) -> tuple[BadNode, ...]:
    by_path = {f"/dev/nvidia{minor}": minor for minor in minors}
    return tuple(
        BadNode(path=error.path, cause=error.cause, why=str(error), card=by_path.get(error.path))
        for error in find_bad_nodes(host_root, minors, driver_root=driver_root)
    )


def _is_card(host_root: Path, bdf: str) -> bool:
    folder = host_root / "sys/bus/pci/devices" / bdf
    is_nvidia = read_attribute(folder / "vendor") == _NVIDIA
    return is_nvidia and (read_attribute(folder / "class") or "").startswith(_DISPLAY)


def _ask(host_root: Path, library: str, driver_root: str, answer_s: float) -> NvmlReading | None:
    command = [sys.executable, "-P", "-m", "doctor.nvidia.cards", str(host_root), library, driver_root, str(answer_s)]
    pipe = subprocess.PIPE
    with contextlib.ExitStack() as pipes:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)  # noqa: S603
        for stream in (child.stdout, child.stderr):
            pipes.enter_context(stream)  # type: ignore[arg-type]
        try:
            out, text = child.communicate(timeout=answer_s)
        except subprocess.TimeoutExpired:
            child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # a process that hangs in the kernel is left behind
                child.wait(KILLED_S)
            return None
    if child.returncode:
        last = text.decode(errors="replace").strip().splitlines()[-1:]
        raise HostError(f"cannot read the GPUs: {''.join(last) or f'exit status {child.returncode}'}")
    return msgspec.json.decode(out, type=NvmlReading)


def read_nvml(host_root: Path, library: Path | None, driver_root: str) -> NvmlReading:
    """Read the cards from NVML in this process. May block forever."""
    _, gpus, problems = read_gpus(host_root, library=library, driver_root=driver_root)  # also loads NVML's library
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as e:
        return NvmlReading(error=e.value, why=str(e), gpus=gpus, problems=problems)
    try:
        version = str(pynvml.nvmlSystemGetDriverVersion())
        not_persistent = tuple(gpu.uuid for gpu in gpus if _persistence(gpu.bdf) == pynvml.NVML_FEATURE_DISABLED)
    finally:
        pynvml.nvmlShutdown()
    return NvmlReading(library_version=version, gpus=gpus, problems=problems, not_persistent=not_persistent)


def _persistence(bdf: str) -> int | None:
    """Return the persistence mode; None if the card does not report it."""
    try:
        return int(pynvml.nvmlDeviceGetPersistenceMode(pynvml.nvmlDeviceGetHandleByPciBusId(bdf.encode())))
    except pynvml.NVMLError:
        return None


def main(host_root: str, library: str, driver_root: str, answer_s: str) -> None:
    # SIGALRM ends this process if it hangs outside the kernel, even without its parent.
    signal.alarm(math.ceil(float(answer_s)) + LEFT_S)
    print(msgspec.json.encode(read_nvml(Path(host_root), Path(library) if library else None, driver_root)).decode())


if __name__ == "__main__":
    main(*sys.argv[1:])
