"""Implement the port `Vendor` for NVIDIA's cards, by the modules that read, inject, hide and recognise them."""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Final, Self

from hooks.host.ldcache import list_libraries, make_hook
from hooks.model.assignment import Refusal
from hooks.model.cdi import Spec
from hooks.model.container import Adjustment, Container
from hooks.model.inventory import Driver, Gpu, GpuProcess, Inventory, Partition
from hooks.ports import Card, VendorInventory
from hooks.vendors.nvidia.cdi import render_specs
from hooks.vendors.nvidia.cdi_hook import list_links, make_hooks, read_commands
from hooks.vendors.nvidia.compat import takes_newer
from hooks.vendors.nvidia.driver import files_problem, name_on_host, read_driver_files, read_driver_mounts
from hooks.vendors.nvidia.groups import add_groups
from hooks.vendors.nvidia.hide import SUPPLIED, VISIBLE_DEVICES, VOID, hide, supplied_by_kubelet
from hooks.vendors.nvidia.inject import inject
from hooks.vendors.nvidia.memory_limits import LimitProbe, limit_memory
from hooks.vendors.nvidia.nvml import NAME, divide_card, read_gpus, read_processes
from hooks.vendors.nvidia.restore import restore, set_exclusive
from hooks.vendors.nvidia.settings import LimitsBy, NvidiaSettings
from hooks.vendors.nvidia.xid import KernelLog
from lading.driverfiles import FoundDriver, find_driver, find_outdated_nvml, read_loaded_nvml
from lading.errors import HostError
from lading.needed import Needed
from lading.vocabulary import GpuUuid

_DEVICES: Final = ("dev/nvidiactl", "dev/nvidia-uvm", "dev/kmsg")
_ROOT: Final = Path("/")
_DEFAULTS: Final = NvidiaSettings()
_NO_LOG: Final = KernelLog(Path("/nonexistent"))


