"""Ways in which programs share the card of a machine: Lading's tokens, and those with which it is compared.

Each way starts gpu-work for a load, with what makes the program keep to its request. Nothing changes a setting of the driver.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from bench.gpu_loads import Load, Made, read
from bench.isolation_real import Real
from lading.errors import HostError, LadingError
from simnode.patience import wait_until
from tests.gpu.machine import HAMI
from tests.shares.card import MachineCard

MPS: Final = "nvidia-cuda-mps-control"
LOCK: Final = Path("/tmp/vgpulock")  # noqa: S108 -- where HAMi-core looks
BOUND_S: Final = 60.0
MEMORY_MIB: Final = 4096
Program = subprocess.Popen[str]


Start = Callable[[Load, Sequence[str]], Program]


class Way(Protocol):
    def case(self) -> AbstractContextManager[Start]:
        """Yield a function that starts gpu-work with arguments, for programs that share the card with one another alone."""

    def server_s(self) -> float:
        """Return the CPU time of a server since the case began; 0 where there is none."""


class Slices:
    """The driver's own time slices: programs that nothing keeps to a share."""

    def __init__(self, real: Real, env: Mapping[str, str], folder: Path) -> None:
        self._real = real
        self._env = env
        self._folder = folder

    @contextmanager
    def case(self) -> Iterator[Start]:
        yield self._start

    def server_s(self) -> float:
        return 0

    def _start(self, load: Load, words: Sequence[str]) -> Program:
        pipe = subprocess.PIPE
        env = {**self._env, **self._limit(load)}
        command = [str(self._real.work), *words]
        return subprocess.Popen(command, cwd=self._folder, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def _limit(self, load: Load) -> dict[str, str]:
        return {}


class ByMps(Slices):
    """NVIDIA's MPS, each program on a part of the multiprocessors."""

    def _limit(self, load: Load) -> dict[str, str]:
        return {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(min(load.request, load.limit))}


class ByHami(Slices):
    """HAMi-core, each program with a limit of compute."""

    def _limit(self, load: Load) -> dict[str, str]:
        shared = Path(tempfile.mkdtemp(dir=self._folder)) / "cache"
        limits = {"CUDA_DEVICE_SM_LIMIT": str(min(load.request, load.limit)), "CUDA_DEVICE_MEMORY_LIMIT": f"{MEMORY_MIB}m"}
        return {"LD_PRELOAD": self._env[HAMI], "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(shared), **limits}


class Tokens:
    """Lading's share server and library, each program in a container with a share."""

    def __init__(self, real: Real) -> None:
        self._real = real

    @contextmanager
    def case(self) -> Iterator[Start]:
        with self._real.site() as self._site:
            yield self._start

    def _start(self, load: Load, words: Sequence[str]) -> Program:
        container = self._site.container(load.name, mib=MEMORY_MIB, request=load.request, limit=load.limit)
        return self._real.start(self._site, container, *words)

    def server_s(self) -> float:
        fields = Path(f"/proc/{self._site.server.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime and stime: proc_pid_stat(5)


@contextmanager
def mps_server(card: MachineCard, env: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Run a control daemon of MPS. Yield the environment of its clients. Raise HostError if it does not start."""
    folders = (card.root / "bin", card.root / "usr/bin")
    control = shutil.which(MPS, path=":".join([os.environ["PATH"], *map(str, folders)]))
    if control is None:
        raise HostError(f"there is no {MPS}")
    with tempfile.TemporaryDirectory(prefix="lading-mps-") as folder:
        own = {**env, "CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
        for name in ("pipe", "log"):
            Path(folder, name).mkdir()
        begun = subprocess.run([control, "-d"], env=own, capture_output=True, text=True, check=False, timeout=BOUND_S)
        if begun.returncode:
            raise HostError(f"{MPS} -d ended with status {begun.returncode}: {(begun.stdout + begun.stderr).strip()}")
        pid = int(Path(folder, f"pipe/{MPS}.pid").read_text())
        try:
            yield own
        finally:
            subprocess.run([control], input="quit\n", env=own, capture_output=True, text=True, check=False, timeout=BOUND_S)
            wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the end of MPS")


@contextmanager
def open_way(name: str, real: Real, card: MachineCard, folder: Path) -> Iterator[Way]:
    """Prepare a way to share the card. Raise LadingError that says why this machine does not have it."""
    env = {**card.environment(folder), "LD_LIBRARY_PATH": f"{card.folder}:{os.environ.get('LD_LIBRARY_PATH', '')}"}
    with ExitStack() as ends:
        match name:
            case "tokens":
                yield Tokens(real)
            case "slices":
                yield Slices(real, env, folder)
            case "mps":
                yield ByMps(real, ends.enter_context(mps_server(card, env)), folder)
            case _:
                if not env.get(HAMI):
                    raise HostError(f"{HAMI} names no libvgpu.so of HAMi-core")
                LOCK.mkdir(exist_ok=True)
                ends.callback(shutil.rmtree, LOCK, ignore_errors=True)
                yield ByHami(real, env, folder)


class Measured(NamedTuple):
    made: dict[str, Made]  # a load's name → what the card did for it
    server_part: float  # part of a CPU core that the share server used


def measure(way: Way, loads: Sequence[Load], seconds: float) -> Measured:
    """Run the loads at the same time, and measure what the card does for each. Raise LadingError if a program fails."""
    with way.case() as start, ExitStack() as ends:
        programs = [ends.enter_context(_ended(start(load, load.words(seconds)))) for load in loads]
        for program in programs:
            _await_ready(program)
        before = way.server_s()
        for program in programs:
            assert program.stdin
            program.stdin.write("\n")
            program.stdin.flush()
        made = {load.name: _finish(program, seconds) for load, program in zip(loads, programs, strict=True)}
        return Measured(made, (way.server_s() - before) / seconds)


@contextmanager
def _ended(program: Program) -> Iterator[Program]:
    with program:
        try:
            yield program
        finally:
            program.kill()


def _await_ready(program: Program) -> None:
    assert program.stdout
    if program.stdout.readline() != "ready\n":
        raise LadingError(f"gpu-work failed: {program.communicate()[1].strip()[-300:]}")


def _finish(program: Program, seconds: float) -> Made:
    try:
        out, errors = program.communicate(timeout=seconds + BOUND_S)
    except subprocess.TimeoutExpired as e:
        raise LadingError(f"gpu-work does not end within {e.timeout:.0f} s") from e
    if program.returncode:
        raise LadingError(f"gpu-work ended with status {program.returncode}: {errors.strip()[-300:]}")
    return read(out)


def cost_ns(way: Way, load: Load, *words: str) -> float:
    """Return what a call costs that gpu-work makes many times, in nanoseconds."""
    with way.case() as start, _ended(start(load, words)) as program:
        out, errors = program.communicate(timeout=BOUND_S)
    if not out:
        raise LadingError(f"gpu-work failed: {errors.strip()[-300:]}")
    return float(out.split()[0])
