"""Estimate the *turnover*: the share of newly placed pods that replace ended pods.

Take the numbers of bound and ended pods that the ledger counts. Return a share from 0 (a cluster that is being filled, where no
pod ends) to 1 (as many pods end as begin). Older pods count less: after HALF_LIFE more events, a pod counts half. The share
starts at 1, because clusters run for longer than they are filled. It has few values, because each new value means that all
nodes are scored again.
"""

from typing import Final

from central.ledger.load import Turnover

HALF_LIFE: Final = 700  # number of later bound or ended pods after which a pod counts half
PRIOR_PODS: Final = 50.0  # number of bound pods, and of ended pods, assumed before the first event
STEPS: Final = 4  # number of steps between the shares 0 and 1
_KEPT: Final = 0.5 ** (1 / HALF_LIFE)
_AWAY: Final = 0.7  # minimum change, in steps, from the share in force to a new one


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
        """Update the estimate with the events since the last call. Return whether the share in force changed. Events before the
        first call, or of another ledger, are not in the estimate."""
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
