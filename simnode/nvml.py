"""Compile the fake NVML of a simulated node, and write its state file (format: fake_nvml.c).

The real pynvml loads the fake like the real library, by its SONAME. `FAKE_NVML_STATE` names the state file. The default is
`state` beside the library, so that commands of a person read the same state as the daemon. The file is read again for every
session, so a test's new state appears at the next poll.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from lading.errors import HostError
from simnode.child import replace_text
from simnode.profile import Profile

SOURCE = Path(__file__).parent / "fake_nvml.c"
SONAME = "libnvidia-ml.so.1"

GPU_IS_LOST = 15  # nvmlReturn_t
LINK_TO_GPU, LINK_TO_SWITCH = 0, 2  # nvmlIntNvLinkDeviceType_t


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Let a call, or all calls (`*`), return an error: for one GPU by index, or for the driver (None)."""

    status: int  # nvmlReturn_t
    gpu: int | None = None
    function: str = "*"


@dataclass(frozen=True, slots=True)
class Running:
    pid: int
    used_mib: int | None = None  # None: NVML does not tell
    instance: tuple[int, int] | None = None  # MIG: its GPU instance and compute instance; needs used_mib
    mps: bool = False  # a client of an MPS server; needs used_mib

    def render(self, gpu: int) -> str:
        text = ["mps_process" if self.mps else "process", gpu, self.pid, self.used_mib, *(self.instance or ())]
        return " ".join(str(word) for word in text if word is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlState:
    """Hold the state that NVML reports now: the profile's cards, with the changes that a test made."""

    profile: Profile
    processes: Mapping[int, Sequence[int | Running]] = field(default_factory=dict)  # GPU index → processes, or their ids
    used: dict[int, tuple[int, int]] = field(default_factory=dict)  # GPU index → memory in MiB, busy in percent
    compute_modes: Mapping[int, int] = field(default_factory=dict)  # GPU index → nvmlComputeMode_t
    uncorrected: Mapping[int, int] = field(default_factory=dict)  # GPU index → volatile errors; absent: not supported
    retired_pending: tuple[int, ...] = ()  # GPU indices
    memory_limits: Mapping[int, int] = field(default_factory=dict)  # GPU index → bytes by which the driver says too little
    power: Mapping[int, tuple[int, int]] = field(default_factory=dict)  # GPU index → limit and default, mW
    remap_failures: tuple[int, ...] = ()  # GPU indices
    remap_pending: tuple[int, ...] = ()
    fabric: tuple[tuple[int, int, int], ...] = ()  # (GPU index, nvmlGpuFabricState_t, nvmlReturn_t)
    links_down: tuple[tuple[int, int], ...] = ()  # (GPU index, link)
    bad_mig: dict[tuple[int, int], int] = field(default_factory=dict)  # (GPU index, slot) → nvmlReturn_t
    unnamed_mig: tuple[int, ...] = ()  # GPU indices whose instances have the card's name
    failures: tuple[Failure, ...] = ()

    def render(self) -> str:
        lines = [f"driver {self.profile.driver.version}"] if self.profile.driver else []
        for bdf, gpu in self.profile.gpus:
            numbers = f"{gpu.minor} {gpu.memory_mib} {gpu.reserved_mib} {int(gpu.mig is not None)}"
            lines.append(f"gpu {bus_id(bdf)} {gpu.uuid} {numbers} {gpu.model}")
        for index, (_, gpu) in enumerate(self.profile.gpus):
            lines += [f"mig {index} {n} {m.uuid} {m.gi} {m.ci} {m.memory_mib} {m.profile}" for n, m in enumerate(gpu.mig or ())]
        lines += [f"module {index} {gpu.module_id}" for index, (_, gpu) in enumerate(self.profile.gpus)]
        lines += [line for index in range(len(self.profile.gpus)) for line in self._links(index)]
        lines += [
            (Running(one) if isinstance(one, int) else one).render(index)
            for index, processes in self.processes.items()
            for one in processes
        ]
        lines += [f"used {index} {mib} {percent}" for index, (mib, percent) in self.used.items()]
        lines += [f"compute_mode {index} {mode}" for index, mode in self.compute_modes.items()]
        lines += [f"ecc {index} {count}" for index, count in self.uncorrected.items()]
        lines += [f"retired_pending {index}" for index in self.retired_pending]
        lines += [f"memory_limits {index} {error}" for index, error in self.memory_limits.items()]
        lines += [f"power {index} {limit} {default}" for index, (limit, default) in self.power.items()]
        lines += [f"remap_failure {index}" for index in self.remap_failures]
        lines += [f"remap_pending {index}" for index in self.remap_pending]
        lines += [f"bad_mig {index} {slot} {status}" for (index, slot), status in self.bad_mig.items()]
        lines += [f"fabric {index} {state} {status}" for index, state, status in self.fabric]
        lines += [f"divisible {index}" for index, (_, gpu) in enumerate(self.profile.gpus) if gpu.mig == ()]
        lines += [f"unnamed_mig {index}" for index in self.unnamed_mig]
        lines += [f"fail {-1 if f.gpu is None else f.gpu} {f.function} {f.status}" for f in self.failures]
        return "\n".join(lines) + "\n"

    def _links(self, index: int) -> list[str]:
        cards = {bdf for bdf, _ in self.profile.gpus}
        peers = [bdf for bdf, count in self.profile.gpus[index][1].nvlinks.items() for _ in range(count)]
        ends = [f"{LINK_TO_GPU if bdf in cards else LINK_TO_SWITCH} {bus_id(bdf)}" for bdf in peers]
        return [f"nvlink {index} {n} {end} {int((index, n) not in self.links_down)}" for n, end in enumerate(ends)]

    def write(self, path: Path) -> None:
        """Replace the file in one step, so that a session that opens meanwhile reads the old or the new one."""
        replace_text(path, self.render())


def bus_id(bdf: str) -> str:
    """Return the address as NVML writes it: eight digits of domain, upper case."""
    domain, rest = bdf.split(":", 1)
    return f"{int(domain, 16):08X}:{rest.upper()}"


def compile_fake_nvml(out: Path) -> Path:
    """Put the compiled library into the folder `out` and return its path. Raises HostError without a C compiler."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        raise HostError("cannot compile the fake NVML: no C compiler", hint="apt-get install gcc libc6-dev, or set CC")
    out.mkdir(parents=True, exist_ok=True)
    library = out / SONAME
    new = library.with_suffix(f".{os.getpid()}")  # a process may have the old one mapped
    new.write_bytes(_compiled(compiler))
    new.chmod(0o755)
    return new.replace(library)


@cache  # every simulated node has one, and they are all the same
def _compiled(compiler: str) -> bytes:
    with TemporaryDirectory(prefix="lading-nvml-") as folder:
        library = Path(folder) / SONAME
        command = [compiler, "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
        command += [f"-Wl,-soname,{SONAME}", "-o", str(library), str(SOURCE), "-ldl"]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - own source, the host's compiler
        except (OSError, subprocess.CalledProcessError) as e:
            cause = e.stderr.strip() if isinstance(e, subprocess.CalledProcessError) else str(e)
            hint = "apt-get install gcc libc6-dev"
            raise HostError(f"cannot compile the fake NVML with {compiler}: {cause}", hint=hint) from e
        return library.read_bytes()
