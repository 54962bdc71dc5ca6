"""Test that the loader's cache of real containers lists the driver's libraries, by NRI. By CDI: test_own_cdi.py."""

import re
import shutil
from pathlib import Path
from typing import Final

import pytest

from simnode import images
from simnode.build import LIBRARIES
from simnode.containerd import PrivateContainerd
from simnode.cri import Container, Pod
from simnode.kubelet import Mount
from tests.fakes.needs import need
from tests.node.conftest import StartLading
from tests.node.site import eventually, open_site

pytestmark = pytest.mark.node

GPU: Final = "lading.dev/gpus"
CUDA: Final = f"/{LIBRARIES}/libcuda.so.1"
COMPAT: Final = "/usr/local/cuda-12.2/compat"


def run(pod: Pod, name: str = "main", *mounts: Mount) -> Container:
    """Run a container with glibc, a read-only root, and this machine's ldconfig, which prints the cache."""
    ldconfig = shutil.which("ldconfig", path="/sbin:/usr/sbin")
    need(ldconfig is not None, "ldconfig")
    tool = Mount(host_path=Path(str(ldconfig)), container_path="/ldconfig", readonly=True)
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
