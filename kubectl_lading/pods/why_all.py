"""`why` without a pod: every pod that waits, in the order in which they get devices, and why, by reason code.

Enters: the cluster, the policy of central where it says it. Leaves: a `WaitingPod` each. Reasons are counted over all nodes as
central's filter counts them; node by node `why POD` says it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
from rich.console import RenderableType
from rich.text import Text

from central.api.times import parse_seconds
from central.ask.model import Ask, BadAsk
from central.ask.parse import parse_ask
from central.fit.model import Missing
from central.page.waiting import count_reasons
from central.scheduling.scheduler import Scheduler
from central.scheduling.why import FITS, ask_in_words
from central.state.pending import pending_of
from kubectl_lading.cluster import Cluster
from kubectl_lading.objects import Pod
from kubectl_lading.pods.listed import waits
from kubectl_lading.pods.situation import SCHEDULER, Stand
from kubectl_lading.terminal.amounts import NONE, age, now
from kubectl_lading.terminal.output import Cell, table, text
from kubectl_lading.terminal.words import count

COLUMNS: Final = (
    ("AGE", "(without POD) Since the pod was created."),
    ("PRIORITY", "(without POD) Pods are listed in the order in which they get devices: by priority, then by age."),
    ("WHY", "(without POD) Nodes by reason code, or what keeps schedulers from the pod."),
    ("ASKS", "(without POD) Its request, in words."),
)
_NEVER: Final = frozenset(missing.value for missing in Missing if missing.unresolvable)


class WaitingPod(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str
    pod: str
    uid: str
    stand: Stand
    priority: int = 0
    created: int = 0  # Unix seconds; 0: unknown
    asks: str = ""
    reasons: Mapping[str, int] = {}  # nodes by reason code; of a pod that waits for devices
    said: str = ""  # what else keeps the pod from being scheduled


class WaitingView(msgspec.Struct, frozen=True):
    pods: tuple[WaitingPod, ...]


def explain_waiting(cluster: Cluster, namespace: str = "") -> Iterator[WaitingPod]:
    """Yield the waiting pods one by one: the first pod of each request is checked on all nodes. `namespace` empty: all."""
    found = [pod for pod in cluster.pods if waits(pod) and namespace in ("", pod.metadata.namespace)]
    for pod in sorted(found, key=_in_line):
        yield _explain(cluster.scheduler, pod)


def _in_line(pod: Pod) -> tuple[object, ...]:
    return -pod.spec.priority, pod.metadata.creation_timestamp or "", pod.metadata.uid


def _explain(scheduler: Scheduler, pod: Pod) -> WaitingPod:
    asked, metadata = parse_ask(pod), pod.metadata
    stand, said = _stand(pod, asked)
    pending = pending_of(pod, asked) if isinstance(asked, Ask) else None
    return WaitingPod(
        namespace=metadata.namespace,
        pod=metadata.name,
        uid=metadata.uid,
        stand=stand,
        priority=pod.spec.priority,
        created=parse_seconds(metadata.creation_timestamp),
        asks=ask_in_words(pending) if pending else "",
        reasons=count_reasons(scheduler, pending) if pending and stand is Stand.WAITING else {},
        said=said,
    )


def _stand(pod: Pod, asked: Ask | BadAsk | None) -> tuple[Stand, str]:
    """Return the state as in `situation.py`, for a pod that is not bound and requests devices."""
    if pod.spec.scheduling_gates:
        return Stand.GATED, f"gated: {', '.join(gate.name for gate in pod.spec.scheduling_gates)}"
    if isinstance(asked, BadAsk):
        return Stand.MALFORMED, asked.message
    if pod.spec.scheduler_name != SCHEDULER:
        return Stand.OTHER_SCHEDULER, f"names the scheduler {pod.spec.scheduler_name or 'default-scheduler'}, not {SCHEDULER}"
    return Stand.WAITING, ""


def draw_waiting(pods: Sequence[WaitingPod], *, everywhere: bool) -> Iterator[RenderableType]:
    if not pods:
        yield text(f"No pod{'' if everywhere else ' in this namespace (-A: all)'} waits for devices.")
        return
    heads = (*(["NAMESPACE"] if everywhere else []), "POD", *(head for head, _ in COLUMNS))
    yield table(heads, [_row(one, everywhere=everywhere) for one in pods], wraps=("WHY", "ASKS"))
    yield text(f"{count(len(pods), 'pod')}. Node by node: kubectl lading why POD", "dim")


def _row(one: WaitingPod, *, everywhere: bool) -> list[Cell]:
    since = age(now() - one.created) if one.created else NONE
    return [*([one.namespace] if everywhere else []), one.pod, since, str(one.priority), _why(one), one.asks or NONE]


def _why(one: WaitingPod) -> Text:
    """Return why it waits: numbers of nodes by reason; those that fit first, those that never will last."""
    if one.stand is Stand.MALFORMED:  # `why POD` has the sentence
        return text(one.stand.value, "bad")
    if one.said:
        return text(one.said, "warn")
    if not one.reasons:
        return text("no node reports devices", "bad")
    ordered = sorted(one.reasons.items(), key=lambda item: (item[0] != FITS, item[0] in _NEVER, -item[1]))
    return text(", ".join(f"{code}={nodes}" for code, nodes in ordered), "good" if FITS in one.reasons else "")
