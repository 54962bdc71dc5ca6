"""Run iproute2's programs with the test in place of the kernel, to record their requests and their output for an answer.

The machine's own program is run. A small preloaded library (netlink_peer.c) gives the program the test's socket in place of a
netlink socket.
"""

import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

_SOURCE = Path(__file__).with_suffix(".c")


class Run(NamedTuple):
    output: str
    status: int
    requests: tuple[bytes, ...]


def compile_peer(folder: Path) -> Path:
    library = folder / "netlink_peer.so"
    command = ["cc", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-o", str(library), str(_SOURCE)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return library


def run_with_peer(library: Path, command: Iterable[str], answer: Callable[[bytes], Iterable[bytes]]) -> Run:
    """Run the command. `answer` returns the datagrams that answer one request."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    requests: list[bytes] = []

    def serve() -> None:
        while request := ours.recv(65536):
            requests.append(request)
            for datagram in answer(request):
                ours.send(datagram)

    serving = threading.Thread(target=serve)
    serving.start()
    try:
        with theirs:
            done = subprocess.run(
                list(command),
                check=False,
                capture_output=True,
                text=True,
                timeout=30,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "LD_PRELOAD": str(library), "NETLINK_PEER": str(theirs.fileno())},
            )
    finally:
        serving.join()
        ours.close()
    return Run(output=done.stdout + done.stderr, status=done.returncode, requests=tuple(requests))
