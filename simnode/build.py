"""Build a simulated node: a profile becomes a folder with the parts of /sys, /proc and /dev that the inventory reads.

Layout and contents are the kernel's: real folders below `sys/devices/pci…` with relative links to them elsewhere, as
sysfs has (Documentation/ABI/testing/sysfs-bus-pci, sysfs-class-infiniband), the NVIDIA driver's procfs, and character devices
made with mknod(2), which needs root; without a driver behind their numbers, opening one that a container may use gives ENXIO.

`python -m simnode.build PROFILE DIR` also compiles the fake NVML into DIR and prints what `lading-hooks` needs to read it.
"""

import argparse
import os
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lading.errors import HostError, LadingError, die
from simnode.nvml import NvmlState, compile_fake_nvml
from simnode.profile import HostBridge, PciNode, PfFunction, Profile, load_profile

_MADE = 16  # numbers of GPU instances on a card
LIBRARIES = "usr/lib/x86_64-linux-gnu"
UMAD_BASE, ISSM_BASE, UVERBS_BASE = 0, 64, 192  # first minors: drivers/infiniband/core/{user_mad,uverbs_main}.c
RDMA_CM_MINOR = 122  # a misc device's minor is dynamic


@dataclass(frozen=True, slots=True, kw_only=True)
class SimNode:
    root: Path
    profile: Profile

    @property
    def nvml_state(self) -> Path:
        """Return the text for FAKE_NVML_STATE."""
        return self.root / "fake-nvml" / "state"

    def pci(self, bdf: str) -> Path:
        """Return the sysfs folder of a PCI function."""
        return (self.root / "sys/bus/pci/devices" / bdf).resolve()


def build(profile: Path | str | dict[str, Any], root: Path, *, char_devices: bool = True) -> SimNode:
    """Write the node into `root`, which must be empty or absent. `char_devices=False` leaves /dev out and needs no root."""
    parsed = load_profile(profile)
    if root.exists() and any(root.iterdir()):
        raise HostError(f"cannot build a simulated node in {root}: it is not empty")
    builder = _Builder(root, parsed, char_devices)
    builder.build()
    node = SimNode(root=root, profile=parsed)
    node.nvml_state.parent.mkdir()
    NvmlState(profile=parsed).write(node.nvml_state)
    return node


INITIAL_PIDS = "pid:[4026531836]"  # the namespace of a process of the host (include/linux/proc_ns.h)


