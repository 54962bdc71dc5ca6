"""Test that the loader's cache of real containers lists the driver's libraries, and what programs find by it and without it."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from simnode import images
from simnode.build import LIBRARIES
from simnode.containerd import PrivateContainerd
from simnode.cri import Container, Pod
from simnode.daemons import LadingNode
from simnode.kubelet import Mount
from tests.fakes.needs import need
from tests.fakes.shared_objects import make_shared_object
from tests.node.conftest import StartLading
from tests.node.share_site import HOST, install_python
from tests.node.site import eventually, open_site

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("own_specs")]

GPU: Final = "lading.dev/gpus"
CUDA: Final = f"/{LIBRARIES}/libcuda.so.1"
COMPAT: Final = "/usr/local/cuda-12.2/compat"


LDCONFIG: Final = shutil.which("ldconfig", path="/sbin:/usr/sbin") or ""
LOOKUPS: Final = Path(__file__).with_name("stand_ins") / "libcuda_lookups.py"


def run(pod: Pod, name: str = "main", *mounts: Mount) -> Container:
    """Run a container with glibc, a read-only root, and this machine's ldconfig, which prints the cache."""
    need(bool(LDCONFIG), "ldconfig")
    tool = Mount(host_path=Path(LDCONFIG), container_path="/ldconfig", readonly=True)
    container = eventually(lambda: pod.create_container(name, image=images.CUDA, mounts=(tool, *mounts), readonly_rootfs=True))
    container.start()
    return container


def check_cache(container: Container) -> None:
    output = container.sh("/ldconfig -p")
    listed = dict(re.findall(r"^\t(\S+) \(libc6,x86-64\) => (\S+)$", output, re.MULTILINE))
    assert listed["libcuda.so.1"] == CUDA
    assert "Read-only file system" in container.sh("touch /etc/x 2>&1 || true")


def test_the_cache_lists_libcuda_and_a_share_hides_that_of_the_image_and_makes_no_folder_of_cuda(
    newer: PrivateContainerd, start_lading: StartLading, ldcache_hook: Path, tmp_path: Path
) -> None:
    lading = start_lading(runtime=newer, nri=True)
    libraries, compat = tmp_path / "libraries", tmp_path / "compat"
    for folder in (libraries, compat):
        folder.mkdir()
    shutil.copy(ldcache_hook, libraries)
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (libraries / name).touch()
    (compat / "libcuda.so.999.1").touch()  # newer than the node's driver
    lading.reconfigure_hooks(
        driver_root=str(lading.node.root),
        isolations=["none", "tokens"],
        share_libraries=str(libraries),
        shares_dir=str(tmp_path / "shares"),
    )
    image = Mount(host_path=compat, container_path=COMPAT)
    share = "1:memory=2Gi,isolation=tokens"
    gpus = {f"{GPU}.whole": "0", f"{GPU}.newer": "2", f"{GPU}.plain": share, f"{GPU}.cuda": share}
    with open_site(lading, newer) as site, site.kubelet.pod("cached", annotations=gpus) as pod:
        whole = run(pod, "whole")
        check_cache(whole)
        assert "TRITON_LIBCUDA_PATH" not in whole.env()
        assert run(pod, "newer", image).sh(f"ls {COMPAT}") == "libcuda.so.999.1\n"
        plain = run(pod, "plain")
        check_cache(plain)
        assert plain.sh("ls -d /usr/local/cuda* 2>/dev/null || true") == ""
        assert run(pod, "cuda", image).sh(f"ls {COMPAT}") == ""


def mount_python(folder: Path) -> list[Mount]:
    """Return the mounts by which a container runs this machine's Python, and finds an ldconfig where programs look for it."""
    install_python(folder)
    shutil.copy(LOOKUPS, folder)
    paths = {sys.base_prefix: f"{HOST}/python", str(folder): f"{HOST}/run", LDCONFIG: "/sbin/ldconfig"}
    return [Mount(host_path=Path(ours), container_path=its, readonly=True) for ours, its in paths.items()]


