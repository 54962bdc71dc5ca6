"""Processes that lose their connection to the share server while they run, and keep what they hold."""

from contextlib import suppress
from pathlib import Path
from signal import SIGCONT, SIGSTOP

from simnode.patience import wait_until
from tests.shares.site import MIB, Process, Site, eventually

OUT_OF_MEMORY = 2


def sockets(process: Process) -> set[str]:
    """Return the sockets that the process has open."""
    found = set()
    for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found.add(str(descriptor.readlink()))
    return {target for target in found if target.startswith("socket:")}


def test_a_process_that_lost_the_server_and_stands_still_is_counted(site: Site) -> None:
    """The server stands still for so long that one process gives it up, which then stands still itself; the other did not
    notice."""
    container = site.container("a", mib=100)
    lost, other = container.start(), container.start()
    assert lost.call("alloc", "plain", 60 * MIB) == 0
    dialled = sockets(lost)
    site.signal_server(SIGSTOP)
    other.send(SIGSTOP)
    wait_until(lambda: sockets(lost) - dialled, "the end of its connection, and its next attempt, which is in vain")
    lost.send(SIGSTOP)
    site.signal_server(SIGCONT)
    eventually(site.uses)
    other.send(SIGCONT)
    assert other.call("alloc", "plain", 50 * MIB) == OUT_OF_MEMORY
    lost.send(SIGCONT)
    eventually(lambda: lost.call("alloc", "plain", 30 * MIB) == 0)
    eventually(lambda: site.use("a").memory_used_mib == 90)
    assert other.call("alloc", "plain", 11 * MIB) == OUT_OF_MEMORY
