"""Compile the fake libcuda.so.1 (fake_cuda.c, fake_card.c) and the fake of HAMi-core (fake_hami.c), and add the driver to the
files of a simulated node."""

import subprocess
from collections.abc import Sequence
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
SOURCES: Final = (_HERE / "fake_cuda.c", _HERE / "fake_card.c")


def compile_fake_cuda(folder: Path) -> Path:
    """Compile the fake into the folder, which is created if needed. Return its path."""
    # Calls between functions of the fake stay inside it, as in the driver: they never reach a library in front of it.
    flags = [f"-I{HERE}", "-fvisibility=hidden", "-Wl,-Bsymbolic", f"-Wl,-soname,{CUDA}"]
    return _compile(SOURCES, folder / CUDA, *flags)


def compile_fake_hami(folder: Path) -> Path:
    """Compile the fake of HAMi-core's library into the folder, which is created if needed. Return its path."""
    return _compile((_HERE / "fake_hami.c",), folder / "libvgpu.so")


def _compile(sources: Sequence[Path], out: Path, *flags: str) -> Path:
    out.parent.mkdir(parents=True, exist_ok=True)
    common = ["-std=gnu11", "-O2", "-fPIC", "-shared", *flags]
    command = [*find_compiler(), *common, *map(str, sources), "-o", str(out), "-pthread", "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 -- the compiler on our source
    if done.returncode:
        raise HostError(f"cannot compile {sources[0].name}: {done.stderr.strip()}")
    return out


@dataclass(frozen=True, slots=True)
class CudaDriver:
    """Represent the fake driver of a simulated node. `folder` has the state of its cards, which containers share."""

    folder: Path

    def container(self, *, context_mib: int = 0) -> ContainerOptions:
        """Return the changes that a container needs in addition to Lading's, so that its programs find the simulated cards.
        `context_mib`: memory of a card that a process takes before it allocates any."""
        mounts = [Mount(host_path=self.folder, container_path=_IN_CONTAINER)]
        env = {"FAKE_CUDA_DIR": _IN_CONTAINER, "FAKE_NVML_STATE": f"{_IN_CONTAINER}/{_NVML_STATE}"}
        env["FAKE_CUDA_CONTEXT_MIB"] = str(context_mib)
        return {"image": images.CUDA, "env": env, "mounts": mounts}

    def reset(self) -> None:
        """Delete the state of the cards. No program may be using them."""
        for state in (*self.folder.glob("GPU-*"), self.folder / "cards"):
            state.unlink(missing_ok=True)


def find_cuda_state(node: SimNode) -> Path:
    """Return the folder in which the fake driver of this node keeps what processes have of its cards."""
    return node.root / "fake-cuda"


def install_fake_cuda(node: SimNode) -> CudaDriver:
    """Replace the texts that stand for the driver's libcuda and NVML by the fakes."""
    if node.profile.driver is None:
        raise HostError(f"cannot install CUDA on {node.profile.name}: the node has no driver")
    folder = find_cuda_state(node)
    for library in (compile_fake_cuda(folder / "built"), compile_fake_nvml(folder / "built")):
        library.replace(node.root / LIBRARIES / f"{library.stem}.{node.profile.driver.version}")
    (node.root / LIBRARIES / CUDA.removesuffix(".1")).symlink_to(CUDA)
    NvmlState(profile=node.profile).write(folder / _NVML_STATE)
    for _, gpu in node.profile.gpus:
        (folder / f"nvidia{gpu.minor}").symlink_to(gpu.uuid)
    return CudaDriver(folder)
