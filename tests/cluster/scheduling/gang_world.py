"""Create gangs on a real control plane whose nodes are objects only, and read who is bound with which cards, and who waits. Two
replicas of central run, and no device may have two holders."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from lading.vocabulary import CORDON, GANG, GANG_MIN
from simnode.control_plane import ControlPlane
from simnode.kube_api import KubeError
from simnode.scheduling import Scheduling, SigningKey, install
from tests.cluster.conftest import DEPLOY
from tests.cluster.scheduling.books import NODE_DEVICES, Auditor, by_assignment, by_report, read_reports
from tests.cluster.scheduling.fleet import MERGE, Fleet

PODS: Final = "/api/v1/namespaces/default/pods"
ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
POLICIES: Final = f"{ADMISSION}/validatingadmissionpolicies"
POLICY_BINDINGS: Final = f"{ADMISSION}/validatingadmissionpolicybindings"
PROBE: Final = "probe"  # a pod that does not exist


class GangWorld:
    def __init__(self, plane: ControlPlane, scheduling: Scheduling, auditor: Auditor) -> None:
        self.plane = plane
        self.scheduling = scheduling
        self.auditor = auditor

    # ---- pods

    def create(
        self, name: str, gpus: int, *, cpu: str = "", port: int = 0, metadata: Mapping[str, Any] | None = None, **spec: Any
    ) -> None:
        """Create a member. `port` is the port of the node that the pod requests for itself."""
        limits = ({"lading.dev/gpu": str(gpus)} if gpus else {}) | ({"cpu": cpu} if cpu else {})
        ports = {"ports": [{"containerPort": port, "hostPort": port}]} if port else {}
        containers = [{"name": "main", "image": "pause", "resources": {"limits": limits}, **ports}]
        spec = {"containers": containers, "schedulerName": "lading", **spec}
        self.plane.api.call("POST", PODS, {"metadata": {"name": name, **(metadata or {})}, "spec": spec})

    def create_gang(
        self, gang: str, size: int, *, gpus: int = 1, last: Mapping[str, Any] | None = None, **options: Any
    ) -> set[str]:
        """Create all members, and return their names. `last`: options of the last one alone."""
        names = [f"{gang}-{number}" for number in range(size)]
        options = {"metadata": of_gang(gang, size), **options}
        for name in names:
            self.create(name, gpus, **{**options, **(last or {} if name == names[-1] else {})})
        return {*names}

    def run(self, *names: str, gpus: int) -> None:
        for name in names:
            self.create(name, gpus)
        self.await_bound(names)

    def delete(self, name: str) -> None:
        self.plane.api.call("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})

    def pods(self) -> list[dict[str, Any]]:
        return list(self.plane.api.call("GET", PODS)["items"])

    def bound(self) -> set[str]:
        return {pod["metadata"]["name"] for pod in self.pods() if pod["spec"].get("nodeName")}

    def node_of(self, name: str) -> str:
        return str(self.plane.api.pod(name)["spec"].get("nodeName", ""))

    def await_bound(self, names: Iterable[str], *, within_s: float = 60.0) -> None:
        wanted = {*names}
        self.plane.eventually(lambda: wanted <= self.bound(), f"bound: {', '.join(sorted(wanted))}", within_s=within_s)

    def await_deleted(self, names: Iterable[str], *, within_s: float = 60.0) -> None:
        ended = {*names}

        def deleted() -> bool:
            return not ended & {pod["metadata"]["name"] for pod in self.pods()}

        self.plane.eventually(deleted, f"gone: {', '.join(sorted(ended))}", within_s=within_s)

    def cards(self, names: Iterable[str]) -> int:
        """Return how many different cards these pods have."""
        wanted = {*names}
        books = by_assignment(pod for pod in self.pods() if pod["metadata"]["name"] in wanted)
        return len({card for holding in books.values() for card in holding.cards})

    def blamed(self, reason: str) -> set[str]:
        """Return the pods that an Event with this reason is about."""
        events = self.plane.api.call("GET", "/api/v1/namespaces/default/events")["items"]
        return {event["involvedObject"]["name"] for event in events if event["reason"] == reason}

    def await_refused(self, name: str) -> str:
        """Wait until kube-scheduler said in the pod's condition why the pod was not bound. Return that."""
        result: list[str] = []

        def refused() -> bool:
            conditions = self.plane.api.pod(name)["status"].get("conditions", [])
            result[:] = [one["message"] for one in conditions if (one["type"], one["status"]) == ("PodScheduled", "False")]
            return bool(result)

        self.plane.eventually(refused, f"a refusal of {name}")
        return result[0]

    def refusals(self, name: str) -> str:
        """Return what Events say of why the pod was not bound."""
        return "\n".join(one for one in self.plane.api.pod_events(name) if one.startswith("FailedScheduling"))

    @staticmethod
    def sit_out(seconds: float) -> None:
        """Wait where nothing is to be seen: nothing must happen meanwhile."""
        time.sleep(seconds)

    @contextmanager
    def empty_in_the_end(self) -> Iterator[None]:
        """Delete all pods when the block ends, and check that no device was held twice at any moment of it."""
        yield
        for pod in self.pods():
            self.delete(pod["metadata"]["name"])
        self.plane.eventually(lambda: not self.pods(), "no pods")
        self.plane.eventually(lambda: not by_report(read_reports(self.plane.api)), "reports without grants")
        assert self.auditor.found == set()

    # ---- what central says

    def gang_of(self, name: str) -> dict[str, Any]:
        """Return what the leader says of the gang for which the pod waits; empty if nothing."""
        for replica in self.scheduling.replicas:
            status, body = replica.get(f"/v1/why/default/{name}") if replica.running else (0, b"")
            if status == 200:
                return dict(msgspec.json.decode(body).get("gang", {}))
        return {}

    def await_said(self, name: str, key: str, value: str) -> None:
        self.plane.eventually(lambda: self.gang_of(name).get(key) == value, f"gang of {name} with {key} {value}")

    # ---- faults

    @contextmanager
    def cordoned(self, node: str) -> Iterator[None]:
        """Take all cards of a node out of service."""
        cards = self.plane.api.call("GET", f"{NODE_DEVICES}/{node}")["status"]["gpus"]
        self._cordon(node, ",".join(card["uuid"] for card in cards))
        try:
            yield
        finally:
            self._cordon(node, None)

    def _cordon(self, node: str, cards: str | None) -> None:
        change = {"metadata": {"annotations": {CORDON: cards}}}
        self.plane.api.call("PATCH", f"{NODE_DEVICES}/{node}", change, content_type=MERGE)

    @contextmanager
    def unbindable(self, *names: str) -> Iterator[None]:
        """Have the API server refuse each Binding of these pods, as an admission policy of the cluster's owner may."""
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"]}
        refused = ", ".join(f"'{name}'" for name in (*names, PROBE))
        spec = {
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": f"!(request.name in [{refused}])", "reason": "Forbidden"}],
        }
        metadata = {"metadata": {"name": "unbindable"}}
        acts = {"policyName": "unbindable", "validationActions": ["Deny"]}
        self.plane.api.call("POST", POLICIES, {**metadata, "spec": spec})
        self.plane.api.call("POST", POLICY_BINDINGS, {**metadata, "spec": acts})
        self.plane.eventually(lambda: self._probed() == 403, "a policy that acts")
        try:
            yield
        finally:
            self.plane.api.call("DELETE", f"{POLICY_BINDINGS}/unbindable")
            self.plane.api.call("DELETE", f"{POLICIES}/unbindable")
            self.plane.eventually(lambda: self._probed() == 404, "a policy that acts no more")

    def _probed(self) -> int:
        body = {"metadata": {"name": PROBE}, "target": {"kind": "Node", "name": "n0"}}
        try:
            self.plane.api.call("POST", f"{PODS}/{PROBE}/binding", body)
        except KubeError as e:
            return e.status
        return 0

    @contextmanager
    def leader_killed(self) -> Iterator[None]:
        """Kill the leader; the other replica leads after the block. What was killed is started again then."""
        dead = self.scheduling.leader
        dead.kill()
        yield
        self.scheduling.await_leader()
        assert self.scheduling.leader is not dead
        dead.start()


def of_gang(gang: str, size: int) -> dict[str, Any]:
    return {"annotations": {GANG: gang, GANG_MIN: str(size)}}


@contextmanager
def gang_world(plane: ControlPlane, nodes: Sequence[str], settings: Mapping[str, Any]) -> Iterator[GangWorld]:
    """Install what a control plane needs, and start central and the scheduler. `settings`: of central."""
    plane.create_namespace("default")
    install(plane, DEPLOY)
    key = SigningKey(plane.folder / "keys")
    scheduling = Scheduling(plane, deploy=DEPLOY, key=key, settings=settings)
    with Fleet(plane, nodes), scheduling, Auditor(plane.api) as auditor:
        yield GangWorld(plane, scheduling, auditor)
