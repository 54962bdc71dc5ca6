"""Give NVIDIA cards to a container, in the node's injection mode.

`devices`: character devices, and the driver's libraries where a driver root is configured. `cdi`: fully qualified CDI names by
UUID; the runtime does the rest. `nvidia-runtime`: the environment that NVIDIA's runtime reads. In the first two
`NVIDIA_VISIBLE_DEVICES=void` keeps NVIDIA's hook, if it is there too, from adding cards a second time, or all of them.

Refused: a driver without its control nodes or its libraries, a CDI name that the node's specs do not define.
Source: NVIDIA's container toolkit (NVIDIA_VISIBLE_DEVICES, nvidia-ctk cdi), CDI 0.5, CRI ContainerConfig.CDI_devices.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, assert_never

from hooks.model.assignment import Refusal
from hooks.model.container import Adjustment, EnvVar, Mount, devices_of
from hooks.model.inventory import Driver, Inventory
from hooks.ports import Card
from hooks.vendors.nvidia.hide import VOID
from hooks.vendors.nvidia.nvml import NAME
from hooks.vendors.nvidia.supplied import CDI_KIND, VISIBLE_DEVICES
from lading.reasons import Reason

# CUDA does not start without these two; nvidia-uvm-tools is for profilers.
_NEEDED_CONTROL: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm")
_HIDDEN: Final = (EnvVar(VISIBLE_DEVICES, VOID),)


class GpuMode(StrEnum):
    DEVICES = "devices"
    CDI = "cdi"
    NVIDIA_RUNTIME = "nvidia-runtime"


def inject(
    cards: Sequence[Card], inventory: Inventory, *, mode: GpuMode, driver_files: bool, cdi_refusal: str
) -> Adjustment | Refusal:
    """Return the adjustment for these cards. `driver_files`: in mode devices the driver's libraries are to be mounted."""
    match mode:
        case GpuMode.DEVICES:
            return _inject_devices(cards, inventory.driver_of(NAME), driver_files=driver_files)
        case GpuMode.CDI:
            return _inject_cdi(cards, inventory.cdi_names, cdi_refusal)
        case GpuMode.NVIDIA_RUNTIME:
            return Adjustment(env=(EnvVar(VISIBLE_DEVICES, ",".join(card.name for card in cards)),))
        case _:
            assert_never(mode)


def _inject_devices(cards: Sequence[Card], driver: Driver | None, *, driver_files: bool) -> Adjustment | Refusal:
    control = driver.control if driver else ()
    missing = [path for path in _NEEDED_CONTROL if path not in {node.path for node in control}]
    if missing:
        return Refusal(
            reason=Reason.DEVICE_NODE_INVALID,
            message=f"cannot give GPUs: the node has no {' and no '.join(missing)}; nvidia-modprobe -c 0 -u makes them",
        )
    mounts = driver.mounts if driver else ()
    if driver_files and driver and driver.missing:
        return Refusal(
            reason=Reason.DRIVER_FILES_MISSING,
            message=f"cannot give GPUs: {driver.missing[0]} is no longer a file; is the driver being upgraded?",
        )
    if driver_files and not mounts:
        return Refusal(
            reason=Reason.DRIVER_FILES_MISSING,
            message="cannot give GPUs: the node's driver_root has no libraries of the driver that runs; see hooks.toml",
        )
    nodes = [card.node for card in cards]
    nodes += [node for card in cards if card.mig for node in card.mig.nodes]
    nodes += [node for card in cards for node in card.gpu.drm]
    nodes += control
    mounts += driver.group_mounts if driver else ()
    return Adjustment(
        env=_HIDDEN, devices=devices_of(nodes), mounts=tuple(Mount(mount.container_path, mount.host_path) for mount in mounts)
    )


def _inject_cdi(cards: Sequence[Card], defined: frozenset[str], cdi_refusal: str) -> Adjustment | Refusal:
    if cdi_refusal:
        return Refusal(reason=Reason.CDI_UNAVAILABLE, message=f"cannot give GPUs by CDI: {cdi_refusal}")
    names = tuple(f"{CDI_KIND}={card.name}" for card in cards)
    for name in names:
        if name not in defined:
            return Refusal(
                reason=Reason.CDI_UNAVAILABLE,
                message=f"cannot give {name}: no CDI spec of this node defines it; nvidia-ctk cdi generate "
                "--device-name-strategy=uuid --output=/etc/cdi/nvidia.yaml writes one",
            )
    return Adjustment(env=_HIDDEN, cdi_devices=names)
