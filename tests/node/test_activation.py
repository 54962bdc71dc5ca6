"""Test socket activation: restarts under load lose no call, and owner and mode of another program's socket are checked.

The load is a real gRPC client without a retry policy, like kubelet. Such a client still repeats a call that no server can have
received ("transparent retry"), if GOAWAY arrives before the call is sent. A second client without any retries counts such
calls. There are 5 restarts, or 50 in `make test-long`.
"""

import itertools
import stat
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import grpc
import pytest

from lading.log import Event
from protos.hook.v1 import hook_pb2 as hook
from simnode.daemons import render_flat_toml
from tests.depth import repeats
from tests.fakes.counting_runtime import COUNTED, CountingRuntime
from tests.fakes.service_manager import managed
from tests.node.observe import ask, failed_conditions, metric
from tests.node.site import eventually

RESTARTS: Final = repeats(5, long=50)
CALLERS = 3


def command(name: str, config: Path, **settings: object) -> list[str]:
    config.write_text(render_flat_toml(settings))
    return [str(Path(sys.executable).with_name(name)), "--config", str(config)]


def proxy(folder: Path, **settings: object) -> list[str]:
    return command(
        "lading-runtimeproxy",
        folder / "runtimeproxy.toml",
        listen=str(folder / "run" / "cri.sock"),
        runtime_endpoint=str(folder / "runtime.sock"),
        hooks_dir=str(folder / "hooks.d"),
        metrics="127.0.0.1:0",
        **settings,
    )


def hooks(folder: Path) -> list[str]:
    return command(
        "lading-hooks",
        folder / "hooks.toml",
        listen=str(folder / "run" / "hooks.sock"),
        runtime_endpoint=str(folder / "runtime.sock"),
        state_dir=str(folder / "state"),
        host_root=str(folder),
        assignments=["manual"],
        metrics="127.0.0.1:0",
    )


@pytest.fixture
def runtime(short_folder: Path) -> Iterator[CountingRuntime]:
    (short_folder / "proc/sys/kernel/random").mkdir(parents=True)
    (short_folder / "proc/sys/kernel/random/boot_id").write_text("5f0d2c61-0000-4000-8000-000000000000\n")
    with CountingRuntime(short_folder / "runtime.sock") as runtime:
        yield runtime


