"""Test what a container gets by name on made-up roots of the hosts in docs/compatibility.md, without a setting.

Each root has the folders, links and programs of a real host's packages, as their files list them. Libraries are real shared
objects with the SONAMEs of NVIDIA's driver.
"""

import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from hooks.vendors.nvidia.driver import LOADER_FOLDERS, read_driver_files, read_driver_mounts
from lading.driverfiles import MULTIARCH, FoundDriver, find_driver, find_nvml, read_driver_versions
from tests.fakes.needs import need
from tests.fakes.shared_objects import make_shared_object

VERSION, OLD = "580.65.06", "570.86.15"
SONAMES = {
    "libcuda": "libcuda.so.1",
    "libnvidia-ml": "libnvidia-ml.so.1",
    "libnvidia-ptxjitcompiler": "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-nvvm": "libnvidia-nvvm.so.4",
    "libEGL_nvidia": "libEGL_nvidia.so.0",
}
CORES = ("libnvidia-eglcore", "libnvidia-glcore", "libnvidia-glsi", "libnvidia-tls")  # each has its file's name as SONAME
FILES = {f"{name}.so.{VERSION}" for name in (*SONAMES, *CORES)}
NAMES = {*FILES, *SONAMES.values(), "libcuda.so"}
X86 = platform.machine()
BOTTLEROCKET = f"{X86}-bottlerocket-linux-gnu/sys-root/usr"
STORE = "nix/store/abc-nvidia-x11"


def put(root: Path, folder: str, *, version: str = VERSION, names: tuple[str, ...] = (*SONAMES, *CORES), links: bool) -> None:
    """Write libraries into the folder, with ldconfig's links or without links."""
    (root / folder).mkdir(parents=True, exist_ok=True)
    for name in names:
        file = f"{name}.so.{version}"
        (root / folder / file).write_bytes(make_shared_object(SONAMES.get(name, file)))
        if links and name in SONAMES:
            (root / folder / SONAMES[name]).symlink_to(file)


def link(root: Path, path: str, target: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).symlink_to(target)


def program(root: Path, path: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).touch(0o755)


def debian(root: Path, links: bool) -> None:
    current = f"{MULTIARCH}/nvidia/current"
    put(root, current, names=tuple(SONAMES), links=links)
    put(root, MULTIARCH, names=CORES, links=links)
    for soname in SONAMES.values() if links else ():
        link(root, f"etc/alternatives/nvidia--{soname}", f"/{current}/{soname}")
        link(root, f"{MULTIARCH}/{soname}", f"/etc/alternatives/nvidia--{soname}")
    program(root, "usr/lib/nvidia/current/nvidia-smi")
    link(root, "etc/alternatives/nvidia--nvidia-smi", "/usr/lib/nvidia/current/nvidia-smi")
    link(root, "usr/bin/nvidia-smi", "/etc/alternatives/nvidia--nvidia-smi")


def in_folder(folder: str, smi: str) -> Callable[[Path, bool], None]:
    def build(root: Path, links: bool) -> None:
        put(root, folder, links=links)
        program(root, smi)

    return build


def red_hat(root: Path, links: bool) -> None:
    """Write libraries of 64 bits, and of 32 bits, of which one has a name of its own."""
    put(root, "usr/lib64", links=links)
    program(root, "usr/bin/nvidia-smi")
    (root / "usr/lib").mkdir()
    for name in (*SONAMES, "libnvidia-only32"):
        content = bytearray(make_shared_object(SONAMES.get(name, "")))
        content[4] = 1  # ELFCLASS32
        (root / f"usr/lib/{name}.so.{VERSION}").write_bytes(content)


def arch(root: Path, links: bool) -> None:
    put(root, "usr/lib", links=links)
    link(root, "usr/lib64", "lib")
    link(root, "lib64", "usr/lib")
    program(root, "usr/bin/nvidia-smi")


