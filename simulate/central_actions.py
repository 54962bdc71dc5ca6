"""Handle waiting pods as central does: reserve a node's capacity for pods that waited for long, and evict for priorities.

Take a policy of the product and refused pods. Central's own code decides for whom a node is reserved (controllers/patience.py),
and which pods of lower priority are evicted (decide/preempt.py). Both become nominations in the policy's ledger, which the
next placements follow. Time is in units. Central's clock runs UNIT_S seconds in each unit, so that LOOK is the time after which
kube-scheduler retries a refused pod.
"""

import math
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final

from central.controllers.patience import MOST_KEPT, Patience
from central.decide.preempt import plans
from central.request.node_rules import traits_of
from central.state.nodes import Nodes
from central.state.pending import Pending
from lading.log import Level, open_log
from simulate.cluster import Cluster
from simulate.product import Product, number_of, uid_of

UNIT_S: Final = 6000.0
SCAN: Final = 0.05


class CentralActions:
    def __init__(self, cluster: Cluster, product: Product, patience: float) -> None:
        """Create the actions. `patience` is in units; 0 means that nothing is reserved."""
        self._product = product
        self._scheduler = product.scheduler
        self._now_s = 0.0
        self._most_kept = max(1, int(MOST_KEPT * len(cluster.nodes)))
        self._patience = Patience(
            self._scheduler,
            _nodes_of(cluster),
            patience_s=patience * UNIT_S,
            clock=lambda: self._now_s,
            log=open_log("simulate", Level.ERROR),
        )

    @property
    def kept(self) -> Mapping[int, int]:
        """Return the reserved nodes, each with the number of its pod. Raise AssertionError if there are more than central may
        reserve."""
        claims = [claim for claim in self._scheduler.ledger.nominations() if not claim.evicts]
        if len(claims) > self._most_kept:
            raise AssertionError(f"room of {len(claims)} nodes is kept, and {self._most_kept} are the most")
        return {self._product.row_of[claim.node]: number_of(claim.holder.pod) for claim in claims}

    def refused(self, kind: int, pod: int, now: float) -> None:
        self._now_s = now * UNIT_S
        pending = self._pending(kind, pod)
        self._scheduler.pending.refused(pending, self._now_s)
        self._patience.refused(pending, list(self._product.able(kind)))

    def scan(self, now: float) -> None:
        """Reserve nodes by their current free capacity, and end other reservations."""
        self._now_s = now * UNIT_S
        complete(self._patience.scan())
        self._scheduler.ledger.expire(self._now_s)

    def evict_for(self, kind: int, pod: int) -> Sequence[int]:
        """Return the numbers of the victims that make this refused pod fit; empty if there are none. Their devices are held for
        the pod."""
        pending = self._pending(kind, pod)
        *_, result = (None, *plans(self._scheduler, pending, list(self._product.able(kind))))
        if result is None:
            return ()
        victims = [victim.uid for victim in result.victims]
        self._scheduler.ledger.claims.nominate(
            pending.uid, result.node, result.placement.taken, math.inf, pending.holder, victims=frozenset(victims)
        )
        return list(map(number_of, victims))

    def _pending(self, kind: int, pod: int) -> Pending:
        return self._scheduler.pending.get(uid_of(pod)) or self._scheduler.pending.add(self._product.pending(kind, pod))


def _nodes_of(cluster: Cluster) -> Nodes:
    """Return the nodes of the trace, which have neither labels nor taints."""
    nodes = Nodes()
    for node in cluster.nodes:
        nodes.set(traits_of(node.name, {}, (), unschedulable=False))
    return nodes


def complete(work: Coroutine[Any, Any, None]) -> None:
    """Run one of central's own coroutines to its end while the simulated clock stands still; it may not wait."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("central waits for something while no time passes")
