"""Measure shares that are kept by real processes: programs in containers' folders, and a real share server.

`gpu-work` is a program in C, for loads and for what a call costs; tests/shares/program.py makes what calls a measurement needs.
The card is the fake one, or that of the machine (tests/shares/card.py).
"""

import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from operator import itemgetter
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from signal import SIGCONT, SIGKILL, SIGSTOP
from statistics import median
from typing import Final

from bench.figures import percentile
from lading.errors import LadingError
from shares.wire import Kind
from simnode.images import compile_c, read_gpu_work
from tests.fakes.share_rig import MIB, Client
from tests.shares.card import KIT, choose_card, make_library
from tests.shares.site import SOCKET, Container, Process, Site, eventually

KERNEL_US: Final = 5000
NEVER: Final = 0  # in place of the number of kernels after which a process synchronises
CLIENTS: Final = 16  # maximum number of containers that take turns of a card
AWAY_S: Final = 3
Results = dict[str, "float | Results"]


class Real:
    """Run programs on one card, each with or without the library."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.driver = choose_card().driver(folder / "real")
        self.library = make_library(self.driver, folder / "shown")
        self.work = folder / "gpu-work"
        kit = os.environ.get(KIT)
        self.work.write_bytes(Path(kit, "gpu-work").read_bytes() if kit else compile_c(read_gpu_work(), static=False))
        self.work.chmod(0o755)

    def start(self, site: Site, container: Container, *arguments: str, library: bool = True) -> "subprocess.Popen[str]":
        """Start gpu-work in a container. It begins once the server can see whose it is."""
        env = site.environment()
        if not library:
            env |= {"LD_LIBRARY_PATH": str(self.driver)}
        return site.launch(container.folder, [str(self.work), *arguments], env)

    def site(self) -> Site:
        return Site(Path(tempfile.mkdtemp(dir=self._folder)), self.library)


def said_by(program: "subprocess.Popen[str]") -> list[str]:
    out, errors = program.communicate()
    if program.returncode:
        raise LadingError(f"gpu-work ended with status {program.returncode}: {errors.strip()}")
    return out.split()


def begin(site: Site, requests: Mapping[str, float], each: Mapping[str, int]) -> dict[str, Process]:
    """Start a busy process in each container, and wait until each had a turn. `each`: number of kernels after which a process
    synchronises."""
    processes = {name: site.container(name, request=round(100 * part)).start() for name, part in requests.items()}
    for name, process in processes.items():
        process.call("begin", KERNEL_US, each.get(name, 1))
    eventually(lambda: all(held > 0 for held in site.held().values()))
    return processes


def longest_gap_ms(process: Process) -> float:
    """Return the longest time between two launches since this was last asked."""
    return 1e3 * float(process.call("so_far")["longest_s"])


def measure_shares(
    real: Real, requests: Mapping[str, float], seconds: float, each: Mapping[str, int] | None = None
) -> tuple[float, float, float]:
    """Return the share error, the part of the card's time that was held, and the longest time in milliseconds for which a
    program that synchronises launched nothing."""
    each = each or {}
    with real.site() as site:
        processes = begin(site, requests, each)
        for process in processes.values():
            longest_gap_ms(process)
        before, began = site.held(), time.monotonic()
        time.sleep(seconds)
        after, passed = site.held(), time.monotonic() - began
        gaps = [longest_gap_ms(process) for name, process in processes.items() if each.get(name, 1) != NEVER]
    held = {name: (after[name] - before[name]) / passed for name in requests}
    promised = {name: part / sum(requests.values()) for name, part in requests.items()}  # with its part of the unrequested rest
    return max(abs(held[name] - part) for name, part in promised.items()), sum(held.values()), max(gaps)


def measure_alone(real: Real, milliseconds: int, rounds: int) -> float:
    """Return the part of the card that a single container loses because of the library."""
    busy: dict[bool, list[float]] = {True: [], False: []}
    with real.site() as site:
        container = site.container("a")
        for _ in range(rounds):
            for library, found in busy.items():
                used, _, wall, _ = said_by(real.start(site, container, "run", str(milliseconds), "1000", library=library))
                found.append(float(used) / float(wall))
    return 1 - median(busy[True]) / median(busy[False])


def measure_launches(real: Real, count: int, rounds: int) -> dict[str, float]:
    took: dict[str, list[float]] = {"without": [], "with": []}
    with real.site() as site:
        container = site.container("a")
        for _ in range(rounds):
            for which, found in took.items():
                (one, _) = said_by(real.start(site, container, "launches", str(count), library=which == "with"))
                found.append(float(one))
    return {which: median(found) for which, found in took.items()}


def measure_tokens(real: Real, count: int) -> tuple[float, float]:
    """Return the median and the 99th percentile of the time from the end of one turn to the begin of the next turn, in
    milliseconds. CLIENTS containers always want the card."""
    with real.site() as site, ExitStack() as ends, DefaultSelector() as selector:
        site.admit(os.getpid())
        containers = [site.container(f"c{number}", request=100 // CLIENTS) for number in range(CLIENTS)]
        for container in containers:
            client = ends.enter_context(Client(container.folder / SOCKET))
            client.greet()
            selector.register(client.socket, EVENT_READ, client)
        for key in selector.get_map().values():
            key.data.want()
        holder = _receive_token(selector)
        took = []
        for _ in range(count):
            began = time.perf_counter()
            holder.send(Kind.RELEASE)
            following = _receive_token(selector)
            took.append((time.perf_counter() - began) * 1e3)
            holder.want()
            holder = following
    return percentile(took, 0.5), percentile(took, 0.99)


def _receive_token(selector: DefaultSelector) -> Client:
    """Return the client with the newest turn. Clients that got and lost a turn before this process ran request another turn."""
    ready: list[Client] = [key.data for key, _ in selector.select()]
    *lost, (_, last) = sorted(((client.receive().c, client) for client in ready), key=itemgetter(0))
    for _, client in lost:
        client.want()
    return last


def measure_failures(real: Real) -> dict[str, float]:
    """Return the loss of other containers when a program or the server is killed or stopped, in milliseconds, or as parts of
    the card."""
    return {**_free_memory(real), **_lose_program(real), **_lose_server(real)}


def _free_memory(real: Real) -> dict[str, float]:
    with real.site() as site:
        container = site.container("a", mib=2048)
        first, second = container.start(), container.start()
        assert first.call("alloc", "plain", 1500 * MIB) == 0
        assert second.call("alloc", "plain", 1024 * MIB) != 0
        began = time.monotonic()
        first.send(SIGKILL)
        while second.call("alloc", "plain", 1024 * MIB) != 0:
            pass
        return {"memory_of_a_killed_process_is_free_ms": 1e3 * (time.monotonic() - began)}


def _lose_program(real: Real) -> dict[str, float]:
    gaps = {}
    for word, number in (("killed", SIGKILL), ("stopped", SIGSTOP)):
        with real.site() as site:
            processes = begin(site, {"a": 0.5, "b": 0.5}, {})
            longest_gap_ms(processes["b"])
            eventually(lambda site=site: site.use("a").has_turn)  # type: ignore[misc] # mypy infers no type for it
            processes["a"].send(number)
            time.sleep(1)
            gaps[f"wait_after_a_turn_was_{word}_ms"] = longest_gap_ms(processes["b"])
    return gaps


def _lose_server(real: Real) -> dict[str, float]:
    requests = {"a": 0.5, "b": 0.3}
    with real.site() as site:
        processes = begin(site, requests, {})
        for process in processes.values():
            longest_gap_ms(process)
        site.server.kill()
        beyond: list[float] = []
        for _ in range(AWAY_S):
            time.sleep(1)
            said = {name: process.call("so_far") for name, process in processes.items()}
            beyond += [one["busy_s"] / one["wall_s"] - requests[name] for name, one in said.items()]
        site.server.start()
        began = time.monotonic()
        eventually(lambda: all(use.processes for use in site.uses()))
        back_ms = 1e3 * (time.monotonic() - began)
        time.sleep(2)
        for process in processes.values():
            longest_gap_ms(process)
        site.signal_server(SIGSTOP)
        time.sleep(AWAY_S)
        gap_ms = max(longest_gap_ms(process) for process in processes.values())
        site.signal_server(SIGCONT)
    return {
        "most_beyond_the_request_without_a_server": max(beyond),
        "server_is_back_to_connected_ms": back_ms,
        "wait_while_the_server_hangs_ms": gap_ms,
    }


def measure(*, quick: bool) -> Results:
    """Return the figures; `quick`: shorter runs, to see that it works."""
    seconds = 3 if quick else 20
    eight = {f"c{number}": 0.12 for number in range(8)}
    cases: Sequence[tuple[str, Mapping[str, float], Mapping[str, int]]] = (
        ("real", {"a": 0.5, "b": 0.3, "c": 0.2}, {}),
        ("real_eight", eight, {}),
        ("real_one_never_synchronises", {"a": 0.5, "b": 0.5}, {"a": NEVER}),
    )
    with tempfile.TemporaryDirectory(prefix="lading-bench-") as folder:
        real = Real(Path(folder))
        said = {name: measure_shares(real, requests, seconds, each) for name, requests, each in cases}
        rounds = 1 if quick else 5
        alone = measure_alone(real, 1_000 if quick else 3_000, rounds)
        launches = measure_launches(real, 100_000 if quick else 1_000_000, rounds)
        middle, late = measure_tokens(real, 200 if quick else 5_000)
        failures = measure_failures(real)
    return {
        "share_error": {name: round(error, 4) for name, (error, _, _) in said.items()},
        "held": {name: round(held, 4) for name, (_, held, _) in said.items()},
        "wait_max_ms": {name: round(gap, 1) for name, (_, _, gap) in said.items()},
        "overhead_alone": round(alone, 4),
        "launch_ns": {**launches},
        "token_p50_ms": round(middle, 3),
        "token_p99_ms": round(late, 3),
        "failures": {name: round(value, 3) for name, value in failures.items()},
    }