def flatcar(root: Path, links: bool) -> None:
    """Write the folders of two drivers: the older one is left from before an update of the system."""
    put(root, f"opt/nvidia/{OLD}/6.1.50-flatcar/usr/lib64", version=OLD, links=links)
    put(root, f"opt/nvidia/{VERSION}/6.6.95-flatcar/usr/lib64", links=links)
    program(root, f"opt/nvidia/{VERSION}/6.6.95-flatcar/usr/bin/nvidia-smi")
    link(root, "opt/bin/nvidia-smi", f"/opt/nvidia/{VERSION}/6.6.95-flatcar/usr/bin/nvidia-smi")


def bottlerocket(root: Path, links: bool) -> None:
    put(root, f"{BOTTLEROCKET}/lib/nvidia/tesla", links=links)
    program(root, f"{BOTTLEROCKET}/libexec/nvidia/tesla/bin/nvidia-smi")
    link(root, "usr", f"./{BOTTLEROCKET}")
    link(root, f"{BOTTLEROCKET}/lib64", "lib")


def nixos(root: Path, links: bool) -> None:
    """Write the driver into the store. The folder of the system has a link to each file, by its path in the store."""
    put(root, f"{STORE}/lib", links=links)
    for file in [*(root / STORE / "lib").iterdir()]:
        link(root, f"nix/store/def-graphics-drivers/lib/{file.name}", f"/{STORE}/lib/{file.name}")
    link(root, "run/opengl-driver", "/nix/store/def-graphics-drivers")
    program(root, "nix/store/ghi-nvidia-x11-bin/bin/nvidia-smi")
    link(root, "nix/store/jkl-nixos-system/sw/bin/nvidia-smi", "/nix/store/ghi-nvidia-x11-bin/bin/nvidia-smi")
    link(root, "run/current-system", "/nix/store/jkl-nixos-system")


def driver_container(root: Path, links: bool) -> None:
    debian(root / "run/nvidia/driver", links)


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    name: str
    build: Callable[[Path, bool], None]
    folder: str  # folder of libcuda in the container, as CDI specs have it
    smi: str  # file of nvidia-smi on the host


FLATCAR = f"opt/nvidia/{VERSION}/6.6.95-flatcar/usr"
CURRENT = f"{MULTIARCH}/nvidia/current"
# Hosts whose libraries are in one folder, with links: name, folder, and file of nvidia-smi.
IN_ONE_FOLDER = (
    ("ubuntu", MULTIARCH, "usr/bin"),
    ("gke-ubuntu", "opt/nvidia/lib64", "opt/nvidia/bin"),
    ("gke-cos", "home/kubernetes/bin/nvidia/lib64", "home/kubernetes/bin/nvidia/bin"),
    ("cos", "var/lib/nvidia/lib64", "var/lib/nvidia/bin"),
    ("aks", "usr/local/nvidia/lib64", "usr/bin"),
    ("talos", "usr/local/glibc/usr/lib", "usr/local/bin"),
)
HOSTS = (
    Host(name="debian", build=debian, folder=CURRENT, smi="usr/lib/nvidia/current/nvidia-smi"),
    Host(name="red-hat", build=red_hat, folder="usr/lib64", smi="usr/bin/nvidia-smi"),
    Host(name="arch", build=arch, folder="usr/lib64", smi="usr/bin/nvidia-smi"),
    Host(name="flatcar", build=flatcar, folder=f"{FLATCAR}/lib64", smi=f"{FLATCAR}/bin/nvidia-smi"),
    Host(
        name="bottlerocket",
        build=bottlerocket,
        folder="usr/lib/nvidia/tesla",
        smi=f"{BOTTLEROCKET}/libexec/nvidia/tesla/bin/nvidia-smi",
    ),
    Host(name="nixos", build=nixos, folder="run/opengl-driver/lib", smi="nix/store/ghi-nvidia-x11-bin/bin/nvidia-smi"),
    Host(
        name="gpu-operator", build=driver_container, folder=CURRENT, smi="run/nvidia/driver/usr/lib/nvidia/current/nvidia-smi"
    ),
    *(
        Host(name=name, build=in_folder(folder, f"{programs}/nvidia-smi"), folder=folder, smi=f"{programs}/nvidia-smi")
        for name, folder, programs in IN_ONE_FOLDER
    ),
)
every_host = pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.name)
with_and_without_links = pytest.mark.parametrize("links", [True, False])


