"""A second isolation: a share becomes a quota that a program in the container is started with."""

from collections.abc import Sequence
from typing import Final

from hooks.model.assignment import Refusal
from hooks.model.container import Adjustment, Container, EnvVar, Sandbox, merge
from hooks.ports import Card, Enforced
from lading.devices.isolation import IsolationName


class Quota:
    name: Final = IsolationName.MIG

    def enforce(self, cards: Sequence[Card], sandbox: Sandbox, container: Container, given: Adjustment) -> Enforced | Refusal:
        amounts = (card.granted.memory_mib or card.gpu.usable_mib for card in cards)
        quota = Adjustment(env=(EnvVar("QUOTA_MIB", ",".join(map(str, amounts))),))
        return Enforced(adjustment=merge((given, quota)))
