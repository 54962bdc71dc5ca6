"""Enforce shares by Lading's library: memory for each container, and compute by turns that the share server gives."""

from collections.abc import Sequence
from dataclasses import dataclass

from hooks.isolation.library import ShareLibrary
from hooks.model.assignment import Refusal
from hooks.model.container import Adjustment, Container, Sandbox
from hooks.ports import Card, Enforced
from lading.devices.isolation import IsolationName
from lading.reasons import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    library: ShareLibrary
    by_driver: bool = False  # a card whose driver does not limit memory is refused
    name: IsolationName = IsolationName.TOKENS

    def enforce(self, cards: Sequence[Card], sandbox: Sandbox, container: Container, given: Adjustment) -> Enforced | Refusal:
        unlimited = [card.granted.uuid for card in cards if card.granted.shared and not card.gpu.limits_memory]
        if self.by_driver and unlimited:
            return Refusal(
                reason=Reason.ISOLATION_UNAVAILABLE,
                message=f"cannot give a share of {', '.join(unlimited)}: the node asks for memory limits by the driver "
                '(memory_limits = "driver"), and the driver does not limit it; the node\'s report says why',
            )
        return self.library.enforce(cards, sandbox, container, given, turns=True)
