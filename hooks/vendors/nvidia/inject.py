"""Give NVIDIA cards to a container, in the node's injection mode.

`devices`: character devices, and the driver's files. `cdi`: fully qualified CDI names by
UUID, which the runtime resolves by Lading's or nvidia-ctk's specs. `nvidia-runtime`: the environment variable that NVIDIA's
runtime reads. In the first two modes, `NVIDIA_VISIBLE_DEVICES=void` keeps NVIDIA's hook, if installed, from adding cards a
second time, or all cards.

Refused are a driver without its control nodes or its libraries, and a CDI name that the node's specs do not define.
Source: NVIDIA's container toolkit (NVIDIA_VISIBLE_DEVICES, nvidia-ctk cdi), CDI 0.5, CRI ContainerConfig.CDI_devices.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, assert_never

from hooks.model.assignment import Refusal
from hooks.model.container import Adjustment, EnvVar, Mount, devices_of
from hooks.model.inventory import Driver, DriverMount, Inventory
from hooks.ports import Card
from hooks.vendors.nvidia.cdi import cdi_name
from hooks.vendors.nvidia.compat import choose_hooks
from hooks.vendors.nvidia.driver import CUDA_SONAME
from hooks.vendors.nvidia.hide import CDI_KIND, VISIBLE_DEVICES, VOID
from hooks.vendors.nvidia.nvml import NAME
from lading.reasons import Reason

# CUDA does not start without these two; nvidia-uvm-tools is for profilers.
_NEEDED_CONTROL: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm")
_HIDDEN: Final = (EnvVar(VISIBLE_DEVICES, VOID),)
_TRITON: Final = "TRITON_LIBCUDA_PATH"  # triton-lang/triton, third_party/nvidia/backend/driver.py (libcuda_dirs)


class GpuMode(StrEnum):
    DEVICES = "devices"
    CDI = "cdi"
    NVIDIA_RUNTIME = "nvidia-runtime"


class SpecsBy(StrEnum):
    """Name the writer of the CDI specs of the node's cards."""

    LADING = "lading"
    NVIDIA_CTK = "nvidia-ctk"


def inject(
    cards: Sequence[Card], inventory: Inventory, *, mode: GpuMode, specs: SpecsBy, cdi_refusal: str
) -> Adjustment | Refusal:
    """Return the adjustment for these cards, or a refusal."""
    driver = inventory.driver_of(NAME)
    match mode:
        case GpuMode.DEVICES:
            return _check_driver(driver) or _inject_devices(cards, driver)
        case GpuMode.CDI if cdi_refusal:
            return Refusal(reason=Reason.CDI_UNAVAILABLE, message=f"cannot give GPUs by CDI: {cdi_refusal}")
        case GpuMode.CDI if specs is SpecsBy.LADING:
            return _check_driver(driver) or _inject_own(cards, inventory.cdi_names)
        case GpuMode.CDI:
            return _inject_cdi(cards, inventory.cdi_names)
        case GpuMode.NVIDIA_RUNTIME:
            return Adjustment(env=(EnvVar(VISIBLE_DEVICES, ",".join(card.name for card in cards)),))
        case _:
            assert_never(mode)


def _check_driver(driver: Driver | None) -> Refusal | None:
    """Return a refusal that names the missing part of the driver; None if the driver is complete."""
    control = driver.control if driver else ()
    missing = [path for path in _NEEDED_CONTROL if path not in {node.path for node in control}]
    if missing:
        return Refusal(
            reason=Reason.DEVICE_NODE_INVALID,
            message=f"cannot give GPUs: the node has no {' and no '.join(missing)}; nvidia-modprobe -c 0 -u makes them",
        )
    if driver and driver.missing:
        return Refusal(
            reason=Reason.DRIVER_FILES_MISSING,
            message=f"cannot give GPUs: {driver.missing[0]} is no longer a file; is the driver being upgraded?",
        )
    if driver and driver.files_problem:
        return Refusal(reason=Reason.DRIVER_FILES_MISSING, message=f"cannot give GPUs: {driver.files_problem}")
    return None


def _inject_devices(cards: Sequence[Card], driver: Driver | None) -> Adjustment:
    nodes = [card.node for card in cards]
    nodes += [node for card in cards if card.mig for node in card.mig.nodes]
    nodes += [node for card in cards for node in card.gpu.drm]
    nodes += driver.control if driver else ()
    mounts = (*driver.mounts, *driver.group_mounts) if driver else ()
    hooks = choose_hooks(driver.hooks, [card.gpu for card in cards]) if driver else ()
    return Adjustment(
        env=_HIDDEN if hooks else (*_HIDDEN, *_without_cache(mounts)),
        devices=devices_of(nodes),
        mounts=tuple(Mount(mount.container_path, mount.host_path) for mount in mounts),
        hooks=hooks,
    )


def _without_cache(mounts: Sequence[DriverMount]) -> tuple[EnvVar, ...]:
    """Return the environment of a container whose loader's cache does not list libcuda. It names the folder to Triton, which
    otherwise asks that cache."""
    paths = (mount.container_path for mount in mounts)
    folder = next((path.removesuffix(f"/{CUDA_SONAME}") for path in paths if path.endswith(f"/{CUDA_SONAME}")), "")
    return (EnvVar(_TRITON, folder),) if folder else ()


def _inject_own(cards: Sequence[Card], defined: frozenset[str]) -> Adjustment | Refusal:
    names = tuple(map(cdi_name, cards))
    if missing := [name for name in names if name not in defined]:
        return Refusal(
            reason=Reason.CDI_UNAVAILABLE,
            message=f"cannot give {missing[0]}: lading-hooks could not write a CDI spec that defines it; its journal says why "
            "(inventory.changed)",
        )
    return Adjustment(env=_HIDDEN, cdi_devices=names)


def _inject_cdi(cards: Sequence[Card], defined: frozenset[str]) -> Adjustment | Refusal:
    names = tuple(f"{CDI_KIND}={card.name}" for card in cards)
    for name in names:
        if name not in defined:
            return Refusal(
                reason=Reason.CDI_UNAVAILABLE,
                message=f"cannot give {name}: no CDI spec of this node defines it; nvidia-ctk cdi generate "
                "--device-name-strategy=uuid --output=/etc/cdi/nvidia.yaml writes one",
            )
    return Adjustment(env=_HIDDEN, cdi_devices=names)
