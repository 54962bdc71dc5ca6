"""Find whether a simple request fits, and what it would leave, for many nodes in one step.

*Simple*: one container, with whole cards or one share, and nothing else. It has neither VFs nor a scope nor words about who may
be beside it. Nearly all pods are of that kind, and for them counting is exact (shortage.py). It takes columns, the rows to look
at, and a Wish. It returns for each row the reason why it does not fit, or 0; and for those that fit the states that every
choice of cards would leave. All other requests, and nodes that need it, are judged by the exact search, one by one (cached.py).
"""

from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from central.fit.columns import (
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
from central.fit.demand import mib_of_share
from central.fit.model import Missing
from central.request.model import ContainerRequest, DeviceRequest
from lading.devices.isolation import IsolationName

FITS: Final = 0
# By number, as `verdicts` answers them; the first is none.
REASONS: Final[tuple[Missing | None, ...]] = (None, *Missing)
NUMBER_OF: Final = {missing: number for number, missing in enumerate(REASONS) if missing is not None}
_STATES: Final = (Missing.NO_REPORT, Missing.UNREACHABLE, Missing.NOT_RECONCILED, Missing.REBOOTED)  # by Columns.serving
_NOT_SERVING: Final = np.array([FITS, *(NUMBER_OF[missing] for missing in _STATES)], np.int64)


class Wish(NamedTuple):
    """The cards of a simple request: so many whole cards, or (0) one share, or no card at all."""

    models: tuple[str, ...] = ()
    cards: int = 0
    memory_mib: int | None = None
    core_percent: int | None = None
    isolation: IsolationName | None = None  # of the share

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
    if one != plain or request != simple or (one.share is not None and one.share.cards > 1):
        return None
    if one.share is not None:
        return Wish(request.gpu_models, 0, one.share.memory_mib, one.share.core_percent, request.isolation)
    return Wish(request.gpu_models, one.gpus)


class Fits(NamedTuple):
    """The verdicts about some rows."""

    missing: Ints  # [rows], FITS or a number of REASONS
    cards: Bools  # [rows, slots], that would do, were the node to serve


def fits(columns: Columns, rows: Ints, wish: Wish) -> Fits:
    """Return which rows fit, of rows that need no search."""
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
            now &= mib >= 1  # a percentage of nearly nothing
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
    """Return, for each row, the number of the reason why it is short of cards. A later assignment here replaces an earlier one,
    so that the reasons have the precedence of `short_of_cards`."""
    asked = cards[:, MODEL] >= 0
    if wish.models:
        asked = columns.models_of(wish.models)[cards[:, MODEL]]
    large = asked
    if not wish.cards:
        mib = mib_of_share(cards[:, SIZE], wish.memory_mib, wish.core_percent)
        large = asked & (mib >= 1) & (mib <= cards[:, SIZE])
    usable = large & (cards[:, USABLE] > 0)
    least = wish.cards or 1
    why = np.full(len(cards), NUMBER_OF[Missing.TOO_FEW_FREE_GPUS if wish.cards else Missing.NO_CARD_WITH_ROOM])
    why[usable.sum(1) < least] = NUMBER_OF[Missing.UNHEALTHY]
    why[large.sum(1) < least] = NUMBER_OF[Missing.NO_CARD_LARGE_ENOUGH]
    why[asked.sum(1) < least] = NUMBER_OF[Missing.TOO_FEW_GPUS]
    if wish.models:
        has_model = columns.models_of(wish.models)[cards[:, ANY_MODEL]].any(1)
        why[~asked.any(1) & ~has_model] = NUMBER_OF[Missing.NO_MODEL]
    return why


_NO_SLOTS: Final[Ints] = np.zeros(0, np.int64)


class Choices(NamedTuple):
    """The free capacity after each choice of cards that makes a difference, for some rows."""

    of: Ints  # [choices], which of the rows, in their order; each at least once
    free: Ints  # [choices, slots]: milli that would be left
    slots: Ints = _NO_SLOTS  # [choices], of the card that a share is of; none for other requests


def choices(columns: Columns, rows: Ints, cards: Bools, wish: Wish) -> Choices:
    """Return what every choice of cards would leave, for rows that fit. `cards` is what `fits` returned for them."""
    if wish.nothing:
        return Choices(np.arange(len(rows)), columns.cards[rows, FREE])
    if wish.cards:
        free = columns.cards[rows, FREE]
        free[cards & (cards.cumsum(1) <= wish.cards)] = 0  # which of the whole cards makes no difference
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


def left_after(columns: Columns, rows: Ints, found: Choices, cpu_memory: Ints) -> States:
    """Return the states that the choices leave, less the pod's other requests: [[cpu in milli], [memory in MiB]]."""
    of = rows[found.of]
    return States(columns.left[:, of] - cpu_memory, columns.kind[of], found.free)
