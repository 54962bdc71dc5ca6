"""Start the processes to measure: a private containerd or the small backend, and in front of it the proxy and the usual way.

A contender is a socket with the process whose CPU and memory count; it ends with the `with` block. Rounds of the contenders are
interleaved, so that what else the machine does meets all of them alike.
"""

import contextlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from bench.figures import Results
from simnode.build import build
from simnode.child import Child, answers
from simnode.containerd import PrivateContainerd
from simnode.daemons import Daemon, LadingNode, render_flat_toml


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    rounds: int
    calls: int  # number of calls in a round
    lists: int  # number of lists in a round
    pairs: int  # pairs of created containers
    messages: int  # messages of 15 MB
    calls_for_memory: int
    creates_for_memory: int


FULL: Final = Size(rounds=15, calls=1000, lists=50, pairs=300, messages=30, calls_for_memory=200_000, creates_for_memory=5_000)
QUICK: Final = Size(rounds=3, calls=500, lists=20, pairs=20, messages=5, calls_for_memory=20_000, creates_for_memory=100)


@dataclass(frozen=True, slots=True)
class Part:
    results: Results
    notes: list[str] = field(default_factory=list)  # printed beside the table


R = TypeVar("R")
PROFILE = "demo-8gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    name: str  # the name in the JSON file
    socket: Path
    pid: int  # the process whose CPU and memory count: the proxy; direct, the runtime


class ByNri(NamedTuple):
    lading: LadingNode
    runtime: PrivateContainerd


class Rig:
    def __init__(self, folder: Path, runtime: PrivateContainerd, report: Callable[[str], None]) -> None:
        self.folder = folder
        self.runtime = runtime
        self.report = report
        self.direct = Contender(name="direct", socket=runtime.socket, pid=runtime.pid)

    @contextlib.contextmanager
    def relay(
        self, runtime: Contender, *, registration: Mapping[str, Any] | None = None, heartbeat: Path | None = None
    ) -> Iterator[Contender]:
        """Start the proxy as installed, with at most one hook registration; `heartbeat`: the file of bench.heartbeat."""
        folder = self.folder / f"relay-{runtime.name}"
        hooks_dir = folder / "hooks.d"
        hooks_dir.mkdir(parents=True, exist_ok=True)
        for old in hooks_dir.iterdir():
            old.unlink()
        if registration:
            (hooks_dir / "50-bench.json").write_text(json.dumps(registration))
        config, listen = folder / "runtimeproxy.toml", folder / "cri.sock"
        settings = {"listen": str(listen), "runtime_endpoint": str(runtime.socket), "hooks_dir": str(hooks_dir)}
        config.write_text(render_flat_toml(settings))
        proxy = Daemon("lading-runtimeproxy", config=config, socket=listen)
        if heartbeat:
            proxy.argv[:1] = [sys.executable, "-m", "bench.heartbeat", str(heartbeat)]
        proxy.start()
        try:
            yield Contender(name="relay", socket=listen, pid=proxy.pid)
        finally:
            proxy.stop()

    @contextlib.contextmanager
    def grpc_aio(self, runtime: Contender) -> Iterator[Contender]:
        with self._module("grpc_aio_proxy", f"grpc_aio-{runtime.name}", str(runtime.socket)) as (socket, pid):
            yield Contender(name="grpc_aio", socket=socket, pid=pid)

    @contextlib.contextmanager
    def backend(self) -> Iterator[Contender]:
        with self._module("backend", "backend") as (socket, pid):
            yield Contender(name="direct", socket=socket, pid=pid)

    @contextlib.contextmanager
    def stuck_hook(self) -> Iterator[Path]:
        """Start a hook server that accepts every request and answers none."""
        with self._module("stub_hook", "stuck_hook") as (socket, _):
            yield socket

    @contextlib.contextmanager
    def fixed_hook(self, answer: bytes) -> Iterator[Path]:
        """Start a hook server that answers each question with these bytes."""
        path = self.folder / "answer"
        path.write_bytes(answer)
        with self._module("stub_hook", "fixed_hook", str(path)) as (socket, _):
            yield socket

    @contextlib.contextmanager
    def lading(self) -> Iterator[LadingNode]:
        """Start hooks and proxy on a simulated node, in front of the real containerd."""
        folder = Path(tempfile.mkdtemp(prefix="lading-", dir=self.folder))
        node = build(PROFILE, folder / "node")
        with LadingNode(folder, node=node, runtime=self.runtime) as lading:
            yield lading

    @contextlib.contextmanager
    def lading_by_nri(self) -> Iterator[ByNri]:
        """Start hooks as the plugin of another containerd of the same version, which serves nothing else."""
        folder = Path(tempfile.mkdtemp(prefix="lading-", dir=self.folder))
        node = build(PROFILE, folder / "node")
        with (
            PrivateContainerd(folder / "ctd", self.runtime.binaries) as runtime,
            LadingNode(folder, node=node, runtime=runtime, nri=runtime.nri_socket, hooks_settings={"metrics": ""}) as lading,
        ):
            yield ByNri(lading, runtime)

    @contextlib.contextmanager
    def _module(self, module: str, name: str, *arguments: str) -> Iterator[tuple[Path, int]]:
        socket = self.folder / f"{name}.sock"
        command = [sys.executable, "-m", f"bench.{module}", str(socket), *arguments]
        child = Child(command, log=self.folder / f"{name}.log")
        child.start()
        try:
            child.wait_until(lambda: answers(socket), f"an answer at {socket}")
            yield socket, child.pid
        finally:
            child.stop()

    def interleave(
        self, what: str, rounds: int, contenders: Sequence[Contender], measure: Callable[[Contender], R]
    ) -> dict[str, list[R]]:
        """Return what `measure` returns for each contender, round by round, after a warm-up. Each round begins with another
        contender."""
        out: dict[str, list[R]] = {contender.name: [] for contender in contenders}
        for number in range(rounds + 1):
            self.report(f"{what}: round {number} of {rounds}" if number else f"{what}: warming up")
            first = number % len(contenders)
            for contender in (*contenders[first:], *contenders[:first]):
                figure = measure(contender)
                if number:
                    out[contender.name].append(figure)
        return out
