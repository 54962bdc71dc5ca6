"""Build the disk of a guest from Debian packages and this checkout: `python -m simnode.vm.image [SYSTEM]`.

A root file system of the suite (simnode.debian) is the lower layer of an overlay, in which the kernel modules are compiled and
Lading is installed by its own installer, all in chroot(8), because a guest without KVM is ten times slower. Results are in the
cache, under names made of the hash of what they are made of; a second call, also without a network, finds them. It needs root.
Source: mke2fs(8) `-d`.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lading.errors import HostError, LadingError, die
from simnode import leftovers, wheels
from simnode.containerd import Binaries, find_unpacked
from simnode.cuda import SOURCES as CUDA_SOURCES
from simnode.cuda import compile_fake_cuda
from simnode.debian import make_root
from simnode.images import build_images, default_cache
from simnode.install import Unavailable, newer_containerd
from simnode.nvml import SOURCE as NVML_SOURCE
from simnode.nvml import compile_fake_nvml
from simnode.vm.hardware import DRIVER_VERSION
from simnode.vm.kernel import make_kernel
from simnode.vm.layers import cached, chroot, layer, remove_older, run
from simnode.vm.systems import SYSTEMS, System, find_system

NODE: Final = "vnode"
CHECKOUT: Final = Path(__file__).parents[2]
_HERE: Final = Path(__file__).parent
_FILES, _SETTINGS = _HERE / "root", _HERE / "hooks.toml"
_LIBRARIES: Final = Path("usr/lib/x86_64-linux-gnu")
_DISK: Final = "8G"  # sparse: a new disk takes some 2 GB
_MASKED: Final = (
    *("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer", "fstrim.timer"),
    *("iwpmd.service", "srp_daemon.service", "systemd-networkd-wait-online.service"),
)
_RDMA_NAMES: Final = "etc/udev/rules.d/60-rdma-persistent-naming.rules"  # would rename what the profile names


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """Represent what QEMU boots. `key`: the private key of root's ssh."""

    system: System
    kernel: Path
    initrd: Path
    disk: Path
    key: Path


def build_image(system: System, cache: Path | None = None) -> Image:
    """Return the image of this checkout on that system; build what the cache lacks. Several processes may call it at once."""
    folder = (cache or default_cache()) / "vm"
    folder.mkdir(parents=True, exist_ok=True)
    key = _make_key(folder)
    root = make_root(system.suite, system.packages)
    with tempfile.TemporaryDirectory(prefix="lading-vm-") as temporary:
        wheel = _build_wheel(Path(temporary))
        binaries = _find_containerd(system)
        kernel = make_kernel(root, folder)
        packages = cached(
            folder,
            f"wheels-{system.suite}",
            [CHECKOUT / "requirements.txt"],
            lambda out: wheels.download(wheels.read_version(root), [CHECKOUT / "requirements.txt"], out),
        )
        images = build_images(folder.parent)
        sources = [_FILES, _SETTINGS, Path(__file__), wheel, kernel, *images, key, NVML_SOURCE, *CUDA_SOURCES]

        def build(out: Path) -> None:
            with layer(root, out) as tree:
                _copy_files(tree, kernel, images, key)
                if binaries:
                    run("copying containerd", ["cp", "-a", *map(str, binaries.folder.glob("c*")), str(tree / "usr/bin")])
                _install_lading(tree, wheel, packages)
                leftovers.unmount_below(tree / "proc")
                disk = out / "disk.img"
                run("writing the disk", ["mke2fs", "-q", "-t", "ext4", "-d", str(tree), str(disk), _DISK])

        version = binaries.version if binaries else ""
        image = cached(folder, f"image-{system.name}{version and '-'}{version}", sources, build)
        remove_older(image)
    return Image(system=system, kernel=kernel / "vmlinuz", initrd=kernel / "initrd.img", disk=image / "disk.img", key=key)


