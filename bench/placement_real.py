"""Replay one workload through a real kube-scheduler, and compare the result with the same replay by `simulate`.

    python -m bench.placement_real FOLDER

Needs LADING_KUBE_ASSETS, a folder with etcd, kube-apiserver and kube-scheduler (simnode/control_plane.py). The trace's nodes
are Node and NodeDevices objects without kubelets. Pods are created before the scheduler starts; their names sort by arrival,
so that kube-scheduler takes them in that order. lading-central runs as a process, with the policy fragmentation and the
workload's prior. For pods with devices it filters and binds, for all other pods it only scores nodes. The replay ends when each
pod is bound or fits nowhere: no pod ends, so a refused pod would not fit later either.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import yaml

from bench.figures import write_results
from bench.placement import RATIO, find_workloads
from central.request.model import Policy
from lading.errors import ConfigError, HostError, LadingError, die
from lading.kube.resource import NODE_DEVICES, NODES, PODS
from lading.vocabulary import CENTRAL, SYSTEM_NAMESPACE
from simnode.control_plane import ControlPlane
from simnode.daemons import render_flat_toml
from simnode.scheduling import SCHEDULER, Replica, SigningKey, install
from simulate.arrivals import draw_arrivals
from simulate.model import Prior
from simulate.objects import NAMESPACE, render_devices, render_node, render_pod
from simulate.replay import replay
from simulate.trace import PERCENT, Trace, TraceNode, TracePod, read_pods

ASSETS: Final = "LADING_KUBE_ASSETS"
DEPLOY: Final = Path("deploy")
OUT: Final = Path("bench/out/placement_real.json")
NEAR: Final = 0.3  # points
CLIENTS: Final = 8
LEADS_S: Final = 60.0
SCAN_S: Final = 5.0
STALLED_S: Final = 120.0
MERGE: Final = "application/merge-patch+json"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="bench.placement_real", description="A replay through a real kube-scheduler.")
    parser.add_argument("folder", nargs="?", type=Path, default=os.environ.get("LADING_TRACES"), help="[$LADING_TRACES]")
    parser.add_argument("--workload", default="default", metavar="NAME", help="[default]")
    parser.add_argument("--seed", type=int, default=42, metavar="N", help="[42]")
    parser.add_argument("-o", "--output", type=Path, default=OUT, metavar="FILE", help=f"[{OUT}]")
    args = parser.parse_args(argv)
    try:
        result = run(args.folder, args.workload, args.seed)
    except LadingError as e:
        die(e)
    write_results(args.output, result)
    verdict = "ok" if abs(result["difference"]) <= NEAR else "MISSED"
    print(
        f"allocated, percent: kube-scheduler {result['allocated']:.2f}, simulate {result['simulated']:.2f}; "
        f"{result['difference']:+.2f}, within {NEAR} {verdict}; {result['pods_per_s']:.0f} pods a second"
    )


def run(folder: Path | None, workload: str, seed: int) -> dict[str, Any]:
    assets = os.environ.get(ASSETS)
    if folder is None or not assets:
        raise ConfigError(f"a folder with traces and {ASSETS} are needed", hint="python -m bench.placement_real FOLDER")
    nodes, workloads = find_workloads(Path(folder), [workload])
    trace = Trace(nodes=nodes, pods=read_pods(workloads[workload]))
    report("simulate")
    simulated = replay(trace, Policy.FRAGMENTATION, seed, ratio=RATIO, prior=Prior.WORKLOAD)
    arriving = draw_arrivals(trace.pods, trace.capacity, RATIO, seed)
    with tempfile.TemporaryDirectory(prefix="lading-real-") as name, ControlPlane(Path(name), assets=Path(assets)) as plane:
        took_s = _place(plane, trace, arriving)
        placed = list(_bound(plane, arriving))
    allocated = 100 * sum(pod.milli for pod in placed) / trace.capacity
    return {
        "workload": workload,
        "seed": seed,
        "allocated": allocated,
        "simulated": simulated.at_end,
        "difference": allocated - simulated.at_end,
        "failed_by_class": dict(Counter(pod.label for pod in arriving) - Counter(pod.label for pod in placed)),
        "failed_by_class_simulated": dict(simulated.failed),
        "pods_per_s": len(arriving) / took_s,
    }


def _place(plane: ControlPlane, trace: Trace, arriving: Sequence[TracePod]) -> float:
    """Return the seconds from the scheduler's start until each pod was examined."""
    plane.create_namespace(NAMESPACE)
    install(plane, DEPLOY, parts=("crds", "rbac"))
    never = {"metadata": {"name": "never"}, "value": 0, "preemptionPolicy": "Never"}  # no pod has a lower one
    plane.api.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", never)
    with ThreadPoolExecutor(CLIENTS) as clients:
        report(f"{len(trace.nodes)} nodes")
        list(clients.map(lambda one: add_node(plane, *one), enumerate(trace.nodes)))
        report(f"{len(arriving)} pods")
        list(clients.map(lambda one: _add_pod(plane, *one), enumerate(arriving)))
    central = _start_central(plane, trace)
    try:
        plane.eventually(lambda: central.leads, "a leader", within_s=LEADS_S)
        began = time.monotonic()
        plane.start_scheduler(render_scheduler_config(plane, central.port), name=SCHEDULER)
        return _await_all(plane, len(arriving)) - began
    finally:
        central.stop()


