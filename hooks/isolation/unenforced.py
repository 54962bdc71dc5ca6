"""Tell a container its shares in environment variables, without enforcing them: the program is trusted to respect them.

The other isolations set the same variables.

Tests: tests/unit/simnode/test_profiles.py
"""

from collections.abc import Sequence
from typing import Final

from hooks.model.container import Adjustment, Container, EnvVar, Sandbox, merge
from hooks.ports import Card, Enforced
from lading.devices.isolation import IsolationName

# One entry for each device, in the order of PCI addresses, as `nvidia-smi` numbers devices in the container.
SHARE_MEMORY: Final = "LADING_GPU_MEMORY_MIB"
SHARE_CORE: Final = "LADING_GPU_CORE_PERCENT"
TOTAL_MEMORY: Final = "LADING_GPU_TOTAL_MEMORY_MIB"  # the device's memory in CUDA's sense, without the driver's own part


class Unenforced:
    name: Final = IsolationName.NONE

    def enforce(self, cards: Sequence[Card], sandbox: Sandbox, container: Container, given: Adjustment) -> Enforced:
        return Enforced(adjustment=merge((given, list_shares(cards))))


def list_shares(cards: Sequence[Card]) -> Adjustment:
    """Return nothing unless a device is a share; then an amount for every device: the n-th entry is the n-th device's."""
    if not any(card.granted.memory_mib or card.granted.core_percent for card in cards):
        return Adjustment()
    total = [total_mib(card) for card in cards]
    memory = [card.granted.memory_mib or all_of_it for card, all_of_it in zip(cards, total, strict=True)]
    core = [card.granted.core_percent or 100 for card in cards]
    amounts = {SHARE_MEMORY: memory, SHARE_CORE: core, TOTAL_MEMORY: total}
    return Adjustment(env=tuple(EnvVar(name, ",".join(map(str, values))) for name, values in amounts.items()))


def total_mib(card: Card) -> int:
    return card.mig.memory_mib if card.mig else card.gpu.usable_mib