def _make_key(folder: Path) -> Path:
    key = folder / "id"
    if not key.exists():
        run("making a key for ssh", ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lading-vm", "-f", str(key)])
    return key


def _build_wheel(out: Path) -> Path:
    argv = [sys.executable, str(CHECKOUT / "deploy/wheel.py"), "--source", str(CHECKOUT), "--out", str(out)]
    # A fixed date, so that a commit that changes no file of the wheel needs no new image.
    run("building the wheel", argv, env={**os.environ, "SOURCE_DATE_EPOCH": "315532800"})
    return next(out.glob("*.whl"))


def _find_containerd(system: System) -> Binaries | None:
    if not system.containerd:
        return None
    found = find_unpacked(system.containerd, default_cache()) or newer_containerd(system.containerd)
    if isinstance(found, Unavailable):
        raise HostError(f"cannot make {system.name}: {found.cause}")
    return found


def _copy_files(tree: Path, kernel: Path, images: Sequence[Path], key: Path) -> None:
    """Write what makes the tree a node: settings, modules, the fake driver, images, and the key of ssh."""
    run("", ["cp", "-r", f"{_FILES}/.", str(tree)])
    (release,) = (path.name for path in (tree / "lib/modules").iterdir())
    updates = tree / "lib/modules" / release / "updates"
    updates.mkdir()
    for module in kernel.glob("*.ko"):
        shutil.copy(module, updates)
    with tempfile.TemporaryDirectory(prefix="lading-vm-") as folder:
        for library in (compile_fake_nvml(Path(folder)), compile_fake_cuda(Path(folder))):
            target = tree / _LIBRARIES / f"{library.stem}.{DRIVER_VERSION}"
            shutil.copy(library, target)
            (tree / _LIBRARIES / library.name).symlink_to(target.name)
    (tree / _LIBRARIES / "libcuda.so").symlink_to("libcuda.so.1")
    (tree / "var/lib/fake-nvml").mkdir()
    (tree / _LIBRARIES / "state").symlink_to("/var/lib/fake-nvml/state")  # the fake NVML reads it beside itself
    for folder in ("opt/images", "root/.ssh"):
        (tree / folder).mkdir(parents=True, exist_ok=True)
    for image in images:
        shutil.copy(image, tree / "opt/images")
    shutil.copy(key.with_suffix(".pub"), tree / "root/.ssh/authorized_keys")
    for unit in _MASKED:
        (tree / "etc/systemd/system" / unit).unlink(missing_ok=True)
        (tree / "etc/systemd/system" / unit).symlink_to("/dev/null")
    (tree / _RDMA_NAMES).symlink_to("/dev/null")
    units = "systemd-networkd ssh containerd vm-hardware vm-images"
    script = f"rm /usr/src/*.tar.xz; depmod {release} && ldconfig && passwd -qd root && systemctl -q enable {units}"
    chroot(tree, "setting up the node", "sh", "-c", script)


def _install_lading(tree: Path, wheel: Path, packages: Path) -> None:
    """Run the installer of nodes on the tree, in the tree."""
    given, root = tree / "mnt/given", tree / "mnt/root"
    for folder in (given, root):
        folder.mkdir(parents=True)
    shutil.copytree(packages, given / "packages")
    shutil.copy(wheel, given)
    shutil.copy(CHECKOUT / "deploy/install-node.sh", given)
    shutil.copy(_SETTINGS, given)
    run("", ["mount", "--bind", str(tree), str(root)])
    words = ["--wheel", f"/mnt/given/{wheel.name}", "--packages", "/mnt/given/packages", "--config", "/mnt/given/hooks.toml"]
    words += ["--root", "/mnt/root", "--node-name", NODE, "--no-kubelet"]
    chroot(tree, "installing Lading", "bash", "/mnt/given/install-node.sh", *words)
    chroot(tree, "", "systemctl", "-q", "enable", "lading-shares")
    leftovers.unmount_below(root)
    shutil.rmtree(given)
    root.rmdir()


def main() -> None:
    try:
        image = build_image(find_system(sys.argv[1] if len(sys.argv) > 1 else SYSTEMS[0].name))
    except LadingError as e:
        die(e)
    print(image.disk)


if __name__ == "__main__":
    main()
