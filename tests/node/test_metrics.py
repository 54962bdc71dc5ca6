"""Read metrics and readiness of both daemons over HTTP, as an operator does, and check that the docs name every metric."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import grpc
import pytest

from protos.cri.runtime.v1 import api_pb2 as cri
from simnode.build import build
from simnode.daemons import render_flat_toml
from tests.fakes.counting_runtime import HELD, CountingRuntime
from tests.fakes.needs import need
from tests.fakes.service_manager import ServiceManager, managed
from tests.node.observe import ask, failed_conditions, metric
from tests.node.site import eventually

DOCS = Path(__file__).parents[2] / "docs" / "operations.md"
SERVICE = "/runtime.v1.RuntimeService/"
REGISTRATION = """{"remote-endpoint": "%s", "runtime-hooks": ["PreCreateContainer"], "annotation-prefixes": ["lading.dev/"],
"static-adjustments": {"hide-unassigned": {"env": {"NVIDIA_VISIBLE_DEVICES": "void"}}}}"""


def program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


@pytest.fixture
def runtime(short_folder: Path) -> Iterator[CountingRuntime]:
    with CountingRuntime(short_folder / "runtime.sock") as runtime:
        yield runtime


@pytest.fixture
def proxy(short_folder: Path, runtime: CountingRuntime) -> Iterator[ServiceManager]:
    settings = {"listen": f"{short_folder}/run/cri.sock", "runtime_endpoint": str(runtime.path), "metrics": "127.0.0.1:0"}
    config = short_folder / "runtimeproxy.toml"
    config.write_text(render_flat_toml({**settings, "hooks_dir": f"{short_folder}/hooks.d"}))
    (short_folder / "hooks.d").mkdir()
    argv = [program("lading-runtimeproxy"), "--config", str(config)]
    with managed(argv, path=short_folder / "run/cri.sock", log=short_folder / "proxy.log") as manager:
        manager.start()
        yield manager


@pytest.fixture
def hooks(short_folder: Path, runtime: CountingRuntime) -> Iterator[ServiceManager]:
    need(os.geteuid() == 0, "root, for the device nodes of a simulated node")
    node = build("demo-8gpu", short_folder / "node")
    settings = {
        "listen": f"{short_folder}/run/hooks.sock",
        "runtime_endpoint": str(runtime.path),
        "state_dir": f"{short_folder}/state",
        "host_root": str(node.root),
        "assignments": ["manual"],
        "metrics": "127.0.0.1:0",
        "node_name": "n1",
        "report": True,
        "kubeconfig": f"{short_folder}/empty",  # an API server that is away is no reason not to be ready
    }
    (short_folder / "empty").write_text("{}")
    config = short_folder / "hooks.toml"
    config.write_text(render_flat_toml(settings))
    argv = [program("lading-hooks"), "--config", str(config)]
    with managed(argv, path=short_folder / "run/hooks.sock", log=short_folder / "hooks.log") as manager:
        manager.start()
        yield manager


@pytest.fixture
def kubelet(short_folder: Path) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"unix:{short_folder}/run/cri.sock") as channel:
        yield channel


def create(kubelet: grpc.Channel, **annotations: str) -> None:
    sandbox = uuid4().hex  # a new sandbox each time: one that was once seen with annotations of Lading stays guarded
    request = cri.CreateContainerRequest(pod_sandbox_id=sandbox, sandbox_config=cri.PodSandboxConfig())
    request.sandbox_config.metadata.uid = "u"
    request.sandbox_config.annotations.update({f"lading.dev/{key}": value for key, value in annotations.items()})
    kubelet.unary_unary(f"{SERVICE}CreateContainer", bytes, bytes)(request.SerializeToString(), timeout=10)


def calls(proxy: ServiceManager, outcome: str) -> float:
    return metric(proxy.log, "lading_proxy_calls_total", method="CreateContainer", outcome=outcome)


def test_calls_count_by_how_they_ended(proxy: ServiceManager, kubelet: grpc.Channel, short_folder: Path) -> None:
    create(kubelet)
    assert calls(proxy, "forwarded") == 1
    with pytest.raises(grpc.RpcError):
        create(kubelet, gpus="0")
    assert calls(proxy, "refused") == 1
    assert metric(proxy.log, "lading_proxy_refusals_total", reason="no-registration") == 1
    (short_folder / "hooks.d/50.json").write_text(REGISTRATION % f"{short_folder}/run/nobody.sock")
    eventually(lambda: adjusted(proxy, kubelet))
    with pytest.raises(grpc.RpcError):
        create(kubelet, gpus="0")
    assert metric(proxy.log, "lading_proxy_refusals_total", reason="hook-unavailable") == 1
    assert metric(proxy.log, "lading_proxy_hook_failures_total", hook="50.json", reason="hook-unavailable") == 1
    held = [calls(proxy, outcome) for outcome in ("forwarded", "adjusted", "refused", "cancelled")]
    assert metric(proxy.log, "lading_proxy_held_seconds_count", method="CreateContainer") == sum(held)


def adjusted(proxy: ServiceManager, kubelet: grpc.Channel) -> None:
    create(kubelet)
    assert calls(proxy, "adjusted") == 1


def test_a_caller_that_gives_up_is_counted(proxy: ServiceManager, kubelet: grpc.Channel, short_folder: Path) -> None:
    (short_folder / "hooks.d/50.json").write_text(REGISTRATION % f"{short_folder}/run/nobody.sock")
    eventually(lambda: adjusted(proxy, kubelet))
    request = cri.CreateContainerRequest(pod_sandbox_id="s")
    request.sandbox_config.metadata.name = "p"
    request.sandbox_config.annotations["lading.dev/gpus"] = "0"
    future = kubelet.unary_unary(f"{SERVICE}CreateContainer", bytes, bytes).future(request.SerializeToString())
    eventually(lambda: open_calls(proxy, 1))
    future.cancel()  # type: ignore[no-untyped-call]
    eventually(lambda: open_calls(proxy, 0))
    assert calls(proxy, "cancelled") == 1
    assert calls(proxy, "refused") == 0


def open_calls(proxy: ServiceManager, number: int) -> None:
    assert metric(proxy.log, "lading_proxy_open_calls") == number


def test_connections_calls_and_bytes(proxy: ServiceManager, kubelet: grpc.Channel, runtime: CountingRuntime) -> None:
    assert metric(proxy.log, "lading_proxy_connections") == 0
    held = kubelet.unary_unary(HELD, bytes, bytes).future(b"x" * 10_000, timeout=30)
    assert runtime.arrived.acquire(timeout=10)
    assert metric(proxy.log, "lading_proxy_connections") == metric(proxy.log, "lading_proxy_connections_opened_total") == 1
    assert metric(proxy.log, "lading_proxy_open_calls") == 1
    assert 10_000 < metric(proxy.log, "lading_proxy_bytes_total", sender="client") < 12_000
    assert 0 < metric(proxy.log, "lading_proxy_bytes_total", sender="runtime") < 1_000
    runtime.release.set()
    assert held.result() == b""
    eventually(lambda: open_calls(proxy, 0))


def test_the_proxy_is_ready_when_runtime_and_hooks_answer(
    proxy: ServiceManager, hooks: ServiceManager, runtime: CountingRuntime, kubelet: grpc.Channel, short_folder: Path
) -> None:
    assert failed_conditions(proxy.log) == {"hooks-dir"}
    (short_folder / "hooks.d/50.json").write_text(REGISTRATION % f"{short_folder}/run/hooks.sock")
    eventually(lambda: ready(proxy))
    assert metric(proxy.log, "lading_proxy_hook_up", hook="50.json") == metric(proxy.log, "lading_proxy_runtime_up") == 1
    (short_folder / "hooks.d/60.json").write_text("{")
    eventually(lambda: failed(proxy, {"hooks-dir"}))
    (short_folder / "hooks.d/60.json").unlink()
    runtime.stop()
    with pytest.raises(grpc.RpcError):
        create(kubelet)  # it finds out
    eventually(lambda: failed(proxy, {"runtime"}))
    assert metric(proxy.log, "lading_proxy_runtime_up") == 0


def test_the_hooks_are_ready_when_they_have_compared(hooks: ServiceManager, short_folder: Path) -> None:
    eventually(lambda: ready(hooks))
    (short_folder / "run/hooks.sock").unlink()
    assert failed_conditions(hooks.log) == {"socket"}


def ready(daemon: ServiceManager) -> None:
    failed(daemon, set())


def failed(daemon: ServiceManager, names: set[str]) -> None:
    assert failed_conditions(daemon.log) == names


def test_the_docs_name_every_metric_and_no_other(proxy: ServiceManager, hooks: ServiceManager) -> None:
    served = set()
    for daemon in (proxy, hooks):
        kinds = re.findall(r"^# TYPE (lading_\w+) (\w+)$", ask(daemon.log, "/metrics")[1], re.MULTILINE)
        assert {kind for _, kind in kinds} <= {"counter", "gauge", "histogram"}
        served |= {name for name, _ in kinds}
    assert set(re.findall(r"^\| `(lading_\w+)`", DOCS.read_text(), re.MULTILINE)) == served