def found_on(host: Host, root: Path, links: bool) -> FoundDriver:
    host.build(root, links)
    found = find_driver(root, VERSION)
    assert found
    return found


@every_host
@with_and_without_links
def test_devices(tmp_path: Path, host: Host, links: bool) -> None:
    mounts = {mount.container_path: mount.host_path for mount in read_driver_mounts(found_on(host, tmp_path, links))}
    assert mounts.pop("/usr/bin/nvidia-smi") == str(tmp_path / host.smi)
    assert mounts.keys() == {f"{folder}/{name}" for folder in LOADER_FOLDERS for name in NAMES}
    for path, file in mounts.items():
        assert not Path(file).is_symlink()
        assert Path(file).name == path.rpartition("/")[2] or Path(file).name in FILES
        assert Path(file).name.split(".so")[0] == path.rpartition("/")[2].split(".so")[0]


@every_host
@with_and_without_links
def test_cdi(tmp_path: Path, host: Host, links: bool) -> None:
    files = read_driver_files(found_on(host, tmp_path, links))
    mounts = {mount.container_path: mount.host_path for mount in files.mounts}
    assert mounts.pop("/usr/bin/nvidia-smi") == str(tmp_path / host.smi)
    assert files.folder == f"/{host.folder}"
    assert mounts.keys() == {f"/{host.folder}/{name}" for name in FILES}
    assert files.links == {"libcuda.so": "libcuda.so.1", **{soname: f"{name}.so.{VERSION}" for name, soname in SONAMES.items()}}


@every_host
def test_nvml_is_that_of_the_running_driver(tmp_path: Path, host: Host) -> None:
    host.build(tmp_path, True)
    found = find_nvml(tmp_path, VERSION)
    assert found
    assert found.name == f"libnvidia-ml.so.{VERSION}"
    other = find_nvml(tmp_path, "1.2.3")  # no such driver is installed: any is better than none
    assert other
    assert other.name.startswith("libnvidia-ml.so.")


def test_versions_of_all_folders(tmp_path: Path) -> None:
    flatcar(tmp_path, True)
    driver_container(tmp_path, False)
    assert read_driver_versions(tmp_path) == (OLD, VERSION)
    assert find_driver(tmp_path, "1.2.3") is None


@pytest.mark.parametrize("cache", ["etc/ld.so.cache", "usr/local/glibc/etc/ld.so.cache"])
def test_a_folder_that_only_the_loaders_cache_names(tmp_path: Path, cache: str) -> None:
    need(bool(shutil.which("ldconfig", path="/usr/sbin:/sbin")) and os.geteuid() == 0, "root, and glibc's ldconfig")
    put(tmp_path, "srv/driver/lib", links=False)
    put(tmp_path, MULTIARCH, version=OLD, links=True)
    (tmp_path / cache).parent.mkdir(parents=True)
    (tmp_path / "ld.so.conf").write_text("/srv/driver/lib\n")
    subprocess.run(["ldconfig", "-r", str(tmp_path), "-f", "/ld.so.conf", "-C", f"/{cache}"], check=True, capture_output=True)
    found = find_driver(tmp_path, VERSION)
    assert found
    assert (found.folders[0].name, found.folders[0].source) == ("/srv/driver/lib", f"/{cache}")
    nvml = find_nvml(tmp_path, VERSION)
    assert nvml == tmp_path / f"srv/driver/lib/libnvidia-ml.so.{VERSION}"
