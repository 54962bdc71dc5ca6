"""Define and check the hook server's settings for NVIDIA cards and their driver.

Tests: tests/unit/hooks/vendors/nvidia/test_xid.py
"""

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import msgspec

from hooks.model.inventory import Partition
from hooks.vendors.nvidia.groups import DriverGroup
from hooks.vendors.nvidia.inject import GpuMode, SpecsBy
from hooks.vendors.nvidia.nvml import ALL_CARDS
from hooks.vendors.nvidia.nvswitch import read_partitions
from hooks.vendors.nvidia.restore import PowerLimit
from lading.devices.identity import parse_gpu_uuid, parse_pci_address, shown
from lading.driverfiles import find_nvml, read_module_version
from lading.errors import ConfigError
from lading.settings import Setting, check_absolute

_KEEP: Final = "keep"
_WATTS: Final = re.compile(r"[1-9][0-9]{0,3}")


class Clocks(StrEnum):
    KEEP = _KEEP
    DEFAULT = "default"


class LimitsBy(StrEnum):
    """Name the mechanism that limits the memory of a container with a share."""

    AUTO = "auto"
    DRIVER = "driver"
    LIBRARY = "library"


class NvidiaSettings(msgspec.Struct, frozen=True, kw_only=True):
    gpu_mode: Annotated[GpuMode, Setting("how GPUs are injected: devices, cdi or nvidia-runtime")] = GpuMode.DEVICES
    driver_root: Annotated[
        str,
        Setting(
            "modes devices and cdi: the root of the driver, where it is not that of the host or of NVIDIA's driver container"
        ),
    ] = ""
    driver_libraries: Annotated[
        tuple[str, ...],
        Setting("modes devices and cdi: the host's folders of the driver's libraries, where Lading does not find them"),
    ] = ()
    driver_mount: Annotated[
        str,
        Setting(
            "where driver_root, or the host's root, is mounted, if lading-hooks runs in a container; empty: at its own path"
        ),
    ] = ""
    driver_groups: Annotated[
        tuple[DriverGroup, ...],
        Setting("modes devices and cdi: what else containers with GPUs get: gdrcopy, gds, imex, graphics"),
    ] = ()
    cdi_specs: Annotated[SpecsBy, Setting("mode cdi: who writes the CDI specs of GPUs: lading (in cdi_dir), or nvidia-ctk")] = (
        SpecsBy.LADING
    )
    cdi_dir: Annotated[str, Setting("cdi_specs lading: the folder of its specs, one of the runtime's cdi_spec_dirs")] = (
        "/var/run/cdi"
    )
    cdi_hook: Annotated[
        str, Setting("cdi_specs lading: NVIDIA's program that updates a container's library cache; without it links are mounts")
    ] = "/usr/bin/nvidia-cdi-hook"
    cdi_spec_dirs: Annotated[tuple[str, ...], Setting("cdi_specs nvidia-ctk: where its specs are")] = (
        "/etc/cdi",
        "/var/run/cdi",
    )
    nvml_library: Annotated[str, Setting("libnvidia-ml.so.1, where it is not on the loader's path")] = ""
    nvswitch_partitions: Annotated[
        str, Setting("report: how NVSwitches may be divided: h100, h200, h800, b200, a100, a100-8, or the path of a table")
    ] = ""
    memory_limits: Annotated[
        LimitsBy,
        Setting("isolation tokens: what limits memory: driver, library, or auto: the driver where it can, else the library"),
    ] = LimitsBy.AUTO
    mig_cards: Annotated[
        tuple[str, ...],
        Setting(
            "cards in MIG mode where Lading makes instances on demand and removes all others: UUIDs, PCI addresses, or all"
        ),
    ] = ()
    clocks: Annotated[
        Clocks, Setting("clocks of a card after its last grant ended: keep, or default (unlock, and reset application clocks)")
    ] = Clocks.KEEP
    power_limit: Annotated[
        str, Setting("power limit of a card after its last grant ended: keep, default (the card's own), or watts")
    ] = _KEEP

    @property
    def by_cdi(self) -> bool:
        """Return whether cards are injected by the names of CDI devices."""
        return self.gpu_mode is GpuMode.CDI

    @property
    def writes_specs(self) -> bool:
        """Return whether Lading writes the CDI specs of this node."""
        return self.by_cdi and self.cdi_specs is SpecsBy.LADING

    @property
    def mounts_driver(self) -> bool:
        """Return whether containers with cards get the driver's files as mounts."""
        return self.gpu_mode is GpuMode.DEVICES

    @property
    def limits_by_driver(self) -> bool:
        """Return whether only the driver may limit the memory of shares."""
        return self.memory_limits is LimitsBy.DRIVER

    @property
    def resets_clocks(self) -> bool:
        """Return whether a card's clocks are reset after its last grant has ended."""
        return self.clocks is Clocks.DEFAULT

    def check_cards(self) -> None:
        """Raise ConfigError for card settings that are invalid or contradict each other."""
        if self.writes_specs:
            check_absolute(self, "cdi_dir", "cdi_hook")
        self._check_driver()
        self._check_groups()
        self._check_mig()
        self.read_power_limit()
        self.read_partitions()

    def view(self, host_root: Path) -> Path:
        """Return the folder at which this process has the driver's root."""
        return Path(self.driver_mount or self.driver_root or host_root)

    def find_library(self, host_root: Path) -> Path | None:
        """Return the path of the NVML that a new process would load; None: the dynamic loader finds it."""
        if self.nvml_library:
            return Path(self.nvml_library)
        return find_nvml(self.view(host_root), read_module_version(host_root), self.driver_libraries)

    def _check_driver(self) -> None:
        check_absolute(self, *(key for key in ("driver_root", "driver_mount") if getattr(self, key)))
        for folder in self.driver_libraries:
            if not folder.startswith("/"):
                raise ConfigError(
                    f"driver_libraries: {folder!r} is no absolute path", hint='driver_libraries = ["/usr/local/nvidia/lib64"]'
                )

    def _check_groups(self) -> None:
        """Refuse driver groups where Lading does not decide which files a container with a GPU gets."""
        if not self.driver_groups or self.gpu_mode is GpuMode.DEVICES or self.writes_specs:
            return
        if self.by_cdi:
            reason, instead = "cdi_specs = nvidia-ctk the node's CDI specs say", "cdi_specs = lading"
        else:
            reason, instead = f"gpu_mode = {self.gpu_mode} NVIDIA's runtime decides", "gpu_mode = devices"
        raise ConfigError(
            f"driver_groups = {', '.join(self.driver_groups)}, and with {reason} what a container with a GPU gets",
            hint=f"leave driver_groups out (or {instead})",
        )

    def _check_mig(self) -> None:
        if self.mig_cards and self.by_cdi and not self.writes_specs:
            raise ConfigError(
                "mig_cards is set, and with cdi_specs = nvidia-ctk a container gets instances that its specs name, which were "
                "written before",
                hint="cdi_specs = lading, gpu_mode = devices, or leave mig_cards out",
            )
        for name in self.mig_cards:
            if name != ALL_CARDS and parse_gpu_uuid(name) != name and parse_pci_address(name) != name:
                raise ConfigError(
                    f"mig_cards: {shown(name)} is no card",
                    hint='mig_cards = ["all"], or UUIDs and PCI addresses in lower case, as nvidia-smi --query-gpu=uuid shows '
                    "them",
                )

    def read_power_limit(self) -> PowerLimit | None:
        """Return the power limit that a card gets after its last grant has ended; None: no change. Raise ConfigError."""
        if self.power_limit == _KEEP:
            return None
        if self.power_limit == "default":
            return PowerLimit()
        if _WATTS.fullmatch(self.power_limit):
            return PowerLimit(watts=int(self.power_limit))
        raise ConfigError(
            f"power_limit = {self.power_limit!r} is no limit", hint='power_limit = "keep", "default", or watts as "300"'
        )

    def read_partitions(self) -> tuple[Partition, ...]:
        """Return the partitions of the board's NVSwitches. Raise ConfigError."""
        try:
            return read_partitions(self.nvswitch_partitions)
        except ConfigError as e:
            raise ConfigError(f"nvswitch_partitions: {e.message}", hint=e.hint) from e
