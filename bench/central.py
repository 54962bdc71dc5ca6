"""Measure the scheduler extender at 1,000, 5,000 and 15,000 nodes. Write JSON and print a table.

    python -m bench.central

lading-central runs as a process, beside a cheap API server (bench/api_server.py). This process asks as kube-scheduler does: one
filter and one prioritize after the other on a kept-alive connection, and Bindings in parallel. Nodes have 8 GPUs and 16 VFs,
and four pods of one GPU each. New pods request the SHAPES in turn.

* `filter_prioritize_*_ms`: both requests together, from the first byte sent to the last received, bodies rendered before.
* `decide_p50_ms`: the same two decisions inside this process, without HTTP and JSON.
* `bind_p99_ms`: from the request for a Binding to its answer, one at a time, less the median of what the API server takes for a
  Binding that is sent to it directly.
* `binds_per_s`: bind alone, 16 at a time, for 64 pods after their nodes were asked for, then the next 64. `pods_per_s`: filter,
  prioritize, and bind, 16 Bindings at a time.
* `startup_100k_pods_s`: from exec to the first answer as a leader, 5,000 nodes, 100,000 pods of which 20,000 hold GPUs.

The policy is the default one; `nodes_5000_binpack` is under binpack.
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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from bench import api_server
from bench.api_server import SHAPES, render_pending
from bench.figures import percentile, write_results
from bench.procfs import read_rss_mb
from central.api.objects import Node
from central.controllers.conditions import Conditions
from central.controllers.informer import DevicesFeed, NodeFeed, PodFeed
from central.daemon.settings import Settings
from central.decide.scheduler import Scheduler
from central.ledger.ledger import Ledger
from central.ledger.model import Claim
from central.request.model import Policy
from central.request.pod import Pod
from central.state.pending import PendingPods
from lading.errors import HostError
from lading.kube.resource import PODS as PODS_OF
from lading.log import Level, open_log
from lading.nodedevices import NodeDevices
from lading.vocabulary import CENTRAL
from simnode.api_server import write_kubeconfig
from simnode.child import Child
from simnode.control_plane import free_port
from simnode.patience import tail
from simnode.scheduling import SigningKey

OUT: Final = Path("bench/out/central.json")
SIZES: Final = (1000, 5000, 15000)
PODS: Final = 600  # for each figure
AT_A_TIME: Final = 16
AHEAD: Final = 4 * AT_A_TIME  # requested before they are bound: central keeps a prediction for 5 s
OBSERVED_S: Final = 60.0
PODS_PATH: Final = PODS_OF.path("default")
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
        results[f"nodes_{count}"] = measure(count, Settings().policy)
    if not args.quick:
        print("5000 nodes, binpack", file=sys.stderr)
        results["nodes_5000_binpack"] = measure(5000, Policy.BINPACK)
        print("start-up with 100,000 pods", file=sys.stderr)
        results["startup_100k_pods_s"] = measure_startup()
    write_results(args.output, results)
    print(render(results))


def measure(count: int, policy: Policy) -> dict[str, float]:
    names = [api_server.node_name(number) for number in range(count)]
    with central(count, holding=4 * count, others=0, policy=policy) as started:
        asker = Asker(started.port, names)
        sizes = 4 * len(SHAPES), PODS, PODS, PODS, PODS // 4, PODS // 4
        warm, wakes, bind, flow, alone, past = asker.create(started, *sizes)
        for pod in warm:
            asker.ask(pod)
        both = [asker.ask(pod)[0] for pod in wakes]
        with ThreadPoolExecutor(AT_A_TIME) as binders:
            binds_per_s = measure_binds(asker, binders, bind)
            began = time.perf_counter()
            under_way = [binders.submit(asker.bind, pod, asker.ask(pod)[1]) for pod in flow]
            for one in under_way:
                one.result()
            pods_per_s = PODS / (time.perf_counter() - began)
        each = [asker.bind(pod, asker.ask(pod)[1]) for pod in alone]
        server = KeptAlive(started.api)
        by_server = [bind_at(server, pod, names[0]) for pod in past]
        rss_mb = read_rss_mb(started.pid)
    return {
        "filter_prioritize_p50_ms": percentile(both, 0.5) * 1e3,
        "filter_prioritize_p99_ms": percentile(both, 0.99) * 1e3,
        "decide_p50_ms": measure_decide(count, policy) * 1e3,
        "bind_p99_ms": (percentile(each, 0.99) - percentile(by_server, 0.5)) * 1e3,
        "binds_per_s": binds_per_s,
        "pods_per_s": pods_per_s,
        "rss_mb": rss_mb,
    }


def measure_binds(asker: "Asker", binders: Executor, pods: Sequence[bytes]) -> float:
    """Return Bindings a second, without the time of filter and prioritize."""
    took = 0.0
    for at in range(0, len(pods), AHEAD):
        chosen = [(pod, asker.ask(pod)[1]) for pod in pods[at : at + AHEAD]]
        began = time.perf_counter()
        list(binders.map(lambda one: asker.bind(*one), chosen))
        took += time.perf_counter() - began
    return len(pods) / took


def measure_decide(count: int, policy: Policy) -> float:
    """Return the median seconds of filter and prioritize as functions, including what Bindings change in the ledger."""
    ledger, pending = Ledger(), PendingPods()
    log = open_log("bench", Level.ERROR)
    NodeFeed(ledger).replaced([msgspec.convert(one, Node) for one in api_server.nodes(count)], "1000")
    DevicesFeed(ledger).replaced([msgspec.convert(one, NodeDevices) for one in api_server.reports(count)], "1000")
    held = [msgspec.convert(one, Pod) for one in api_server.pods(count, 4 * count, 0)]
    PodFeed(ledger, pending, Conditions(), log=log, unassigned=lambda pod: None).replaced(held, "1000")
    scheduler = Scheduler(ledger, pending, clock=time.monotonic, policy=policy)
    names, took = [api_server.node_name(number) for number in range(count)], []
    for number in range(4 * len(SHAPES) + PODS):
        pod = msgspec.convert(render_pending(f"decide-{number}", number), Pod)
        began = time.perf_counter()
        decision = scheduler.decide(pod, names)
        scheduler.apply(decision)
        scheduler.prioritize(pod, names)
        took.append(time.perf_counter() - began)
        predicted = ledger.own_claim(pod.metadata.uid, Claim.PREDICTED)
        if predicted is None:
            raise HostError("cannot measure: a pod did not fit")
        scheduler.reserve(pod.metadata.uid, predicted.node)
    return percentile(took[4 * len(SHAPES) :], 0.5)


def measure_startup() -> float:
    with central(5000, holding=20_000, others=80_000, policy=Settings().policy) as started:
        return started.ready_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Hold the ports of lading-central and its API server. `ready_s`: seconds from exec until central answered as the
    leader."""

    api: int  # port of the API server
    port: int
    page_port: int
    pid: int
    ready_s: float


