"""Run the tests of tests/shares in real containers, whose shares come from the hook.

A container's program is tests/shares/program.py, run by this machine's Python, which is mounted into the container with its
libraries. The test calls the program by two named pipes in another mounted folder.
"""

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from simnode import kubelet
from simnode.cri import Container as Running
from simnode.cuda import CudaDriver
from simnode.daemons import LadingNode
from tests.node.site import Site as NodeSite
from tests.node.site import eventually
from tests.shares.site import PROGRAM, Process, Served

GPU: Final = "lading.dev/gpus"
HOST: Final = Path("/host")  # in containers
ERRORS: Final = "programs.log"
IN_IMAGE: Final = r"/(libc|libm|libpthread|libdl|librt|ld-linux[^/]*)\.so"


def install_python(folder: Path) -> None:
    """Copy the libraries of this Python, and the program, into a folder that containers have as /host/run."""
    libraries = folder / "lib"
    libraries.mkdir(parents=True)
    ctypes = importlib.util.find_spec("_ctypes")
    assert ctypes
    for needing in (str(Path(sys.executable).resolve()), ctypes.origin or ""):
        output = subprocess.run(["ldd", needing], capture_output=True, text=True, check=True).stdout
        for path in re.findall(r"=> (/\S+)", output):
            if not re.search(IN_IMAGE, path):
                shutil.copy(path, libraries)
    shutil.copy(PROGRAM, folder)


class _Contained(Process):
    def _end(self) -> None:
        if Path("/proc", str(self.pid)).exists():
            os.kill(self.pid, signal.SIGKILL)
            eventually(self._check_ended)

    def _check_ended(self) -> None:
        """Check that all processes of the container have ended. A zombie counts as ended: reaping is the duty of the
        container's first process."""
        status = Path("/proc", str(self.pid), "status")
        with suppress(FileNotFoundError, ProcessLookupError):
            assert "\nState:\tZ" in status.read_text()


class Container:
    def __init__(self, site: "ContainerSite", name: str, running: Running) -> None:
        self.name = name
        self.running = running
        self._site = site

    def start(self, *, init: bool = True, **env: str) -> Process:
        """Start a process, which initialises CUDA unless `init` is false."""
        process = self._site.start(self, env)
        if init:
            assert process.call("init") == 0
        return process

    def find_pid(self, inside: int) -> int:
        """Return the process ID that the host has for one of the container's."""
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                is_here = self.running.id in status.with_name("cgroup").read_text()
                match = re.search(r"^NSpid:\s+(\d+)\s.*?(\d+)$", status.read_text(), re.MULTILINE) if is_here else None
            except (FileNotFoundError, ProcessLookupError):
                continue
            if match and int(match[2]) == inside:
                return int(match[1])
        raise AssertionError(f"no process {inside} in {self.name}")


class ContainerSite(Served):
    """Offer on a node what `tests.shares.site.Site` offers to tests."""

    def __init__(self, lading: LadingNode, driver: CudaDriver, node: NodeSite, folder: Path) -> None:
        self.server = lading.shares
        self.socket = lading.shares.socket
        self._driver = driver
        self._node = node
        self._folder = folder
        self._processes: list[Process] = []
        self.errors = folder / ERRORS

    def container(self, name: str, *, mib: int = 2048, request: int = 50, limit: int = 100) -> Container:
        """Run a container with a share of the first card, and wait until the server has it."""
        share = f"0:memory={mib}Mi,core={request},limit={limit},isolation=tokens"
        pod = self._node.kubelet.run_pod(f"pod-{name}", annotations={f"{GPU}.{name}": share})
        options = self._driver.container()
        options["mounts"] = [
            *options["mounts"],
            kubelet.Mount(host_path=Path(sys.base_prefix), container_path=str(HOST / "python"), readonly=True),
            kubelet.Mount(host_path=self._folder, container_path=str(HOST / "run")),
        ]
        running = pod.run_container(name, **options)
        if self.server.running:
            eventually(lambda: self._check_served(name))
        return Container(self, name, running)

    def _check_served(self, name: str) -> None:
        assert any(use.container == name for use in self.uses())

    def start(self, container: Container, env: dict[str, str]) -> Process:
        number = len(self._processes)
        calls, answers = self._folder / f"{number}.calls", self._folder / f"{number}.answers"
        for path in (calls, answers):
            path.unlink(missing_ok=True)
            os.mkfifo(path)
        here, python = HOST / "run", HOST / "python/bin" / Path(sys.executable).resolve().name
        variables = {"LD_LIBRARY_PATH": f"{here}/lib", **env}
        text = " ".join(f"{name}={value}" for name, value in variables.items())
        files = f"<{here}/{calls.name} >{here}/{answers.name} 2>>{here}/{self.errors.name}"
        # Opened before the program does, which else would wait for this side, and the exec for it.
        writing = os.fdopen(os.open(calls, os.O_RDWR), "w")
        reading = os.fdopen(os.open(answers, os.O_RDONLY | os.O_NONBLOCK))
        inside = container.running.sh(f"{text} {python} -I -S {here}/{PROGRAM.name} {files} & echo $!")
        os.set_blocking(reading.fileno(), True)
        process = _Contained(container.find_pid(int(inside)), writing, reading)
        self._processes.append(process)
        return process

    def admit(self, pid: int) -> None:
        """Do nothing: a process of a container is in the pod's cgroup."""

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        if not self.server.running:
            self.server.start()
        self.signal_server(signal.SIGCONT)