class _Builder:
    def __init__(self, root: Path, profile: Profile, char_devices: bool) -> None:
        self._root = root
        self._profile = profile
        self._char_devices = char_devices
        self._rdma_devices = 0  # numbers uverbs and umad in order of appearance, which is not the order of mlx5 numbers

    def build(self) -> None:
        for folder in ("dev", "proc", "run", "sys/bus/pci/devices", "sys/class/infiniband"):
            (self._root / folder).mkdir(parents=True)
        for bridge in self._profile.host_bridges:
            self._numa_node(bridge)
            self._pci_nodes(bridge, self._root / f"sys/devices/pci{bridge.bus}", bridge.below)
        drivers = ["misc"]
        if self._profile.pfs:
            self._node("dev/infiniband/rdma_cm", "misc", RDMA_CM_MINOR)
            self._text("sys/class/misc/rdma_cm/dev", f"{self._profile.major('misc')}:{RDMA_CM_MINOR}")
            drivers.append("infiniband")
        if self._profile.driver:
            self._nvidia(self._profile.driver.version)
            drivers += ["nvidia", "nvidia-uvm", "nvidia-caps"]
        names = {"infiniband": "infiniband_verbs"}
        listed = sorted((self._profile.major(driver), names.get(driver, driver)) for driver in drivers)
        lines = "".join(f"{major:3d} {driver}\n" for major, driver in listed)
        self._text("proc/sys/kernel/random/boot_id", Path("/proc/sys/kernel/random/boot_id").read_text())
        namespaces = self._root / "proc/self/ns"
        self._text(f"proc/self/ns/{INITIAL_PIDS}", "")
        self._link(namespaces / "pid", namespaces / INITIAL_PIDS)
        self._text("proc/devices", f"Character devices:\n{lines}\nBlock devices:\n259 blkext")

    def _numa_node(self, bridge: HostBridge) -> None:
        """Write one CPU for the NUMA node, in the bridge's socket: enough to distinguish sockets."""
        if bridge.numa >= 0:
            self._text(f"sys/devices/system/node/node{bridge.numa}/cpulist", str(bridge.numa))
            self._text(f"sys/devices/system/cpu/cpu{bridge.numa}/topology/physical_package_id", str(bridge.socket))

    def _pci_nodes(self, bridge: HostBridge, parent: Path, nodes: tuple[PciNode, ...]) -> None:
        for node in nodes:
            folder = parent / node.bdf
            if node.gpu:
                self._function(folder, bridge, vendor="0x10de", pci_class="0x030200", driver="nvidia")
            elif node.pf:
                self._pf(folder, bridge, node.pf)
            else:
                self._function(folder, bridge, vendor="0x1000", pci_class="0x060400", driver="pcieport")
                self._pci_nodes(bridge, folder, node.below)

    def _function(self, folder: Path, bridge: HostBridge, *, vendor: str, pci_class: str, driver: str) -> None:
        self._text(folder / "vendor", vendor)
        self._text(folder / "class", pci_class)
        self._text(folder / "numa_node", str(bridge.numa))
        self._link(self._root / "sys/bus/pci/devices" / folder.name, folder)
        if driver:
            target = self._root / "sys/bus/pci/drivers" / driver
            target.mkdir(parents=True, exist_ok=True)
            self._link(folder / "driver", target)

    def _pf(self, folder: Path, bridge: HostBridge, pf: PfFunction) -> None:
        pci_class = "0x020700" if pf.link_layer == "InfiniBand" else "0x020000"
        self._function(folder, bridge, vendor="0x15b3", pci_class=pci_class, driver="mlx5_core")
        self._text(folder / "sriov_numvfs", str(len(pf.vfs)))
        self._text(folder / "sriov_totalvfs", str(pf.total_vfs))
        self._rdma_device(folder, pf.ibdev, pf.netdev, pf.link_layer)
        self._text(folder / "net" / pf.netdev / "ifindex", "2")
        for index, vf in enumerate(pf.vfs):
            beside = folder.parent / vf.bdf
            self._function(beside, bridge, vendor="0x15b3", pci_class=pci_class, driver=vf.driver)
            self._link(beside / "physfn", folder)
            self._link(folder / f"virtfn{index}", beside)
            if vf.netdev:
                self._text(beside / "net" / vf.netdev / "ifindex", "2")
            for ibdev in vf.ibdevs:
                self._rdma_device(beside, ibdev, vf.netdev, pf.link_layer)

    def _rdma_device(self, function: Path, ibdev: str, netdev: str, link_layer: str) -> None:
        number = self._rdma_devices
        self._rdma_devices += 1
        folder = function / "infiniband" / ibdev
        guid = f"0c42:a103:00{function.name[5:7]}:00{function.name[-1]}0"
        port = folder / "ports/1"
        self._text(folder / "node_guid", guid)
        self._text(port / "link_layer", link_layer)
        self._text(port / "state", "4: ACTIVE")
        self._text(port / "gids/0", f"fe80:0000:0000:0000:{guid}")
        self._text(port / "gids/1", "0000:0000:0000:0000:0000:0000:0000:0000")
        self._text(port / "gid_attrs/types/0", "IB/RoCE v1")
        self._text(port / "gid_attrs/ndevs/0", netdev)
        self._link(self._root / "sys/class/infiniband" / ibdev, folder)
        for kind, name, base in (
            ("infiniband_verbs", f"uverbs{number}", UVERBS_BASE),
            ("infiniband_mad", f"umad{number}", UMAD_BASE),
            ("infiniband_mad", f"issm{number}", ISSM_BASE),
        ):
            node = function / kind / name
            self._text(node / "dev", f"{self._profile.major('infiniband')}:{base + number}")
            self._text(node / "ibdev", ibdev)
            if kind == "infiniband_mad":
                self._text(node / "port", "1")
            self._link(self._root / "sys/class" / kind / name, node)
            self._node(f"dev/infiniband/{name}", "infiniband", base + number)

    def _nvidia(self, version: str) -> None:
        self._text("proc/driver/nvidia/version", f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}")
        self._node("dev/nvidiactl", "nvidia", 255)
        self._node("dev/nvidia-uvm", "nvidia-uvm", 0)
        self._node("dev/nvidia-uvm-tools", "nvidia-uvm", 1)
        minors = ["config 1", "monitor 2"]
        for bdf, gpu in self._profile.gpus:
            self._node(f"dev/nvidia{gpu.minor}", "nvidia", gpu.minor)
            # nv-procfs.c prints the file like this.
            described = (
                f"Model: \t\t {gpu.model}\nGPU UUID: \t {gpu.uuid}\nBus Location: \t {bdf}\nDevice Minor: \t {gpu.minor}"
            )
            self._text(f"proc/driver/nvidia/gpus/{bdf}/information", f"{described}\nGPU Excluded:\t No")
            for mig in gpu.mig or ():
                names = (f"gpu{gpu.minor}/gi{mig.gi}/access", f"gpu{gpu.minor}/gi{mig.gi}/ci{mig.ci}/access")
                for name, minor in zip(names, mig.cap_minors, strict=True):
                    minors.append(f"{name} {minor}")
                    self._node(f"dev/nvidia-caps/nvidia-cap{minor}", "nvidia-caps", minor)
            if gpu.mig == ():
                minors += _possible_minors(gpu.minor)
        self._text("proc/driver/nvidia-caps/mig-minors", "\n".join(minors))
        for library in ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler"):
            self._text(f"{LIBRARIES}/{library}.so.{version}", f"simulated {library}")
            self._link(self._root / f"{LIBRARIES}/{library}.so.1", self._root / f"{LIBRARIES}/{library}.so.{version}")
        self._text("usr/bin/nvidia-smi", "#!/bin/sh\necho simulated nvidia-smi")
        (self._root / "usr/bin/nvidia-smi").chmod(0o755)

    def _text(self, path: Path | str, content: str) -> None:
        path = self._root / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")

    def _link(self, link: Path, target: Path) -> None:
        """Make a relative link, as in sysfs: an absolute one would leave the node's folder."""
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(target, link.parent))

    def _node(self, path: str, driver: str, minor: int) -> None:
        if not self._char_devices:
            return
        node = self._root / path
        node.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.mknod(node, stat.S_IFCHR | 0o600, os.makedev(self._profile.major(driver), minor))
        except PermissionError as e:
            raise HostError(f"cannot make device node {node}: {e.strerror}", hint="this needs root") from e
        node.chmod(0o666)  # the mode that udev's rules set, independent of the umask


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="simnode.build", description="Build a simulated node.")
    parser.add_argument("profile", help="a profile's file, or the name of one in simnode/profiles")
    parser.add_argument("root", type=Path, help="an empty or absent folder")
    args = parser.parse_args(argv)
    try:
        node = build(args.profile, args.root.absolute())
        library = compile_fake_nvml(node.nvml_state.parent)
    except LadingError as e:
        die(e)
    print(f"FAKE_NVML_STATE={node.nvml_state}\nFAKE_NVML_LIBRARY={library}\nHOST_ROOT={node.root}", file=sys.stdout)


if __name__ == "__main__":
    main()


def _possible_minors(card: int) -> list[str]:
    """Return lines of mig-minors for the instances that a card could have; a node for one is made with it."""
    names = [name for gi in range(1, _MADE) for name in (f"gpu{card}/gi{gi}/access", f"gpu{card}/gi{gi}/ci0/access")]
    return [f"{name} {3 + 2 * _MADE * card + number}" for number, name in enumerate(names)]
