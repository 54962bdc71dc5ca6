"""Define the names that all parts share: annotation keys and identities. docs/reference.md explains each for a user.

Tests: tests/unit/hooks/grant/test_decide.py
"""

from collections.abc import Iterable
from typing import Final, NewType

PodUid = NewType("PodUid", str)
SandboxId = NewType("SandboxId", str)
ContainerId = NewType("ContainerId", str)
GpuUuid = NewType("GpuUuid", str)
PciAddress = NewType("PciAddress", str)

PREFIX: Final = "lading.dev/"
# A pod may have this many annotations with the prefix: two for each of 127 containers, and two for the pod. Each costs time
# whenever a container of the pod is created; the API server alone would allow 11,000.
MAX_KEYS: Final = 256

# Central writes both annotations; the second signs the exact bytes of the first.
ASSIGNMENT: Final = "lading.dev/assignment"
ASSIGNMENT_SIGNATURE: Final = "lading.dev/assignment-signature"

# A person writes these annotations; a key with the suffix ".<container>" is for that container only.
MANUAL_GPUS: Final = "lading.dev/gpus"
MANUAL_VFS: Final = "lading.dev/vfs"
MANUAL_ANNOTATIONS: Final = frozenset({MANUAL_GPUS, MANUAL_VFS})

# These annotations are options of a request to central. On the node they mean that the pod expects an assignment.
RDMA_POLICY: Final = "lading.dev/rdma-policy"
TOPOLOGY: Final = "lading.dev/topology"
GPU_MODEL: Final = "lading.dev/gpu-model"
MIG_PROFILE: Final = "lading.dev/mig-profile"
POLICY: Final = "lading.dev/policy"
NVSWITCH_PARTITION: Final = "lading.dev/nvswitch-partition"
SHARE_AFFINITY: Final = "lading.dev/share-affinity"
SHARE_ANTI_AFFINITY: Final = "lading.dev/share-anti-affinity"
SHARE_EXCLUSION: Final = "lading.dev/share-exclusion"
ISOLATION: Final = "lading.dev/isolation"
GPU_CORE_LIMIT: Final = "lading.dev/gpu-core-limit"  # the suffix ".<container>" limits it to that container's share
REQUEST_ANNOTATIONS: Final = frozenset(
    {
        RDMA_POLICY,
        TOPOLOGY,
        GPU_MODEL,
        MIG_PROFILE,
        NVSWITCH_PARTITION,
        POLICY,
        SHARE_AFFINITY,
        SHARE_ANTI_AFFINITY,
        SHARE_EXCLUSION,
        ISOLATION,
        GPU_CORE_LIMIT,
    }
)


def is_manual(key: str) -> bool:
    """Return whether the key names devices by hand, for the pod or for one container."""
    return key in MANUAL_ANNOTATIONS or key.startswith((f"{MANUAL_GPUS}.", f"{MANUAL_VFS}."))


def is_request_annotation(key: str) -> bool:
    """Return whether the key is an option of a request to central, for the pod or for one container."""
    return key in REQUEST_ANNOTATIONS or key.startswith(f"{GPU_CORE_LIMIT}.")


# These annotations describe the gang of a pod. They request no device, and a node ignores them.
GANG: Final = "lading.dev/gang"  # name of the gang, within the namespace
GANG_MIN: Final = "lading.dev/gang-min"  # number of members that start together: 4, or by role: ps=1,worker=4
GANG_ROLE: Final = "lading.dev/gang-role"
GANG_MODE: Final = "lading.dev/gang-mode"
GANG_REQUIRED_TOPOLOGY: Final = "lading.dev/gang-required-topology"  # node label with one value for the nodes of all members
GANG_PREFERRED_TOPOLOGY: Final = "lading.dev/gang-preferred-topology"
GANG_ANNOTATIONS: Final = frozenset({GANG, GANG_MIN, GANG_ROLE, GANG_MODE, GANG_REQUIRED_TOPOLOGY, GANG_PREFERRED_TOPOLOGY})

# Central writes this annotation, through Kueue, into the pods of a Workload with a reservation.
WORKLOAD: Final = "lading.dev/workload"  # <uid of the Workload>/<pod set>

# The node writes these annotations into containers, never into pods, so that its ledger can be rebuilt from the runtime.
GRANT: Final = "lading.dev/grant"
NOTHING: Final = ""  # the grant of a container that went through the hooks and gets no device
ATTACHMENTS: Final = "lading.dev/attachments"
RESERVED: Final = (GRANT, ATTACHMENTS)

# Multus' annotation: a pod's networks besides the cluster's. Central adds a pod's VFs where CNI moves them into pods.
NETWORKS: Final = "k8s.v1.cni.cncf.io/networks"

# A pod requests devices from central by these names, in resources.limits.
RESOURCE_GPU: Final = "lading.dev/gpu"  # whole cards
RESOURCE_GPU_MEMORY: Final = "lading.dev/gpu-memory"  # a share of one card, bytes
RESOURCE_GPU_MEMORY_PERCENT: Final = "lading.dev/gpu-memory-percent"  # a share of one card's memory, percent
RESOURCE_GPU_CORE: Final = "lading.dev/gpu-core"  # a share of one card's compute, percent
RESOURCE_RDMA: Final = "lading.dev/rdma"  # number of VFs
RESOURCE_GANG_MEMBER: Final = "lading.dev/gang-member"  # 1: a pod without devices that starts with its gang

# A container with one of these capabilities can open every device of its node. On cgroup v1 it writes devices.allow of its own
# group; on v2 it detaches the device program of its own group (bpf(2), BPF_PROG_DETACH).
_OPENS_DEVICES: Final = frozenset({"ALL", "SYS_ADMIN"})


def adds_sys_admin(capabilities: Iterable[str]) -> bool:
    """Return whether a list of added capabilities, as Kubernetes and runtimes accept them, has CAP_SYS_ADMIN."""
    return any(name.upper().removeprefix("CAP_") in _OPENS_DEVICES for name in capabilities)


# An installation has these names in deploy/.
# Answer of a metrics port to any other path: the available paths, which show a client that it has the wrong port.
NO_SUCH_PAGE: Final = b"/metrics /healthz /readyz\n"
FRONT_END: Final = "lading.dev/front-end"  # a node's label, by which a DaemonSet of deploy/node runs there
SYSTEM_NAMESPACE: Final = "lading-system"
NODES_NAMESPACE: Final = "lading-nodes"
CENTRAL: Final = "lading-central"  # name of its program, Deployment, Secret, lease and field manager

# Nodes have this taint while they may not start pods with devices.
NOT_READY: Final = "lading.dev/not-ready"

# A person names devices that get no new pods in this annotation of NodeDevices: UUIDs and PCI addresses with commas, or "all".
CORDON: Final = "lading.dev/cordon"
