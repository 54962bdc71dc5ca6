"""The closed list of reasons why a device is refused. The same code is in a pod's events, the log and docs/reasons.md."""

from enum import StrEnum


class Reason(StrEnum):
    # What the annotation says
    ANNOTATION_MALFORMED = "annotation-malformed"
    ANNOTATION_CONFLICT = "annotation-conflict"  # manual and central forms on one pod, or two that contradict
    ANNOTATION_RESERVED = "annotation-reserved"  # a key that only the node writes
    ASSIGNMENT_MISSING = "assignment-missing"  # the pod requests placement and was bound without an assignment
    ASSIGNMENT_VERSION = "assignment-version"
    ASSIGNMENT_OTHER_POD = "assignment-other-pod"
    ASSIGNMENT_OTHER_NODE = "assignment-other-node"
    ASSIGNMENT_STALE = "assignment-stale"
    ASSIGNMENT_CHANGED = "assignment-changed"  # differs from what this container was granted
    FORM_NOT_ACCEPTED = "form-not-accepted"  # manual, unsigned or signed, and this node takes others
    SIGNATURE_MISSING = "signature-missing"
    SIGNATURE_INVALID = "signature-invalid"
    SIGNATURE_KEY_UNKNOWN = "signature-key-unknown"
    # The device
    DEVICE_UNKNOWN = "device-unknown"
    DEVICE_UNHEALTHY = "device-unhealthy"
    DEVICE_HELD = "device-held"
    DEVICE_DIRTY = "device-dirty"  # no grant holds the card, and it is not as a new tenant should find it
    DEVICE_NODE_INVALID = "device-node-invalid"
    DRIVER_FILES_MISSING = "driver-files-missing"
    CAPACITY_EXCEEDED = "capacity-exceeded"  # shares of one card that add up to more than it has, or too few free VFs
    ISOLATION_UNAVAILABLE = "isolation-unavailable"  # the node cannot keep a share to its amounts in the way that was asked for
    ISOLATION_CONFLICT = "isolation-conflict"  # the card's shares have another one
    # The pod and its runtime
    CONTAINER_UNNAMED = "container-unnamed"  # or its pod has no uid; kubelet always sends both
    RUNTIME_HANDLER = "runtime-handler"
    PRIVILEGED = "privileged"
    USER_NAMESPACE = "user-namespace"
    DEVICE_PLUGIN_CONFLICT = "device-plugin-conflict"
    CDI_UNAVAILABLE = "cdi-unavailable"
    SANDBOX_STOPPED = "sandbox-stopped"
    HOST_NETWORK = "host-network"  # a VF's network device cannot be moved into the host's own namespace
    NRI_UNSUPPORTED = "nri-unsupported"  # NRI has no form for a part of what the container would get
    ATTACH_FAILED = "attach-failed"  # the VF's network device could not be moved into the pod
    # The node
    NOT_RECONCILED = "not-reconciled"
    NOT_PREPARED = "not-prepared"  # NRI: the devices take longer than a call may wait
    UNGRANTED = "ungranted"  # NRI: Lading's plugin was not asked, or did not answer
    LEDGER_UNAVAILABLE = "ledger-unavailable"
    INVENTORY_UNAVAILABLE = "inventory-unavailable"
    # The proxy
    HOOK_UNAVAILABLE = "hook-unavailable"
    HOOK_TIMEOUT = "hook-timeout"
    HOOK_INVALID = "hook-invalid"  # its answer cannot be used
    HOOK_CONFLICT = "hook-conflict"  # two hook servers claim one field
    NO_REGISTRATION = "no-registration"
    REQUEST_UNREADABLE = "request-unreadable"
    CREATED_ANOTHER_WAY = "created-another-way"  # RestorePod and the like, for a guarded pod
    INTERNAL = "internal"
