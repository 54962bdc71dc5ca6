"""A second isolation: a share becomes a quota that a program in the container is started with."""

from collections.abc import Sequence

from hooks.model.assignment import Refusal
from hooks.model.container import Adjustment, EnvVar
from hooks.ports import Card


class Quota:
    def adjust(self, cards: Sequence[Card]) -> Adjustment | Refusal:
        amounts = (card.granted.memory_mib or card.gpu.usable_mib for card in cards)
        return Adjustment(env=(EnvVar("QUOTA_MIB", ",".join(map(str, amounts))),))
