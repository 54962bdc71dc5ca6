"""Find for many nodes in one vectorized step whether a simple request fits, and the free capacity after it.

A *simple* request has one container, with whole cards or one share, and nothing else: no VFs, no scope, no sharing labels.
Nearly all pods are of that kind, and counting is exact for them (shortage.py). Take columns, the rows (nodes) to judge, and a
Wish. Return for each row the reason why it does not fit, or 0, and for rows that fit the states after each choice of cards. The
exact search judges all other requests, and nodes that need it, one by one (cached.py).
"""

from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from central.rank.columns import (
    ANY_MODEL,
    BARE,
    CORE,
    FREE,
    FULL,
    ISOLATION,
    MIB,
    MODEL,
    NOT_OFFERED,
    SIZE,
    USABLE,
    Bools,
    Columns,
    Ints,
    States,
)
from central.request.model import ContainerRequest, DeviceRequest
from central.search.demand import mib_of_share
from central.search.placement import Missing
from lading.devices.isolation import IsolationName

FITS: Final = 0
# The reasons by their number in arrays of verdicts; number 0 means that the request fits.
REASONS: Final[tuple[Missing | None, ...]] = (None, *Missing)
NUMBER_OF: Final = {missing: number for number, missing in enumerate(REASONS) if missing is not None}
_STATES: Final = (Missing.NO_REPORT, Missing.UNREACHABLE, Missing.NOT_RECONCILED, Missing.REBOOTED)  # index: serving - 1
_NOT_SERVING: Final = np.array([FITS, *(NUMBER_OF[missing] for missing in _STATES)], np.int64)


class Wish(NamedTuple):
    """Represent the cards of a simple request: a number of whole cards, or 0 and one share, or no card at all."""

    models: tuple[str, ...] = ()
    cards: int = 0
    memory_mib: int | None = None
    core_percent: int | None = None
    isolation: IsolationName | None = None  # isolation of the share; None: the node's default

    @property
    def nothing(self) -> bool:
        return not self.cards and self.memory_mib is None and self.core_percent is None


@lru_cache(maxsize=1024)
def wish_of(request: DeviceRequest) -> Wish | None:
    """Return the Wish of the request; None if it is not simple."""
    if request == DeviceRequest(containers=(), policy=request.policy):
        return Wish()
    if len(request.containers) != 1:
        return None
    one = request.containers[0]
    plain = ContainerRequest(name=one.name, role=one.role, gpus=one.gpus, share=one.share)
    simple = DeviceRequest(
        containers=(plain,), policy=request.policy, gpu_models=request.gpu_models, isolation=request.isolation
    )
    if one != plain or request != simple:
        return None
    if one.share is not None:
        if one.share.cards > 1 or one.share.memory_percent is not None:
            return None
        return Wish(request.gpu_models, 0, one.share.memory_mib, one.share.core_percent, request.isolation)
    return Wish(request.gpu_models, one.gpus)


class Fits(NamedTuple):
    """Hold the verdicts about some rows."""

    missing: Ints  # [rows]: FITS, or the number of a reason in REASONS
    cards: Bools  # [rows, slots]: whether the card suits the request, even if the node does not serve


def fits(columns: Columns, rows: Ints, wish: Wish) -> Fits:
    """Return the verdict for each of these rows, which must not need the exact search."""
    cards = columns.cards[rows]
    if wish.nothing:
        serving = columns.serving[rows] == 1
        return Fits(np.where(serving, NUMBER_OF[Missing.NO_REPORT], FITS), np.zeros((len(rows), columns.slots), np.bool_))
    if wish.cards:
        now = cards[:, FREE] == FULL
    else:
        mib = mib_of_share(cards[:, SIZE], wish.memory_mib, wish.core_percent)
        now = (cards[:, MIB] >= mib) & (cards[:, CORE] >= (wish.core_percent or 0)) & (cards[:, USABLE] > 0)
        if wish.memory_mib is None:
            now &= mib >= 1  # a percentage of a very small card rounds down to 0 MiB
    if wish.models:
        now &= columns.models_of(wish.models)[cards[:, MODEL]]
    missing = _NOT_SERVING[columns.serving[rows]]
    regardless, own = now, None if wish.cards else columns.isolation_of(rows, wish.isolation)
    if own is not None:
        missing[(missing == FITS) & (own == NOT_OFFERED)] = NUMBER_OF[Missing.NO_ISOLATION]
        now = now & ((cards[:, ISOLATION] == BARE) | (cards[:, ISOLATION] == own[:, None]))
    short = (missing == FITS) & (now.sum(1) < (wish.cards or 1))
    if short.any():
        missing[short] = _why_short(columns, cards[short], wish)
        if own is not None:
            missing[short & regardless.any(1)] = NUMBER_OF[Missing.OTHER_ISOLATION]
    return Fits(missing, now)


