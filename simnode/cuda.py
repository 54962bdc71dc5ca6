"""The fake libcuda.so.1 (fake_cuda.c): compile it, and put it among the driver's files of a simulated node."""

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lading.errors import HostError
from shares.library.build import HERE, SONAME, find_compiler
from simnode import images
from simnode.build import LIBRARIES, SimNode
from simnode.kubelet import ContainerOptions, Mount

_IN_CONTAINER: Final = "/run/fake-cuda"
SOURCE = Path(__file__).parent / "fake_cuda.c"


def compile_fake_cuda(folder: Path) -> Path:
    """Compile the fake into the folder, which is created if needed. Return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / SONAME
    flags = ["-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", f"-I{HERE}", f"-Wl,-soname,{SONAME}"]
    command = [*find_compiler(), *flags, str(SOURCE), "-o", str(out), "-pthread", "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 -- the compiler on our source
    if done.returncode:
        raise HostError(f"cannot compile the fake libcuda: {done.stderr.strip()}")
    return out


@dataclass(frozen=True, slots=True)
class CudaDriver:
    """The fake driver of a simulated node. `folder` has the state of its cards, which containers share."""

    folder: Path

    def container(self) -> ContainerOptions:
        """Return what a container needs, besides what Lading gives it, so that its programs find the simulated cards."""
        mounts = [Mount(host_path=self.folder, container_path=_IN_CONTAINER)]
        return {"image": images.CUDA, "env": {"FAKE_CUDA_DIR": _IN_CONTAINER}, "mounts": mounts}


def install_fake_cuda(node: SimNode) -> CudaDriver:
    """Replace the text that stands for the driver's libcuda by the fake."""
    if node.profile.driver is None:
        raise HostError(f"cannot install CUDA on {node.profile.name}: the node has no driver")
    folder = node.root / "fake-cuda"
    library = compile_fake_cuda(folder / "library")
    library.replace(node.root / LIBRARIES / f"libcuda.so.{node.profile.driver.version}")
    for _, gpu in node.profile.gpus:
        (folder / f"nvidia{gpu.minor}").symlink_to(gpu.uuid)
    return CudaDriver(folder)
