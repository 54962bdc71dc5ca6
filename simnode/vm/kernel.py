"""Build the kernel's files of a guest: Debian's own kernel, an initrd that finds the disk, and two modules.

`nvidia` makes cards of QEMU's functions. `rdma_rxe` is Debian's with three changes, so that its devices are like a NIC's. The
parent of a device is the PCI function. A device stays when its network device moves to another network namespace. A device that
programs use can move in exclusive mode (`disassociate_ucontext`).
Source: kbuild/modules of the kernel's documentation, initramfs-tools(7).
"""

import shutil
from pathlib import Path
from typing import Final

from simnode.vm.layers import cached, chroot, layer

_SOURCES: Final = Path(__file__).parent / "kernel"
_INITRAMFS: Final = Path(__file__).parent / "root/etc/initramfs-tools"


def make_kernel(root: Path, cache: Path) -> Path:
    """Return the folder with vmlinuz, initrd.img and modules for the kernel of a root file system."""
    sources = [_SOURCES, _INITRAMFS, Path(__file__)]
    return cached(cache, f"kernel-{root.name}", sources, lambda out: _build(root, out))


def _build(root: Path, out: Path) -> None:
    """Write the kernel, its initrd and the two modules."""
    with layer(root, out) as tree:
        shutil.copytree(_INITRAMFS, tree / "etc/initramfs-tools", dirs_exist_ok=True)
        (release,) = (path.name for path in (tree / "lib/modules").iterdir())
        version = ".".join(release.split(".")[:2])
        build = tree / "build"
        shutil.copytree(_SOURCES, build)
        script = f"""set -e
cd /build
tar -xf /usr/src/linux-source-*.tar.xz --wildcards --strip-components=4 '*/drivers/infiniband/sw/rxe'
patch -d rxe -p1 --fuzz=0 <rdma_rxe-{version}.patch
sed -i 's/obj-$(CONFIG_RDMA_RXE)/obj-m/' rxe/Makefile
mkdir nvidia && mv nvidia.c nvidia && echo 'obj-m := nvidia.o' >nvidia/Makefile
for module in nvidia rxe; do make -s -j"$(nproc)" -C /lib/modules/{release}/build "M=/build/$module" modules; done
strip -g nvidia/nvidia.ko rxe/rdma_rxe.ko
update-initramfs -c -k {release}
"""
        chroot(tree, f"compiling the modules of Linux {release}", "sh", "-c", script)
        for module in (build / "nvidia/nvidia.ko", build / "rxe/rdma_rxe.ko"):
            shutil.copy(module, out)
        shutil.copy(tree / f"boot/vmlinuz-{release}", out / "vmlinuz")
        shutil.copy(tree / f"boot/initrd.img-{release}", out / "initrd.img")
