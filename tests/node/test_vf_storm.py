"""Start and stop many pods with VFs at once: each pod has its own VFs, and afterwards every VF is back on the node.

There are twelve pods; in `make test-long` there are forty pods, three times, each time with other VFs.
"""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier
from typing import Final

import pytest

from runtimeproxy.chain.endpoint import MAX_IDLE
from simnode.containerd import PrivateContainerd
from simnode.cri import Container
from simnode.leftovers import mounts_below
from tests.depth import repeats
from tests.node.conftest import StartVfs
from tests.node.site import eventually
from tests.node.vf_site import HEALED_S, Inside, VfSite, open_vf_site

pytestmark = [pytest.mark.node, pytest.mark.timeout(1800)]

PODS: Final = repeats(12, long=40)
_GRPC: Final = {"event_engine", "grpc_global_tim", "lifeguard"}
ROUNDS: Final = repeats(1, long=3)
PFS: Final = 4


@pytest.fixture
def site(share_vfs: StartVfs, containerd: PrivateContainerd) -> Iterator[VfSite]:
    with open_vf_site(share_vfs(pfs=PFS, vfs=PODS // PFS), containerd) as site:
        yield site


def held_by(pid: int) -> Counter[str]:
    """Count what a process holds of the kernel: descriptors and threads by kind. gRPC's own threads come and go with its load.

    A thread or descriptor that ends while its folder is read is not counted.
    """
    held: Counter[str] = Counter()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            name = (task / "comm").read_text().strip()
            held[f"thread {name}"] += name not in _GRPC
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            held[str(fd.readlink()).split(":")[0]] += 1
    return held


def namespaces(site: VfSite) -> int:
    """Create namespaces that are kept alive by mounts below the runtime's folder and the rig's."""
    folders = (site.runtime.layout.folder, site.lading.folder)
    return sum(1 for folder in folders for path in mounts_below(folder) if "netns" in str(path))


@pytest.mark.repeats
def test_all_come_and_go_at_once(site: VfSite) -> None:
    daemons = {"hooks": site.rig.daemon_pid, "proxy": site.lading.proxy.pid}

    def live(n: int, number: int) -> None:
        vf = site.vfs[(n + number) % PODS]
        mac = f"02:00:5e:20:{number:02x}:{n:02x}"
        entry = site.entry(vf, mac=mac, mtu=2000 + n, vlan=n + 1, addresses=[f"10.77.{n}.1/24"], ifname=f"fabric{n}")
        together.wait()
        pod = site.run_vf_pod(f"storm-{number}-{n}", {"main": [entry]})
        container = eventually(pod.create_container, within_s=60)
        container.start()
        check(container, n, mac)
        assert site.pf_state(vf).vlan == n + 1
        pod.remove()

    def check(container: Container, n: int, mac: str) -> None:
        assert site.inside(container, f"fabric{n}") == Inside(
            mac=mac, mtu=2000 + n, up=True, addresses=(f"10.77.{n}.1/24",), routes=(f"10.77.{n}.0/24",)
        )

    together = Barrier(1)
    live(0, 0)  # connections, and the rest that is made once, are there now
    eventually(site.check_as_before, within_s=HEALED_S)
    before = {name: held_by(pid) for name, pid in daemons.items()}
    alive = namespaces(site)
    with ThreadPoolExecutor(PODS) as threads:
        for number in range(1, ROUNDS + 1):
            together = Barrier(PODS, timeout=60)  # one that fails ends the wait of the others
            list(threads.map(live, range(PODS), [number] * PODS))
    site.await_as_before()

    def nothing_left() -> None:
        assert site.grants() == ()
        assert namespaces(site) == alive
        for name, pid in daemons.items():
            more = held_by(pid) - before[name]
            assert more["socket"] <= MAX_IDLE  # the proxy keeps that many connections to the hooks
            assert set(more) <= {"socket"}

    eventually(nothing_left, within_s=HEALED_S)
    assert site.rig.daemon_pid == daemons["hooks"]
