"""Measure how long a large gang takes to be bound through a real kube-scheduler, and in how many rounds.

    python -m bench.gang_wave

Needs LADING_KUBE_ASSETS, a folder with etcd, kube-apiserver and kube-scheduler (simnode/control_plane.py). Nodes with 8 GPUs
are Node and NodeDevices objects without kubelets; each member asks for one GPU. The gang is created in two ways:

* `created_at_once`: all members, one after the other, as fast as the API server takes them.
* `last_one_late`: all but one member; the last member follows after kube-scheduler has refused the others and is idle.

Seconds count from the creation of the last member to the first and to the last Binding, as seen every SCAN_S. `filters` and
`binds` are kube-scheduler's requests for each member from then on: 1.0 is one round.
"""

import argparse
import contextlib
import json
import os
import re
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.figures import write_results
from bench.placement_real import ASSETS, DEPLOY, LEADS_S, add_node, render_scheduler_config
from lading.errors import ConfigError, LadingError, die
from lading.kube.resource import PODS
from lading.vocabulary import CENTRAL, GANG, GANG_MIN, RESOURCE_GPU, SYSTEM_NAMESPACE
from simnode.control_plane import ControlPlane
from simnode.kube_api import KubeError
from simnode.scheduling import SCHEDULER, Replica, SigningKey, install
from simulate.objects import NAMESPACE
from simulate.trace import TraceNode

OUT: Final = Path("bench/out/gang_wave.json")
CARDS: Final = 8
SCAN_S: Final = 0.1
QUIET_S: Final = 3.0  # without a question
WITHIN_S: Final = 300.0


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="bench.gang_wave", description="A large gang through a real kube-scheduler.")
    parser.add_argument("--members", type=int, default=512, metavar="N", help="[512]")
    parser.add_argument("-o", "--output", type=Path, default=OUT, metavar="FILE", help=f"[{OUT}]")
    args = parser.parse_args(argv)
    try:
        result = run(args.members)
    except LadingError as e:
        die(e)
    write_results(args.output, result)
    print(json.dumps(result, indent=1))


def run(members: int) -> dict[str, Any]:
    assets = os.environ.get(ASSETS)
    if not assets:
        raise ConfigError(f"{ASSETS} is needed, a folder with etcd, kube-apiserver and kube-scheduler")
    with tempfile.TemporaryDirectory(prefix="lading-wave-") as name, ControlPlane(Path(name), assets=Path(assets)) as plane:
        plane.create_namespace(NAMESPACE)
        install(plane, DEPLOY, parts=("crds", "rbac"))
        nodes = -(-members // CARDS)
        for number in range(nodes):
            node = TraceNode(name=f"node-{number:04d}", cpu_milli=64_000, memory_mib=1 << 19, gpus=CARDS, model="H100")
            add_node(plane, number, node)
        install(plane, DEPLOY)  # with the admission policies, which let nodes alone write their reports
        with _central(plane) as central:
            plane.start_scheduler(render_scheduler_config(plane, central.port), name=SCHEDULER)
            wave = _Wave(plane, central, members)
            return {
                "members": members,
                "nodes": nodes,
                "created_at_once": wave.measure("at-once", late=False),
                "last_one_late": wave.measure("late", late=True),
            }


@contextlib.contextmanager
def _central(plane: ControlPlane) -> Iterator[Replica]:
    kubeconfig = plane.sign_in_account(CENTRAL, SYSTEM_NAMESPACE, CENTRAL)
    central = Replica(CENTRAL, folder=plane.folder, kubeconfig=kubeconfig, key=SigningKey(plane.folder / "keys"))
    plane.logs.append(central.log)
    central.start()
    try:
        plane.eventually(lambda: central.leads, "a leader", within_s=LEADS_S)
        yield central
    finally:
        central.stop()


class _Wave:
    def __init__(self, plane: ControlPlane, central: Replica, members: int) -> None:
        self._plane = plane
        self._members = members
        match = re.search(r"event=metrics.listening .*port=(\d+)", central.log.read_text())
        assert match, "central says where its metrics are"
        self._metrics = f"http://127.0.0.1:{match[1]}/metrics"

    def measure(self, gang: str, *, late: bool) -> Mapping[str, float]:
        for number in range(self._members - 1):
            self._create(gang, number)
        if late:
            self._await_silence()
        self._create(gang, self._members - 1)
        began, before = time.monotonic(), self._asked()
        first_s = self._await(lambda: self._any("spec.nodeName!="), began)
        last_s = self._await(lambda: not self._any("spec.nodeName="), began)
        figures = {verb: (count - before[verb]) / self._members for verb, count in self._asked().items()}
        self._delete_all()
        return {"first_s": first_s, "last_s": last_s} | figures

    def _create(self, gang: str, number: int) -> None:
        container = {"name": "main", "image": "pause", "resources": {"limits": {RESOURCE_GPU: "1"}}}
        metadata = {"name": f"{gang}-{number:04d}", "annotations": {GANG: gang, GANG_MIN: str(self._members)}}
        spec = {"containers": [container], "schedulerName": "lading", "automountServiceAccountToken": False}
        self._plane.api.call("POST", PODS.path(NAMESPACE), {"metadata": metadata, "spec": spec})

    def _delete_all(self) -> None:
        while self._any(""):
            with contextlib.suppress(KubeError):  # a busy API server deletes hundreds in more time than a call has
                self._plane.api.call("DELETE", PODS.path(NAMESPACE), {"gracePeriodSeconds": 0})

    def _await(self, holds: Callable[[], bool], began: float) -> float:
        """Return the seconds until it holds."""
        while not holds() and time.monotonic() < began + WITHIN_S:
            time.sleep(SCAN_S)
        return round(time.monotonic() - began, 1)

    def _await_silence(self) -> None:
        asked = self._asked()
        while True:
            time.sleep(QUIET_S)
            if (now := self._asked()) == asked:
                return
            asked = now

    def _any(self, selector: str) -> bool:
        return bool(self._plane.api.call("GET", f"{PODS.path(NAMESPACE)}?limit=1&fieldSelector={selector}")["items"])

    def _asked(self) -> Mapping[str, float]:
        with urllib.request.urlopen(self._metrics) as answer:  # noqa: S310  its address is central's
            text = answer.read().decode()
        result = dict(re.findall(r'lading_central_requests_total\{status="200",verb="(\w+)"\} (\S+)', text))
        return {f"{verb}s": float(result.get(verb, 0)) for verb in ("filter", "bind")}


if __name__ == "__main__":
    main()
