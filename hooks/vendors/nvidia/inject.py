"""GPUs that a container holds → what has to be added to it, by the node's injection mode.

`devices`: character devices, and the driver's libraries where a driver root is configured. `cdi`: fully qualified CDI names by
UUID; the runtime does the rest. `nvidia-runtime`: the environment that NVIDIA's runtime reads. In the first two
`NVIDIA_VISIBLE_DEVICES=void` keeps NVIDIA's hook, if it is there too, from adding cards a second time, or all of them.

A card is in the grant by UUID; minor and nodes are looked up in the inventory at this moment. Refused: a card that is gone or
not healthy any more, a driver without its control nodes, a CDI name that the node's specs do not define.
Source: NVIDIA's container toolkit (NVIDIA_VISIBLE_DEVICES, nvidia-ctk cdi), CDI 0.5, CRI ContainerConfig.CDI_devices.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, assert_never

from hooks.model.assignment import Devices, GrantedGpu, Refusal
from hooks.model.inventory import CharDevice, Driver, Gpu, Inventory, MigInstance
from lading.reasons import Reason
from protos.hook.v1 import hook_pb2

VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
VOID: Final = "void"
CDI_KIND: Final = "nvidia.com/gpu"

# Information for the program in the container; nothing enforces them. One entry a device, in the order of the devices.
SHARE_MEMORY: Final = "LADING_GPU_MEMORY_MIB"
SHARE_CORE: Final = "LADING_GPU_CORE_PERCENT"
TOTAL_MEMORY: Final = "LADING_GPU_TOTAL_MEMORY_MIB"  # what CUDA calls the device's memory: without the driver's own part

# CUDA does not start without these two; nvidia-uvm-tools is for profilers.
_NEEDED_CONTROL: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm")


class GpuMode(StrEnum):
    DEVICES = "devices"
    CDI = "cdi"
    NVIDIA_RUNTIME = "nvidia-runtime"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInjection:
    mode: GpuMode
    driver_files: bool = False  # devices mode: the driver's libraries are to be mounted
    cdi_refusal: str = ""  # cdi mode: why the runtime does not honour CDI names, or empty


def adjust_gpus(devices: Devices, inventory: Inventory, injection: GpuInjection) -> hook_pb2.Adjustment | Refusal:
    """Return the adjustment for these GPUs; empty if there are none."""
    if not devices.gpus:
        return hook_pb2.Adjustment()
    cards = _find_cards(devices.gpus, inventory)
    if isinstance(cards, Refusal):
        return cards
    match injection.mode:
        case GpuMode.DEVICES:
            adjustment = _adjust_by_devices(cards, inventory.driver, injection)
        case GpuMode.CDI:
            adjustment = _adjust_by_cdi(cards, inventory.cdi_names, injection)
        case GpuMode.NVIDIA_RUNTIME:
            adjustment = hook_pb2.Adjustment(env=[_env(VISIBLE_DEVICES, ",".join(card.name for card in cards))])
        case _:
            assert_never(injection.mode)
    if isinstance(adjustment, hook_pb2.Adjustment):
        adjustment.env.extend(_share_env(cards))
    return adjustment


@dataclass(frozen=True, slots=True, kw_only=True)
class _Card:
    granted: GrantedGpu
    gpu: Gpu
    node: CharDevice
    mig: MigInstance | None

    @property
    def name(self) -> str:
        return self.granted.mig_uuid or self.granted.uuid


def _find_cards(granted: Iterable[GrantedGpu], inventory: Inventory) -> list[_Card] | Refusal:
    by_uuid = {gpu.uuid: gpu for gpu in inventory.gpus}
    cards = []
    for one in granted:
        gpu = by_uuid.get(one.uuid)
        if gpu is None:
            return _gone(one.uuid)
        if gpu.unhealthy or gpu.node is None:
            why = gpu.unhealthy or "it has no device node"
            return Refusal(
                reason=Reason.DEVICE_UNHEALTHY,
                message=f"cannot give GPU {gpu.index} ({gpu.uuid}): it is not healthy: {why}",
            )
        mig = next((instance for instance in gpu.mig if instance.uuid == one.mig_uuid), None)
        if one.mig_uuid and mig is None:
            return _gone(one.mig_uuid)
        cards.append(_Card(granted=one, gpu=gpu, node=gpu.node, mig=mig))
    return cards


def _gone(name: str) -> Refusal:
    return Refusal(
        reason=Reason.DEVICE_UNKNOWN,
        message=f"cannot give {name}: this container was granted it, and the node does not have it any more; recreate the pod",
    )


def _adjust_by_devices(cards: list[_Card], driver: Driver | None, injection: GpuInjection) -> hook_pb2.Adjustment | Refusal:
    control = driver.control if driver else ()
    missing = [path for path in _NEEDED_CONTROL if path not in {node.path for node in control}]
    if missing:
        return Refusal(
            reason=Reason.DEVICE_NODE_INVALID,
            message=f"cannot give GPUs: the node has no {' and no '.join(missing)}; nvidia-modprobe -c 0 -u makes them",
        )
    mounts = driver.mounts if driver else ()
    if injection.driver_files and driver and driver.missing:
        return Refusal(
            reason=Reason.DRIVER_FILES_MISSING,
            message=f"cannot give GPUs: {driver.missing[0]} is no longer a file; is the driver being upgraded?",
        )
    if injection.driver_files and not mounts:
        return Refusal(
            reason=Reason.DRIVER_FILES_MISSING,
            message="cannot give GPUs: the node's driver_root has no libraries of the driver that runs; see hooks.toml",
        )
    nodes = [card.node for card in cards]
    nodes += [node for card in cards if card.mig for node in card.mig.nodes]
    nodes += [node for card in cards for node in card.gpu.drm]
    nodes += control
    mounts += driver.group_mounts if driver else ()
    return hook_pb2.Adjustment(
        env=[_env(VISIBLE_DEVICES, VOID)],
        devices=devices_of(nodes),
        mounts=[hook_pb2.Mount(container_path=m.container_path, host_path=m.host_path, readonly=True) for m in mounts],
    )


def _adjust_by_cdi(cards: list[_Card], defined: frozenset[str], injection: GpuInjection) -> hook_pb2.Adjustment | Refusal:
    if injection.cdi_refusal:
        return Refusal(reason=Reason.CDI_UNAVAILABLE, message=f"cannot give GPUs by CDI: {injection.cdi_refusal}")
    names = [f"{CDI_KIND}={card.name}" for card in cards]
    for name in names:
        if name not in defined:
            return Refusal(
                reason=Reason.CDI_UNAVAILABLE,
                message=f"cannot give {name}: no CDI spec of this node defines it; nvidia-ctk cdi generate "
                "--device-name-strategy=uuid --output=/etc/cdi/nvidia.yaml writes one",
            )
    return hook_pb2.Adjustment(env=[_env(VISIBLE_DEVICES, VOID)], cdi_devices=names)


def _share_env(cards: list[_Card]) -> list[hook_pb2.EnvUpsert]:
    """Return nothing unless a device is a share; then an amount for every device, so that the n-th entry is the n-th
    device's."""
    if not any(card.granted.memory_mib or card.granted.core_percent for card in cards):
        return []
    total = [card.mig.memory_mib if card.mig else card.gpu.usable_mib for card in cards]
    memory = [card.granted.memory_mib or all_of_it for card, all_of_it in zip(cards, total, strict=True)]
    core = [card.granted.core_percent or 100 for card in cards]
    amounts = {SHARE_MEMORY: memory, SHARE_CORE: core, TOTAL_MEMORY: total}
    return [_env(name, ",".join(map(str, values))) for name, values in amounts.items()]


def devices_of(nodes: Iterable[CharDevice]) -> list[hook_pb2.Device]:
    """Return each node once, for read and write: `m` (mknod) would let a container make nodes for other devices."""
    unique = {node.path: node for node in nodes}
    return [hook_pb2.Device(container_path=n.path, host_path=n.host_path, permissions="rw") for n in unique.values()]


def _env(name: str, value: str) -> hook_pb2.EnvUpsert:
    return hook_pb2.EnvUpsert(name=name, value=value)
