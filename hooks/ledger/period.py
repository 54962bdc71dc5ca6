"""Represent the time for which one container holds its devices: its beginning, its end, and who decided each of the two.

Times are Unix seconds of the node's clock. If that clock was set back, a period can end before it began.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple

from hooks.model.assignment import FormName, GrantedDevices
from hooks.model.grant import Grant, GrantKey
from lading.vocabulary import PodUid

# The node report has the last holders of the devices: enough to find who used a card before a pod that found it in a bad state.
# 64 entries take 15 KB of an object that is sent as a whole with every change.
PAST_OF_A_DEVICE: Final = 4
PAST_OF_A_NODE: Final = 64


class Began(StrEnum):
    CREATED = "created"
    ADOPTED = "adopted"  # found on a container of the runtime: the ledger had lost the grant, or never had it


class Ended(StrEnum):
    RELEASED = "released"  # the pod's containers have exited
    FORCED = "forced"  # a person released the device
    GIVEN_UP = "given-up"  # a device became unhealthy, and the container got another
    LOST = "lost"  # the ledger was rebuilt, and no container had the grant any more


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    at: int
    how: Ended = Ended.RELEASED
    uid: int | None = None  # user id of the person who forced the release


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    pod: PodUid
    container: str
    namespace: str
    pod_name: str
    form: FormName
    gen: int  # `gen` of central's assignment; 0 in the manual form
    key_id: str  # key that signed the assignment; empty if unsigned, or adopted: a container's annotation does not have it
    devices: GrantedDevices
    began: Began
    since: int
    end: End | None = None  # None: the period goes on

    @property
    def until(self) -> int | None:
        return self.end.at if self.end else None


class Past(NamedTuple):
    """Represent one device of a period that has ended."""

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
    """Yield the history of a ledger that is rebuilt with these grants. A period goes on if a grant still has its devices, and
    otherwise ends as LOST. Each other grant begins a period as ADOPTED."""
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
    """Return the last holders of each device. `periods`: ended periods, newest first."""
    return _newest(Past(device, period) for period in periods for device in period.devices.names)


def add_past(periods: Iterable[Period], past: tuple[Past, ...]) -> tuple[Past, ...]:
    """Add the periods that just ended to an earlier result of `past_of`."""
    return _newest((*past_of(periods), *past))


def _newest(all_of_it: Iterable[Past]) -> tuple[Past, ...]:
    counts: Counter[str] = Counter()
    kept: list[Past] = []
    for one in all_of_it:
        counts[one.device] += 1
        if counts[one.device] <= PAST_OF_A_DEVICE:
            kept.append(one)
        if len(kept) == PAST_OF_A_NODE:
            break
    return tuple(kept)
