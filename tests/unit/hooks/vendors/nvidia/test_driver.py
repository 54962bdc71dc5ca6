import json
import platform
import socket
from pathlib import Path

import pytest

from hooks.host.cdi_files import read_cdi_names
from hooks.model.inventory import DriverMount
from hooks.vendors.nvidia.driver import find_device_root, read_driver_mounts
from lading.driverfiles import find_driver, read_driver_versions

VERSION = "550.127.05"
MULTIARCH = f"usr/lib/{platform.machine()}-linux-gnu"


def library(folder: Path, name: str, *links: str) -> Path:
    """Create the file, and links as ldconfig and packages make them, each to the one before."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(name)
    target = name
    for link in links:
        (folder / link).symlink_to(target)
        target = link
    return file


def driver(folder: Path) -> None:
    library(folder, f"libcuda.so.{VERSION}", "libcuda.so.1", "libcuda.so")
    library(folder, f"libnvidia-ptxjitcompiler.so.{VERSION}", "libnvidia-ptxjitcompiler.so.1")
    library(folder, f"libnvidia-nvvm.so.{VERSION}", "libnvidia-nvvm.so.4")
    library(folder, f"libEGL_nvidia.so.{VERSION}", "libEGL_nvidia.so.0")
    library(folder, f"libnvidia-glcore.so.{VERSION}")  # a library whose soname is its file name
    library(folder, "libnvidia-nvvm70.so.4")


def mounts_of(root: Path) -> tuple[DriverMount, ...]:
    found = find_driver(root, VERSION)
    return read_driver_mounts(found) if found else ()


def libraries(root: Path, folder: str = f"/{MULTIARCH}") -> dict[str, str]:
    """Name in the container → name of the file."""
    mounts = mounts_of(root)
    return {Path(m.container_path).name: Path(m.host_path).name for m in mounts if str(Path(m.container_path).parent) == folder}


def test_a_library_is_there_under_every_name_that_leads_to_it(tmp_path: Path) -> None:
    driver(tmp_path / MULTIARCH)
    links = {
        "libcuda": ["libcuda.so.1", "libcuda.so"],
        "libnvidia-ptxjitcompiler": ["libnvidia-ptxjitcompiler.so.1"],
        "libnvidia-nvvm": ["libnvidia-nvvm.so.4"],
        "libEGL_nvidia": ["libEGL_nvidia.so.0"],
        "libnvidia-glcore": [],
    }
    expected = {name: f"{of}.so.{VERSION}" for of, names in links.items() for name in (f"{of}.so.{VERSION}", *names)}
    assert libraries(tmp_path) == expected | {"libnvidia-nvvm70.so.4": "libnvidia-nvvm70.so.4"}


def test_what_is_not_this_drivers_stays_away(tmp_path: Path) -> None:
    folder = tmp_path / MULTIARCH
    driver(folder)
    before = mounts_of(tmp_path)
    library(folder, "libcuda.so.535.54.03")
    library(folder, "libnvidia-egl-gbm.so.1.1.1", "libnvidia-egl-gbm.so.1")
    library(folder, "libc.so.6")
    library(folder, f"nvidia_drv.so.{VERSION}")
    (folder / "libloop.so.1").symlink_to("libloop.so.2")
    (folder / "libloop.so.2").symlink_to("libloop.so.1")
    (folder / "libaway.so.1").symlink_to(f"../../../elsewhere/libcuda.so.{VERSION}")
    (folder / f"libgone.so.{VERSION}").symlink_to("nowhere")
    assert mounts_of(tmp_path) == before


def test_one_mount_a_path_in_order(tmp_path: Path) -> None:
    """Check a link whose name is another library's file, too."""
    driver(tmp_path / MULTIARCH)
    (tmp_path / MULTIARCH / f"libnvidia-tls.so.{VERSION}").symlink_to(f"libnvidia-glcore.so.{VERSION}")
    paths = [mount.container_path for mount in mounts_of(tmp_path)]
    assert paths == sorted(set(paths))
    assert f"/{MULTIARCH}/libnvidia-tls.so.{VERSION}" in paths


@pytest.mark.parametrize("folder", [MULTIARCH, f"{MULTIARCH}/nvidia/current", "usr/lib64", "lib64", "usr/lib"])
def test_it_is_found_by_images_of_either_family_wherever_the_host_has_it(tmp_path: Path, folder: str) -> None:
    driver(tmp_path / folder)
    assert libraries(tmp_path) == libraries(tmp_path, "/usr/lib64")
    assert "libcuda.so.1" in libraries(tmp_path)


