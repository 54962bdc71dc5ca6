"""Processes that lose their connection to the share server while they run, and keep what they hold."""

import time
from signal import SIGCONT, SIGSTOP

from tests.shares.site import MIB, Site, eventually

OUT_OF_MEMORY = 2


def test_a_process_that_lost_the_server_and_stands_still_is_counted(site: Site) -> None:
    """The server stands still for so long that one process gives it up, which then stands still itself; the other did not
    notice."""
    container = site.container("a", mib=100)
    lost, other = container.start(), container.start()
    assert lost.call("alloc", "plain", 60 * MIB) == 0
    site.signal_server(SIGSTOP)
    other.send(SIGSTOP)
    time.sleep(1.3)  # `lost` closes its connection, and dials again in vain
    lost.send(SIGSTOP)
    site.signal_server(SIGCONT)
    eventually(site.uses)
    other.send(SIGCONT)
    assert other.call("alloc", "plain", 50 * MIB) == OUT_OF_MEMORY
    lost.send(SIGCONT)
    eventually(lambda: lost.call("alloc", "plain", 30 * MIB) == 0)
    eventually(lambda: site.use("a").memory_used_mib == 90)
    assert other.call("alloc", "plain", 11 * MIB) == OUT_OF_MEMORY
