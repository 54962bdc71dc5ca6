"""A second vendor: its driver shows its cards as lines `UUID PCI-address minor` of one file in /proc."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from hooks.model.assignment import Refusal
from hooks.model.cdi import Spec
from hooks.model.container import Adjustment, Container, EnvVar, devices_of
from hooks.model.inventory import CharDevice, Driver, Gpu, GpuProcess, Inventory
from hooks.ports import Card, VendorInventory
from lading.needed import Needed
from lading.vocabulary import GpuUuid, PciAddress

CARDS = "proc/acme/cards"


class Acme:
    name: ClassVar[str] = "acme"
    hidden_env: ClassVar[Mapping[str, str]] = {"ACME_VISIBLE_DEVICES": "none"}
    supplied: ClassVar[Mapping[str, Sequence[str]]] = {"value-prefixes": ("ACME-",)}
    device_names: ClassVar[tuple[str, ...]] = ("acme",)
    device_folders: ClassVar[tuple[str, ...]] = ()
    restores: ClassVar[bool] = False

    def needed(self, host_root: Path) -> Iterator[Needed]:
        yield Needed(path=host_root / CARDS, what="cards", optional=True)

    def read(self, host_root: Path) -> VendorInventory:
        file = host_root / CARDS
        if not file.exists():
            return VendorInventory()
        gpus = tuple(self._gpu(*line.split()) for line in file.read_text().splitlines())
        return VendorInventory(gpus=gpus, driver=Driver(vendor=self.name, version="1.0", control=()))

    def _gpu(self, uuid: str, bdf: str, minor: str) -> Gpu:
        path = f"/dev/acme{minor}"
        return Gpu(
            uuid=GpuUuid(uuid),
            vendor=self.name,
            bdf=PciAddress(bdf),
            index=int(minor),
            minor=int(minor),
            model="Acme 1",
            memory_mib=1000,
            reserved_mib=0,
            numa=None,
            node=CharDevice(path=path, host_path=path, major=240, minor=int(minor)),
        )

    def read_processes(self, cards: Collection[GpuUuid]) -> Mapping[GpuUuid, tuple[GpuProcess, ...]]:
        return {}

    def divide(self, host_root: Path, gpu: Gpu, granted: Collection[str]) -> Mapping[str, str]:
        return {}

    def restore(self, cards: Collection[GpuUuid]) -> Sequence[str]:
        return ()

    def outdated(self) -> str:
        return ""

    def problem(self, inventory: Inventory) -> str:
        return ""

    def render_specs(self, inventory: Inventory) -> tuple[Sequence[Spec], Sequence[str]]:
        return (), ()

    def inject(self, cards: Sequence[Card], inventory: Inventory, *, cdi_refusal: str) -> Adjustment | Refusal:
        visible = ",".join(str(card.gpu.minor) for card in cards)
        return Adjustment(env=(EnvVar("ACME_VISIBLE_DEVICES", visible),), devices=devices_of(card.node for card in cards))

    def hide(self, container: Container, *, coexist: bool) -> Adjustment:
        return Adjustment(env=tuple(EnvVar(name, value) for name, value in self.hidden_env.items()))

    def supplied_by_kubelet(self, container: Container, *, coexist: bool) -> str:
        return next((one.container_path for one in container.devices if one.container_path.startswith("/dev/acme")), "")