def _why_short(columns: Columns, cards: Ints, wish: Wish) -> Ints:
    """Return, for each row with too few cards, the number of the reason. A later assignment replaces an earlier one, so that
    the reasons have the precedence of `short_of_cards`."""
    requested = cards[:, MODEL] >= 0
    if wish.models:
        requested = columns.models_of(wish.models)[cards[:, MODEL]]
    large = requested
    if not wish.cards:
        mib = mib_of_share(cards[:, SIZE], wish.memory_mib, wish.core_percent)
        large = requested & (mib >= 1) & (mib <= cards[:, SIZE])
    usable = large & (cards[:, USABLE] > 0)
    least = wish.cards or 1
    reason = np.full(len(cards), NUMBER_OF[Missing.TOO_FEW_FREE_GPUS if wish.cards else Missing.NO_CARD_WITH_ROOM])
    reason[usable.sum(1) < least] = NUMBER_OF[Missing.UNHEALTHY]
    reason[large.sum(1) < least] = NUMBER_OF[Missing.NO_CARD_LARGE_ENOUGH]
    reason[requested.sum(1) < least] = NUMBER_OF[Missing.TOO_FEW_GPUS]
    if wish.models:
        has_model = columns.models_of(wish.models)[cards[:, ANY_MODEL]].any(1)
        reason[~requested.any(1) & ~has_model] = NUMBER_OF[Missing.NO_MODEL]
    return reason


_NO_SLOTS: Final[Ints] = np.zeros(0, np.int64)


class Choices(NamedTuple):
    """Hold the free capacity after each distinct choice of cards, for some rows."""

    of: Ints  # [choices]: index into the rows, ascending; each row at least once
    free: Ints  # [choices, slots]: free milli of each card after the choice
    slots: Ints = _NO_SLOTS  # [choices]: slot of the share's card; empty for other requests


def choices(columns: Columns, rows: Ints, cards: Bools, wish: Wish) -> Choices:
    """Return the free capacity after every choice of cards, for rows that fit. `cards` is the result of `fits` for these
    rows."""
    if wish.nothing:
        return Choices(np.arange(len(rows)), columns.cards[rows, FREE])
    if wish.cards:
        free = columns.cards[rows, FREE]
        free[cards & (cards.cumsum(1) <= wish.cards)] = 0  # the first ones, because all whole cards are equivalent
        return Choices(np.arange(len(rows)), free)
    planes = columns.cards[rows]
    bare = cards & (planes[:, ISOLATION] == BARE)
    equal = bare[:, 1:] & bare[:, :-1] & (planes[:, SIZE, 1:] == planes[:, SIZE, :-1])
    different = cards.copy()
    different[:, 1:] &= ~equal
    of, slot = different.nonzero()
    chosen = planes[of, :, slot].T
    size = chosen[SIZE]
    mib = chosen[MIB] - mib_of_share(size, wish.memory_mib, wish.core_percent)
    core = chosen[CORE] - (wish.core_percent or 0)
    free = planes[of, FREE]
    free[np.arange(len(of)), slot] = np.minimum(np.minimum(mib * FULL // size, core * 10), FULL - 1)
    return Choices(of, free, slot)


def left_after(columns: Columns, rows: Ints, result: Choices, cpu_memory: Ints) -> States:
    """Return the states of nodes after the choices, less the pod's cpu and memory: [[cpu in milli], [memory in MiB]]."""
    of = rows[result.of]
    return States(columns.left[:, of] - cpu_memory, columns.kind[of], result.free)