def make_cache(folder: Path) -> Mount:
    """Return the mount of a cache such as the image of a distribution has: it lists libraries, and not libcuda."""
    (folder / "lib").mkdir(parents=True)
    (folder / "lib/libany.so.1").write_bytes(make_shared_object("libany.so.1"))
    (folder / "conf").write_text(f"{folder}/lib\n")
    subprocess.run([LDCONFIG, "-X", "-f", f"{folder}/conf", "-C", f"{folder}/cache"], check=True)
    return Mount(host_path=folder / "cache", container_path="/etc/ld.so.cache", readonly=True)


def look_up(container: Container, **env: str) -> tuple[list[str], str | None]:
    """Return the folders of libcuda that Triton finds in this container, and the library that find_library names. `env`: this
    environment is beside the container's own."""
    python = f"{HOST}/python/bin/{Path(sys.executable).resolve().name}"
    variables = {"LD_LIBRARY_PATH": f"{HOST}/run/lib", **env}
    text = " ".join(f"{name}={value}" for name, value in variables.items())
    answer = json.loads(container.sh(f"{text} {python} -I -S {HOST}/run/{LOOKUPS.name}"))
    return answer["triton"], answer["find_library"]


def start_for_lookups(start_lading: StartLading, runtime: PrivateContainerd, hook: Path, folder: Path, way: str) -> LadingNode:
    lading, libraries = start_lading(runtime=runtime, nri=way == "nri"), folder / "libraries"
    libraries.mkdir()
    shutil.copy(hook, libraries)
    lading.reconfigure_hooks(
        driver_root=str(lading.node.root),
        share_libraries=str(libraries),
        gpu_mode="cdi" if way == "cdi" else "devices",
        cdi_dir=str(runtime.layout.cdi),
        cdi_hook=str(folder / "none"),
    )
    return lading


@pytest.mark.parametrize("way", ["nri", "cdi"])
def test_triton_and_find_library_find_libcuda(
    newer: PrivateContainerd, start_lading: StartLading, ldcache_hook: Path, tmp_path: Path, way: str
) -> None:
    need(bool(LDCONFIG), "ldconfig")
    lading, folder = start_for_lookups(start_lading, newer, ldcache_hook, tmp_path, way), str(Path(CUDA).parent)
    with open_site(lading, newer) as site, site.kubelet.pod("lookups", annotations={f"{GPU}.main": "0"}) as pod:
        container = run(pod, "main", *mount_python(tmp_path / "python"))
        assert look_up(container) == ([folder], "libcuda.so.1")
        assert "TRITON_LIBCUDA_PATH" not in container.env()


def test_by_cri_alone_triton_finds_libcuda_by_its_variable_and_find_library_does_not(
    newer: PrivateContainerd, start_lading: StartLading, ldcache_hook: Path, tmp_path: Path
) -> None:
    """Test an image with a cache, and one without. Triton before 2.2 does not know the variable."""
    need(bool(LDCONFIG), "ldconfig")
    lading, folder = start_for_lookups(start_lading, newer, ldcache_hook, tmp_path, "cri"), str(Path(CUDA).parent)
    python, cache = mount_python(tmp_path / "python"), make_cache(tmp_path / "cache")
    older, in_path = {"TRITON_LIBCUDA_PATH": ""}, {"LD_LIBRARY_PATH": f"{HOST}/run/lib:{folder}"}
    gpus = {f"{GPU}.cached": "0", f"{GPU}.distroless": "1"}
    with open_site(lading, newer) as site, site.kubelet.pod("lookups", annotations=gpus) as pod:
        cached, distroless = run(pod, "cached", *python, cache), run(pod, "distroless", *python)
        for container in (cached, distroless):
            assert look_up(container) == ([folder], None)
            assert look_up(container, **older) == ([], None)
        assert look_up(cached, **older, **in_path) == ([folder], None)
        assert look_up(distroless, **older, **in_path) == ([], None)