class Asker:
    """Ask lading-central as kube-scheduler does, over a connection for each thread."""

    def __init__(self, port: int, names: Sequence[str]) -> None:
        self._port = port
        self._names = msgspec.json.encode(names)
        self._connections = threading.local()

    def create(self, started: Started, *counts: int) -> list[list[bytes]]:
        """Create a group of pods for each of `counts`. Return the pods from the API server, once central has received them."""
        connection = http.client.HTTPConnection("127.0.0.1", started.api)
        groups = []
        for group, count in enumerate(counts):
            groups.append([_create(connection, f"asked-{group}-{number}", number) for number in range(count)])
        last = json.loads(groups[-1][-1])["metadata"]["name"]
        until = time.monotonic() + OBSERVED_S
        while _status(started.page_port, f"/v1/why/default/{last}") != 200:
            if time.monotonic() > until:
                raise HostError(f"cannot measure: central does not see pod {last}")
            time.sleep(0.02)
        return groups

    def ask(self, pod: bytes) -> tuple[float, str]:
        """Return the seconds of filter and prioritize, and the chosen node."""
        body = b'{"Pod":' + pod + b',"NodeNames":' + self._names + b"}"
        began = time.perf_counter()
        fits = self._post("/filter", body)
        took = time.perf_counter() - began
        body = b'{"Pod":' + pod + b',"NodeNames":' + msgspec.json.encode(msgspec.json.decode(fits)["NodeNames"]) + b"}"
        began = time.perf_counter()
        scores = self._post("/prioritize", body)
        took += time.perf_counter() - began
        return took, max(msgspec.json.decode(scores), key=lambda one: one["Score"])["Host"]

    def bind(self, pod: bytes, node: str) -> float:
        """Ask central to bind the pod. Return the seconds until its answer."""
        metadata = msgspec.json.decode(pod)["metadata"]
        args = {"PodName": metadata["name"], "PodNamespace": "default", "PodUID": metadata["uid"], "Node": node}
        began = time.perf_counter()
        answer = self._post("/bind", msgspec.json.encode(args))
        took = time.perf_counter() - began
        if error := msgspec.json.decode(answer).get("Error"):
            raise HostError(f"cannot measure bind: {error}")
        return took

    def _post(self, path: str, body: bytes) -> bytes:
        connection = getattr(self._connections, "one", None)
        if connection is None:
            connection = self._connections.one = KeptAlive(self._port)
        return connection.post(path, body)


