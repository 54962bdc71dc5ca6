"""A node's share server, and processes of containers that use one card by the library, all of them real processes.

A container is its grant's folder: its processes run there, and the library of the tests has its socket by a relative path. For
the server a process is of a pod by a made /proc.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, Final

from lading.sharestatus import ShareUse, ask
from shares.library.build import NVML
from simnode.child import Block, Child
from simnode.daemons import Daemon
from tests.fakes.needs import need
from tests.fakes.share_rig import BOUND_S, MIB, POD, ShareRig, eventually, share, shared
from tests.shares.card import DRIVER, SOCKET, Card, FakeCard, choose_card

__all__ = ["BOUND_S", "MIB", "SOCKET", "Container", "Process", "Site", "eventually", "new_site", "succeed"]

PROGRAM: Final = Path(__file__).parent / "program.py"


class Process:
    """A program in a container (program.py): `do` has it make calls, and returns their answers."""

    def __init__(self, pid: int, calls: IO[str], answers: IO[str]) -> None:
        self.pid = pid
        self._calls = calls
        self._answers = answers

    def tell(self, *calls: Sequence[object]) -> None:
        """Have it make calls, and go on."""
        self._calls.write(json.dumps(calls) + "\n")
        self._calls.flush()

    def told(self) -> list[Any]:
        line = self._answers.readline()
        assert line, f"process {self.pid} ended"
        return list(json.loads(line))

    def do(self, *calls: Sequence[object]) -> list[Any]:
        self.tell(*calls)
        return self.told()

    def call(self, name: str, *arguments: object) -> Any:
        (said,) = self.do([name, *arguments])
        return said

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it as the kernel does, also while it is stopped. May be called twice."""
        self._end()
        for stream in (self._calls, self._answers):
            with suppress(BrokenPipeError):
                stream.close()

    def _end(self) -> None:
        raise NotImplementedError


def succeed(process: Process, calls: Sequence[Sequence[object]]) -> None:
    assert [said or 0 for said in process.do(*calls)] == [0] * len(calls)


class _ChildProcess(Process):
    def __init__(self, folder: Path, env: Mapping[str, str], *, errors: Path) -> None:
        with errors.open("ab") as file:
            self._popen = subprocess.Popen(
                [sys.executable, "-I", "-S", str(PROGRAM)],
                cwd=folder,
                env=dict(env),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
            )
        assert self._popen.stdin
        assert self._popen.stdout
        super().__init__(self._popen.pid, self._popen.stdin, self._popen.stdout)

    def _end(self) -> None:
        self._popen.kill()
        self._popen.wait(BOUND_S)


class Container:
    def __init__(self, site: "Site", name: str, folder: Path) -> None:
        self.name = name
        self._site = site
        self.folder = folder

    def start(self, *, init: bool = True, **env: str) -> Process:
        """Start a process, which initialises CUDA unless `init` is false."""
        process = self._site.start(self.folder, env)
        if init:
            assert process.call("init") == 0
        return process


class Served:
    """Answer what tests ask of a site with a running server."""

    card: Card = FakeCard()
    server: Child
    socket: Path  # the socket for the server's status

    def uses(self) -> list[ShareUse]:
        return ask(self.socket)

    def use(self, container: str) -> ShareUse:
        return next(use for use in self.uses() if use.container == container)

    def held(self) -> dict[str, float]:
        """Return for how long each container has had the card."""
        return {use.container: use.held_s for use in self.uses()}

    def signal_server(self, number: signal.Signals) -> None:
        self.signal(number, [self.server.pid])

    def signal(self, number: signal.Signals, pids: Sequence[int]) -> None:
        for pid in pids:
            os.kill(pid, number)


