"""`python -m bench.central`: measures the scheduler extender at 1,000, 5,000 and 15,000 nodes; writes JSON, prints a table.

Everything is a process of its own: lading-central, an API server that costs little (bench/api_server.py), and this one, which
asks as kube-scheduler does: one filter and one prioritize after the other on a kept-alive connection, Bindings side by side.
Nodes have 8 GPUs and 16 VFs, and four pods of one GPU each; pods that come ask in turn for one of the SHAPES.

* `filter_prioritize_*_ms`: both requests together, from the first byte sent to the last received, bodies rendered before.
* `decide_p50_ms`: the same two decisions inside this process, without HTTP and JSON.
* `bind_p99_ms`: from the request for a Binding to its answer, less what the API server took (its mean).
* `binds_per_s`: bind alone, 16 at a time. `pods_per_s`: filter, prioritize, and bind, 16 Bindings at a time.
* `startup_100k_pods_s`: from exec to the first answer as a leader, 5,000 nodes, 100,000 pods of which 20,000 hold GPUs.
"""

import argparse
import contextlib
import http.client
import json
import socket
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from bench import api_server
from bench.figures import percentile
from bench.procfs import read_rss_mb
from central.api.objects import Node
from central.ask.pod import Pod
from central.feed import DevicesFeed, NodeFeed, PodFeed
from central.ledger.ledger import Ledger
from central.ledger.model import Claim
from central.pending import PendingPods
from central.scheduler import Scheduler
from lading.errors import HostError
from lading.log import Level, open_log
from lading.nodedevices import NodeDevices
from simnode.child import Child, tail
from simnode.control_plane import free_port

OUT: Final = Path("bench/out/central.json")
SIZES: Final = (1000, 5000, 15000)
PODS: Final = 600  # for each figure
AT_A_TIME: Final = 16
SHAPES: Final[tuple[dict[str, str], ...]] = (
    {"lading.dev/gpu": "1"},
    {"lading.dev/gpu": "1", "lading.dev/rdma": "1"},
    {"lading.dev/gpu": "2", "lading.dev/rdma": "2"},
    {"lading.dev/gpu": "4", "lading.dev/rdma": "4"},
    {"lading.dev/gpu-memory": "8Gi"},
    {"lading.dev/gpu-memory": "20Gi", "lading.dev/gpu-core": "30"},
    {"lading.dev/gpu-core": "10"},
)
# At 5,000 nodes.
LIMITS: Final = {
    "filter_prioritize_p50_ms": ("<=", 2.0),
    "filter_prioritize_p99_ms": ("<=", 5.0),
    "bind_p99_ms": ("<=", 2.0),
    "binds_per_s": (">=", 500.0),
    "pods_per_s": (">=", 300.0),
    "rss_mb": ("<=", 600.0),
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="bench.central", description="What the scheduler extender costs.")
    parser.add_argument("--quick", action="store_true", help="1,000 nodes only: to see that it works")
    parser.add_argument("-o", "--output", type=Path, default=OUT, metavar="FILE", help=f"[{OUT}]")
    args = parser.parse_args(argv)
    results: dict[str, Any] = {}
    for count in SIZES[:1] if args.quick else SIZES:
        print(f"{count} nodes", file=sys.stderr)
        results[f"nodes_{count}"] = measure(count)
    if not args.quick:
        print("start-up with 100,000 pods", file=sys.stderr)
        results["startup_100k_pods_s"] = measure_startup()
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(results, indent=1) + "\n")
    print(render(results))
    print(f"written to {args.output}")


