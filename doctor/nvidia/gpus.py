"""Check a node's GPUs on its bus, in its kernel and in NVML, and the ways in which containers get GPUs.

Take the readings of `doctor.nvidia.cards`, and of the driver's files and CDI specs. Return verdicts.

Source: NVML API reference (nvmlReturn_t); NVIDIA's driver persistence documentation; docs/reference.md (gpu_mode).

Tests: tests/unit/doctor/nvidia/test_cards.py
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pynvml

from doctor.nvidia.cards import BadNode, CardsReading
from hooks.host.devnodes import Cause
from hooks.model.cdi import GPU_KIND, MIG_KIND, full_name
from hooks.model.inventory import Gpu
from hooks.vendors.nvidia.hide import CDI_KIND
from hooks.vendors.nvidia.inject import GpuMode
from lading.amounts import first_few
from lading.checks.model import Finding, failed, ok, skipped, warning

_NAMED: Final = 8  # maximum cards or device nodes named in one finding
_RELOAD: Final = (
    "on a drained node: end what uses the cards (nvidia-persistenced, DCGM, the driver container); rmmod nvidia_uvm nvidia_drm "
    "nvidia_modeset nvidia; modprobe nvidia; start it again (or reboot the node). lading-hooks then starts itself anew"
)


def decide_driver(reading: CardsReading) -> Iterator[Finding]:
    if not reading.on_bus and not reading.loaded:
        yield ok("this node has no NVIDIA card")
    elif not reading.loaded:
        what = f"NVIDIA's cards are on the bus ({', '.join(reading.on_bus)}), and its kernel module is not loaded"
        yield failed(what, mend="modprobe nvidia; dmesg | grep -i -e nvidia -e NVRM (Secure Boot? nouveau? a kernel upgrade?)")
    elif reading.nvml is None:
        yield failed("NVML does not answer: the driver hangs", mend="dmesg | grep -i xid; drain the node, and reboot it")
    elif reading.nvml.error == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        what = f"the kernel module is {reading.module_version}, the library is of another version: {reading.nvml.why}"
        yield failed(what, mend=_RELOAD)
    elif reading.nvml.error == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        what = f"the kernel module {reading.module_version} is loaded, and libnvidia-ml.so.1 is not found"
        yield failed(what, mend='nvml_library = "/path/to/libnvidia-ml.so.1" in hooks.toml, or install the driver\'s libraries')
    elif reading.nvml.error:
        yield failed(f"NVML: {reading.nvml.why}", mend="nvidia-smi; dmesg | grep -i -e xid -e NVRM")
    elif reading.module_version and reading.module_version != reading.nvml.library_version:
        what = f"the kernel module is {reading.module_version}, the library {reading.nvml.library_version}"
        yield failed(what, mend=_RELOAD)
    else:
        yield ok(f"driver {reading.nvml.library_version}: kernel module and library agree, NVML answers")


def decide_gpus(reading: CardsReading) -> Iterator[Finding]:
    """Check that all cards answer to NVML. Cards with the same problem share one finding. `decide_gpu_nodes` checks their
    device nodes."""
    if (nothing := _without_nvml(reading)) or reading.nvml is None:
        yield nothing or skipped("NVML does not answer")
        return
    unhealthy: dict[str, list[Gpu]] = {}
    for gpu in reading.nvml.gpus:
        if gpu.unhealthy and not _only_its_node(gpu):
            unhealthy.setdefault(gpu.unhealthy, []).append(gpu)
    for reason, gpus in unhealthy.items():
        bdfs = [gpu.bdf for gpu in gpus]
        who = f"GPU {gpus[0].uuid} ({bdfs[0]})" if len(gpus) == 1 else f"{len(gpus)} GPUs ({first_few(bdfs, _NAMED)})"
        yield failed(f"{who}: {reason}", mend=f"nvidia-smi -q -i {','.join(bdfs)}; dmesg | grep -i xid")
    known = {gpu.bdf for gpu in reading.nvml.gpus}
    for bdf in (bdf for bdf in reading.on_bus if bdf not in known):
        what = f"card {bdf} is on the bus, and the driver does not have it"
        yield failed(what, mend=f"ls -l /sys/bus/pci/devices/{bdf}/driver; dmesg | grep {bdf}")
    if not unhealthy:
        yield ok(f"all {len(reading.nvml.gpus)} answer")


def decide_gpu_nodes(reading: CardsReading) -> Iterator[Finding]:
    """Check the device nodes of cards and driver, without NVML. Suggest removal only of nodes with a wrong number or type."""
    if nothing := _no_cards(reading):
        yield nothing
        return
    missing = [node for node in reading.bad_nodes if node.cause in (Cause.MISSING, Cause.NO_DRIVER)]
    wrong = [node for node in reading.bad_nodes if node.cause in (Cause.WRONG_NUMBER, Cause.NOT_A_CHAR_DEVICE)]
    if missing:
        yield failed(_describe(missing), mend=_makes(missing))
    if wrong:
        yield failed(_describe(wrong), mend=f"rm -f {' '.join(node.path for node in wrong)}; {_makes(wrong)}")
    for node in reading.bad_nodes:
        if node not in missing and node not in wrong:
            yield failed(node.why, mend=f"ls -l {node.path}")
    if not reading.bad_nodes:
        without_nvml = "the driver's nodes (which cards there are is not known without NVML)"
        checked = "every card's node and the driver's" if reading.nvml else without_nvml
        yield ok(f"/dev has {checked}, with the kernel's numbers")


def _describe(nodes: Sequence[BadNode]) -> str:
    """Describe device nodes; those with the same problem share one text."""
    by_problem: dict[str, list[str]] = {}
    for node in nodes:
        by_problem.setdefault(node.why.replace(node.path, "{}", 1), []).append(node.path)
    return "; ".join(text.format(first_few(paths, _NAMED)) if "{}" in text else text for text, paths in by_problem.items())


def _makes(nodes: Sequence[BadNode]) -> str:
    cards = sorted({node.card for node in nodes if node.card is not None})
    of_driver = any(node.card is None for node in nodes)
    minors = [0, *cards] if of_driver and 0 not in cards else cards
    command = f"nvidia-modprobe {' '.join(f'-c {minor}' for minor in minors)}{' -u' if of_driver else ''}"
    return f"{command} (package nvidia-modprobe); at each boot: systemctl enable nvidia-persistenced"


def decide_persistence(reading: CardsReading) -> Iterator[Finding]:
    if (nothing := _without_nvml(reading)) or reading.nvml is None:
        yield nothing or skipped("NVML does not answer")
    elif off := reading.nvml.not_persistent:
        what = f"persistence mode is off on {len(off)} of {len(reading.nvml.gpus)} cards"
        yield warning(what, mend="systemctl enable --now nvidia-persistenced (or nvidia-smi -pm 1, until the next boot)")
    else:
        yield ok("no card reports that persistence mode is off")


def _no_cards(reading: CardsReading) -> Finding | None:
    if not reading.on_bus and not reading.loaded:
        return ok("this node has no NVIDIA card")
    return skipped("the driver is not loaded") if not reading.loaded else None


def _without_nvml(reading: CardsReading) -> Finding | None:
    """Return the verdict of a check that needs an NVML session, if opening one failed; else None."""
    if (nothing := _no_cards(reading)) is None and reading.nvml is not None and reading.nvml.error:
        return skipped(f"NVML: {reading.nvml.why}; the check `driver` says how to fix it")
    return nothing


def _only_its_node(gpu: Gpu) -> bool:
    """Return whether the card is unhealthy only because its device node cannot be used."""
    return bool(gpu.unhealthy) and gpu.node is None and gpu.memory_mib > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnSpecs:
    """Hold a reading of the CDI specs that lading-hooks wrote."""

    folder: str
    invalid: tuple[str, ...] = ()  # errors of invalid spec files
    missing: tuple[str, ...] = ()  # host paths that the specs name but that do not exist
    libraries: frozenset[str] = frozenset()  # names of the driver's files in the specs
    hooked: bool = False  # whether the specs let NVIDIA's program update a container's library cache
    hook: str = ""  # path of NVIDIA's program: setting cdi_hook


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectionReading:
    """Hold the way in which containers get their cards, and the files that this way needs."""

    mode: GpuMode
    cards: CardsReading
    driver_root: str = ""
    libraries: int = 0  # number of libraries of the driver's version
    folder: str = ""  # folder of libcuda of this version; empty if there is none
    source: str = ""  # the cache, table or setting that names the folder
    versions: tuple[str, ...] = ()  # version of each libcuda that was found
    spec_dirs: tuple[str, ...] = ()
    cdi_names: frozenset[str] = frozenset()
    own: OwnSpecs | None = None  # CDI specs of lading-hooks; None: it writes none


def decide_driver_files(reading: InjectionReading) -> Iterator[Finding]:
    version = reading.cards.version
    place = f"below driver_root {reading.driver_root}" if reading.driver_root else "on the host"
    if reading.mode is not GpuMode.DEVICES and reading.own is None:
        yield ok(f"not needed with gpu_mode = {reading.mode}")
    elif not version:
        yield _no_cards(reading.cards) or skipped("the driver's version is not known")
    elif not reading.folder and reading.versions:
        what = f"the loaded kernel module is {version}, but libcuda {place} is {', '.join(reading.versions)}"
        yield failed(what, mend=_RELOAD)
    elif not reading.folder:
        what = f"no libcuda.so.{version} {place}, by the loader's cache or in a folder that a system is known to have it in"
        mend = "find / -xdev -name 'libcuda.so.*'; driver_libraries = [\"its folder\"] in hooks.toml; start lading-hooks anew"
        yield failed(what, mend=mend)
    else:
        yield ok(f"{reading.libraries} libraries of driver {version}, from {reading.folder} ({reading.source})")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderCacheReading:
    """Hold how the loader's cache of containers gets the driver's libraries."""

    gives_files: bool  # whether Lading gives the driver's libraries
    by_hook: bool  # whether NRI or a CDI spec of Lading has the runtime run a hook
    program: str = ""  # path of the hook on the host; empty if it was not copied there
    usable: bool = False  # whether the program is there and may be run


def decide_loader_cache(reading: LoaderCacheReading) -> Iterator[Finding]:
    """Check whether a container's `ldconfig -p` lists libcuda.so.1, which Triton and ctypes.util.find_library read."""
    if not reading.gives_files:
        yield ok("not needed: Lading gives containers no driver libraries")
    elif not reading.by_hook:
        yield ok(
            "the loader's cache of containers does not list libcuda.so.1, because CRI has no hooks: gpu_mode = cdi or "
            "front_end = nri has one. Triton finds it by TRITON_LIBCUDA_PATH; ctypes.util.find_library does not, nor a Triton "
            "before 2.2"
        )
    elif not reading.usable:
        what = f"no {reading.program or 'lading-ldcache'} that may be run: containers have no cache that lists libcuda.so.1"
        yield warning(
            what, mend="lading-hooks copy-libraries FOLDER, share_libraries = FOLDER; in a checkout make ldcache-hook"
        )
    else:
        yield ok(f"the runtime runs {reading.program}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadReading:
    mode: GpuMode
    systemd: bool | None  # whether systemd writes the device rules of containers; None: the runtime does not report it


def decide_reload(reading: ReloadReading) -> Iterator[Finding]:
    """Check whether `systemctl daemon-reload` takes cards from containers. systemd then writes the device rules of containers
    again, and knows only the rules of the OCI spec."""
    if reading.mode is not GpuMode.NVIDIA_RUNTIME:
        yield ok(f"with gpu_mode = {reading.mode} the container's specification has its cards")
    elif reading.systemd is None:
        yield skipped("the runtime does not report its cgroup driver")
    elif reading.systemd:
        what = (
            "systemctl daemon-reload takes the cards from running containers where NVIDIA's runtime works in its legacy mode: "
            "nvidia-smi in them then says Unknown Error"
        )
        yield warning(what, mend='gpu_mode = "cdi" or "devices" in hooks.toml; systemctl restart lading-hooks')
    else:
        yield ok("systemd does not write the device rules of containers: the cgroup driver is cgroupfs")


def decide_cdi_specs(reading: InjectionReading) -> Iterator[Finding]:
    if reading.mode is not GpuMode.CDI:
        yield ok(f"not needed with gpu_mode = {reading.mode}")
        return
    if (nothing := _without_nvml(reading.cards)) or reading.cards.nvml is None:
        yield nothing or skipped("NVML does not answer")
        return
    gpus = [gpu for gpu in reading.cards.nvml.gpus if not gpu.mig_enabled]
    instances = [mig.uuid for gpu in reading.cards.nvml.gpus for mig in gpu.mig]
    if reading.own is not None:
        usable = [full_name(GPU_KIND, gpu.uuid) for gpu in gpus if gpu.node]
        yield _decide_own(reading.own, reading, [*usable, *(full_name(MIG_KIND, uuid) for uuid in instances)])
        return
    uuids = [gpu.uuid for gpu in gpus] + instances
    missing = [uuid for uuid in uuids if f"{CDI_KIND}={uuid}" not in reading.cdi_names]
    if missing:
        named = f"{CDI_KIND}={missing[0]}{', …' if len(missing) > 1 else ''}"
        what = f"no CDI spec in {', '.join(reading.spec_dirs)} names {len(missing)} of {len(uuids)} devices by UUID: {named}"
        yield failed(what, mend="nvidia-ctk cdi generate --device-name-strategy=uuid --output=/etc/cdi/nvidia.yaml")
    else:
        yield ok(f"CDI specs name all of {len(uuids)} devices by UUID")


def _decide_own(own: OwnSpecs, reading: InjectionReading, names: Sequence[str]) -> Finding:
    """Check that the CDI specs of lading-hooks match the current devices and driver. lading-hooks writes them at each reading
    of the devices."""
    version, missing = reading.cards.version, [name for name in names if name not in reading.cdi_names]
    if own.invalid:
        what = own.invalid[0]
    elif missing:
        what = f"no CDI spec in {own.folder} names {len(missing)} of {len(names)} devices: {missing[0]}"
    elif own.missing:
        what = f"the CDI specs in {own.folder} have {own.missing[0]}, which is not there: the runtime refuses containers"
    elif names and f"libcuda.so.{version}" not in own.libraries:
        what = f"the CDI specs in {own.folder} are not those of driver {version}"
    elif own.hooked:
        return ok(f"CDI specs name all of {len(names)} devices, with the files of driver {version}")
    else:
        how = "containers get links to libraries as mounts (loader-cache shows what their loader's cache lists)"
        return ok(f"CDI specs name all of {len(names)} devices; there is no {own.hook} to use, so {how}")
    mend = (
        "systemctl status lading-hooks; journalctl -t lading-hooks LADING_EVENT=inventory.changed; is cdi_dir writable for it?"
    )
    return failed(what, mend=mend)
