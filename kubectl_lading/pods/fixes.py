"""What to do about each reason: the *Do* texts of docs/reasons.md, without links. A test compares the two."""

from collections.abc import Mapping
from typing import Final

FIXES: Final[Mapping[str, str]] = {
    "annotation-malformed": (
        "correct it and create the pod again; docs/reference.md has the grammar. In an assignment written by central this"
        " is a bug in central, or the assignment was edited."
    ),
    "annotation-conflict": "keep one of the two.",
    "annotation-reserved": "remove it. It is often there because a manifest was made from a running pod.",
    "assignment-missing": "set `schedulerName: lading`, leave `nodeName` out, create the pod again.",
    "assignment-version": "install versions of `lading-hooks` on the node and of `lading-central` that are compatible.",
    "assignment-other-pod": "remove `lading.dev/assignment` and its signature from the manifest.",
    "assignment-other-node": (
        "if the pod was moved by hand, create it again; if it is the right node under another name, correct "
        "`node_name` in the node's `hooks.toml`: it must be the node's name in Kubernetes."
    ),
    "assignment-stale": "create the pod again.",
    "assignment-changed": "create the pod again, or put the annotation back.",
    "form-not-accepted": 'for tests, set `assignments = ["manual"]` on a node of its own; elsewhere let central assign.',
    "signature-missing": (
        "give central a key (`signing_key`), or, on a node where all users are trusted to write annotations, accept `unsigned`."
    ),
    "signature-invalid": (
        "create the pod again. If it happens to all pods, the node has another public key under that key id than "
        "central signs with."
    ),
    "signature-key-unknown": (
        "add the public key to the node's configuration. When keys rotate, nodes get the new public key before "
        "central signs with it."
    ),
    "device-unknown": (
        "name one of these devices (`lading-hooks render -f pod.yaml` shows what would happen); if a device should be "
        "there, see the node's log for `inventory.failed`."
    ),
    "device-unhealthy": (
        "repair it, or name another one. A container that had the device before it became unhealthy waits for it; with "
        '`unhealthy = "give-up"` it gets another VF where it had asked for a number of them, and where the device was '
        "named, the pod has to be created again."
    ),
    "device-held": (
        "wait for it, delete it, or name another device; for what does not come back there is `lading-hooks release`."
    ),
    "device-dirty": (
        "end the process; if there is none, `nvidia-smi --gpu-reset -i UUID` on a cordoned node. If a daemon on your nodes "
        "needs more on every card (DCGM, MPS), raise `dirty_tolerance`."
    ),
    "device-node-invalid": (
        "for NVIDIA, `nvidia-modprobe -c 0 -u`; for a missing `rdma_cm`, `modprobe rdma_ucm`; else find out who changed `/dev`."
    ),
    "driver-files-missing": (
        "wait until the upgrade ends; else look for `libcuda.so.<version>` below `driver_root`; the version is what "
        "`nvidia-smi` says."
    ),
    "capacity-exceeded": "ask for less, wait, or name another device.",
    "container-unnamed": "set `metadata.name` of the container and `metadata.uid` of the pod.",
    "runtime-handler": "use another RuntimeClass. The patterns are the node's `unsupported_handlers`.",
    "privileged": (
        "remove `privileged: true`, or the capability; where that is not possible, the node's `allow_privileged` lets "
        "such containers have assignments."
    ),
    "user-namespace": "remove it.",
    "device-plugin-conflict": (
        "use one of them: remove the plugin's resource (`nvidia.com/gpu`) from `resources.limits`, or the assignment."
    ),
    "cdi-unavailable": (
        "`nvidia-ctk cdi generate --device-name-strategy=uuid --output=/etc/cdi/nvidia.yaml`, again after each change"
        " of driver or cards; for the runtime, containerd 1.7.2 or newer with `enable_cdi = true`. Or inject by "
        "another mode (`gpu_mode`)."
    ),
    "sandbox-stopped": "nothing.",
    "host-network": (
        "leave `hostNetwork` out. Where such pods need verbs only: `netdev = false` in the `hooks.toml` of their nodes, "
        'or `"netdev": false` in the assignment\'s entry, unless central writes it: central leaves that to the node.'
    ),
    "attach-failed": (
        "if it does not go away, look at what the message names: the PF's driver (`dmesg`), a name or an address that"
        " is taken in the pod (a network attachment's: give it another `interface`), a setting that the driver does not know,"
        " a VF of two ports."
    ),
    "not-reconciled": (
        "nothing, unless it lasts: then the runtime does not answer its lists (`ledger.failed` in the log, `/readyz` "
        "on the node)."
    ),
    "ledger-unavailable": "look at `ledger.failed` in the log and at the disk.",
    "inventory-unavailable": (
        "see `inventory.failed` in the log; `nvidia-smi` and `ls /sys/class/infiniband` show the same without Lading."
    ),
    "hook-unavailable": "`lading-doctor`, on the node. Pods without Lading's annotations are not affected.",
    "hook-timeout": (
        "usually nothing, kubelet's next try finds the answer; if it lasts, see `hook.timeout` in the log for the "
        "stage and the deadline."
    ),
    "hook-invalid": "this is a bug in that server; the message names it.",
    "hook-conflict": "change their configurations so that only one of them sets it.",
    "no-registration": "see `hook.invalid` in the proxy's log and the files of `/etc/lading/hooks.d`.",
    "request-unreadable": "report it, with the versions of kubelet and Lading.",
    "created-another-way": "create it in the usual way.",
    "internal": "report it with the log's lines for this pod.",
    "too-few-free-gpus": "wait, or ask for fewer.",
    "no-card-with-room": "wait, or ask for a smaller share.",
    "shares-do-not-fit": "wait.",
    "too-few-free-mig": "wait, or ask for fewer.",
    "too-few-free-vfs": "wait, or ask for fewer.",
    "too-few-free-vfs-of-switch": "wait, or take VFs that are farther away: `lading.dev/rdma-policy: nearest`.",
    "too-few-free-vfs-of-pf": "wait.",
    "no-free-partition": "wait, or take other GPUs too: `lading.dev/nvswitch-partition: prefer`.",
    "not-free-within-scope": "wait, or ask for a larger scope.",
    "kept-off": "wait, or write another `lading.dev/share-…`.",
    "group-full": "wait until pods on that card end.",
    "group-elsewhere": "see the line of that node.",
    "not-reached": "nothing. Fewer containers that ask for devices, and equal amounts in them, take less time.",
    "search-ended": (
        "write equal shares in its containers, or fewer containers with a required topology; they need fewer tries."
    ),
    "sets-ended": "ask for fewer GPUs in that container. A node of more than 16 GPUs has so many.",
    "no-model": "write `lading.dev/gpu-model` as `kubectl get nodedevices` shows it.",
    "too-few-gpus": "ask for fewer, or for their instances.",
    "too-few-mig": (
        "write another profile, exactly as `status.gpus[].mig[]` of the node's NodeDevices has it, or divide a card that way."
    ),
    "no-card-large-enough": "ask for a smaller share.",
    "node-too-small": "make the pod smaller.",
    "too-few-vfs": "ask for fewer, or make more of them on the node.",
    "too-few-vfs-of-switch": "ask for fewer VFs or GPUs, or write `lading.dev/rdma-policy: nearest`.",
    "too-few-vfs-of-pf": "ask for fewer, or make more of them on that PF.",
    "no-partition": (
        "ask for a number for which there is one (on an H100 board 1, 2, 4, 8), or write `lading.dev/nvswitch-"
        "partition: prefer`."
    ),
    "not-within-scope": (
        "ask for fewer, or a larger `lading.dev/topology`. A device whose place the node does not know is in no scope."
    ),
    "unhealthy": "look at PROBLEMS of `kubectl get nodedevices`; `lading.dev/cordon` on the object is a cordon.",
    "no-report": "nothing, if the node has none; else set up the report there.",
    "unreachable": "look at the node.",
    "bound-elsewhere": "nothing.",
    "pod-ended": "nothing.",
    "request-malformed": "correct it and create the pod again; docs/reference.md has the grammar.",
    "pod-unknown": "nothing; if it stays, see `LadingWatchSilent`.",
    "devices-taken": "nothing.",
    "binding-refused": (
        "fix what it says: a right, an admission policy, another scheduler that binds the same pods. A conflict goes away"
        " by itself."
    ),
    "binding-unclear": "nothing; if it lasts, the API server does not answer reads either.",
    "not-leading": "nothing.",
}
