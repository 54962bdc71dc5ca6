"""Compile the fake libcuda.so.1 (fake_cuda.c) and the fake of HAMi-core (fake_hami.c), and add the driver to a simulated
node's files."""

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lading.compiling import find_compiler
from lading.errors import HostError
from shares.library.build import CUDA, HERE
from simnode import images
from simnode.build import LIBRARIES, SimNode
from simnode.kubelet import ContainerOptions, Mount
from simnode.nvml import NvmlState, compile_fake_nvml

_NVML_STATE: Final = "nvml-state"
_IN_CONTAINER: Final = "/run/fake-cuda"
_HERE: Final = Path(__file__).parent
SOURCE: Final = _HERE / "fake_cuda.c"


def compile_fake_cuda(folder: Path) -> Path:
    """Compile the fake into the folder, which is created if needed. Return its path."""
    # Calls between functions of the fake stay inside it, as in the driver: they never reach a library in front of it.
    return _compile(SOURCE, folder / CUDA, f"-I{HERE}", "-fvisibility=hidden", "-Wl,-Bsymbolic", f"-Wl,-soname,{CUDA}")


def compile_fake_hami(folder: Path) -> Path:
    """Compile the fake of HAMi-core's library into the folder, which is created if needed. Return its path."""
    return _compile(_HERE / "fake_hami.c", folder / "libvgpu.so")


def _compile(source: Path, out: Path, *flags: str) -> Path:
    out.parent.mkdir(parents=True, exist_ok=True)
    common = ["-std=gnu11", "-O2", "-fPIC", "-shared", *flags]
    command = [*find_compiler(), *common, str(source), "-o", str(out), "-pthread", "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 -- the compiler on our source
    if done.returncode:
        raise HostError(f"cannot compile {source.name}: {done.stderr.strip()}")
    return out


@dataclass(frozen=True, slots=True)
class CudaDriver:
    """Represent the fake driver of a simulated node. `folder` has the state of its cards, which containers share."""

    folder: Path

    def container(self) -> ContainerOptions:
        """Return the changes that a container needs in addition to Lading's, so that its programs find the simulated cards."""
        mounts = [Mount(host_path=self.folder, container_path=_IN_CONTAINER)]
        env = {"FAKE_CUDA_DIR": _IN_CONTAINER, "FAKE_NVML_STATE": f"{_IN_CONTAINER}/{_NVML_STATE}"}
        return {"image": images.CUDA, "env": env, "mounts": mounts}

    def reset(self) -> None:
        """Delete the state of the cards. No program may be using them."""
        for card in self.folder.glob("GPU-*"):
            card.unlink()


def install_fake_cuda(node: SimNode) -> CudaDriver:
    """Replace the texts that stand for the driver's libcuda and NVML by the fakes."""
    if node.profile.driver is None:
        raise HostError(f"cannot install CUDA on {node.profile.name}: the node has no driver")
    folder = node.root / "fake-cuda"
    for library in (compile_fake_cuda(folder / "built"), compile_fake_nvml(folder / "built")):
        library.replace(node.root / LIBRARIES / f"{library.stem}.{node.profile.driver.version}")
    (node.root / LIBRARIES / CUDA.removesuffix(".1")).symlink_to(CUDA)
    NvmlState(profile=node.profile).write(folder / _NVML_STATE)
    for _, gpu in node.profile.gpus:
        (folder / f"nvidia{gpu.minor}").symlink_to(gpu.uuid)
    return CudaDriver(folder)
