"""Compare the netlink code of `hooks.attach` with pyroute2: CPU and time of eight devices that go into a pod and come back.

    pip install pyroute2 && python -m bench.netlink [--rounds 20]

Both make the same changes of veth devices, in network namespaces of their own, in rounds that alternate. pyroute2 is used in
its cheapest way: `IPRoute` on a socket that a thread opens in the namespace. With the path of a namespace, `IPRoute` forks a
process for each socket. Two more figures: the time to read the answer about a PF with 128 VFs, and what the import of pyroute2
adds to `lading-hooks`. Needs root. Without pyroute2, only the own code is measured.
"""

import argparse
import contextlib
import importlib.util
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from hooks.attach.messages import parse_answer
from hooks.attach.namespaces import inside, opened, own
from hooks.attach.netlink import HostKernel
from hooks.attach.rtnetlink import parse_link, render_get_link
from hooks.attach.vf_settings import parse_vfs
from hooks.model.attachment import Route
from simnode.vf_table import PfState, VfState, VfTable
from tests.fakes.namespaces import Netns

DEVICES: Final = 8
VFS: Final = 128
READINGS: Final = 20
_PARKED: Final = "parked"
_IMPORTED: Final = """
import resource, time
import hooks.daemon.daemon
before, kib = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
import pyroute2
print(1e3 * (time.process_time() - before), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - kib) / 1024)
"""


class Mover(Protocol):
    def attach(self, pod: Netns, number: int) -> None: ...

    def detach(self, pod: Netns, number: int) -> None: ...


class OwnCode:
    def __init__(self) -> None:
        self._kernel = HostKernel(Path("/"))

    def attach(self, pod: Netns, number: int) -> None:
        self._kernel.set_link(None, f"vf{number}", mac=f"02:00:5e:10:00:{number:02x}", mtu=1400, up=False)
        self._kernel.move_in(f"vf{number}", pod.path, pod.id, f"rdma{number}")
        route = Route(f"10.1.{number}.0/24", f"10.0.{number}.1")
        self._kernel.configure(pod.path, f"rdma{number}", addresses=(f"10.0.{number}.2/24",), routes=(route,))

    def detach(self, pod: Netns, number: int) -> None:
        self._kernel.move_out(pod.path, pod.id, f"rdma{number}", f"{_PARKED}{number}")
        self._kernel.rename(f"{_PARKED}{number}", f"vf{number}")
        self._kernel.set_link(None, f"vf{number}", mac=f"02:5e:00:00:00:{number:02x}", mtu=1500)


class Pyroute2:
    def attach(self, pod: Netns, number: int) -> None:
        with _iproute() as host:
            index = _find(host, f"vf{number}")
            host.link("set", index=index, state="down")
            host.link("set", index=index, address=f"02:00:5e:10:00:{number:02x}")
            host.link("set", index=index, mtu=1400)
        with opened(pod.path, pod.id) as fd, _iproute() as host:
            host.link("set", index=_find(host, f"vf{number}"), net_ns_fd=fd, ifname=f"rdma{number}")
        with opened(pod.path) as fd, _iproute(fd) as inner:
            index = _find(inner, f"rdma{number}")
            inner.addr("add", index=index, address=f"10.0.{number}.2", prefixlen=24)
            inner.link("set", index=index, state="up")
            inner.route("add", dst=f"10.1.{number}.0/24", gateway=f"10.0.{number}.1", oif=index)

    def detach(self, pod: Netns, number: int) -> None:
        with opened(pod.path, pod.id) as fd, own() as host_fd, _iproute(fd) as inner:
            inner.link("set", index=_find(inner, f"rdma{number}"), net_ns_fd=host_fd, ifname=f"{_PARKED}{number}")
        with _iproute() as host:
            host.link("set", index=_find(host, f"{_PARKED}{number}"), ifname=f"vf{number}")
        with _iproute() as host:
            index = _find(host, f"vf{number}")
            host.link("set", index=index, address=f"02:5e:00:00:00:{number:02x}")
            host.link("set", index=index, mtu=1500)