def bind_at(server: "KeptAlive", pod: bytes, node: str) -> float:
    """Send a Binding to the API server without central. Return the seconds until its answer."""
    metadata = msgspec.json.decode(pod)["metadata"]
    binding = {
        "metadata": {key: metadata[key] for key in ("name", "uid", "resourceVersion")} | {"annotations": {"bench": "x" * 400}},
        "target": {"kind": "Node", "name": node},
    }
    began = time.perf_counter()
    server.post(f"{PODS_PATH}/{metadata['name']}/binding", msgspec.json.encode(binding))
    return time.perf_counter() - began


class KeptAlive:
    """Send requests over one HTTP/1.1 connection. http.client would need 0.1 ms to read the head of each answer."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def post(self, path: str, body: bytes) -> bytes:
        """Return the body of a 200 or 201; raise HostError for any other status."""
        head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self._socket.sendall(head.encode() + body)
        answer = bytearray()
        while (end := answer.find(b"\r\n\r\n")) < 0:
            answer += self._read()
        status, _, fields = bytes(answer[:end]).lower().partition(b"\r\n")
        length = next(int(line.split(b":")[1]) for line in fields.split(b"\r\n") if line.startswith(b"content-length:"))
        while len(answer) < end + 4 + length:
            answer += self._read()
        if not status.startswith((b"http/1.1 200", b"http/1.1 201")):
            raise HostError(f"cannot measure {path}: {status.decode()} {bytes(answer[end + 4 : end + 204])!r}")
        return bytes(answer[end + 4 :])

    def _read(self) -> bytes:
        data = self._socket.recv(1 << 20)
        if not data:
            raise HostError("cannot measure: central closed the connection")
        return data


def _create(connection: http.client.HTTPConnection, name: str, number: int) -> bytes:
    """Create the pod. Return it as the API server answers it."""
    body = msgspec.json.encode(render_pending(name, number))
    connection.request("POST", PODS_PATH, body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    pod = response.read()
    if response.status != 201:
        raise HostError(f"cannot measure: no pod {name}: {response.status} {pod[:200]!r}")
    return pod


@contextlib.contextmanager
def central(count: int, *, holding: int, others: int, policy: Policy) -> Iterator[Started]:
    """Start lading-central as a process, with an API server that has so many nodes and pods."""
    with tempfile.TemporaryDirectory(prefix="lading-bench-") as name:
        folder = Path(name)
        api, port, page_port, metrics = free_port(), free_port(), free_port(), free_port()
        server = Child(
            [sys.executable, "-m", "bench.api_server", *map(str, (api, count, holding, others))], log=folder / "api.log"
        )
        config = write_kubeconfig(folder / "kubeconfig", f"http://127.0.0.1:{api}")
        flags = {
            "kubeconfig": config,
            "policy": policy.value,
            "listen": f"127.0.0.1:{port}",
            "page-listen": f"127.0.0.1:{page_port}",
            "metrics": f"127.0.0.1:{metrics}",
            "signing-key": SigningKey(folder).private,
        }
        daemon = Child(
            [str(Path(sys.executable).with_name(CENTRAL)), *(f"--{flag}={value}" for flag, value in flags.items())],
            log=folder / "central.log",
        )
        with contextlib.ExitStack() as ends:
            server.start()
            ends.callback(server.stop)
            _wait(lambda: _status(api, "/api/v1/nodes") == 200, 300.0, server)
            began = time.perf_counter()
            daemon.start()
            ends.callback(daemon.stop)
            _wait(lambda: _status(page_port, "/v1/why/default/absent") == 404, 120.0, daemon)
            yield Started(api=api, port=port, page_port=page_port, pid=daemon.pid, ready_s=time.perf_counter() - began)


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


def render(results: dict[str, Any]) -> str:
    """Render one row for each figure and one column for each size, with the target beside it."""
    sizes = [key for key in results if key.startswith("nodes_")]
    lines = [f"{'':28}" + "".join(f"{size:>19}" for size in sizes) + "   to reach at 5,000"]
    for figure in results[sizes[0]]:
        cells = "".join(f"{results[size][figure]:>19,.2f}" for size in sizes)
        sign, limit = LIMITS.get(figure, ("", 0.0))
        measured = results.get("nodes_5000", {}).get(figure)
        met = measured is None or not sign or (measured <= limit if sign == "<=" else measured >= limit)
        lines.append(f"{figure:28}{cells}   " + (f"{sign} {limit:g}{'' if met else '  MISSED'}" if sign else ""))
    if "startup_100k_pods_s" in results:
        took = results["startup_100k_pods_s"]
        lines.append(f"{'startup_100k_pods_s':28}{took:>14.1f}   <= 20{'' if took <= 20 else '  MISSED'}")
    if "nodes_15000" in results:
        ratio = results["nodes_15000"]["decide_p50_ms"] / results["nodes_5000"]["decide_p50_ms"]
        # No more than in proportion: the answer to filter names every node.
        lines.append(f"{'decide, 15,000 to 5,000':28}{ratio:>14.2f}   <= 3{'' if ratio <= 3 else '  MISSED'}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
