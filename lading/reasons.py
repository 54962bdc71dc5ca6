"""List all reasons why a device is refused. The same code is in a pod's events, the log and docs/reasons.md."""

from enum import StrEnum


class Reason(StrEnum):
    # The annotation
    ANNOTATION_MALFORMED = "annotation-malformed"
    ANNOTATION_CONFLICT = "annotation-conflict"  # manual and central forms on one pod, or contradicting annotations
    ANNOTATION_RESERVED = "annotation-reserved"  # a key that only the node writes
    ASSIGNMENT_MISSING = "assignment-missing"  # the pod requests placement and was bound without an assignment
    ASSIGNMENT_VERSION = "assignment-version"
    ASSIGNMENT_OTHER_POD = "assignment-other-pod"
    ASSIGNMENT_OTHER_NODE = "assignment-other-node"
    ASSIGNMENT_STALE = "assignment-stale"
    ASSIGNMENT_CHANGED = "assignment-changed"  # the assignment differs from the container's grant
    FORM_NOT_ACCEPTED = "form-not-accepted"  # the node does not accept the form: manual, unsigned or signed
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
    CAPACITY_EXCEEDED = "capacity-exceeded"  # the shares of a card exceed the card, or there are too few free VFs
    ISOLATION_UNAVAILABLE = "isolation-unavailable"  # the node cannot enforce a share with the requested isolation
    ISOLATION_CONFLICT = "isolation-conflict"  # the shares of the card have another isolation
    # The pod and its runtime
    CONTAINER_UNNAMED = "container-unnamed"  # the container has no name or its pod no uid; kubelet always sends both
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
    NOT_PREPARED = "not-prepared"  # NRI: preparing the devices takes longer than a call may wait
    UNGRANTED = "ungranted"  # NRI: Lading's plugin was not asked, or did not answer
    LEDGER_UNAVAILABLE = "ledger-unavailable"
    INVENTORY_UNAVAILABLE = "inventory-unavailable"
    # The proxy
    HOOK_UNAVAILABLE = "hook-unavailable"
    HOOK_TIMEOUT = "hook-timeout"
    HOOK_INVALID = "hook-invalid"  # the answer of a hook server cannot be used
    HOOK_CONFLICT = "hook-conflict"  # two hook servers claim one field
    NO_REGISTRATION = "no-registration"
    REQUEST_UNREADABLE = "request-unreadable"
    CREATED_ANOTHER_WAY = "created-another-way"  # a guarded pod's containers would be created by RestorePod or the like
    INTERNAL = "internal"
