"""Write device-info files, which describe VFs to other programs if the cluster's own CNI moves VFs into pods.

Each VF of the node with an RDMA device has one file, named by resource and PCI address. The file exists from the first reading
of the VF until the VF is removed or the daemon stops. There are no files per grant: CNI runs in RunPodSandbox, before any
container is created, so a grant's file would come too late. No content of the file depends on the VF's holder. Files of another
resource (a device plugin's) are left alone. Each file is written whole or not at all; a correct file is not written again.

Source: Device Information Specification 1.1.0 of the Network Plumbing Working Group, §3 (form) and §4.1 (name, owner).
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from hooks.model.inventory import Inventory, Vf
from lading.devices.identity import PCI_SHAPE, is_ibdev
from lading.errors import HostError
from lading.files import replace_file
from lading.log import Event, Log
from lading.vocabulary import PciAddress

SPEC_VERSION: Final = "1.1.0"
# The specification says /var/run, a link to /run: below another root, the link would lead out of that root.
FOLDER: Final = Path("run/k8s.cni.cncf.io/devinfo/dp")

# A resource is domain/name, as in a NetworkAttachmentDefinition's annotation k8s.v1.cni.cncf.io/resourceName.
_RESOURCE: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_MAX_RESOURCE: Final = 200  # maximum characters; the whole file name must fit into 255 octets
_SUFFIX: Final = "-device.json"


class _Pci(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", omit_defaults=True):
    pci_address: str
    rdma_device: str = ""
    pf_pci_address: str


class _DeviceInfo(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    version: str
    pci: _Pci


def resource_problem(resource: str) -> str:
    """Return why no file can be named after this resource; empty if one can."""
    if len(resource) > _MAX_RESOURCE:
        return f"is longer than {_MAX_RESOURCE} characters"
    return "" if _RESOURCE.fullmatch(resource) else "is no resource name as lading.dev/rdma"


def file_name(resource: str, device: PciAddress) -> str:
    """Return the file's name: `lading.dev/rdma`, `0000:3b:00.2` → `lading.dev-rdma-0000:3b:00.2-device.json`."""
    return f"{resource.replace('/', '-')}-{device}{_SUFFIX}"


def render_device_info(vf: Vf) -> bytes:
    pci = _Pci(pci_address=vf.bdf, rdma_device=vf.ibdev, pf_pci_address=vf.pf)
    return msgspec.json.encode(_DeviceInfo(type="pci", version=SPEC_VERSION, pci=pci))


def decide_files(inventory: Inventory, resource: str) -> dict[str, bytes]:
    """Return the files' contents by name. A VF without an RDMA device (for example bound to vfio-pci) has no file. A VF has no
    file either if JSON cannot hold its RDMA device's name: the kernel takes any bytes."""
    return {file_name(resource, vf.bdf): render_device_info(vf) for vf in inventory.vfs if is_ibdev(vf.ibdev)}


class DeviceInfoFiles:
    """Keep the device-info files of one resource. Each method blocks, and raises HostError."""

    def __init__(self, host_root: Path, resource: str) -> None:
        self._folder = host_root / FOLDER
        self._resource = resource
        self._ours = re.compile(f"{re.escape(resource.replace('/', '-'))}-{PCI_SHAPE}{re.escape(_SUFFIX)}")

    def write(self, inventory: Inventory) -> None:
        """Write a file for each VF of the inventory, and remove all other files of this resource. May be called again."""
        wanted = decide_files(inventory, self._resource)
        try:
            if wanted:
                self._make_folder()
            self._remove(keep=wanted)
            for name, content in wanted.items():
                self._write(name, content)
        except OSError as e:
            raise HostError(f"cannot write device-info files to {self._folder}: {e.strerror or e}") from e

    def clear(self) -> None:
        try:
            self._remove(keep={})
        except OSError as e:
            raise HostError(f"cannot remove device-info files from {self._folder}: {e.strerror or e}") from e

    def _make_folder(self) -> None:
        """Make the folder readable by everyone, whatever this process's umask is. A folder that others made stays as it is."""
        missing = [folder for folder in (self._folder, *self._folder.parents) if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o755)

    def _remove(self, *, keep: Mapping[str, bytes]) -> None:
        if not self._folder.is_dir():
            return
        for path in self._folder.iterdir():
            if self._ours.fullmatch(path.name) and path.name not in keep:
                path.unlink(missing_ok=True)

    def _write(self, name: str, content: bytes) -> None:
        path = self._folder / name
        if not (path.is_file() and path.read_bytes() == content):
            replace_file(path, content, mode=0o444)


async def keep_device_info(
    files: DeviceInfoFiles, current: Callable[[], Inventory | None], *, interval_s: float, log: Log
) -> None:
    """Keep the files current until cancelled: restore a file that another process removed. Remove all files at the end, as the
    specification requires. Log a failure once, until its message changes."""
    text = ""
    try:
        while True:
            if (inventory := current()) is not None:
                try:
                    files.write(inventory)  # needs no thread: a few small files in memory
                    text = ""
                except HostError as e:
                    if str(e) != text:
                        log.error(Event.DEVICE_INFO_FAILED, str(e))
                    text = str(e)
            await asyncio.sleep(interval_s)
    finally:
        try:
            files.clear()
        except HostError as e:
            log.error(Event.DEVICE_INFO_FAILED, str(e))
