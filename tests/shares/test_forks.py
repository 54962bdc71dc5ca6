"""A child that is forked while another thread asks the share server can ask too, and has no connection of its parent."""

from pathlib import Path
from signal import SIGCONT, SIGSTOP

import pytest

from tests.shares.site import MIB, Process, Site, eventually


def fork_while_another_thread_calls(site: Site, call: str) -> tuple[Process, int]:
    """Return the parent and the process ID of the child."""
    process = site.container("a", mib=100).start(init=False)
    site.signal_server(SIGSTOP)
    process.call("begin_call", call)  # it waits for the server's answer
    child: int = process.call("fork")
    site.admit(child)
    site.signal_server(SIGCONT)
    return process, child


def count_sockets(process: int) -> int:
    links = [str(entry.readlink()) for entry in Path(f"/proc/{process}/fd").iterdir()]
    return sum(link.startswith("socket:") for link in links)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("call", ["nvml_memory", "init"])
def test_a_child_can_ask(site: Site, call: str) -> None:
    process, child = fork_while_another_thread_calls(site, call)
    eventually(lambda: count_sockets(child) == 0)  # a connection would take the place of a process
    assert process.call("in_child", ["nvml_memory"], ["init"]) == [[0, 100 * MIB, 100 * MIB, 0], 0]