def measure(count: int) -> dict[str, float]:
    names = [api_server.node_name(number) for number in range(count)]
    with central(count, holding=4 * count, others=0) as (port, pid, _):
        asker = Asker(port, names)
        for number in range(4 * len(SHAPES)):
            asker.ask(f"warm-{number}", number)
        both = [asker.ask(f"look-{number}", number)[0] for number in range(PODS)]
        with ThreadPoolExecutor(AT_A_TIME) as binders:
            chosen = [asker.ask(f"bind-{number}", number) for number in range(PODS)]
            began = time.perf_counter()
            list(binders.map(lambda one: asker.bind(one[1], one[2]), chosen))
            binds_per_s = PODS / (time.perf_counter() - began)
            began = time.perf_counter()
            flow = []
            for number in range(PODS):
                _, name, node = asker.ask(f"flow-{number}", number)
                flow.append(binders.submit(asker.bind, name, node))
            for one in flow:
                one.result()
            pods_per_s = PODS / (time.perf_counter() - began)
        alone = []
        for number in range(PODS // 4):
            _, name, node = asker.ask(f"alone-{number}", number)
            alone.append(asker.bind(name, node))
        rss_mb = read_rss_mb(pid)
    return {
        "filter_prioritize_p50_ms": percentile(both, 0.5) * 1e3,
        "filter_prioritize_p99_ms": percentile(both, 0.99) * 1e3,
        "decide_p50_ms": measure_decide(count) * 1e3,
        "bind_p99_ms": percentile(alone, 0.99) * 1e3,
        "binds_per_s": binds_per_s,
        "pods_per_s": pods_per_s,
        "rss_mb": rss_mb,
    }


def measure_decide(count: int) -> float:
    """The median seconds of filter and prioritize as functions, Bindings' changes to the ledger included."""
    ledger, pending = Ledger(), PendingPods()
    log = open_log("bench", Level.ERROR)
    NodeFeed(ledger).replaced([msgspec.convert(one, Node) for one in api_server.nodes(count)], "1000")
    DevicesFeed(ledger).replaced([msgspec.convert(one, NodeDevices) for one in api_server.reports(count)], "1000")
    held = [msgspec.convert(one, Pod) for one in api_server.pods(count, 4 * count, 0)]
    PodFeed(ledger, pending, log=log, unassigned=lambda pod: None).replaced(held, "1000")
    scheduler = Scheduler(ledger, pending, clock=time.monotonic)
    names, took = {api_server.node_name(number) for number in range(count)}, []
    for number in range(4 * len(SHAPES) + PODS):
        pod = msgspec.convert(render_pod(f"decide-{number}", number), Pod)
        began = time.perf_counter()
        fits = scheduler.filter(pod, names).NodeNames
        scheduler.prioritize(pod, set(fits))
        took.append(time.perf_counter() - began)
        predicted = ledger.own_claim(pod.metadata.uid, Claim.PREDICTED)
        if predicted is None:
            raise HostError("cannot measure: a pod did not fit")
        scheduler.reserve(pod.metadata.uid, predicted.node)
    return percentile(took[4 * len(SHAPES) :], 0.5)


def measure_startup() -> float:
    with central(5000, holding=20_000, others=80_000) as (_, _, ready_s):
        return ready_s


class Asker:
    """kube-scheduler's part: the pod that is asked about, and a connection for each thread."""

    def __init__(self, port: int, names: Sequence[str]) -> None:
        self._port = port
        self._names = msgspec.json.encode(names)
        self._connections = threading.local()

    def ask(self, name: str, number: int) -> tuple[float, str, str]:
        """Seconds of filter and prioritize, the pod's name, the node that was named."""
        pod = msgspec.json.encode(render_pod(name, number))
        body = b'{"Pod":' + pod + b',"NodeNames":' + self._names + b"}"
        began = time.perf_counter()
        fits = self._post("/filter", body)
        took = time.perf_counter() - began
        body = b'{"Pod":' + pod + b',"NodeNames":' + msgspec.json.encode(msgspec.json.decode(fits)["NodeNames"]) + b"}"
        began = time.perf_counter()
        scores = self._post("/prioritize", body)
        took += time.perf_counter() - began
        return took, name, max(msgspec.json.decode(scores), key=lambda one: one["Score"])["Host"]

    def bind(self, name: str, node: str) -> float:
        """Seconds."""
        args = {"PodName": name, "PodNamespace": "default", "PodUID": pod_uid(name), "Node": node}
        began = time.perf_counter()
        answer = self._post("/bind", msgspec.json.encode(args))
        took = time.perf_counter() - began
        if error := msgspec.json.decode(answer).get("Error"):
            raise HostError(f"cannot measure bind: {error}")
        return took

    def _post(self, path: str, body: bytes) -> bytes:
        connection = getattr(self._connections, "one", None)
        if connection is None:
            connection = self._connections.one = http.client.HTTPConnection("127.0.0.1", self._port)
            connection.connect()
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer: bytes = response.read()
        if response.status != 200:
            raise HostError(f"cannot measure {path}: {response.status} {answer[:200]!r}")
        return answer


def pod_uid(name: str) -> str:
    return f"{zlib.crc32(name.encode()):08x}-cccc-4000-8000-000000000000"


def render_pod(name: str, number: int) -> dict[str, Any]:
    """As kube-scheduler sends it: pending, some 3 KB, asking for one of the SHAPES in turn."""
    pod = api_server.render_pod(name, pod_uid(name), "", SHAPES[number % len(SHAPES)])
    pod["status"] = {"phase": "Pending"}
    return pod


@contextlib.contextmanager
def central(count: int, *, holding: int, others: int) -> Iterator[tuple[int, int, float]]:
    """lading-central as a process: its port, its pid, and the seconds from exec until it answered as the leader."""
    with tempfile.TemporaryDirectory(prefix="lading-bench-") as name:
        folder = Path(name)
        api, port, metrics = free_port(), free_port(), free_port()
        server = Child(
            [sys.executable, "-m", "bench.api_server", *map(str, (api, count, holding, others))], log=folder / "api.log"
        )
        config = folder / "kubeconfig"
        config.write_text(render_kubeconfig(api))
        flags = {
            "kubeconfig": config,
            "listen": f"127.0.0.1:{port}",
            "metrics": f"127.0.0.1:{metrics}",
            "signing-key": folder / "key.pem",
        }
        (folder / "key.pem").write_bytes(render_private_key())
        daemon = Child(
            [str(Path(sys.executable).with_name("lading-central")), *(f"--{flag}={value}" for flag, value in flags.items())],
            log=folder / "central.log",
        )
        with contextlib.ExitStack() as ends:
            server.start()
            ends.callback(server.stop)
            _wait(lambda: _status(api, "/api/v1/nodes") == 200, 300.0, server)
            began = time.perf_counter()
            daemon.start()
            ends.callback(daemon.stop)
            _wait(lambda: _status(port, "/v1/why/default/nobody") == 404, 120.0, daemon)
            yield port, daemon.pid, time.perf_counter() - began


def _status(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5.0)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


def _wait(holds: Callable[[], bool], within_s: float, child: Child) -> None:
    until = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > until or not child.running:
            raise HostError(f"cannot measure: {child.name} does not answer\n{tail(child.log)}")
        time.sleep(0.02)


def render_kubeconfig(port: int) -> str:
    cluster = {"name": "bench", "cluster": {"server": f"http://127.0.0.1:{port}"}}
    context = {"name": "bench", "context": {"cluster": "bench", "user": "bench"}}
    config = {"apiVersion": "v1", "kind": "Config", "clusters": [cluster], "contexts": [context], "current-context": "bench"}
    return json.dumps(config | {"users": [{"name": "bench", "user": {"token": "bench"}}]})


def render_private_key() -> bytes:
    return Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def render(results: dict[str, Any]) -> str:
    """A row a figure, a column a size; what was to be reached beside it."""
    sizes = [key for key in results if key.startswith("nodes_")]
    lines = [f"{'':28}" + "".join(f"{size:>14}" for size in sizes) + "   to reach at 5,000"]
    for figure in results[sizes[0]]:
        cells = "".join(f"{results[size][figure]:>14,.2f}" for size in sizes)
        sign, limit = LIMITS.get(figure, ("", 0.0))
        measured = results.get("nodes_5000", {}).get(figure)
        met = measured is None or not sign or (measured <= limit if sign == "<=" else measured >= limit)
        lines.append(f"{figure:28}{cells}   " + (f"{sign} {limit:g}{'' if met else '  MISSED'}" if sign else ""))
    if "startup_100k_pods_s" in results:
        took = results["startup_100k_pods_s"]
        lines.append(f"{'startup_100k_pods_s':28}{took:>14.1f}   <= 20{'' if took <= 20 else '  MISSED'}")
    if "nodes_15000" in results:
        ratio = results["nodes_15000"]["decide_p50_ms"] / results["nodes_5000"]["decide_p50_ms"]
        lines.append(f"{'decide, 15,000 to 5,000':28}{ratio:>14.2f}   <= 2{'' if ratio <= 2 else '  MISSED'}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