@dataclass(frozen=True, slots=True)
class Nvidia:
    settings: NvidiaSettings = _DEFAULTS
    host_root: Path = _ROOT
    partitions: tuple[Partition, ...] = ()  # partitions of the board's NVSwitches; no file of the host lists them
    kernel_log: KernelLog = _NO_LOG
    limits: LimitProbe | None = None  # probe for cards whose driver can limit memory; None: the driver is not to limit it
    ldcache: Path | None = None  # hook that makes the loader's cache of containers; None: no runtime would run it

    name: ClassVar[str] = NAME
    hidden_env: ClassVar[Mapping[str, str]] = {VISIBLE_DEVICES: VOID}
    supplied: ClassVar[Mapping[str, Sequence[str]]] = SUPPLIED
    device_names: ClassVar[tuple[str, ...]] = ("nvidia", "gdrdrv", "dri", "card", "renderD", "channel")
    device_folders: ClassVar[tuple[str, ...]] = ("nvidia-caps", "nvidia-caps-imex-channels", "dri")

    @classmethod
    def of(cls, settings: NvidiaSettings, *, host_root: Path, has_shares: bool, ldcache: Path | None = None) -> Self:
        """Make the vendor. `has_shares`: the node gives shares whose memory the driver may limit. `ldcache`: path of the hook
        that makes the loader's cache of containers; None if neither NRI nor a CDI spec has the runtime run it."""
        probes = has_shares and settings.memory_limits is not LimitsBy.LIBRARY
        return cls(
            settings=settings,
            host_root=host_root,
            partitions=settings.read_partitions(),
            kernel_log=KernelLog(host_root),
            limits=LimitProbe(required=settings.limits_by_driver) if probes else None,
            ldcache=ldcache,
        )

    @property
    def _gives_files(self) -> bool:
        return self.settings.mounts_driver or self.settings.writes_specs

    @property
    def library(self) -> Path | None:
        """Return the path of the NVML to load; None: the dynamic loader finds it, or this process has loaded NVML."""
        if read_loaded_nvml() and not self.settings.nvml_library:
            return None
        return self.settings.find_library(self.host_root)

    def needed(self, host_root: Path) -> Iterator[Needed]:
        settings = self.settings
        if len((library := Path(settings.nvml_library)).parts) > 1:  # the loader searches for a bare name
            yield Needed(path=library, what="nvml_library")
        if self._gives_files and (view := settings.driver_mount or settings.driver_root):
            what = "driver_mount" if settings.driver_mount else "driver_root"
            yield Needed(path=Path(view), what=what, mode=os.R_OK | os.X_OK)
        if settings.writes_specs:
            yield Needed(path=Path(settings.cdi_hook), what="cdi_hook", mode=os.R_OK | os.X_OK, optional=True)
        yield from (Needed(path=host_root / path, what="device node", optional=True) for path in _DEVICES)

    def read(self, host_root: Path) -> VendorInventory:
        settings = self.settings
        driver_root, view = settings.driver_root, settings.view(host_root)
        driver, gpus, problems = read_gpus(host_root, library=self.library, driver_root=driver_root, divided=settings.mig_cards)
        if gpus:
            gpus, log_problems = self._with_xids(gpus)
            problems += log_problems
        if driver and self.limits:
            gpus, limit_problems = self.limits.scan(host_root, gpus, driver.version, library=self.library)
            problems += limit_problems
        found = find_driver(view, driver.version, settings.driver_libraries) if driver and self._gives_files else None
        if driver and found:
            driver, file_problems = self._with_files(driver, found)
            problems += file_problems
        elif driver and self._gives_files:
            driver = replace(
                driver, files_problem=files_problem(view, driver.version, settings.driver_libraries, driver_root=driver_root)
            )
            problems += (driver.files_problem,)
        if driver and settings.driver_groups:
            driver, gpus, group_problems = add_groups(
                driver, gpus, settings.driver_groups, host_root=host_root, driver_root=driver_root, found=found
            )
            problems += group_problems
        if driver and settings.driver_mount:
            named = partial(name_on_host, mounted_at=view, driver_root=Path(driver_root or "/"))
            driver = replace(driver, mounts=named(driver.mounts), group_mounts=named(driver.group_mounts))
        if driver and driver.mounts and (program := self._usable_ldcache):
            driver = self._with_cache(driver, gpus, program)
        return VendorInventory(gpus=gpus, driver=driver, partitions=self.partitions, problems=problems)

    @property
    def _usable_ldcache(self) -> Path | None:
        """Return the hook for the loader's cache; None if it cannot be run. On a file system without exec, it would fail each
        container."""
        return self.ldcache if self.ldcache is not None and os.access(self.ldcache, os.X_OK) else None

    def _with_cache(self, driver: Driver, gpus: Sequence[Gpu], program: Path) -> Driver:
        """Return the driver with the hook that lists its libraries in the loader's cache, after the hook that links them."""
        libraries = list_libraries(
            (*(mount.container_path for mount in (*driver.mounts, *driver.group_mounts)), *list_links(driver.hooks)),
            driver.version,
        )
        compat = not gpus or any(map(takes_newer, gpus))  # a container's cards may forbid it (compat.py)
        return replace(driver, hooks=(*driver.hooks, make_hook(program, libraries, driver.version, compat=compat)))

    def _with_files(self, driver: Driver, found: FoundDriver) -> tuple[Driver, tuple[str, ...]]:
        """Return the driver with its files, and problems. With `nvidia-cdi-hook`, hooks make the symlinks; without it, mounts
        do."""
        cdi_hook, problems = Path(self.settings.cdi_hook), list[str]()
        commands: frozenset[str] = frozenset()
        if self.settings.writes_specs:
            try:
                commands = read_commands(cdi_hook)
            except HostError as e:
                problems.append(f"{e.message}; containers get links to libraries as mounts")
        if commands:
            files = read_driver_files(found)
            hooks = make_hooks(cdi_hook, commands, files, driver.version, ldcache=self._usable_ldcache is not None)
            return replace(driver, mounts=files.mounts, hooks=hooks), tuple(problems)
        return replace(driver, mounts=read_driver_mounts(found)), tuple(problems)

    def read_processes(self, cards: Collection[GpuUuid]) -> Mapping[GpuUuid, tuple[GpuProcess, ...]]:
        return read_processes(cards, library=self.library)

    def divide(self, host_root: Path, gpu: Gpu, granted: Collection[str]) -> Mapping[str, str]:
        return divide_card(host_root, gpu, granted, library=self.library, driver_root=self.settings.driver_root)

    @property
    def restores(self) -> bool:
        return self.settings.resets_clocks or self.settings.read_power_limit() is not None

    def restore(self, cards: Collection[GpuUuid]) -> Sequence[str]:
        power_limit = self.settings.read_power_limit()
        return restore(cards, library=self.library, clocks=self.settings.resets_clocks, power_limit=power_limit)

    def limit_memory(self, uuid: GpuUuid, cgroup: Path, limit_mib: int | None) -> None:
        limit_memory(uuid, cgroup, limit_mib, library=self.library)

    def set_exclusive(self, uuid: GpuUuid, exclusive: bool) -> None:
        set_exclusive(uuid, exclusive, library=self.library)

    def _with_xids(self, gpus: tuple[Gpu, ...]) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
        """Return the cards with their critical Xids, and a problem if the kernel log cannot be read."""
        try:
            xids = self.kernel_log.read()
        except OSError as e:
            return gpus, (f"cannot read Xids from the kernel log: {e.strerror}",)
        return tuple(replace(gpu, unhealthy="; ".join(filter(None, (gpu.unhealthy, xids.of(gpu.bdf))))) for gpu in gpus), ()

    def outdated(self) -> str:
        return find_outdated_nvml(self.host_root, lambda: self.settings.find_library(self.host_root))

    def problem(self, inventory: Inventory) -> str:
        driver = inventory.driver_of(NAME)
        if driver is None or not self._gives_files:
            return ""
        if driver.files_problem:
            return f"containers with GPUs are refused: {driver.files_problem}"
        return self._unwritten(inventory) if driver.mounts else ""

    def _unwritten(self, inventory: Inventory) -> str:
        """Return a problem if a CDI spec could not be written, so that cards have no CDI name; else empty."""
        specs, _ = self.render_specs(inventory)
        missing = sorted(name for spec in specs for name in spec.names if name not in inventory.cdi_names)
        return f"the CDI spec of {missing[0]} could not be written: containers with GPUs are refused" if missing else ""

    def render_specs(self, inventory: Inventory) -> tuple[Sequence[Spec], Sequence[str]]:
        driver = inventory.driver_of(NAME)
        if not self.settings.writes_specs or driver is None or not driver.mounts:
            return (), ()
        return render_specs(driver, [gpu for gpu in inventory.gpus if gpu.vendor == NAME])

    def inject(self, cards: Sequence[Card], inventory: Inventory, *, cdi_refusal: str) -> Adjustment | Refusal:
        mode, specs = self.settings.gpu_mode, self.settings.cdi_specs
        return inject(cards, inventory, mode=mode, specs=specs, cdi_refusal=cdi_refusal)

    def hide(self, container: Container, *, coexist: bool) -> Adjustment:
        return hide(container, coexist=coexist)

    def supplied_by_kubelet(self, container: Container, *, coexist: bool) -> str:
        return supplied_by_kubelet(container, coexist=coexist)
