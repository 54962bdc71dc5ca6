"""Estimate the *turnover*: which part of the pods that are placed now makes up for pods that end.

It takes how many pods were bound and how many ended, as the ledger counts them. It returns a share from 0, a cluster that is
filled and where no pod ends, to 1, a cluster where as many pods end as begin. Older pods count less: after HALF_LIFE more
events a pod counts half. Before the first pods it is 1, because clusters run for longer than they are filled. The share has few
values, because a new one means that all nodes are scored again.
"""

from typing import Final

from central.ledger.load import Turnover

HALF_LIFE: Final = 700  # pods that were bound or ended
PRIOR_PODS: Final = 50.0  # as many as counted as bound, and as ended, before the first
STEPS: Final = 4  # between 0 and 1
_KEPT: Final = 0.5 ** (1 / HALF_LIFE)
_AWAY: Final = 0.7  # of a step: so far from the share in force before another one is


class TurnoverShare:
    def __init__(self, steps: int = STEPS, *, learns: bool = True) -> None:
        self.steps = steps  # the share in force, in steps of 1 / STEPS
        self._learns = learns
        self._seen: Turnover | None = None
        self._bound = self._ended = PRIOR_PODS

    @property
    def share(self) -> float:
        return self.steps / STEPS

    def look(self, now: Turnover) -> bool:
        """Take in what happened since the last look. Return whether another share is in force. What was counted before the
        first look, or by another ledger, is not in the estimate."""
        seen, self._seen = self._seen, now
        if not self._learns or seen is None or now == seen or now.bound < seen.bound or now.ended < seen.ended:
            return False
        bound, ended = now.bound - seen.bound, now.ended - seen.ended
        kept = _KEPT ** (bound + ended)
        self._bound, self._ended = self._bound * kept + bound, self._ended * kept + ended
        steps = STEPS * min(1.0, self._ended / self._bound) if self._bound else STEPS
        if abs(steps - self.steps) <= _AWAY:
            return False
        self.steps = round(steps)
        return True