@contextlib.contextmanager
def _iproute(fd: int | None = None) -> Iterator[Any]:
    from pyroute2 import IPRoute  # noqa: PLC0415 - may be missing

    with contextlib.nullcontext() if fd is None else inside(fd):
        socket = IPRoute(groups=0)
    with socket:
        yield socket


def _find(socket: Any, name: str) -> int:
    (link,) = socket.link("get", ifname=name, ext_mask=9)
    return int(link["index"])


def measure(do: Callable[[], object]) -> tuple[float, float]:
    """Return the time of one round and its CPU time, in milliseconds."""
    began, used = time.perf_counter(), time.process_time()
    do()
    return 1e3 * (time.perf_counter() - began), 1e3 * (time.process_time() - used)


def move_all(host: Netns, mover: Mover) -> tuple[float, float]:
    """Return what it takes to attach all devices and detach them, each action in a thread as in the daemon."""

    def move() -> None:
        for number in range(DEVICES):
            host.run(partial(mover.attach, pod, number))
        assert len(pod.links()) == DEVICES
        for number in range(DEVICES):
            host.run(partial(mover.detach, pod, number))

    with Netns() as pod:
        result = measure(move)
    assert {f"vf{number}" for number in range(DEVICES)} <= set(host.links())
    return result


def readers() -> dict[str, Callable[[], object]]:
    """Return functions that parse the kernel's answer about a PF with its VFs, by the name of the library."""
    with tempfile.TemporaryDirectory() as folder:
        table = VfTable(Path(folder) / "vfs.json")
        table.write({"pf0": PfState(index=2, vfs=(VfState(),) * VFS)})
        answer = table.apply(render_get_link("pf0"))

    def own_reader() -> object:
        (message,) = parse_answer(answer)
        return parse_link(message), parse_vfs(message)

    def pyroute2_reader() -> object:
        from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg  # noqa: PLC0415 - may be missing

        message = ifinfmsg(answer)
        message.decode()
        return [info.get_attr("IFLA_VF_MAC")["mac"] for info in message.get_attr("IFLA_VFINFO_LIST").get_attrs("IFLA_VF_INFO")]

    return {"own": own_reader, "pyroute2": pyroute2_reader}


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.netlink", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    rounds: int = parser.parse_args().rounds
    movers: dict[str, Mover] = {"own": OwnCode()}
    if importlib.util.find_spec("pyroute2") is not None:
        movers["pyroute2"] = Pyroute2()
    moved: dict[str, list[tuple[float, float]]] = {name: [] for name in movers}
    with Netns() as host:
        for number in range(DEVICES):
            host.ip(f"link add vf{number} address 02:5e:00:00:00:{number:02x} type veth peer name peer{number}")
        for mover in movers.values():
            move_all(host, mover)  # loads and warms what it needs
        for _ in range(rounds):
            for name, mover in movers.items():
                moved[name].append(move_all(host, mover))
    print(f"{DEVICES} devices there and back, median of {rounds} rounds; a PF of {VFS} VFs read, best of {READINGS}")
    for name in movers:
        wall_ms, cpu_ms = (statistics.median(values) for values in zip(*moved[name], strict=True))
        read_ms = min(measure(readers()[name])[1] for _ in range(READINGS))
        print(f"{name:10} {wall_ms:7.1f} ms, {cpu_ms:6.1f} ms CPU; read {read_ms:5.1f} ms CPU")
    if "pyroute2" in movers:
        done = subprocess.run([sys.executable, "-c", _IMPORTED], capture_output=True, text=True, check=True)
        cpu_ms, mib = map(float, done.stdout.split())
        print(f"importing pyroute2 adds to lading-hooks: {cpu_ms:.0f} ms CPU, {mib:.1f} MiB")


if __name__ == "__main__":
    main()
