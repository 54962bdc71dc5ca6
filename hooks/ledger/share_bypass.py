"""Find processes that use a shared card past the share server, and shares that use more memory than granted. Pure.

The input is the grants, the processes that the share server knows, and the processes that the driver reports, with their
cgroups. Only shares that the share server keeps are checked: those of the isolation `tokens`, and those of `mps` that it serves
(`mps_memory`; a container may have its share from before that was set). A pod's process connects to the share server before it
has a context on the card, because its library asks first. So a process that the driver reports and the server does not know
uses another library. `unmanaged.py` handles processes of pods without a share.

The library counts the memory that a program allocates. The driver also counts a context's own memory, which no such call
reports: each process may use `tolerance_mib` besides.

A finding is a suspicion at first: after a restart of the share server it takes a moment until all processes are connected
again. `Suspicions` returns the findings that have lasted for SUSPECT_S.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from hooks.ledger.use import Part, sort_processes, sum_mib
from hooks.model.assignment import GrantedGpu
from hooks.model.grant import Grant, GrantKey
from hooks.model.inventory import Gpu, GpuProcess
from lading.amounts import first_few
from lading.cgroups import parse_cgroup
from lading.devices.isolation import IsolationName
from lading.sharestatus import ShareUse
from lading.vocabulary import GpuUuid, PodUid

SUSPECT_S: Final = 3.0
_NAMED: Final = 3  # maximum processes named in a message
_KEPT: Final = (IsolationName.TOKENS, IsolationName.MPS)
_Shares = Sequence[tuple[Grant, GrantedGpu]]


class How(StrEnum):
    PROCESS = "process"  # a process that the share server does not know
    MEMORY = "memory"  # more memory than the share


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareBypass:
    """Represent a container that does not keep to its share of a card."""

    pod: PodUid
    container: str  # empty: unknown, or all containers of the pod have the share together
    namespace: str
    pod_name: str
    card: GpuUuid
    how: How
    process_ids: tuple[int, ...] = ()  # How.PROCESS
    library: str = ""  # libcuda that the first of these processes has mapped, as the process sees the path; empty: unknown
    limit_mib: int = 0  # How.MEMORY

    @property
    def text(self) -> str:
        if self.how is How.MEMORY:
            return f"uses more memory of GPU {self.card} than its share of {self.limit_mib} MiB"
        named = first_few([*map(str, self.process_ids)], _NAMED)
        by = f", with {self.library}" if self.library else ""
        return f"uses GPU {self.card} past the share server: process {named}{by}"

    @property
    def key(self) -> tuple[PodUid, str, GpuUuid, How]:
        return self.pod, self.container, self.card, self.how


def shared_cards(grants: Iterable[Grant]) -> frozenset[GpuUuid]:
    """Return the cards with shares that the share server may keep."""
    return frozenset(gpu.uuid for grant in grants for gpu in grant.devices.gpus if gpu.isolation in _KEPT)


def _list_kept(grant: Grant, known: Iterable[ShareUse]) -> list[GrantedGpu]:
    """Return the shares of this grant that the share server keeps."""
    served = {(use.container, use.gpu) for use in known if use.pod_uid == grant.pod}
    return [
        gpu
        for gpu in grant.devices.gpus
        if gpu.isolation is IsolationName.TOKENS
        or (gpu.isolation in _KEPT and ("" if gpu.pod_wide else grant.container, gpu.uuid) in served)
    ]


def find_share_bypasses(
    gpus: Sequence[Gpu],
    cgroups: Mapping[int, str],
    known: Collection[ShareUse],
    grants: Collection[Grant],
    *,
    tolerance_mib: int,
) -> tuple[ShareBypass, ...]:
    """Return the containers that bypass shares of these cards, sorted by `key`."""
    shares = [(grant, gpu) for grant in grants for gpu in _list_kept(grant, known)]
    result = [*_strangers(gpus, cgroups, known, shares), *_over_limit(gpus, cgroups, grants, shares, tolerance_mib)]
    return tuple(sorted(result, key=lambda one: one.key))


def _strangers(
    gpus: Iterable[Gpu], cgroups: Mapping[int, str], known: Iterable[ShareUse], shares: _Shares
) -> Iterator[ShareBypass]:
    connected: dict[str, set[int]] = {}
    for use in known:
        if use.process_ids is None:
            return  # an older share server does not report process ids
        connected.setdefault(use.pod_uid, set()).update(use.process_ids)
    for gpu in gpus:
        strangers: dict[tuple[PodUid, str], list[int]] = {}
        for pid in gpu.process_ids:
            owner = parse_cgroup(cgroups.get(pid, ""))
            if owner is None or pid in connected.get(owner.pod, ()):
                continue
            ids = {one.id: grant.container for grant, _ in shares if grant.pod == owner.pod for one in grant.containers}
            name = ids.get(owner.container, "") if owner.container else ""
            strangers.setdefault((owner.pod, name), []).append(pid)
        for (pod, container), pids in strangers.items():
            sharer = next((grant for grant, share in shares if grant.pod == pod and share.uuid == gpu.uuid), None)
            if sharer is not None:
                yield _of(sharer, container, gpu.uuid, How.PROCESS, process_ids=tuple(pids))


def _over_limit(
    gpus: Iterable[Gpu], cgroups: Mapping[int, str], grants: Collection[Grant], shares: _Shares, tolerance_mib: int
) -> Iterator[ShareBypass]:
    processes = sort_processes(gpus, cgroups, grants)
    holders: dict[tuple[GrantKey, GpuUuid], tuple[Grant, int, list[GpuProcess] | None]] = {}
    for grant, granted in shares:
        if granted.memory_mib is None:
            continue
        key = GrantKey(grant.pod, "" if granted.pod_wide else grant.container), granted.uuid
        _, limit_mib, so_far = holders.get(key, (grant, granted.memory_mib, list[GpuProcess]()))
        own = processes.get(Part(granted.uuid, grant.key))
        together = None if so_far is None or own is None else [*so_far, *own]
        holders[key] = grant, limit_mib, together
    for (holder, card), (grant, limit_mib, running) in holders.items():
        used_mib = None if running is None else sum_mib(running)
        if running and used_mib is not None and used_mib > limit_mib + tolerance_mib * len(running):
            yield _of(grant, holder.container, card, How.MEMORY, limit_mib=limit_mib)


def _of(
    grant: Grant, container: str, card: GpuUuid, how: How, *, process_ids: tuple[int, ...] = (), limit_mib: int = 0
) -> ShareBypass:
    return ShareBypass(
        pod=grant.pod,
        container=container,
        namespace=grant.namespace,
        pod_name=grant.pod_name,
        card=card,
        how=how,
        process_ids=process_ids,
        limit_mib=limit_mib,
    )


class Suspicions:
    """Keep for each bypass since when every check has found it. `now`: seconds on a clock that never goes back."""

    def __init__(self) -> None:
        self._since: dict[tuple[object, ...], float] = {}

    def settle(self, bypasses: Iterable[ShareBypass], now: float) -> tuple[ShareBypass, ...]:
        """Return the bypasses of `found` that every check has found for SUSPECT_S. Each process counts on its own."""
        since: dict[tuple[object, ...], float] = {}
        sure = []
        for one in bypasses:
            if one.how is How.MEMORY:
                keep = self._is_old(one.key, now, since)
                sure += [one] if keep else []
            elif pids := tuple(pid for pid in one.process_ids if self._is_old((*one.key, pid), now, since)):
                sure.append(replace(one, process_ids=pids))
        self._since = since
        return tuple(sure)

    def _is_old(self, key: tuple[object, ...], now: float, since: dict[tuple[object, ...], float]) -> bool:
        since[key] = self._since.get(key, now)
        return now - since[key] >= SUSPECT_S
