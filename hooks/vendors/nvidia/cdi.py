"""Render CDI specs for NVIDIA's cards and MIG instances. Each device of a spec also brings the driver's files.

A runtime runs the hooks of a spec before those of its devices. So a card that must not have a newer libcuda of the image has a
hook of its own, where other cards of the node may have one.

The input is the inventory of NVML, the driver's files and the configured groups. The output is a spec for cards and a spec for
MIG instances. A card in MIG mode is no CDI device itself. A card without a device node has no CDI devices at all.

Source: NVIDIA/nvidia-container-toolkit, pkg/nvcdi, and internal/discover (mount options; /tmp/nvidia-mps is left out, see
docs/operations.md); cncf-tags/container-device-interface, pkg/cdi/cache.go (order of edits).
"""

from collections.abc import Iterator, Sequence
from typing import Final

from hooks.host.cdi_spec import make_spec, nodes_of
from hooks.model.cdi import GPU_KIND, MIG_KIND, CdiDevice, CdiMount, Edits, Spec, full_name
from hooks.model.inventory import Driver, DriverMount, Gpu
from hooks.ports import Card
from hooks.vendors.nvidia.compat import hooks_of_card
from hooks.vendors.nvidia.hide import VISIBLE_DEVICES, VOID

_FILE_OPTIONS: Final = ("ro", "nosuid", "nodev", "rbind", "rprivate")
_SOCKET_OPTIONS: Final = ("nosuid", "nodev", "noexec", "rbind", "rprivate")


def render_specs(driver: Driver, gpus: Sequence[Gpu]) -> tuple[tuple[Spec, ...], tuple[str, ...]]:
    """Return a spec for each kind that has devices, and a problem for each device that is in no spec."""
    edits = _common_edits(driver)
    made = (make_spec(GPU_KIND, edits, _cards(driver, gpus)), make_spec(MIG_KIND, edits, _instances(gpus)))
    return tuple(spec for spec, _ in made if spec), tuple(problem for _, problems in made for problem in problems)


def cdi_name(card: Card) -> str:
    return full_name(MIG_KIND if card.mig else GPU_KIND, card.name)


def _common_edits(driver: Driver) -> Edits:
    env = [f"{VISIBLE_DEVICES}={VOID}"]
    libcuda = f"/libcuda.so.{driver.version}"
    if path := next((mount.container_path for mount in driver.mounts if mount.container_path.endswith(libcuda)), ""):
        env.append(f"NVIDIA_CTK_LIBCUDA_DIR={path.removesuffix(libcuda)}")
    mounts = (*driver.mounts, *driver.group_mounts)
    return Edits(env=tuple(env), device_nodes=nodes_of(driver.control), mounts=tuple(map(_mount, mounts)), hooks=driver.hooks)


def _mount(mount: DriverMount) -> CdiMount:
    options = _SOCKET_OPTIONS if mount.is_socket else _FILE_OPTIONS
    return CdiMount(host_path=mount.host_path, container_path=mount.container_path, options=options)


def _cards(driver: Driver, gpus: Sequence[Gpu]) -> Iterator[CdiDevice]:
    for gpu in gpus:
        if gpu.node and not gpu.mig_enabled:
            edits = Edits(device_nodes=nodes_of((gpu.node, *gpu.drm)), hooks=hooks_of_card(driver.hooks, gpu))
            yield CdiDevice(name=gpu.uuid, container_edits=edits)


def _instances(gpus: Sequence[Gpu]) -> Iterator[CdiDevice]:
    for gpu in gpus:
        for mig in gpu.mig if gpu.node else ():
            if gpu.node and mig.is_made:
                nodes = nodes_of((gpu.node, *mig.nodes))
                yield CdiDevice(name=mig.made_uuid or mig.uuid, container_edits=Edits(device_nodes=nodes))
