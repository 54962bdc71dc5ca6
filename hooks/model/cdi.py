"""Define a CDI specification, as far as Lading writes one. The fields have the names of the format, in camel case.

Source: cncf-tags/container-device-interface, SPEC.md and specs-go/config.go.

Tests: tests/unit/hooks/host/test_cdi_spec.py
"""

from typing import Final

import msgspec

GPU_KIND: Final = "lading.dev/gpu"
MIG_KIND: Final = "lading.dev/mig"
VF_KIND: Final = "lading.dev/vf"
KINDS: Final = (GPU_KIND, MIG_KIND, VF_KIND)  # each has a file of its own


class DeviceNode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    path: str
    host_path: str
    permissions: str


class CdiMount(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    host_path: str
    container_path: str
    options: tuple[str, ...]


class Hook(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    hook_name: str
    path: str
    args: tuple[str, ...]
    env: tuple[str, ...]  # without it a hook has the container's environment, and its LD_PRELOAD


class Edits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel"):
    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[CdiMount, ...] = ()
    hooks: tuple[Hook, ...] = ()


class CdiDevice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    name: str
    container_edits: Edits


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    cdi_version: str
    kind: str
    container_edits: Edits  # edits for a container with any of the devices, applied once
    devices: tuple[CdiDevice, ...]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(full_name(self.kind, device.name) for device in self.devices)


def full_name(kind: str, name: str) -> str:
    """Return the name by which a runtime is asked for a device."""
    return f"{kind}={name}"