def test_programs_and_sockets(tmp_path: Path, short_folder: Path) -> None:
    library(tmp_path / MULTIARCH, f"libcuda.so.{VERSION}")
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/nvidia-smi").touch()
    (tmp_path / "usr/bin/nvidia-settings").touch()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nvidia-smi").touch()
    (tmp_path / "bin/nvidia-debugdump").touch()
    (tmp_path / "run").symlink_to(short_folder)  # short enough for a socket's path
    (short_folder / "nvidia-persistenced").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(short_folder / "nvidia-persistenced/socket"))
        result = mounts_of(tmp_path)
    mounts = {m.container_path: m.host_path for m in result if "libcuda" not in m.container_path}
    assert [m.container_path for m in result if m.is_socket] == ["/run/nvidia-persistenced/socket"]
    assert mounts == {
        "/usr/bin/nvidia-smi": str(tmp_path / "usr/bin/nvidia-smi"),
        "/usr/bin/nvidia-debugdump": str(tmp_path / "bin/nvidia-debugdump"),
        "/run/nvidia-persistenced/socket": str(tmp_path / "run/nvidia-persistenced/socket"),
    }


def test_without_libcuda_of_the_running_version_nothing_is_mounted(tmp_path: Path) -> None:
    """Check `apt upgrade` without a reboot: the running module is the old one."""
    library(tmp_path / MULTIARCH, "libcuda.so.560.35.03", "libcuda.so.1")
    library(tmp_path / MULTIARCH, f"libnvidia-glcore.so.{VERSION}")
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/nvidia-smi").touch()
    assert mounts_of(tmp_path) == ()
    assert read_driver_versions(tmp_path) == ("560.35.03",)


@pytest.mark.parametrize(
    ("on_host", "in_container", "configured", "below"),
    [
        (True, False, "", ""),
        (False, True, "", "run/nvidia/driver"),
        (True, True, "", ""),
        (False, False, "", ""),
        (True, True, "run/nvidia/driver", "run/nvidia/driver"),
        (True, False, "run/nvidia/driver", ""),
    ],
)
def test_device_nodes_are_those_of_the_host_or_of_the_driver_container(
    tmp_path: Path, on_host: bool, in_container: bool, configured: str, below: str
) -> None:
    for folder, there in (("dev", on_host), ("run/nvidia/driver/dev", in_container)):
        if there:
            (tmp_path / folder).mkdir(parents=True)
            (tmp_path / folder / "nvidiactl").touch()
    assert find_device_root(tmp_path, configured and str(tmp_path / configured)) == tmp_path / below


def test_an_empty_root(tmp_path: Path) -> None:
    assert mounts_of(tmp_path) == ()


# CDI


def spec(path: Path, *devices: object, kind: object = "nvidia.com/gpu") -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"cdiVersion": "0.5.0", "kind": kind, "devices": [{"name": d} for d in devices]}))


def test_names_of_all_folders(tmp_path: Path) -> None:
    spec(tmp_path / "etc/nvidia.json", "GPU-a", "all")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/other.yaml").write_text("kind: example.com/nic\ndevices:\n- name: eth0\n")
    spec(tmp_path / "run/newer.json", "GPU-a")  # overrides, which is no conflict
    assert read_cdi_names([tmp_path / "etc", tmp_path / "run", tmp_path / "absent"]) == {
        "nvidia.com/gpu=GPU-a",
        "nvidia.com/gpu=all",
        "example.com/nic=eth0",
    }


def test_a_device_that_two_specs_of_a_folder_define_is_dropped(tmp_path: Path) -> None:
    spec(tmp_path / "etc/a.json", "GPU-a", "GPU-b")
    spec(tmp_path / "etc/b.json", "GPU-a")
    spec(tmp_path / "run/c.json", "GPU-a")  # containerd's cache drops it here too
    assert read_cdi_names([tmp_path / "etc", tmp_path / "run"]) == {"nvidia.com/gpu=GPU-b"}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", b"{"),
        ("a.json", b"\xff"),
        ("a.json", b"[" * 100_000),
        ("a.json", b'{"kind": "nvidia.com/gpu", "devices": [{"name": "x"}, {"name": "x"}]}'),
        ("a.json", b'{"kind": "nvidia.com/gpu", "devices": [{"name": "x"}, {}]}'),
        ("a.json", b'{"kind": "nvidia.com/gpu", "devices": {"name": "x"}}'),
        ("a.json", b'{"devices": [{"name": "x"}]}'),
        ("a.json", b'"text"'),
        ("a.yaml", b"kind: nvidia.com/gpu\ndevices:\n- name: 0\n"),  # a number, which no runtime takes for a name
        ("a.yaml", b"kind: [\n"),
        ("a.yml", b"kind: nvidia.com/gpu\ndevices:\n- name: x\n"),
        ("a.txt", b'{"kind": "nvidia.com/gpu", "devices": [{"name": "x"}]}'),
    ],
)
def test_what_runtimes_do_not_read_defines_nothing(tmp_path: Path, name: str, content: bytes) -> None:
    spec(tmp_path / "etc/good.json", "GPU-a")
    (tmp_path / "etc" / name).write_bytes(content)
    (tmp_path / "etc" / "folder.json").mkdir()
    assert read_cdi_names([tmp_path / "etc"]) == {"nvidia.com/gpu=GPU-a"}
