"""The card that the containers of a test share: a fake one, or with LADING_TEST_CARD=machine that of this machine.

`make test-gpu` and `make bench-gpu` (tests/gpu) set that variable. The driver of the machine is the one whose NVML the loader
takes: its folder has libcuda too, wherever a distribution or a cloud puts both.
"""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final, Protocol

import pynvml

from lading.compiling import find_compiler
from lading.driverfiles import find_driver
from lading.errors import HostError
from lading.vocabulary import GpuUuid
from shares.library.build import CUDA, NVML, SOURCES, build
from simnode.cuda import compile_fake_cuda
from simnode.images import WORK_PTX
from simnode.nvml import compile_fake_nvml
from tests.fakes.share_rig import CARD, OTHER_CARD

CHOICE: Final = "LADING_TEST_CARD"
MACHINE: Final = "machine"
KIT: Final = "LADING_GPU_KIT"  # a folder that tests/gpu/kit.py made
DRIVER: Final = "driver"  # a link beside the library, to the folder of the driver's libraries
SOCKET: Final = Path("s.sock")  # in the folder in which a container's programs run
# Libraries that were compiled elsewhere have the driver's at this path, which is made a link to its folder.
DRIVER_LINK: Final = Path("/run/lading-tests/driver")
_NVML_STATE: Final = f"""driver 580.159.03
gpu 00000000:01:00.0 {CARD} 0 81559 551 0 NVIDIA H100 80GB HBM3
gpu 00000000:02:00.0 {OTHER_CARD} 1 81559 551 0 NVIDIA H100 80GB HBM3
"""  # fake_nvml.c has the format
_LOADED_NVML: Final = re.compile(r"(/\S+)/libnvidia-ml\.so\.\S+$", re.MULTILINE)


class Card(Protocol):
    @property
    def uuids(self) -> tuple[GpuUuid, ...]:
        """The cards, of which containers get shares: the first one, and the second one where a test needs two."""

    @property
    def is_fake(self) -> bool:
        """Return whether the card has the functions `fake_cuda_…` and the variables `FAKE_CUDA_…`, which a real card
        lacks."""

    def show(self, count: int) -> dict[str, str]:
        """Return the variables with which a program sees so many of the cards."""

    def driver(self, folder: Path) -> Path:
        """Return the folder with the driver's libraries; a fake driver is put into `folder`."""

    def environment(self, folder: Path) -> dict[str, str]:
        """Return the variables with which a program finds the card. `folder`: a fake card keeps its state here."""


@dataclass(frozen=True, slots=True)
class FakeCard:
    uuids: tuple[GpuUuid, ...] = (CARD, OTHER_CARD)
    is_fake: bool = True

    def show(self, count: int) -> dict[str, str]:
        return {"NVIDIA_VISIBLE_DEVICES": ",".join(self.uuids[:count])}

    def driver(self, folder: Path) -> Path:
        compile_fake_cuda(folder)
        compile_fake_nvml(folder)
        return folder

    def environment(self, folder: Path) -> dict[str, str]:
        state = folder / "nvml-state"
        if not state.exists():
            state.write_text(_NVML_STATE)
        own = {"FAKE_CUDA_DIR": str(folder), "FAKE_NVML_STATE": str(state), "WORK_PTX": str(WORK_PTX)}
        return {**self.show(1), **own}


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineCard:
    """The first card of this machine, with the driver that is installed."""

    uuids: tuple[GpuUuid, ...]
    name: str
    version: str  # the driver's
    memory_mib: int
    folder: Path  # with the driver's libraries
    root: Path  # the hook server's driver_root
    is_fake: bool = field(default=False, init=False)

    def show(self, count: int) -> dict[str, str]:
        # The second one is for a simulated node that is taken for the machine (tests/gpu).
        return dict.fromkeys(("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"), ",".join(self.uuids[:count]))

    def driver(self, folder: Path) -> Path:
        return self.folder

    def environment(self, folder: Path) -> dict[str, str]:
        return {**os.environ, "WORK_PTX": str(WORK_PTX), **self.show(1)}

    def __str__(self) -> str:
        return f"{self.name}, {self.memory_mib} MiB, driver {self.version} in {self.folder}"


@contextmanager
def _nvml() -> Iterator[None]:
    pynvml.nvmlInit()
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


def find_card() -> MachineCard:
    """Return the first card of this machine. Raise HostError that says what is missing."""
    try:
        with _nvml():
            cards = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
            uuids = tuple(GpuUuid(pynvml.nvmlDeviceGetUUID(card)) for card in cards)
            if not cards:
                raise HostError(
                    "cannot use a card of this machine: the driver shows none", hint="nvidia-smi -L lists the cards"
                )
            name, version = pynvml.nvmlDeviceGetName(cards[0]), pynvml.nvmlSystemGetDriverVersion()
            memory_mib = pynvml.nvmlDeviceGetMemoryInfo(cards[0]).total >> 20
            loaded = _LOADED_NVML.search(Path("/proc/self/maps").read_text())
    except pynvml.NVMLError as e:
        raise HostError(
            f"cannot use a card of this machine: no {NVML} of the loader's path answers: {e}",
            hint="this needs an NVIDIA card and its driver; tests on a fake card need none: make test",
        ) from e
    folder = Path(loaded[1]) if loaded else Path("/")
    found = ((parent, find_driver(parent, version)) for parent in folder.parents)
    root = next((parent for parent, driver in found if driver and driver.folders[0].path == folder), None)
    if root is None:
        raise HostError(f"cannot use the card {uuids[0]}: there is no {CUDA} of driver {version} beside {folder / NVML}")
    return MachineCard(uuids=uuids, name=name, version=version, memory_mib=memory_mib, folder=folder, root=root)


@cache
def choose_card() -> Card:
    """Return the card for tests: the fake one, unless LADING_TEST_CARD says `machine`."""
    return find_card() if os.environ.get(CHOICE) == MACHINE else FakeCard()


def make_library(driver: Path, folder: Path) -> Path:
    """Make Lading's libraries in front of those in the folder `driver`, for programs that run in a container's folder.

    Return the path of the one for CUDA. They are compiled, or copied from LADING_GPU_KIT."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / DRIVER).symlink_to(driver)
    if kit := os.environ.get(KIT):
        DRIVER_LINK.parent.mkdir(exist_ok=True)
        link = DRIVER_LINK.with_name(f"{os.getpid()}")
        link.symlink_to(driver)
        link.replace(DRIVER_LINK)
    for soname in SOURCES:
        if kit:
            shutil.copy(Path(kit, "library", soname), folder)
        else:
            build(folder / soname, find_compiler(), real=driver / soname, socket=SOCKET)
    return folder / CUDA
