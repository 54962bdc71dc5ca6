"""Decide whether a pod fits on a node, and with which devices: from a `NodeCapacity` and a request to a Placement or NoFit.

The search is exact: it finds a placement if there is one under these rules, unless it reaches a limit, which is reported
(SEARCH_ENDED, SETS_ENDED).

- A whole card is one that no pod holds. A card is never given if it is unhealthy, dirty, cordoned, used without a grant, of
  another model than requested, or in MIG mode. If a MIG profile is requested, its instances are the cards (mig.py).
- The shares on a card never add up to more than is free of its memory and compute; a share by compute alone takes the same
  percentage of the card's usable memory.
- Shares of two pods are on one card only if the labels of both allow it (sharing.py), and with one isolation (isolation.py).
- In no phase of the pod (demand.py) do two containers have the same VF, or does one have a whole card that another uses too.
  Devices are used again in other phases, and more are taken only if they do not suffice.

The answer is deterministic: equal free capacity and equal requests give equal answers. In a `NodeCapacity`, a card that is held
whole has 0 MiB and 0 % free.
"""

from typing import Final

from central.assignment.phases import take
from central.fit.choose import choose, choose_briefly
from central.fit.demand import DEFAULT_LIMITS, Demand, Limits, policy_of, read_demand
from central.fit.isolation import fit_by_isolation
from central.fit.mig import choose_instances
from central.fit.model import Missing, NoFit, PlacedDevices, Placement
from central.fit.sharing import fit_among_sharers
from central.fit.shortage import find_shortage
from central.ledger.model import NodeCapacity
from central.request.model import DeviceRequest, Policy

_NO_FIT: Final = {missing: NoFit(missing=missing) for missing in Missing}


def fit(
    capacity: NodeCapacity, request: DeviceRequest, *, policy: Policy, limits: Limits = DEFAULT_LIMITS, brief: bool = False
) -> Placement | NoFit:
    """Return the placement, or the reason for none. `policy` is the cluster's, for a request without its own. `brief` limits
    the work to counting and a search without backtracking; NOT_REACHED means that this did not decide."""
    policy = policy_of(request, policy)
    demand = read_demand(request, policy, limits)

    def fit_devices(capacity: NodeCapacity) -> Placement | NoFit:
        return _fit(capacity, request, demand, policy, limits, brief)

    return fit_by_isolation(
        capacity, demand, lambda capacity: fit_among_sharers(capacity, request.sharing, policy, fit_devices)
    )


def _fit(
    capacity: NodeCapacity, request: DeviceRequest, demand: Demand, policy: Policy, limits: Limits, brief: bool
) -> Placement | NoFit:
    """Fit the pod by devices alone, regardless of the pods that share the cards."""

    def choose_in(capacity: NodeCapacity) -> PlacedDevices | Missing:
        if short := find_shortage(capacity, demand):
            return short
        if brief:
            return choose_briefly(capacity, demand, policy=policy)
        return choose(capacity, demand, policy=policy, steps=limits.search_steps)

    found = choose_instances(capacity, demand, choose_in) if demand.mig_profile else choose_in(capacity)
    if isinstance(found, Missing):
        return _NO_FIT[found]
    taken = take(demand.roles, found.containers, request.sharing)
    return Placement(containers=found.containers, taken=taken, apart=found.apart)
