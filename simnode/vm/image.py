"""Build the disk of a guest from Debian packages and this checkout: `python -m simnode.vm.image [SYSTEM]`.

A root file system of the suite (simnode.debian) is the lower layer of an overlay, in which the kernel modules are compiled and
Lading is installed by its own installer, all in chroot(8), because a guest without KVM is ten times slower. Results are in the
cache, under names made of the hash of what they are made of; a second call, also without a network, finds them. It needs root.
Source: overlayfs and kbuild/modules of the kernel's documentation, initramfs-tools(7), mke2fs(8) `-d`.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lading.errors import HostError, LadingError, die
from simnode import leftovers, progress, wheels
from simnode.containerd import Binaries, find_unpacked
from simnode.cuda import SOURCES as CUDA_SOURCES
from simnode.cuda import compile_fake_cuda
from simnode.debian import make_root
from simnode.images import build_images, default_cache
from simnode.install import Unavailable, newer_containerd
from simnode.nvml import SOURCE as NVML_SOURCE
from simnode.nvml import compile_fake_nvml
from simnode.vm.hardware import DRIVER_VERSION
from simnode.vm.systems import SYSTEMS, System, find_system

NODE: Final = "vnode"
CHECKOUT: Final = Path(__file__).parents[2]
_HERE: Final = Path(__file__).parent
_KERNEL, _FILES, _SETTINGS = _HERE / "kernel", _HERE / "root", _HERE / "hooks.toml"
_LIBRARIES: Final = Path("usr/lib/x86_64-linux-gnu")
_DISK: Final = "8G"  # sparse: a new disk takes some 2 GB
_ENV: Final = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": "/root", "DEBIAN_FRONTEND": "noninteractive"}
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
        kernel = _cached(folder, f"kernel-{root.name}", [_KERNEL], lambda out: _build_kernel(root, out))
        packages = _cached(
            folder,
            f"wheels-{system.suite}",
            [CHECKOUT / "requirements.txt"],
            lambda out: wheels.download(wheels.read_version(root), [CHECKOUT / "requirements.txt"], out),
        )
        images = build_images(folder.parent)
        sources = [_FILES, _SETTINGS, Path(__file__), wheel, kernel, *images, key, NVML_SOURCE, *CUDA_SOURCES]

        def build(out: Path) -> None:
            with _layer(root, out) as tree:
                _copy_files(tree, kernel, images, key)
                if binaries:
                    _run("copying containerd", ["cp", "-a", *map(str, binaries.folder.glob("c*")), str(tree / "usr/bin")])
                _install_lading(tree, wheel, packages)
                disk = out / "disk.img"
                _run("writing the disk", ["mke2fs", "-q", "-t", "ext4", "-d", str(tree), str(disk), _DISK])

        version = binaries.version if binaries else ""
        image = _cached(folder, f"image-{system.name}{version and '-'}{version}", sources, build)
    return Image(system=system, kernel=kernel / "vmlinuz", initrd=kernel / "initrd.img", disk=image / "disk.img", key=key)


def _cached(cache: Path, name: str, sources: Iterable[Path], build: Callable[[Path], None]) -> Path:
    """Return a folder that `build` filled, of a name with the hash of its sources."""
    folder = cache / f"{name}-{_hash(sources)}"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            part = folder.with_suffix(".part")
            leftovers.remove_tree(part)  # left by a run that was killed
            part.mkdir()
            build(part)
            part.rename(folder)
    return folder


def _hash(sources: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for source in sources:
        for file in sorted(path for path in [source, *source.rglob("*")] if path.is_file()):
            digest.update(str(file.relative_to(source.parent)).encode() + b"\0")
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:12]


def _make_key(folder: Path) -> Path:
    key = folder / "id"
    if not key.exists():
        _run("making a key for ssh", ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lading-vm", "-f", str(key)])
    return key


def _build_wheel(out: Path) -> Path:
    argv = [sys.executable, str(CHECKOUT / "deploy/wheel.py"), "--source", str(CHECKOUT), "--out", str(out)]
    # A fixed date, so that a commit that changes no file of the wheel needs no new image.
    _run("building the wheel", argv, env={**os.environ, "SOURCE_DATE_EPOCH": "315532800"})
    return next(out.glob("*.whl"))


def _find_containerd(system: System) -> Binaries | None:
    if not system.containerd:
        return None
    found = find_unpacked(system.containerd, default_cache()) or newer_containerd(system.containerd)
    if isinstance(found, Unavailable):
        raise HostError(f"cannot make {system.name}: {found.cause}")
    return found


@contextmanager
def _layer(root: Path, out: Path) -> Iterator[Path]:
    """Yield the root file system with a layer of its own for changes, which is removed at the end."""
    layer = out / "layer"
    upper, work, tree = (layer / name for name in ("upper", "work", "tree"))
    for folder in (upper, work, tree):
        folder.mkdir(parents=True)
    try:
        options = f"lowerdir={root},upperdir={upper},workdir={work}"
        _run("", ["mount", "-t", "overlay", "-o", options, "overlay", str(tree)])
        _run("", ["mount", "-t", "proc", "proc", str(tree / "proc")])
        yield tree
    finally:
        leftovers.remove_tree(layer)


def _build_kernel(root: Path, out: Path) -> None:
    """Write the kernel, its initrd and the two modules."""
    with _layer(root, out) as tree:
        shutil.copytree(_FILES / "etc/initramfs-tools", tree / "etc/initramfs-tools", dirs_exist_ok=True)
        (release,) = (path.name for path in (tree / "lib/modules").iterdir())
        build = tree / "build"
        shutil.copytree(_KERNEL, build)
        script = f"""set -e
