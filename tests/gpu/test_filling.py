"""All shares of the machine's card can be filled, and no container has more than its share by the driver's figure.

Allocations that are under way while the share server reads that figure may come on top.
"""

from tests.shares.card import MachineCard
from tests.shares.site import MIB, Site

SHARES = 8
RESERVED_MIB = 2048  # more than the driver keeps of a card for itself
LARGE_MIB, SMALL_MIB = 64, 2


def test_all_shares_of_the_card_can_be_filled(site: Site, card: MachineCard) -> None:
    each_mib = (card.memory_mib - RESERVED_MIB) // SHARES
    processes = [site.container(f"c{number}", mib=each_mib, request=100 // SHARES).start() for number in range(SHARES)]
    for process in processes:
        assert process.call("fill", LARGE_MIB * MIB) > 0
        process.call("fill", SMALL_MIB * MIB)
    for process in processes:
        assert each_mib - 2 * SMALL_MIB <= site.driver_mib(process) <= each_mib + LARGE_MIB + 2 * SMALL_MIB
