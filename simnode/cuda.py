"""The fake libcuda.so.1 (fake_cuda.c): compile it, and put it among the driver's files of a simulated node."""

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lading.errors import HostError
from shares.library.build import CUDA, HERE, find_compiler
from simnode import images
from simnode.build import LIBRARIES, SimNode
from simnode.kubelet import ContainerOptions, Mount
from simnode.nvml import NvmlState, compile_fake_nvml

_NVML_STATE: Final = "nvml-state"
_IN_CONTAINER: Final = "/run/fake-cuda"
SOURCE = Path(__file__).parent / "fake_cuda.c"


def compile_fake_cuda(folder: Path) -> Path:
    """Compile the fake into the folder, which is created if needed. Return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / CUDA
    # Its own calls are its own, as the driver's are: never those of a library in front of it.
    linked = ["-Wl,-Bsymbolic", f"-Wl,-soname,{CUDA}"]
    flags = ["-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", f"-I{HERE}", *linked]
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
        env = {"FAKE_CUDA_DIR": _IN_CONTAINER, "FAKE_NVML_STATE": f"{_IN_CONTAINER}/{_NVML_STATE}"}
        return {"image": images.CUDA, "env": env, "mounts": mounts}


def install_fake_cuda(node: SimNode) -> CudaDriver:
    """Replace the texts that stand for the driver's libcuda and NVML by the fakes."""
    if node.profile.driver is None:
        raise HostError(f"cannot install CUDA on {node.profile.name}: the node has no driver")
    folder = node.root / "fake-cuda"
    for library in (compile_fake_cuda(folder / "built"), compile_fake_nvml(folder / "built")):
        library.replace(node.root / LIBRARIES / f"{library.stem}.{node.profile.driver.version}")
    NvmlState(profile=node.profile).write(folder / _NVML_STATE)
    for _, gpu in node.profile.gpus:
        (folder / f"nvidia{gpu.minor}").symlink_to(gpu.uuid)
    return CudaDriver(folder)
