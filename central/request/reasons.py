"""Define the reason codes with which central refuses a pod because of the pod or its Binding, regardless of the node.

Each code has a sentence. kube-scheduler receives both, in one fixed text, because it groups nodes by the text. These codes
and `central.search.placement.Missing`, which is about a node, are all codes of central; the codes of a node are in
`lading.reasons`. `make docs` writes all of them into docs/reasons.md.

Tests: tests/unit/central/decide/test_scheduler.py
"""

from lading.reasons import Explained


class Coded(Explained):
    """Give each member of a subclass a code, a sentence, and what to do; optionally what the sentence leaves out."""

    def __init__(self, code: str, text: str, remedy: str, more: str = "") -> None:
        super().__init__(code, f"{text}. {more}".rstrip(), remedy)
        self.text = text
        self.shown = f"{text} ({code})"  # built once, because a filter's answer repeats the text for thousands of nodes

    def about(self, detail: str) -> str:
        """Return the code with a detail of this case in place of the sentence."""
        return f"{detail} ({self})"


class OfPod(Coded):
    """Say why a pod gets no node, regardless of the nodes' devices."""

    REQUEST_MALFORMED = (
        "request-malformed",
        "invalid device request",
        "correct it and create the pod again; [reference.md](reference.md#what-a-pod-asks-for) has the grammar.",
        "An amount is not valid, a resource or an annotation below `lading.dev/` does not exist, or annotations contradict one "
        "another. The message says what is wrong, in which container, and what would be right.",
    )
    BOUND_ELSEWHERE = (
        "bound-elsewhere",
        "pod is being bound to another node",
        "nothing.",
        "Or the outcome of that Binding is not known yet.",
    )
    POD_ENDED = "pod-ended", "pod has ended", "nothing.", "kube-scheduler has not learned of it yet."
    GANG_WAITS_FOR_MEMBERS = (
        "gang-waits-for-members",
        "members of its gang are missing",
        "create them; if they exist, check that they name the same gang and minimum.",
        "Or the object with the minimum of its [gang](gangs.md) is missing. The message says how many members exist.",
    )
    GANG_NO_ROOM = (
        "gang-no-room",
        "no room for all members of its gang that start together",
        "nothing, or free devices; after `patience` its room is kept together.",
        "The gang holds nothing meanwhile.",
    )
    GANG_TOO_LARGE = (
        "gang-too-large",
        "its gang would not fit if all nodes were empty",
        "lower the minimum, drop the required topology, or add nodes.",
        "This counts the members that start together, with all devices in order; the message says how many would fit.",
    )
    GANG_ELSEWHERE = "gang-elsewhere", "its gang has a place for it on another node", "nothing."
    GANG_WAITS_FOR_TURN = (
        "gang-waits-for-turn",
        "its gang is being planned, or another one comes first",
        "nothing. If plans of this gang are dropped again and again, look at the members with `kubectl describe pod`: one "
        "waits for a volume, or kube-scheduler refuses it.",
        "The message says which case it is.",
    )
    QUOTA_EXCEEDED = (
        "quota-exceeded",
        "its quota does not allow it now",
        "wait, end other pods of the quota, or ask for a larger one; `kubectl lading quota` shows who uses what.",
        "The message has the [quota](quotas.md), what would be used, and what it may use. No node makes a difference. The pod "
        "is tried again by itself when the quota has room.",
    )
    QUOTA_TURN = (
        "quota-turn",
        "it is larger than what its quota may use, and waits for its turn to borrow",
        "wait.",
        "The pod, or its gang, may borrow the devices only as a whole.",
    )
    QUOTA_INVALID = (
        "quota-invalid",
        "its quota cannot be used as it is written",
        "correct the ElasticQuota, or name one of its children in the label `quota.scheduling.koordinator.sh/name` of the pod. "
        "Without this refusal the pod would be placed without a limit.",
        "The quota contradicts itself or another one, cannot be read, or is divided among other quotas. The message says what "
        "is wrong.",
    )


class OfBinding(Coded):
    """Say why a pod that had a node is not bound to it, or not yet. kube-scheduler tries again."""

    POD_UNKNOWN = (
        "pod-unknown",
        "central does not know the pod yet; this is retried automatically",
        "nothing. If it lasts, see the alert `LadingWatchSilent` in [monitoring.md](monitoring.md#ladingwatchsilent).",
        "Central began to lead a moment ago, or its watch is late.",
    )
    DEVICES_TAKEN = (
        "devices-taken",
        "its devices are not free there any more; this is retried automatically",
        "nothing.",
        "Between the choice and the Binding they went to another pod or became unhealthy, or the node went away.",
    )
    GANG_INCOMPLETE = (
        "gang-incomplete",
        "not all members of its gang can be bound yet; this is retried automatically",
        "nothing; kube-scheduler tries again. If it lasts, kube-scheduler refuses a member after filter: look at the members "
        "with `kubectl describe pod`.",
        "The pod was sent to bind, and other members of its [gang](gangs.md) were not yet.",
    )
    BINDING_REFUSED = (
        "binding-refused",
        "the API server refused the Binding",
        "fix what it says: a right, an admission policy, another scheduler that binds the same pods. A conflict ends by "
        "itself.",
        "Or it could not be reached; the message has its answer. The devices are free again.",
    )
    BINDING_UNCLEAR = (
        "binding-unclear",
        "it is not known whether the pod is bound",
        "nothing; if it lasts, the API server does not answer reads either.",
        "There is no answer, or none that says so. The devices stay reserved until a read shows it; nothing is sent twice.",
    )
    NOT_LEADING = (
        "not-leading",
        "this replica is no longer the leader; the next leader finds out whether the pod is bound",
        "nothing.",
    )
