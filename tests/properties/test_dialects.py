"""Mix keys of all dialects in one pod: central gets one meaning or one refusal, never an exception, and never no devices."""

from typing import Any, Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from central.request.dialects.options import DialectName, DialectOptions, MemoryUnit
from central.request.dialects.unread import UNREAD
from central.request.model import DeviceRequest, MalformedRequest
from central.request.parse import DIALECTS, OWN, Dialects, mentions_devices, parse_request
from central.request.pod import Pod
from tests.depth import repeats

POOL: Final = "nvidia.com/sriov_rdma"
ALL: Final = DialectOptions(
    enabled=tuple(DialectName),
    nvidia_gpu={"*": DialectName.NVIDIA, "hami-scheduler": DialectName.HAMI, "koord-scheduler": DialectName.KOORDINATOR},
    nvidia_replicas={"nvidia.com/gpu.shared": 4},
    gpushare_ack=True,
    vf_pools=(POOL, "rdma/hca"),
)
RESOURCES: Final = sorted(
    {name for name in Dialects(ALL).resources if not name.startswith("nvidia.com/mig-")}
    | {"nvidia.com/mig-1g.10gb", "nvidia.com/mig-1g.10gb.me", "nvidia.com/gpus", "aliyun.com/gpu-count", "amd.com/gpu"}
    | {"volcano.sh/gpu-memory", "koordinator.sh/gpu-x", "cambricon.com/vmlu", "nvidia.com/mig-", "lading.dev/gpuu", "cpu"}
)
AMOUNTS: Final = ["0", 0, "1", 1, 2, "8", 30, 50, 100, 150, 200, "8Gi", "1.5", 0.5, "-1", "", "x", "9" * 70, 10**30, "1e3"]
TEXTS: Final = [
    "",
    "0",
    "1",
    "0.5",
    "1.0",
    "2.0",
    "00.50",
    ".5",
    "5e-1",
    "2000",
    "true",
    "binpack",
    "mps",
    "mig",
    "HAMi-core",
    "numa",
    "{}",
    "[]",
    '{"rdma":{"vfSelector":{}}}',
    '{"gpu":{"requiredTopologyScope":"NUMANode"}}',
    "[" * 3000,
    '{"rdma":{"vfSelector":{},"allocateStrategy":"ApplyForAll"}}',
    '{"allocatePolicy":"Restricted"}',
    "x" * 5000,
    "\x1b",
    "٣",
]
KEYS: Final = [
    "nvidia.com/use-gputype",
    "nvidia.com/use-gpuuuid",
    "nvidia.com/numa-bind",
    "nvidia.com/vgpu-mode",
    "mps",
    "hami.io/gpu-scheduler-policy",
    "volcano.sh/vgpu-mode",
    "gpu-fraction",
    "gpu-memory",
    "gpu-fraction-num-devices",
    "gpu-fraction-container-name",
    "scheduling.koordinator.sh/device-allocate-hint",
    "kubeshare/gpu_limit",
    "scheduling.koordinator.sh/device-joint-allocate",
    "scheduling.koordinator.sh/gpu-partition-spec",
    "k8s.v1.cni.cncf.io/networks",
    "lading.dev/topology",
    "lading.dev/isolation",
    "lading.dev/gpus",
]
LABELS: Final = [
    "sharedgpu/gpu_request",
    "sharedgpu/gpu_limit",
    "sharedgpu/gpu_mem",
    "sharedgpu/gpu_model",
    "sharedgpu/group_name",
    "koordinator.sh/gpu-isolation-provider",
    "aliyun.com/gpu-count",
    "ack.gpushare.placement",
]
SCHEDULERS: Final = ["lading", "hami-scheduler", "koord-scheduler", "kai-scheduler", "volcano", "kubeshare-scheduler"]

limits = st.dictionaries(st.sampled_from(RESOURCES), st.sampled_from(AMOUNTS), max_size=3)
texts = st.sampled_from(TEXTS) | st.text(max_size=12)


@st.composite
def containers(draw: st.DrawFn, name: str) -> dict[str, Any]:
    amounts = draw(limits)
    requests = draw(st.sampled_from([{}, {}, amounts])) or {}
    return {
        "name": name,
        "resources": {"limits": amounts, "requests": requests},
        "restartPolicy": draw(st.sampled_from(["", "Always"])),
        "securityContext": draw(st.sampled_from([None, None, {"privileged": True}])),
    }


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    spec = {
        "schedulerName": draw(st.sampled_from(SCHEDULERS)),
        "containers": [draw(containers(f"c{number}")) for number in range(draw(st.integers(0, 3)))],
        "initContainers": [draw(containers(f"i{number}")) for number in range(draw(st.integers(0, 1)))],
    }
    metadata = {
        "name": "p",
        "namespace": "n",
        "uid": "u",
        "labels": draw(st.dictionaries(st.sampled_from(LABELS), texts, max_size=2)),
        "annotations": draw(st.dictionaries(st.sampled_from(KEYS), texts, max_size=2)),
    }
    return msgspec.convert({"metadata": metadata, "spec": spec}, Pod)


options = st.sampled_from([ALL, DialectOptions()]) | st.builds(
    lambda name, unit, ack, vf: DialectOptions(
        enabled=(name,), gpushare_unit=unit, gpushare_ack=ack, koordinator_vf=vf, vf_pools=(POOL,)
    ),
    st.sampled_from(DialectName),
    st.sampled_from(MemoryUnit),
    st.booleans(),
    st.booleans(),
)


@given(pods(), options)
@pytest.mark.repeats
@settings(max_examples=repeats(400, long=4_000))
def test_a_pod_has_one_meaning_or_one_refusal(pod: Pod, chosen: DialectOptions) -> None:
    dialects = Dialects(chosen)
    request = parse_request(pod, dialects)
    claims = dialects.claims(pod)
    match request:
        case DeviceRequest(containers=asking):
            assert len(claims) == 1 or POOL in claims.values() or "rdma/hca" in claims.values() or not chosen.enabled
            names = [one.name for one in (*pod.spec.init_containers, *pod.spec.containers)]
            assert [one.name for one in asking] == [name for name in names if name in {one.name for one in asking}]
            assert all(not one.empty for one in asking)
            assert asking or "lading.dev/gang-member" in claims.values()
            assert mentions_devices(pod, dialects)
        case MalformedRequest(message=message):
            assert message.startswith("cannot ")
            assert message.isprintable()
            assert len(message) < 600
        case None:
            assert means_nothing(pod, {one.name for one in claims})
            assert chosen != ALL or not asks_somewhere(pod)


def means_nothing(pod: Pod, systems: set[str]) -> bool:
    """Return whether the pod asks for nothing in its own system either: KubeShare's limit of 0."""
    limit = pod.metadata.labels.get("sharedgpu/gpu_limit", "")
    return not systems or (systems == {DialectName.KUBESHARE} and not limit.strip("0."))


def asks_somewhere(pod: Pod) -> bool:
    """Return whether the pod has an amount of any resource of this test but cpu, or a fraction of a card."""
    amounts = {
        amount
        for one in (*pod.spec.containers, *pod.spec.init_containers)
        for name, amount in one.resources.limits.items()
        if name != "cpu"
    }
    return not amounts <= {0, "0"} or "gpu-fraction" in pod.metadata.annotations


def test_every_dialect_claims_keys() -> None:
    for name, make in DIALECTS.items():
        claims = make(ALL).claims
        assert claims.resources or claims.keys, name
    assert OWN.claims.resources
    assert UNREAD