cd /build
tar -xf /usr/src/linux-source-*.tar.xz --wildcards --strip-components=5 '*/drivers/infiniband/sw/rxe'
patch -d rxe -p1 <rdma_rxe.patch
sed -i 's/obj-$(CONFIG_RDMA_RXE)/obj-m/' rxe/Makefile
mkdir nvidia && mv nvidia.c nvidia && echo 'obj-m := nvidia.o' >nvidia/Makefile
for module in nvidia rxe; do make -s -C /lib/modules/{release}/build "M=/build/$module" modules; done
strip -g nvidia/nvidia.ko rxe/rdma_rxe.ko
update-initramfs -c -k {release}
"""
        _chroot(tree, f"compiling the modules of Linux {release}", "sh", "-c", script)
        for module in (build / "nvidia/nvidia.ko", build / "rxe/rdma_rxe.ko"):
            shutil.copy(module, out)
        shutil.copy(tree / f"boot/vmlinuz-{release}", out / "vmlinuz")
        shutil.copy(tree / f"boot/initrd.img-{release}", out / "initrd.img")


def _copy_files(tree: Path, kernel: Path, images: Sequence[Path], key: Path) -> None:
    """Write what makes the tree a node: settings, modules, the fake driver, images, and the key of ssh."""
    _run("", ["cp", "-r", f"{_FILES}/.", str(tree)])
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
    script = f"depmod {release} && ldconfig && passwd -qd root && systemctl -q enable {units}"
    _chroot(tree, "setting up the node", "sh", "-c", script)


def _install_lading(tree: Path, wheel: Path, packages: Path) -> None:
    """Run the installer of nodes on the tree, in the tree."""
    given, root = tree / "mnt/given", tree / "mnt/root"
    for folder in (given, root):
        folder.mkdir(parents=True)
    shutil.copytree(packages, given / "packages")
    shutil.copy(wheel, given)
    shutil.copy(CHECKOUT / "deploy/install-node.sh", given)
    shutil.copy(_SETTINGS, given)
    _run("", ["mount", "--bind", str(tree), str(root)])
    words = ["--wheel", f"/mnt/given/{wheel.name}", "--packages", "/mnt/given/packages", "--config", "/mnt/given/hooks.toml"]
    words += ["--root", "/mnt/root", "--node-name", NODE, "--no-kubelet"]
    _chroot(tree, "installing Lading", "bash", "/mnt/given/install-node.sh", *words)
    leftovers.unmount_below(root)
    shutil.rmtree(given)
    root.rmdir()


def _chroot(tree: Path, what: str, *argv: str) -> None:
    _run(what, ["chroot", str(tree), *argv], env=_ENV)


def _run(what: str, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> None:
    """Run a command, with progress if `what` names its work."""
    if what:
        status = progress.run(what, argv, env=env)
    else:
        status = subprocess.run(argv, check=False, env=env).returncode  # noqa: S603 -- fixed programs
    if status:
        raise HostError(f"cannot build the guest: {argv[0]} failed with status {status}; see its output above")


def main() -> None:
    try:
        image = build_image(find_system(sys.argv[1] if len(sys.argv) > 1 else SYSTEMS[0].name))
    except LadingError as e:
        die(e)
    print(image.disk)


if __name__ == "__main__":
    main()
