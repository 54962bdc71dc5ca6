"""Create pods of other systems on a real control plane, under their own schedulerName: each gets its devices, or no node.

kube-scheduler has the configuration that `lading-central scheduler-config` makes for the enabled dialects. No node offers a
resource of another system, and dialects of labels and annotations make kube-scheduler ask central about every pod.
"""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from central.daemon.scheduler_config import with_dialects
from central.request.dialects.options import DialectName, DialectOptions
from central.request.parse import Dialects
from lading.vocabulary import ASSIGNMENT
from simnode.control_plane import ControlPlane
from simnode.scheduling import Scheduling, SigningKey, install
from tests.cluster.conftest import DEPLOY
from tests.cluster.scheduling.fleet import Fleet
from tests.logs import LOGS

pytestmark = [pytest.mark.node, pytest.mark.timeout(400)]

EXAMPLES: Final = Path(__file__).parents[2] / "golden/dialects"
SYSTEMS: Final = ("nvidia", "hami", "gpushare", "volcano", "kai", "kubeshare", "koordinator")
SCHEDULERS: Final = ("hami-scheduler", "volcano", "kai-scheduler", "kubeshare-scheduler", "koord-scheduler")
OPTIONS: Final = DialectOptions(
    enabled=tuple(map(DialectName, SYSTEMS)),
    nvidia_gpu={"*": DialectName.HAMI, "koord-scheduler": DialectName.KOORDINATOR, "kai-scheduler": DialectName.NVIDIA},
)
PODS: Final = "/api/v1/namespaces/team-a/pods"
# Example → GPUs of its assignment. The nodes report neither NUMA nodes nor an isolation.
PLACED: Final = {
    "hami/h01-whole": 1,
    "hami/h02-memory": 1,
    "hami/h05-two-cards": 2,
    "hami/h06-cores-without-count": 1,
    "gpushare/g03-two-containers": 1,
    "koordinator/k05-ratio-alone": 1,
    "koordinator/k08-nvidia-name": 2,
    "volcano/v03-percentage-cores": 2,
    "kai/a01-half": 1,
    "kai/a06-whole": 4,
    "kubeshare/s04-two-cards": 2,
}
REFUSED: Final = {"hami/h09-one-uuid": "use-gpuuuid", "kai/ax2-both": "gpu-fraction", "kubeshare/sx3-memory-unit": "gpu_mem"}


class DialectScheduling(Scheduling):
    def _config(self, port: int) -> dict[str, Any]:
        config = super()._config(port)
        config["profiles"] += [{**config["profiles"][0], "schedulerName": name} for name in SCHEDULERS]
        return with_dialects(config, Dialects(OPTIONS))


@pytest.fixture(scope="module")
def plane(assets: Path, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[ControlPlane]:
    folder = tmp_path_factory.mktemp("dialects")
    plane = ControlPlane(folder, assets=assets)
    logs = pytestconfig.stash.setdefault(LOGS, [])
    logs.extend(plane.logs)
    with plane:
        plane.create_namespace("team-a")
        install(plane, DEPLOY)
        settings: dict[str, Any] = {"dialects.enabled": SYSTEMS}
        settings |= {f'dialects.nvidia_gpu."{name}"': system for name, system in OPTIONS.nvidia_gpu.items()}
        scheduling = DialectScheduling(plane, deploy=DEPLOY, key=SigningKey(folder / "keys"), replicas=1, settings=settings)
        logs.extend(scheduling.logs)
        with Fleet(plane, ("n0", "n1", "n2")), scheduling:
            yield plane


def create(plane: ControlPlane, example: str) -> str:
    pod = yaml.safe_load((EXAMPLES / f"{example}.yaml").read_text())
    pod["spec"].setdefault("schedulerName", "lading")
    pod["spec"].pop("priorityClassName", None)
    pod["spec"]["automountServiceAccountToken"] = False
    for container in pod["spec"]["containers"]:
        limits = container.get("resources", {}).get("limits", {})
        limits.update({name: str(amount) for name, amount in limits.items()})
    plane.api.call("POST", PODS, pod)
    return str(pod["metadata"]["name"])


def read(plane: ControlPlane, name: str) -> Any:
    return plane.api.call("GET", f"{PODS}/{name}")


def test_pods_of_other_systems_get_their_devices(plane: ControlPlane) -> None:
    names = {create(plane, example): count for example, count in PLACED.items()}
    for name, count in names.items():
        plane.eventually(partial(is_bound, plane, name), f"pod {name} on a node")
        assignment = json.loads(read(plane, name)["metadata"]["annotations"][ASSIGNMENT])
        cards = {gpu["uuid"] for container in assignment["containers"].values() for gpu in container["gpus"]}
        assert len(cards) == count, name
    for name in names:
        plane.api.call("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")


def test_pods_that_central_cannot_place_are_refused_by_name(plane: ControlPlane) -> None:
    for example, key in REFUSED.items():
        name = create(plane, example)
        plane.eventually(partial(mentions, plane, name, key), f"pod {name} refused because of {key}")
        assert not is_bound(plane, name)
        plane.api.call("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")


def test_pods_without_devices_are_bound_without_an_assignment(plane: ControlPlane) -> None:
    spec = {"schedulerName": "kubeshare-scheduler", "automountServiceAccountToken": False}
    pod = {"metadata": {"name": "plain"}, "spec": {**spec, "containers": [{"name": "c", "image": "x"}]}}
    plane.api.call("POST", PODS, pod)
    plane.eventually(partial(is_bound, plane, "plain"), "the pod on a node")
    assert ASSIGNMENT not in read(plane, "plain")["metadata"].get("annotations", {})


def is_bound(plane: ControlPlane, name: str) -> bool:
    return bool(read(plane, name)["spec"].get("nodeName"))


def mentions(plane: ControlPlane, name: str, key: str) -> bool:
    """Return whether a condition of the pod names the key."""
    conditions = read(plane, name).get("status", {}).get("conditions", [])
    return any(key in one.get("message", "") for one in conditions)