class Site(Served, Block):
    """One card, a server, and containers with shares of it."""

    def __init__(
        self, folder: Path, library: Path, *, policy: str = "fair", context_mib: int = 0, count_contexts: bool = True
    ) -> None:
        """Prepare a site. `context_mib`: what a context takes of the fake card; with 0 a test counts its allocations only, on
        every card."""
        self._context_mib = context_mib
        self._reader: Process | None = None
        self._folder = folder
        self._rig = ShareRig(folder)
        self.card = choose_card()
        self._library = library
        config = folder / "shares.toml"
        settings = {
            "shares_dir": str(self._rig.folder),
            "listen": str(folder / "status.sock"),
            "host_root": str(self._rig.host_root),
            "policy": policy,
            "metrics": "",
            "nvml_library": str(library.parent / DRIVER / NVML),
            "count_contexts": count_contexts and (self.card.is_fake or context_mib > 0),
        }
        config.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()))
        self.socket = folder / "status.sock"
        env = {name: value for name, value in self.card.environment(folder).items() if name.startswith("FAKE_")}
        self.server = Daemon("lading-shares", config=config, socket=self.socket, env=env, module="shares.main")
        self.errors = folder / "programs.log"

    def _begin(self) -> None:
        self._ends.enter_context(self._rig)
        self._ends.callback(self._end_server)
        self.server.start()

    def _end_server(self) -> None:
        if self.server.running:
            os.kill(self.server.pid, signal.SIGCONT)
        self.server.stop()

    def driver_mib(self, process: Process) -> int:
        """Return what the driver says that this process has of the card, as NVML shows it."""
        if self._reader is None:
            self._reader = self.start(self._folder, {})  # a process of its own, because a process does not see its own lock
        found = self._reader.call("nvml_processes")
        return int(found[str(process.pid)]) // MIB

    @property
    def logs(self) -> tuple[Path, ...]:
        return (self.server.log, self.errors)

    def container(
        self,
        name: str,
        *,
        mib: int = 2048,
        request: int = 50,
        limit: int = 100,
        driver_limits: bool = False,
        turns: bool = True,
        other_mib: int = 0,
    ) -> Container:
        """Grant a share, and wait until the server has it. `other_mib`: grant so much of a second card too."""
        need(not other_mib or len(self.card.uuids) > 1, "two cards")
        first = self.card.uuids[0]
        gpus = [shared(first, mib=mib, request=request, limit=limit, driver_limits=driver_limits, turns=turns)]
        if other_mib:
            gpus.append(shared(self.card.uuids[1], mib=other_mib, request=request, limit=limit))
        path = self._rig.grant(share(name, *gpus))
        if self.server.running:
            eventually(lambda: any(use.container == name for use in self.uses()))
        return Container(self, name, path.parent)

    def start(self, folder: Path, env: Mapping[str, str]) -> Process:
        process = _ChildProcess(folder, {**self.environment(), **env}, errors=self.errors)
        self._ends.callback(process.kill)
        self.admit(process.pid)
        return process

    def launch(self, folder: Path, command: Sequence[str], env: Mapping[str, str]) -> "subprocess.Popen[str]":
        """Start any program in a container's folder. It begins once the server can see whose it is."""
        waiting = ["/bin/sh", "-c", 'read _; exec "$0" "$@"', *command]
        pipe = subprocess.PIPE
        program = subprocess.Popen(waiting, cwd=folder, env=dict(env), stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self.admit(program.pid)
        assert program.stdin
        program.stdin.write("\n")
        program.stdin.flush()
        return program

    def admit(self, pid: int, *, pod: str = POD) -> None:
        """Put a process into the pod's cgroup."""
        self._rig.say_pod(pod, pid)

    def environment(self) -> dict[str, str]:
        given = self.card.environment(self._folder)
        paths = [str(self._library.parent), *filter(None, [given.get("LD_LIBRARY_PATH")])]
        return {**given, "LD_LIBRARY_PATH": ":".join(paths), "FAKE_CUDA_CONTEXT_MIB": str(self._context_mib)}


@contextmanager
def new_site(library: Path, **settings: Any) -> Iterator[Site]:
    """Make a site in a folder of /tmp: pytest's own folders are too long for a socket's path."""
    with TemporaryDirectory(prefix="lading-") as folder, Site(Path(folder), library, **settings) as site:
        yield site
