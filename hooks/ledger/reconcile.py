"""Compare the ledger with the runtime's lists: decide what to release, adopt, note and delete, and which problems to report.

The input is the grants as they were *before* the lists were requested, and the lists. The result is actions, to be applied as
they are, and problems. An empty list of sandboxes releases nothing if the pod of any grant was not observed to stop. An empty
list of containers is believed: the last container of a node must be able to end.

A grant ends when no sandbox of its pod is ready, and no container of its name in that pod is created or running. So a restart
of the container or of the sandbox keeps the grant. A VF of the grant that is not back from its pod yet keeps it too. Grants of
`busy` pods are left alone: a call of the pod is being answered, or was answered after the lists were requested. Grants younger
than GRACE_S are left alone too, in case a caller forgets a busy pod. That grace does not apply if the pod was observed to stop,
or if its sandbox has a tombstone (which survives this process).

The attachments in a container's annotation are believed only if the container's grant is adopted: most attachments in old
annotations have ended, by the journal. Contradictions are reported, and never settled here: two pods on one device, or an
annotation that differs from the ledger.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import combinations
from typing import Final

from hooks.ledger.attachment import parse_attachments
from hooks.model.assignment import GrantedDevices
from hooks.model.attachment import Attachment
from hooks.model.grant import Grant, GrantKey, HeldBy, parse_annotation
from hooks.model.lists import ListedContainer, Lists
from lading.errors import StateError
from lading.vocabulary import ContainerId, PodUid, SandboxId

GRACE_S: Final = 60  # seconds; kubelet gives up a CreateContainer after two minutes at most, its sandbox being ready


class ProblemKind(StrEnum):
    LIST_EMPTY = "list-empty"
    DEVICE_HELD_TWICE = "device-held-twice"
    GRANT_DIFFERS = "grant-differs"  # ledger and annotation differ, or the annotations of two live containers do
    ANNOTATION_UNREADABLE = "annotation-unreadable"
    ANNOTATION_MISPLACED = "annotation-misplaced"  # an annotation on another container than the one that it names


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    kind: ProblemKind
    message: str
    pods: tuple[PodUid, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Actions:
    release: tuple[GrantKey, ...] = ()
    adopt: tuple[Grant, ...] = ()
    restore: tuple[Attachment, ...] = ()  # attachments of the adopted grants
    add_containers: tuple[tuple[GrantKey, HeldBy], ...] = ()
    forget: tuple[SandboxId, ...] = ()  # tombstones of sandboxes that the runtime removed
    forget_containers: tuple[ContainerId, ...] = ()  # recorded containers that the runtime removed
    problems: tuple[Problem, ...] = ()


def reconcile(
    grants: Collection[Grant],
    tombstones: Mapping[SandboxId, int],
    lists: Lists,
    *,
    now: int,
    boot_id: str,
    busy: Collection[PodUid] = frozenset(),
    stopped: Collection[PodUid] = frozenset(),
    not_back: Collection[tuple[PodUid, str]] = frozenset(),
) -> Actions:
    """Return the changes that make the ledger agree with the runtime's lists. `now`: Unix seconds; `boot_id`: for adopted
    grants; `stopped`: pods that were observed to stop before the lists were requested, and need no grace. `not_back`: pods with
    devices that were moved for them and are not back yet. After the actions are applied, the same lists give the same problems
    and no action."""
    if not lists.sandboxes and (lists.containers or any(g.pod not in stopped for g in grants)):
        text = f"the runtime lists no sandbox, beside {len(grants)} grants and {len(lists.containers)} containers"
        return Actions(problems=(_problem(ProblemKind.LIST_EMPTY, text),))

    ready = lists.ready
    live = _live(lists)
    ended = {g.key for g in grants if g.pod in stopped or g.sandbox in tombstones}
    settled = [g for g in grants if g.pod not in busy and (g.key in ended or abs(now - g.granted_at) >= GRACE_S)]
    release = {g.key for g in find_over(settled, lists) if not any((g.pod, name) in not_back for name in g.devices.names)}
    kept = {g.key: g for g in grants if g.key not in release}

    message, unreadable = _read_annotations((c for c in lists.containers if c.pod not in busy), boot_id)
    wanted = [s for s in message if s[0].key not in release and (s[0].pod in ready or s[0].key in live)]
    adopted, add, differs = _compare(kept, wanted)
    restored, misplaced = _read_attachments(wanted, adopted)
    listed = {c.id for c in lists.containers}
    return Actions(
        release=tuple(g.key for g in grants if g.key in release),
        adopt=adopted,
        restore=restored,
        add_containers=add,
        forget=_removed(tombstones, lists, now),
        forget_containers=tuple(c.id for g in kept.values() if g.pod not in busy for c in g.containers if c.id not in listed),
        problems=(*unreadable, *misplaced, *differs, *held_twice((*kept.values(), *adopted))),
    )


def find_over(grants: Iterable[Grant], lists: Lists) -> list[Grant]:
    """Return the grants that have ended by the lists: no sandbox of the pod is ready, and no such container is created or
    running."""
    ready, live = lists.ready, _live(lists)
    return [grant for grant in grants if grant.pod not in ready and grant.key not in live]


def _live(lists: Lists) -> set[GrantKey]:
    return {c.key for c in lists.containers if c.live}


def rebuild(lists: Lists, *, now: int, boot_id: str) -> Actions:
    """Return the content of a rebuilt ledger: `adopt` has all grants in use, and `restore` their attachments."""
    return reconcile((), {}, lists, now=now, boot_id=boot_id)


def held_twice(grants: Iterable[Grant]) -> tuple[Problem, ...]:
    """Return a problem for each device that two pods hold, although only one may. Shares of one card are checked where they are
    added up, not here."""
    return tuple(
        _problem(
            ProblemKind.DEVICE_HELD_TWICE,
            f"{device} is held by pod {one.namespace}/{one.pod_name} and by pod {other.namespace}/{other.pod_name}",
            one.pod,
            other.pod,
        )
        for one, other in _rivals(tuple(grants))
        for device in both_hold(one.devices, other.devices)
    )


def _rivals(grants: Sequence[Grant]) -> list[tuple[Grant, Grant]]:
    """Return pairs of grants of different pods that name one device, in the grants' order. Hundreds of containers may have
    shares of a card, or belong to one pod: such a card or pod alone gives no pairs."""
    holders: dict[str, list[int]] = {}
    exclusive: set[str] = set()
    for number, grant in enumerate(grants):
        exclusive.update(gpu.uuid for gpu in grant.devices.gpus if gpu.whole or gpu.mig_uuid)
        exclusive.update(vf.bdf for vf in grant.devices.vfs)
        for device in {*(gpu.uuid for gpu in grant.devices.gpus), *(vf.bdf for vf in grant.devices.vfs)}:
            holders.setdefault(device, []).append(number)
    contested = (device for device in exclusive if len({grants[number].pod for number in holders[device]}) > 1)
    pairs = {pair for device in contested for pair in combinations(holders[device], 2)}
    return [(grants[i], grants[j]) for i, j in sorted(pairs) if grants[i].pod != grants[j].pod]


def both_hold(one: GrantedDevices, other: GrantedDevices) -> Iterator[str]:
    """Yield the devices in both grants that only one of two pods may hold. Shares of one card are checked where they are added
    up, not here."""
    for a in one.gpus:
        if any(a.uuid == b.uuid and a.excludes(b) for b in other.gpus):
            yield a.mig_uuid or a.uuid
    yield from (vf.bdf for vf in one.vfs if any(vf.bdf == b.bdf for b in other.vfs))


def _read_annotations(
    containers: Iterable[ListedContainer], boot_id: str
) -> tuple[list[tuple[ListedContainer, Grant]], list[Problem]]:
    message, problems = [], []
    for c in containers:
        if not c.grant:
            continue
        try:
            grant = parse_annotation(c.grant, sandbox=c.sandbox, granted_at=c.created_at // 1_000_000_000, boot_id=boot_id)
        except StateError as e:
            problems.append(_problem(ProblemKind.ANNOTATION_UNREADABLE, f"{_where(c)}: {e.message}", c.pod))
            continue
        if grant.key != c.key:
            text = f"{_where(c)} carries the grant of container {grant.container} of pod {grant.pod}"
            problems.append(_problem(ProblemKind.ANNOTATION_MISPLACED, text, c.pod, grant.pod))
            continue
        message.append((c, grant))
    return message, problems


def _read_attachments(
    grants: Iterable[tuple[ListedContainer, Grant]], adopted: Collection[Grant]
) -> tuple[tuple[Attachment, ...], list[Problem]]:
    """Return the attachments that the containers of adopted grants report. If several report one VF, the journal takes the
    attachment that began last."""
    devices = {grant.key: grant.devices for grant in adopted}
    restored: list[Attachment] = []
    problems = []
    for c, grant in grants:
        if not c.attachments or devices.get(c.key) != grant.devices:
            continue
        try:
            attachments = parse_attachments(c.attachments)
        except StateError as e:
            problems.append(_problem(ProblemKind.ANNOTATION_UNREADABLE, f"{_where(c)}: {e.message}", c.pod))
            continue
        own = {vf.bdf for vf in grant.devices.vfs}
        if all(one.pod == c.pod and one.sandbox == c.sandbox and one.bdf in own for one in attachments):
            restored += attachments
        else:
            text = f"{_where(c)} carries the attachment of a VF that is not of its grant, or of another sandbox"
            problems.append(_problem(ProblemKind.ANNOTATION_MISPLACED, text, c.pod))
    return tuple(restored), problems


def _compare(
    ledger: Mapping[GrantKey, Grant], grants: Iterable[tuple[ListedContainer, Grant]]
) -> tuple[tuple[Grant, ...], tuple[tuple[GrantKey, HeldBy], ...], tuple[Problem, ...]]:
    """Return the grants to adopt, the containers to note, and the differences as problems. A live container has priority over
    an exited one, then a newer over an older one. An exited container may differ: it held other devices earlier."""
    adopted: dict[GrantKey, Grant] = {}
    add, problems = [], []
    for c, grant in sorted(grants, key=lambda s: (s[0].live, s[0].created_at), reverse=True):
        key = c.key
        known = ledger.get(key) or adopted.get(key)
        if known is None:
            adopted[key] = replace(grant, containers=(c.held_by,))
        elif known.devices != grant.devices:
            if c.live:
                text = f"{_where(c)} runs with other devices than its grant"
                problems.append(_problem(ProblemKind.GRANT_DIFFERS, text, c.pod))
        elif key in adopted:
            adopted[key] = replace(known, containers=tuple(sorted((*known.containers, c.held_by), key=lambda c: c.id)))
        elif c.held_by not in known.containers:
            add.append((key, c.held_by))
    return tuple(adopted.values()), tuple(add), tuple(problems)


def _where(container: ListedContainer) -> str:
    return f"container {container.name} ({container.id}) of pod {container.pod}"


def _removed(tombstones: Mapping[SandboxId, int], lists: Lists, now: int) -> tuple[SandboxId, ...]:
    """Return the tombstones to delete: their sandboxes are not listed any more. Keep the tombstones of sandboxes that stopped
    just now: the list may be older than the sandbox."""
    listed = {s.id for s in lists.sandboxes}
    return tuple(i for i, stopped_at in tombstones.items() if i not in listed and abs(now - stopped_at) >= GRACE_S)


def _problem(kind: ProblemKind, message: str, *pods: PodUid) -> Problem:
    return Problem(kind=kind, message=message, pods=pods)
