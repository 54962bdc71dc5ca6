"""Represent one node in the ledger: its devices, their holders with claims, and its free capacity (`NodeCapacity`), which is
rebuilt on demand after a change.

Tests: tests/unit/central/ledger/test_ledger.py
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from central.assignment.model import Taken
from central.ledger.capacity import ReportedDevices, card_capacities, inventory_of, vf_capacities
from central.ledger.load import UNKNOWN, Left, Loads
from central.ledger.model import NodeCapacity, NodeFacts
from central.ledger.other_systems import OtherClaims
from central.ledger.parts import covers, merge, taken_by_grants
from central.ledger.usage import Hold, Usage
from central.request.model import CpuMemory
from lading.nodedevices import Grant, NodeDevices, is_other_boot
from lading.vocabulary import PodUid

NOT_REPORTED = ReportedDevices()


class LedgerNode:
    __slots__ = (
        "_capacity",
        "_left",
        "_reported",
        "_stale",
        "boot_id",
        "granted",
        "grants",
        "holds",
        "inventory",
        "lingering",
        "loads",
        "name",
        "other_claims",
        "reachable",
        "report_version",
        "trusted_from",
        "unreported",
        "usage",
        "version",
    )

    def __init__(self, name: str, loads: Loads, other_claims: OtherClaims, facts: NodeFacts) -> None:
        self.name = name
        self.loads = loads  # loads of all nodes
        self.other_claims = other_claims  # claims on all nodes
        self.reachable = facts.ready
        self.boot_id = facts.boot_id
        self.inventory = NOT_REPORTED
        self._reported = NOT_REPORTED  # inventory without the marks of other systems' claims
        self.report_version = 0
        self.grants: dict[PodUid, tuple[Grant, ...]] = {}
        self.granted: set[PodUid] = set()  # pods that a report named, while they hold something
        self.lingering: dict[PodUid, Taken] = {}
        self.unreported: dict[
            PodUid, float | None
        ] = {}  # pods that were never reported: when their claims end; None: not set yet
        self.trusted_from: float | None = None  # when lingering claims end without a report (`Facts.end_lingering`)
        self.holds: dict[PodUid, Hold] = {}
        self.usage = Usage()
        self.version = 0
        self._capacity: NodeCapacity | None = None  # free capacity as last built from this inventory
        self._left = UNKNOWN  # free cpu and memory
        self._stale: set[str] | None = None  # devices that changed since `_last`; None: no change

    @property
    def empty(self) -> bool:
        return not (self.inventory.reported or self.holds or self.grants or self.lingering)

    @property
    def serving(self) -> bool:
        return self.inventory.reported and self.inventory.reconciled and self.reachable and not self.rebooted

    @property
    def rebooted(self) -> bool:
        """Return whether report and Node object are of different boots, so that the report's grants may have ended."""
        return is_other_boot(self.boot_id, self.inventory.boot_id)

    @property
    def silent(self) -> bool:
        """Return whether the node has devices and is not reachable, so that no held device becomes free."""
        return self.inventory.reported and not self.reachable

    # ---- the room

    def capacity(self) -> NodeCapacity:
        left = self.loads.left(self.name)
        if self._capacity is None or self._stale is not None:
            self._capacity = self._build(self.usage, self._capacity, self._stale or (), left)
            self._stale = None
        elif self._left != left:
            self._capacity = replace(
                self._capacity, cpu_milli=left.cpu_milli, memory_mib=left.memory_mib, resources_reported=left.reported
            )
        self._left = left
        return self._capacity

    def capacity_as_if(self, removed: Collection[PodUid], put: Sequence[tuple[Hold, CpuMemory]] = ()) -> NodeCapacity:
        """Return the free capacity as if the pods of `removed` held nothing here, and the holds of `put` were added."""
        if len(removed) > len(self.holds):  # a gang's victims are mostly on other nodes
            removed = [uid for uid in self.holds if uid in removed]
        freed = [self.holds[uid] for uid in removed if uid in self.holds]
        if not freed and not put:
            return self.capacity()
        usage = self.usage.copy()
        for hold in freed:
            usage.remove(hold)
        for hold, _ in put:
            usage.add(hold)
        changed = {one for hold in (*freed, *(held for held, _ in put)) for one in (*hold.taken.gpus, *hold.taken.vfs)}
        left = self.loads.left(self.name, removed, [cpu_memory for _, cpu_memory in put])
        return self._build(usage, self.capacity(), changed, left)

    def _build(self, usage: Usage, last: NodeCapacity | None, changed: Collection[str], left: Left) -> NodeCapacity:
        return NodeCapacity(
            name=self.name,
            version=self.version,
            cards=card_capacities(self.inventory, usage, last, changed),
            vfs=vf_capacities(self.inventory, usage, last, changed),
            partitions=self.inventory.partitions,
            isolations=self.inventory.isolations,
            reported=self.inventory.reported,
            reconciled=self.inventory.reconciled,
            reachable=self.reachable,
            rebooted=self.rebooted,
            cpu_milli=left.cpu_milli,
            memory_mib=left.memory_mib,
            resources_reported=left.reported,
        )

    def touch(self, version: int) -> None:
        """Record a change that the node's free capacity shows."""
        self.version = version
        if self._stale is None:
            self._stale = set()

    # ---- what changes it

    def describe(self, report: NodeDevices | None) -> bool:
        """Store the node's report. Return whether the free capacity changed."""
        self._reported = NOT_REPORTED if report is None else inventory_of(report)
        return self.mark()

    def mark(self) -> bool:
        """Mark the cards that other systems gave to pods. Return whether the free capacity changed."""
        former, inventory = self.inventory, self._reported
        gpus = self.other_claims.mark(self.name, inventory.gpus, self.usage.cards)
        inventory = inventory._replace(gpus=gpus)
        if inventory == former:
            return False
        # Equal values stay the same object, so that a heartbeat of 15,000 nodes does not double the strings in memory.
        self.inventory = inventory._replace(
            gpus=former.gpus if former.gpus == inventory.gpus else inventory.gpus,
            pfs=former.pfs if former.pfs == inventory.pfs else inventory.pfs,
            partitions=former.partitions if former.partitions == inventory.partitions else inventory.partitions,
        )
        self._reported = self._reported._replace(pfs=self.inventory.pfs, partitions=self.inventory.partitions)
        self._capacity = None
        return True

    def replace_grants(self, grants: Iterable[Grant]) -> set[PodUid]:
        """Replace the grants. Return the pods whose grants changed. On a silent node a grant that is not reported any more
        lingers."""
        by_pod: dict[PodUid, list[Grant]] = {}
        for grant in grants:
            by_pod.setdefault(grant.pod, []).append(grant)
        now = {uid: tuple(listed) for uid, listed in by_pod.items()}
        changed = {uid for uid in self.grants.keys() | now.keys() if self.grants.get(uid) != now.get(uid)}
        if self.silent:
            for uid in changed & self.grants.keys():
                held = taken_by_grants(self.grants[uid])
                if not covers(taken_by_grants(now.get(uid, ())), held):
                    self.linger(uid, held)
        self.grants = now
        self.granted.update(now)
        return changed

    def linger(self, uid: PodUid, taken: Taken) -> None:
        self.lingering[uid] = merge([self.lingering[uid], taken]) if uid in self.lingering else taken

    def end_lingering(self, *, but: Collection[PodUid] = ()) -> list[PodUid]:
        """End the lingering claims of pods that the node no longer names, except those in `but`."""
        ended = [uid for uid in self.lingering if uid not in self.grants and uid not in but]
        for uid in ended:
            del self.lingering[uid]
            self.unreported.pop(uid, None)
        return ended

    def end_unreported(self, now: float, after_s: float) -> list[PodUid]:
        """End the claims of pods that were never reported, if the node reported nothing for `after_s` seconds."""
        self.unreported = {uid: now + after_s if until is None else until for uid, until in self.unreported.items()}
        ended = [uid for uid, until in self.unreported.items() if self.serving and until is not None and until <= now]
        for uid in ended:
            self.lingering.pop(uid, None)
            del self.unreported[uid]
        return ended

    def put(self, uid: PodUid, hold: Hold | None) -> tuple[bool, bool]:
        """Store the pod's hold by all its claims. Return whether the hold changed, and whether the change freed a device."""
        former = self.holds.get(uid)
        if former == hold:
            if hold is not None:
                self.holds[uid] = hold  # keep the newest record's objects, so that the former record's can be freed
            return False, False
        if self._stale is None:
            self._stale = set()
        if former is not None:
            self.usage.remove(former)
            self._stale.update(former.taken.gpus, former.taken.vfs)
            del self.holds[uid]
        if hold is None:
            self.granted.discard(uid)
        else:
            self.usage.add(hold)
            self._stale.update(hold.taken.gpus, hold.taken.vfs)
            self.holds[uid] = hold
        return True, former is not None and (hold is None or not covers(hold.taken, former.taken))

    def crowded(self) -> bool:
        """Return whether some device is claimed beyond its capacity, by facts or by plans."""
        if any(pods > 1 for pods in self.usage.vfs.values()):
            return True
        usable = {gpu.uuid: gpu.usable_mib for gpu in self.inventory.gpus}
        return any(use.clash(usable.get(uuid)) is not None for uuid, use in self.usage.cards.items())