@dataclass
class Load:
    """Call without pause over one channel. Each call has different bytes."""

    path: Path
    name: bytes
    retries: bool
    calls: int = 0
    lost: dict[bytes, str] = field(default_factory=dict)
    _over: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> "Load":
        self._channel = grpc.insecure_channel(f"unix:{self.path}", options=(("grpc.enable_retries", int(self.retries)),))
        numbers = itertools.count()
        self._threads = [threading.Thread(target=self._call, args=(numbers,)) for _ in range(CALLERS)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._channel.close()

    def _call(self, numbers: Iterator[int]) -> None:
        method = self._channel.unary_unary(COUNTED, bytes, bytes)
        while not self._over.is_set():
            request = b"%s %d" % (self.name, next(numbers))
            try:
                method(request, timeout=30)
            except grpc.RpcError as e:
                self.lost[request] = f"{e.code().name}: {e.details()}"
            self.calls += 1


@pytest.mark.repeats
def test_restarts_under_load_lose_no_call(
    short_folder: Path, runtime: CountingRuntime, capsys: pytest.CaptureFixture[str]
) -> None:
    path = short_folder / "run" / "cri.sock"
    with managed(proxy(short_folder), path=path, log=short_folder / "proxy.log") as manager:
        manager.start()
        with Load(path, b"kubelet", retries=True) as kubelet, Load(path, b"strict", retries=False) as strict:
            for _ in range(RESTARTS):
                before = kubelet.calls
                manager.restart()
                eventually(partial(in_the_middle_of_calls, kubelet, before), within_s=60)
        with capsys.disabled():
            print(
                f"\n{RESTARTS} restarts: {kubelet.calls} calls, {len(kubelet.lost)} lost; "
                f"{len(strict.lost)} of {strict.calls} calls would have needed a transparent retry"
            )
        assert kubelet.lost == {}
        assert set(runtime.got.values()) == {1}  # nothing is made twice
        assert [request for request in strict.lost if request in runtime.got] == []
        assert [reason for reason in strict.lost.values() if "GOAWAY received" not in reason] == []
        assert metric(manager.log, "lading_proxy_lost_calls_total") == 0


def in_the_middle_of_calls(load: Load, before: int) -> None:
    assert load.calls > before + 20


def test_a_call_waits_while_no_one_runs(short_folder: Path, runtime: CountingRuntime) -> None:
    path = short_folder / "run" / "cri.sock"
    with (
        managed(proxy(short_folder), path=path, log=short_folder / "proxy.log") as manager,
        grpc.insecure_channel(f"unix:{path}", options=(("grpc.enable_retries", 0),)) as channel,
    ):
        early = channel.unary_unary(COUNTED, bytes, bytes).future(b"early", timeout=30)
        manager.start()
        assert early.result() == b""
        assert runtime.got == {b"early": 1}


def said(log: Path, event: Event) -> list[str]:
    return [line for line in log.read_text().splitlines() if f"event={event} " in line]


@pytest.mark.parametrize("as_the_runtime", [True, False])
def test_owner_and_mode_are_those_of_the_runtime_or_it_is_reported(
    short_folder: Path, runtime: CountingRuntime, as_the_runtime: bool
) -> None:
    mode = stat.S_IMODE(runtime.path.stat().st_mode)
    path, log = short_folder / "run" / "cri.sock", short_folder / "proxy.log"
    with managed(proxy(short_folder), path=path, log=log, mode=mode if as_the_runtime else mode ^ 0o002) as manager:
        manager.start()
        eventually(lambda: said(log, Event.PODS_KNOWN) or pytest.fail("not yet"))
        assert bool(said(log, Event.SOCKET_ACCESS)) is not as_the_runtime
    assert stat.S_IMODE(path.stat().st_mode) == mode if as_the_runtime else mode ^ 0o002  # systemd's, so not changed


def test_a_question_to_hooks_that_restart_waits(short_folder: Path, runtime: CountingRuntime) -> None:
    path = short_folder / "run" / "hooks.sock"
    question = hook.AdjustRequest(stage=hook.RUN_POD_SANDBOX).SerializeToString()
    with (
        managed(hooks(short_folder), path=path, log=short_folder / "hooks.log") as manager,
        grpc.insecure_channel(f"unix:{path}", options=(("grpc.enable_retries", 0),)) as channel,
    ):
        ask_hooks = channel.unary_unary("/lading.hook.v1.Hook/Adjust", bytes, bytes)
        for _ in range(2):
            early = ask_hooks.future(question, timeout=30)
            manager.start()
            assert hook.AdjustResponse.FromString(early.result()).WhichOneof("result") == "adjustment"
            manager.terminate()
            assert manager.wait() == 0
        assert said(manager.log, Event.SOCKET_ACCESS) == []


@pytest.mark.parametrize("daemon", ["proxy", "hooks"])
def test_the_watchdog_is_fed_while_the_daemon_answers_itself(short_folder: Path, runtime: CountingRuntime, daemon: str) -> None:
    """Check that the watchdog is fed without a runtime too: a restart of the daemon would not bring the runtime back."""
    runtime.stop()
    argv, name = (proxy(short_folder), "cri.sock") if daemon == "proxy" else (hooks(short_folder), "hooks.sock")
    with managed(argv, path=short_folder / "run" / name, log=short_folder / "log", watchdog_s=0.4) as manager:
        manager.start()
        for _ in range(3):
            manager.wait_for("WATCHDOG=1", timeout_s=10)
        assert ask(manager.log, "/healthz")[0] == 200
        # The daemon's questions to itself do not count as connections.
        assert metric(manager.log, "lading_proxy_connections_opened_total") == 0
        assert ask(manager.log, "/readyz")[0] == 503
        assert {"proxy": "runtime", "hooks": "reconciled"}[daemon] in failed_conditions(manager.log)


def test_a_socket_whose_file_is_deleted_is_reported_and_feeds_the_watchdog(
    short_folder: Path, runtime: CountingRuntime
) -> None:
    """Check that the daemon is not restarted: a restart would end the open connections, and only systemd can create the
    socket's file again."""
    path = short_folder / "run" / "cri.sock"
    with managed(proxy(short_folder), path=path, log=short_folder / "proxy.log", watchdog_s=0.4) as manager:
        manager.start()
        assert "socket" not in failed_conditions(manager.log)
        path.unlink()
        assert "socket" in failed_conditions(manager.log)
        for _ in range(2):
            manager.wait_for("WATCHDOG=1", timeout_s=10)
