"""Share the parts of fault tests: single daemons, registrations by hand, texts of a log, and a clock."""

import json
import re
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from lading.log import Event
from lading.vocabulary import PREFIX
from protos.cri.runtime.v1 import api_pb2 as cri
from protos.hook.v1 import hook_pb2 as hook
from simnode.daemons import Daemon, render_flat_toml
from tests.fakes.raw_server import Call, RawServer
from tests.hostile.runtime import InMemoryRuntime
from tests.started import NO_METRICS

GUARDED = {f"{PREFIX}gpus": "0"}  # annotations of a pod that wants the first card
PLAIN: dict[str, str] = {}


def proxy_in(folder: Path, runtime: Path, **settings: object) -> Daemon:
    """Return a proxy in front of any runtime, which is not started yet."""
    config = folder / "runtimeproxy.toml"
    values = {
        "listen": str(folder / "cri.sock"),
        "runtime_endpoint": str(runtime),
        "hooks_dir": str(folder / "hooks.d"),
        **NO_METRICS,
        **settings,
    }
    (folder / "hooks.d").mkdir(exist_ok=True)
    config.write_text(render_flat_toml(values))
    return Daemon("lading-runtimeproxy", config=config, socket=folder / "cri.sock")


@contextmanager
def running(daemon: Daemon) -> Iterator[Daemon]:
    """Start a daemon for the block, which may stop it itself."""
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.stop()


def register(folder: Path, endpoint: Path, name: str = "50-test.json", **fields: object) -> Path:
    """Register a hook server for CreateContainer and StopPodSandbox of pods with Lading's annotations. `fields`: more fields,
    with `_` for `-`."""
    registration: dict[str, Any] = {
        "remote-endpoint": str(endpoint),
        "runtime-hooks": ["PreCreateContainer", "PreStopPodSandbox"],
        "annotation-prefixes": [PREFIX],
        **{key.replace("_", "-"): value for key, value in fields.items()},
    }
    path = folder / "hooks.d" / name
    new = path.with_suffix(".new")
    new.write_text(json.dumps(registration))
    new.rename(path)
    return path


def cards_in_use(runtime: InMemoryRuntime) -> list[str]:
    """Return the device nodes of NVIDIA cards in containers that have not exited, once for each container."""
    live = [c.id for c in list(runtime.containers.values()) if c.state != cri.CONTAINER_EXITED]
    requests = [runtime.created[i] for i in live if i in runtime.created]
    paths = [device.container_path for request in requests for device in request.config.devices]
    return [path for path in paths if re.fullmatch(r"/dev/nvidia\d+", path)]


def fill(directory: Path) -> Path:
    """Fill the file system with one file, and return it. Removing the file frees the space."""
    filler = directory / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return filler


def logged(daemon: Daemon, event: Event) -> list[dict[str, str]]:
    """Return the fields of an event's log records, with `msg`, in order."""
    lines = daemon.log.read_text().splitlines() if daemon.log.exists() else []
    records = (dict(word.split("=", 1) for word in shlex.split(line) if "=" in word) for line in lines if "event=" in line)
    return [record for record in records if record.get("event") == event]


class Measured:
    """Hold the seconds of a block, which are set at its end."""

    seconds: float = 0.0


@contextmanager
def measure(what: str) -> Iterator[Measured]:
    """Measure the seconds of the block, and print them for a report (`pytest -rP`)."""
    measured, began = Measured(), time.monotonic()
    try:
        yield measured
    finally:
        measured.seconds = time.monotonic() - began
        print(f"measured: {what}: {measured.seconds:.3f} s")


class ScriptedHooks(RawServer):
    """Run a hook server with scripted answers; by default every container gets the variable MARK."""

    MARK: Final = "LADING_TEST_MARK"

    def __init__(self, path: Path) -> None:
        super().__init__(path, lambda call: self.says(call) if call.method == "Adjust" else b"")
        self.says: Callable[[Call], bytes] = self.mark

    @classmethod
    def mark(cls, call: Call) -> bytes:
        asked = hook.AdjustRequest.FromString(call.request)
        adjustment = hook.Adjustment()
        if asked.stage == hook.CREATE_CONTAINER:
            adjustment.env.add(name=cls.MARK, value=asked.sandbox.uid)
        return hook.AdjustResponse(adjustment=adjustment).SerializeToString()

    @classmethod
    def marked(cls, request: cri.CreateContainerRequest) -> bool:
        return any(env.key == cls.MARK for env in request.config.envs)
