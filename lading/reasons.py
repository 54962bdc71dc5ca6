"""Define the reasons for which a node or the proxy refuses a container, each with what it means and what to do.

The code is in a pod's events, the log and the metrics. `make docs` writes both texts into docs/reasons.md, and `kubectl lading
why` shows the second one. Texts that are too long for the page's tables are below the tables.

`render_refusal` renders a refusal for the caller of a runtime: the gRPC status that says what to expect of a retry, and the
text that kubelet shows in the pod's events.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Self

from lading.http2.messages import GrpcStatus
from lading.log import printable

_LINK: Final = re.compile(r"\[([^\]]*)\]\([^)]*\)")


class Explained(StrEnum):
    """Give each member of a subclass a code, what it means, and what to do. The texts are Markdown of a page in docs/."""

    def __new__(cls, code: str, *_: str) -> Self:
        member = str.__new__(cls, code)
        member._value_ = code
        return member

    # The defaults are for mypy, which takes `Reason(code)`, the member with this code, for a call of this function.
    def __init__(self, _: str, meaning: str = "", remedy: str = "") -> None:
        self.meaning = meaning
        self.remedy = remedy  # begins in lower case, because kubectl lading shows it after the word "do"

    @property
    def plain_remedy(self) -> str:
        """Return what to do without links, for a terminal. The name of a page becomes its path: docs/reference.md."""
        return _LINK.sub(lambda link: f"docs/{link[1]}" if link[1].endswith(".md") else link[1], self.remedy)


class Reason(Explained):
    # The annotation
    ANNOTATION_MALFORMED = (
        "annotation-malformed",
        "An annotation has a name that is not a device's (`/dev/nvidia0`), an amount without a unit, a device that is listed "
        "twice, or invalid JSON. Or its key below `lading.dev/` does not exist (`lading.dev/gpu`), or the pod has more than "
        "256 such keys. The message says which key, which entry, and what would be right.",
        "correct it and create the pod again; [reference.md](reference.md) has the grammar. In an assignment written by "
        "central this is a bug in central, or the assignment was edited.",
    )
    ANNOTATION_CONFLICT = (
        "annotation-conflict",
        "The pod has devices named by hand (`lading.dev/gpus`, `lading.dev/vfs`), and an assignment by central, or a request "
        "for one.",
        "keep one of the two.",
    )
    ANNOTATION_RESERVED = (
        "annotation-reserved",
        "The pod has `lading.dev/grant` or `lading.dev/attachments`, which only the node writes, and only into containers.",
        "remove it. It is often there because a manifest was made from a running pod.",
    )
    ASSIGNMENT_MISSING = (
        "assignment-missing",
        "The pod asks for a placement (`lading.dev/topology`, `lading.dev/policy`, …) and was bound to the node without an "
        "assignment. Another scheduler bound it, or `spec.nodeName` was set by hand.",
        "set `schedulerName: lading`, leave `nodeName` out, create the pod again.",
    )
    ASSIGNMENT_VERSION = (
        "assignment-version",
        "This node does not support the assignment's version `v`.",
        "install versions of `lading-hooks` on the node and of `lading-central` that are compatible.",
    )
    ASSIGNMENT_OTHER_POD = (
        "assignment-other-pod",
        "The assignment was made for another pod's uid: the annotation was copied, for example from a running pod.",
        "remove `lading.dev/assignment` and its signature from the manifest.",
    )
    ASSIGNMENT_OTHER_NODE = (
        "assignment-other-node",
        "The assignment was made for another node.",
        "if the pod was moved by hand, create it again. If it is the right node under another name, correct `node_name` in the "
        "node's `hooks.toml`: it must be the node's name in Kubernetes.",
    )
    ASSIGNMENT_STALE = (
        "assignment-stale",
        "The assignment's `gen` is older than one that this node has already granted for the pod. An old annotation was "
        "restored, or central lost its ledger and started again.",
        "create the pod again.",
    )
    ASSIGNMENT_CHANGED = (
        "assignment-changed",
        "The annotation differs from the container's grant. The grant wins: the devices of a running pod are not exchanged. Or "
        "a `lading.dev/` annotation was removed after the sandbox was created; no container starts without its devices.",
        "create the pod again, or put the annotation back.",
    )
    FORM_NOT_ACCEPTED = (
        "form-not-accepted",
        "The node (`assignments` in `hooks.toml`) does not accept this form: devices named by hand, or central's.",
        'for tests, set `assignments = ["manual"]` on a node of its own; elsewhere let central assign.',
    )
    SIGNATURE_MISSING = (
        "signature-missing",
        "The node accepts signed assignments only, and this one has no `lading.dev/assignment-signature`.",
        "give central a key (`signing_key`), or, on a node where all users are trusted to write annotations, accept "
        "`unsigned`.",
    )
    SIGNATURE_INVALID = (
        "signature-invalid",
        "The signature does not match the annotation's exact text, or is not of the form `ed25519:<key id>:<base64>`. A "
        "person, or a tool that re-formats JSON, changed the assignment.",
        "create the pod again. If it happens to all pods, the node's public key of that id is not the one of central.",
    )
    SIGNATURE_KEY_UNKNOWN = (
        "signature-key-unknown",
        "The assignment is signed with a key that this node does not have.",
        "add the public key to the node's configuration. When keys rotate, nodes get the new one before central signs with it.",
    )
    # The device
    DEVICE_UNKNOWN = (
        "device-unknown",
        "The node has no GPU of that index, UUID or PCI address, or no VF of that address or ibdev. Or the name is that of a "
        "PF, or of a card in MIG mode, of which only the instances can be assigned. Or central saw the device at another "
        "address. The message lists what the node has.",
        "name one of these devices (`lading-hooks render -f pod.yaml` shows what would happen); if a device should be there, "
        "see the node's log for `inventory.failed`.",
    )
    DEVICE_UNHEALTHY = (
        "device-unhealthy",
        "The device exists and cannot be used; the message says why.",
        "repair it, or name another one. A container that had the device before it became unhealthy waits for it. With "
        '`unhealthy = "give-up"` it gets another VF if it had asked for a number of VFs; if the device was named, create the '
        "pod again.",
    )
    DEVICE_HELD = (
        "device-held",
        "Another live pod holds the device, whole or in part, or it has not come back from a pod that had it. Or a pod uses it "
        "without a grant: the pod is older than Lading, or bypasses it. The message names the holder, `lading-hooks ledger` "
        "shows all.",
        "wait until the holder ends, delete that pod, or name another device. If a device [does not come "
        "back](operations.md#who-holds-what), use `lading-hooks release`.",
    )
    DEVICE_DIRTY = (
        "device-dirty",
        "No grant holds the card, and it is not [as a new tenant should find it](operations.md#from-one-tenant-to-the-next). "
        "The message has all that is wrong, and since when.",
        "end the process. If there is none, run `nvidia-smi --gpu-reset -i UUID` on a cordoned node, which sets the count of "
        "memory errors to zero too. For the compute mode, run `nvidia-smi -i UUID -c DEFAULT`. If a daemon of your nodes "
        "computes on every card, write its name into `tolerated_processes`, and raise `dirty_tolerance` by its memory.",
    )
    DEVICE_NODE_INVALID = (
        "device-node-invalid",
        "A device node of the node is missing, or is not the character device that the kernel says it should be. It may be a "
        "link, a regular file, or have another major or minor number. It is never granted.",
        "for NVIDIA, `nvidia-modprobe -c 0 -u`; for a missing `rdma_cm`, `modprobe rdma_ucm`; else find out who changed "
        "`/dev`.",
    )
    DRIVER_FILES_MISSING = (
        "driver-files-missing",
        "The node gives the driver's libraries to GPU containers, and has found none of the version that runs. The driver was "
        "upgraded and its kernel module was not, or its libraries are in a folder that Lading does not know. Or a file is gone "
        "because the driver is being upgraded; a container runtime would create a directory in its place.",
        "wait until the upgrade ends; else look for `libcuda.so.<version>` on the host, with `nvidia-smi`'s version, and write "
        "its folder into `driver_libraries`.",
    )
    CAPACITY_EXCEEDED = (
        "capacity-exceeded",
        "The shares of a card would exceed its usable memory or 100 percent, or fewer VFs are free than requested by number. "
        "Or the card has as many containers with shares as the node allows (`shares_per_gpu`, 48: the clients of one MPS "
        "server). The message has the amounts and the holders.",
        "ask for less, wait, or name another device.",
    )
    ISOLATION_UNAVAILABLE = (
        "isolation-unavailable",
        "The node does not offer the requested [isolation](isolation.md) (`isolations` in `hooks.toml`), or cannot enforce it "
        "for this container. A share that nothing would keep to its amounts is not given in its place.",
        "ask for an isolation that the node offers, or add it there; for MPS, see "
        '[isolation.md](isolation.md#what-fails-with-mps), "What fails with MPS".',
    )
    ISOLATION_CONFLICT = (
        "isolation-conflict",
        "The card's other shares have another isolation, or one container asks for shares with two. A card has one at a time, "
        "because one does not know what the other lets run.",
        "ask for the same isolation, wait until the card is free, or name another card.",
    )
    # The pod and its runtime
    CONTAINER_UNNAMED = (
        "container-unnamed",
        "The CRI request has no container name, or no uid of the pod. The node keeps grants by these two. kubelet always sends "
        "them; a request written by hand (`crictl create`) may lack them.",
        "set `metadata.name` of the container and `metadata.uid` of the pod.",
    )
    RUNTIME_HANDLER = (
        "runtime-handler",
        "The pod's RuntimeClass runs containers in another kernel (Kata, gVisor), where the host's devices have no effect.",
        "use another RuntimeClass. The patterns are the node's `unsupported_handlers`.",
    )
    PRIVILEGED = (
        "privileged",
        "The container is privileged, or adds the capability `SYS_ADMIN` (or `ALL`): it can open every device of the node, "
        "granted or not.",
        "remove `privileged: true`, or the capability; where that is not possible, set `allow_privileged` on the node.",
    )
    USER_NAMESPACE = (
        "user-namespace",
        "The pod has a user namespace (`hostUsers: false`), in which it could not open the device nodes.",
        "remove it.",
    )
    DEVICE_PLUGIN_CONFLICT = (
        "device-plugin-conflict",
        "The container already has a device of this kind from kubelet, for a device plugin. Lading and the plugin do not know "
        "each other's grants, so two pods could get one card.",
        "use one of them: remove the plugin's resource (`nvidia.com/gpu`) from `resources.limits`, or the assignment.",
    )
    CDI_UNAVAILABLE = (
        "cdi-unavailable",
        "The node injects GPUs by CDI, and no CDI spec defines the card by its UUID. Or the runtime does not honour CDI, or "
        "does not read the folder of the specs.",
        "for [Lading's own specs](operations.md#cdi-specs), `journalctl -t lading-hooks LADING_EVENT=inventory.changed` says "
        "why one could not be written, and `cdi_dir` must be one of the runtime's `cdi_spec_dirs`. With `cdi_specs = "
        '"nvidia-ctk"`, run `nvidia-ctk cdi generate --device-name-strategy=uuid --output=/etc/cdi/nvidia.yaml` after each '
        "change of driver or cards. The runtime must be containerd 1.7.2 or newer with `enable_cdi = true`, by NRI 1.7.26 or "
        "newer. Or inject by another mode (`gpu_mode`).",
    )
    SANDBOX_STOPPED = (
        "sandbox-stopped",
        "The pod is being stopped; a late request to create a container in it gets no devices.",
        "nothing.",
    )
    HOST_NETWORK = (
        "host-network",
        "The pod has `hostNetwork: true`, so it has no network namespace of its own into which a VF's network device could go.",
        "leave `hostNetwork` out. Where such pods need verbs only: `netdev = false` in the `hooks.toml` of their nodes. In an "
        'assignment that central does not write, `"netdev": false` of an entry does the same.',
    )
    ATTACH_FAILED = (
        "attach-failed",
        "The VF's network device could not be moved into the pod's namespace, or not be set up as requested. The message has "
        "the step, and the answer of the kernel or the driver. What had been changed was undone, or is being undone "
        "(`lading-hooks ledger` shows it). kubelet tries again.",
        "if it lasts, look at what the message names: the PF's driver (`dmesg`), a setting unknown to the driver, a VF of two "
        "ports. If a name or an address is taken in the pod, give the network attachment another `interface`.",
    )
    # The node
    NOT_RECONCILED = (
        "not-reconciled",
        "`lading-hooks` has just started and does not know yet what the runtime's containers hold. New grants wait for that; "
        "existing ones are served. Central shows the same code for such a node, and assigns nothing there until then.",
        "nothing, unless it lasts: then the runtime does not answer its lists (`ledger.failed` in the log, "
        "[`/readyz`](operations.md#health-endpoints) on the node).",
    )
    LEDGER_UNAVAILABLE = (
        "ledger-unavailable",
        "The node's ledger (`/var/lib/lading/node.db`) cannot be read or written: a full disk, a damaged file. Nothing is "
        "granted that could not be recorded.",
        "look at `ledger.failed` in the log and at the disk.",
    )
    INVENTORY_UNAVAILABLE = (
        "inventory-unavailable",
        "The node's devices cannot be read: the driver does not answer, or the first reading after a start is not done.",
        "see `inventory.failed` in the log; `nvidia-smi` and `ls /sys/class/infiniband` show the same without Lading.",
    )
    # NRI
    NOT_PREPARED = (
        "not-prepared",
        "The devices take longer to prepare than the runtime's call may wait, and the work goes on. A VF is being moved into "
        "the pod, an MPS daemon starts, MIG instances are being made, or the devices are being read again.",
        "nothing, kubelet tries again within 14 s. If it lasts, `journalctl -t lading-hooks` has the step that does not end.",
    )
    UNGRANTED = (
        "ungranted",
        "`lading-hooks` did not answer for a container of a pod with Lading's annotations: it is being restarted, hangs, or is "
        "not connected to the runtime. The guard refuses the container, because the runtime would create it without devices; "
        "[the runtime handler](nri.md#the-runtime-handler) refuses to start it.",
        "nothing, if it passes; otherwise `systemctl status lading-hooks`, and [`/readyz`](operations.md#health-endpoints) on "
        "the node.",
    )
    NRI_UNSUPPORTED = (
        "nri-unsupported",
        "NRI has no form for a part of what the container would get; the message names it.",
        "change the node's setting that asks for it ([what NRI cannot do](nri.md#what-nri-cannot-do)), or use the proxy there.",
    )
    # The proxy
    HOOK_UNAVAILABLE = (
        "hook-unavailable",
        "A hook server that the pod needs does not answer. Its policy is `Fail`, so the container is not created.",
        "`lading-doctor`, on the node. Pods without Lading's annotations are not affected.",
    )
    HOOK_TIMEOUT = (
        "hook-timeout",
        "A hook server did not answer in time.",
        "usually nothing, kubelet's next try finds the answer; if it lasts, see `hook.timeout` in the log for the stage and "
        "the deadline.",
    )
    HOOK_INVALID = (
        "hook-invalid",
        "A hook server sent an invalid answer: no result, a device path that is not a device, a field that is not of the "
        "stage.",
        "this is a bug in that server; the message names it.",
    )
    HOOK_CONFLICT = (
        "hook-conflict",
        "Two hook servers want to set one field of the container differently. The message names both and the field.",
        "change their configurations so that only one of them sets it.",
    )
    NO_REGISTRATION = (
        "no-registration",
        "The pod has Lading's annotations, and no valid registration of a hook server exists.",
        "see `hook.invalid` in the proxy's log and the files of `/etc/lading/hooks.d`.",
    )
    REQUEST_UNREADABLE = (
        "request-unreadable",
        "The request for a pod with Lading's annotations is damaged, or compressed in a way that the proxy does not support. "
        "Or a CreateContainer request lacks `sandbox_config.metadata`: containerd would crash on it.",
        "report it, with the versions of kubelet and Lading.",
    )
    CREATED_ANOTHER_WAY = (
        "created-another-way",
        "The pod has Lading's annotations and is created by a call that Lading does not hook, such as a restore from a "
        "checkpoint. It would have devices that other pods may hold by now.",
        "create it in the usual way.",
    )
    INTERNAL = "internal", "A bug in Lading.", "report it with the log's lines for this pod."


# Other reasons have FAILED_PRECONDITION: a person must change something before a retry can succeed.
_STATUS_OF: Final[Mapping[str, GrpcStatus]] = {
    Reason.HOOK_UNAVAILABLE: GrpcStatus.UNAVAILABLE,
    Reason.HOOK_TIMEOUT: GrpcStatus.UNAVAILABLE,
    Reason.NO_REGISTRATION: GrpcStatus.UNAVAILABLE,
    Reason.NOT_RECONCILED: GrpcStatus.UNAVAILABLE,
    Reason.NOT_PREPARED: GrpcStatus.UNAVAILABLE,
    Reason.UNGRANTED: GrpcStatus.UNAVAILABLE,
    Reason.REQUEST_UNREADABLE: GrpcStatus.INVALID_ARGUMENT,
    Reason.ANNOTATION_RESERVED: GrpcStatus.INVALID_ARGUMENT,
    Reason.INTERNAL: GrpcStatus.INTERNAL,
}


def render_refusal(reason: str, message: str) -> tuple[GrpcStatus, str]:
    """Return the status, and the text on one line. `reason`: one of `Reason`, or a code of another hook server."""
    return _STATUS_OF.get(reason, GrpcStatus.FAILED_PRECONDITION), f"lading: {reason}: {printable(message)}"