def add_node(plane: ControlPlane, number: int, node: TraceNode) -> None:
    """Add a node that is Ready, without the taint that the API server gives a new node."""
    manifest = render_node(node)
    made = plane.api.call("POST", NODES.path(), {"metadata": manifest["metadata"]})
    made["spec"].pop("taints", None)
    made = plane.api.call("PUT", NODES.path("", node.name), made)
    made["status"] = manifest["status"]
    plane.api.call("PUT", NODES.path("", node.name, "status"), made)
    devices = render_devices(number, node)
    plane.api.call("POST", NODE_DEVICES.path(), {key: devices[key] for key in ("apiVersion", "kind", "metadata")})
    path = NODE_DEVICES.path("", node.name, "status")
    plane.api.call("PATCH", path, {"status": devices["status"]}, content_type=MERGE)


def _name(number: int) -> str:
    """Return a name that sorts by the pods' arrival: an API server lists by name."""
    return f"pod-{number:06d}"


def _add_pod(plane: ControlPlane, number: int, pod: TracePod) -> None:
    manifest = render_pod(_name(number), pod)
    manifest["spec"] |= {
        "schedulerName": "lading",
        "automountServiceAccountToken": False,
        "priorityClassName": "never",
        "tolerations": [],
    }
    plane.api.call("POST", PODS.path(NAMESPACE), manifest)


def _start_central(plane: ControlPlane, trace: Trace) -> Replica:
    workload = plane.folder / "workload.json"
    workload.write_text(json.dumps({"pods": list(expected_pods(trace.pods))}))
    kubeconfig = plane.sign_in_account(CENTRAL, SYSTEM_NAMESPACE, CENTRAL)
    central = Replica(CENTRAL, folder=plane.folder, kubeconfig=kubeconfig, key=SigningKey(plane.folder / "keys"))
    more = {"policy": Policy.FRAGMENTATION.value, "workload": str(workload), "learn_workload": False}
    config = central.log.with_suffix(".toml")
    config.write_text(config.read_text() + render_flat_toml(more))
    plane.logs.append(central.log)
    central.start()
    return central


def expected_pods(pods: Sequence[TracePod]) -> Iterator[dict[str, Any]]:
    for pod, count in Counter(pods).items():
        kind: dict[str, Any] = {"weight": count, "cpu_milli": pod.cpu_milli, "memory_mib": pod.memory_mib}
        if pod.whole:
            kind["gpus"] = pod.whole
        elif pod.share:
            kind["gpu_core_percent"] = pod.share // PERCENT
        if pod.models:
            kind["gpu_models"] = pod.models
        yield kind


def render_scheduler_config(plane: ControlPlane, port: int) -> Mapping[str, Any]:
    """Return the deployed configuration, with other addresses."""
    config: dict[str, Any] = yaml.safe_load((DEPLOY / "scheduler/config.yaml").read_text())
    config["clientConnection"]["kubeconfig"] = str(plane.sign_in_account(SCHEDULER, SYSTEM_NAMESPACE, SCHEDULER))
    for extender in config["extenders"]:
        extender["urlPrefix"] = f"http://127.0.0.1:{port}"
        del extender["enableHTTPS"], extender["tlsConfig"]
    return config


def _await_all(plane: ControlPlane, count: int) -> float:
    """Return when the last pod was examined, in monotonic seconds."""
    observed, since = -1, time.monotonic()
    while observed < count:
        time.sleep(SCAN_S)
        now = time.monotonic()
        judged = sum(map(_was_judged, _pods(plane)))
        if judged > observed:
            observed, since = judged, now
        report(f"{observed} of {count} pods were looked at")
        if now - since > STALLED_S:
            raise HostError(f"cannot replay: only {observed} of {count} pods were looked at", hint=f"see {plane.logs[-1]}")
    return since


def _was_judged(pod: Mapping[str, Any]) -> bool:
    return any(condition["type"] == "PodScheduled" for condition in pod["status"].get("conditions", ()))


def _bound(plane: ControlPlane, arriving: Sequence[TracePod]) -> Iterator[TracePod]:
    for pod in _pods(plane):
        if "nodeName" in pod["spec"]:
            yield arriving[int(pod["metadata"]["name"].rpartition("-")[2])]


def _pods(plane: ControlPlane) -> Iterator[Mapping[str, Any]]:
    more = ""
    while True:
        page = plane.api.call("GET", f"{PODS.path(NAMESPACE)}?limit=2000{f'&continue={more}' if more else ''}")
        yield from page["items"]
        more = page["metadata"].get("continue", "")
        if not more:
            return


def report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
