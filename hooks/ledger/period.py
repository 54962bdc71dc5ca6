"""A period: one container's hold of its devices, from the grant to its end, and who decided each of the two.

Times are the node's clock, in Unix seconds: where that was set back, a period can end before it began.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple

from hooks.model.assignment import FormName, GrantedDevices
from hooks.model.grant import Grant, GrantKey
from lading.vocabulary import PodUid

# What a node reports of the past: enough to see who was on a card before a pod that found it in a bad state. 64 are 15 KB, of
# an object that is sent as a whole with every change.
PAST_OF_A_DEVICE: Final = 4
PAST_OF_A_NODE: Final = 64


class Began(StrEnum):
    CREATED = "created"
    ADOPTED = "adopted"  # found on a container of the runtime: the ledger had lost it, or never had it


class Ended(StrEnum):
    RELEASED = "released"  # the pod's containers have exited
    FORCED = "forced"  # a person released it
    GIVEN_UP = "given-up"  # a device became unhealthy, and the container got another
    LOST = "lost"  # the ledger was rebuilt, and no container had it any more


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    at: int
    how: Ended = Ended.RELEASED
    uid: int | None = None  # of the person who forced it


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    pod: PodUid
    container: str
    namespace: str
    pod_name: str
    form: FormName
    gen: int  # of central's assignment; 0 in the manual form
    key_id: str  # that signed it, in the signed form; empty where the grant was adopted: containers do not tell
    devices: GrantedDevices
    began: Began
    since: int
    end: End | None = None  # None: it is held

    @property
    def until(self) -> int | None:
        return self.end.at if self.end else None


class Past(NamedTuple):
    """One device of a period that is over."""

    device: str  # UUID of a GPU or MIG instance, PCI address of a VF
    period: Period


def period_of(grant: Grant, *, began: Began, key_id: str = "") -> Period:
    return Period(
        pod=grant.pod,
        container=grant.container,
        namespace=grant.namespace,
        pod_name=grant.pod_name,
        form=grant.form,
        gen=grant.gen,
        key_id=key_id,
        devices=grant.devices,
        began=began,
        since=grant.granted_at,
    )


def continued(periods: Iterable[Period], grants: Collection[Grant], *, at: int) -> Iterator[Period]:
    """Yield the history of a ledger that is rebuilt with these grants: holds that still exist go on, the others are lost."""
    held = {grant.key: grant for grant in grants}
    for period in periods:
        if period.end is not None:
            yield period
            continue
        grant = held.get(GrantKey(period.pod, period.container))
        if grant is not None and grant.devices == period.devices:
            del held[grant.key]
            yield period
        else:
            yield replace(period, end=End(at=at, how=Ended.LOST))
    for grant in held.values():
        yield period_of(grant, began=Began.ADOPTED)


def past_of(periods: Iterable[Period]) -> tuple[Past, ...]:
    """Return the past of each device. `periods` are over, newest first."""
    return _newest(Past(device, period) for period in periods for device in period.devices.names)


def add_past(periods: Iterable[Period], past: tuple[Past, ...]) -> tuple[Past, ...]:
    """Add the periods that just ended to an earlier result of `past_of`."""
    return _newest((*past_of(periods), *past))


def _newest(all_of_it: Iterable[Past]) -> tuple[Past, ...]:
    seen: Counter[str] = Counter()
    kept: list[Past] = []
    for one in all_of_it:
        seen[one.device] += 1
        if seen[one.device] <= PAST_OF_A_DEVICE:
            kept.append(one)
        if len(kept) == PAST_OF_A_NODE:
            break
    return tuple(kept)
