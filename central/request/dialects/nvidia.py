"""Read requests to NVIDIA's device plugin: whole cards, replicas of cards, MIG instances.

A replica is a share: with 10 replicas of a card, each is 10 % of its compute and memory. The plugin itself limits neither.

Source: NVIDIA/k8s-device-plugin v0.20.0, internal/rm and docs.

Tests: tests/golden/test_dialects.py
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from central.request.amounts import Resource
from central.request.check import MAX_DEVICES, Keys, check_profile
from central.request.dialects.dialect import ClaimedKeys, read_pod, refuse
from central.request.dialects.options import DialectName, DialectOptions
from central.request.model import ContainerRequest, DeviceRequest, Share
from central.request.pod import Container, Pod
from lading.vocabulary import GPU_MODEL

NVIDIA_GPU: Final = "nvidia.com/gpu"
WHOLE: Final = Resource(f"a whole number of cards, 1 to {MAX_DEVICES}", MAX_DEVICES)
MIG: Final = "nvidia.com/mig-"
# Names of MIG resources that scheduler-config writes. kube-scheduler counts a name that is missing here itself, and a pod
# with such a resource stays Pending on nodes without the device plugin.
_SIZES: Final = {
    1: (5, 6, 10, 12, 18, 20, 23, 24, 35, 45, 47),
    2: (10, 12, 20, 24, 35, 45, 47),
    3: (20, 40, 47, 48, 71, 90, 93, 95),
    4: (20, 24, 40, 47, 48, 71, 90, 93, 95),
    7: (40, 80, 93, 94, 96, 141, 180, 186, 189),
}
_MIG_RESOURCES: Final = frozenset(f"{MIG}{slices}g.{gb}gb" for slices, sizes in _SIZES.items() for gb in sizes) | frozenset(
    f"{MIG}1g.{gb}gb.me" for gb in (5, 6, 10, 12, 18, 23, 24)
)


class Nvidia:
    name: Final = DialectName.NVIDIA

    def __init__(self, options: DialectOptions) -> None:
        self._replicas = options.nvidia_replicas
        one = Resource("1: the device plugin too does not promise different cards for more", 1)
        self._known = {NVIDIA_GPU: WHOLE, **dict.fromkeys(self._replicas, one)}
        self.claims = ClaimedKeys(resources={*self._known, *_MIG_RESOURCES}, prefixes=(NVIDIA_GPU, MIG))

    def parse(self, pod: Pod) -> DeviceRequest | None:
        mig = {name for one in (*pod.spec.init_containers, *pod.spec.containers) for name in one.resources.limits}
        instances = dict.fromkeys((name for name in sorted(mig) if name.startswith(MIG)), WHOLE)
        keys = Keys(gpus=NVIDIA_GPU, mig_profile=next(iter(instances), MIG), models=GPU_MODEL)
        profiles: dict[str, str] = {}  # resource by profile
        whole: list[str] = []

        def read(container: Container, amounts: Mapping[str, int]) -> ContainerRequest:
            if len(amounts) > 1:
                first, second = sorted(amounts)[:2]
                raise refuse(first, f"container {container.name} has {second} too", "keep one of the two")
            ((resource, amount),) = amounts.items()
            if resource.startswith(MIG):
                profiles[_profile(resource)] = resource
                return ContainerRequest(name=container.name, gpus=amount)
            if resource in self._replicas:
                return ContainerRequest(name=container.name, share=Share(core_percent=100 // self._replicas[resource]))
            whole.append(container.name)
            return ContainerRequest(name=container.name, gpus=amount)

        def refine(request: DeviceRequest) -> DeviceRequest:
            if len(profiles) > 1 or (profiles and whole):
                first, second = [*profiles.values(), NVIDIA_GPU][:2]
                raise refuse(first, f"the pod has {second} too", "one pod gets instances of one profile, or whole cards")
            return replace(request, mig_profile=next(iter(profiles), ""))

        return read_pod(pod, {**self._known, **instances}, self.claims, read, refine, keys)


def _profile(resource: str) -> str:
    """Return the profile: a resource's name has a point in place of the plus, as in `mig-1g.10gb.me`."""
    slices, point, rest = resource.removeprefix(MIG).partition(".")
    profile = f"{slices}{point}{rest.replace('.', '+')}"
    check_profile(resource[:80], profile, profile)
    return profile
