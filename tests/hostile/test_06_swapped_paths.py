"""Test case 6: paths that change between check and use (TOCTOU), because a thread exchanges them continuously.

Both exchanged files are invalid, so every success is an escape. One is a link to a perfect copy outside the node's folder,
which detects code that follows links. The other is a real node with a wrong number, or a file of another owner, which detects
code that checks one file and uses the other. Each test has 2,000 rounds, or 10,000 in `make test-long`.

Naive versions that fail: `is_symlink`, then `stat`; `resolve`, then `stat`; attributes of sysfs read one path at a time (as
Lading did); a registration's owner checked by path before the file is read. Lading opens no file system of a container; runc
does (case 5).
"""

import json
import os
import stat
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from hooks.host.devnodes import Cause, DeviceNodeError, read_char_device
from hooks.host.rdma import read_rdma
from lading.log import Level, Log, LogfmtSink
from runtimeproxy.chain.hooksdir import HooksDir
from runtimeproxy.chain.registrations import Registration
from simnode.build import build
from tests.depth import repeats
from tests.fakes.needs import need
from tests.hostile.swapper import swapping

ROUNDS: Final = repeats(2_000, long=10_000)
pytestmark = pytest.mark.repeats
NUMBER, WRONG = (231, 192), (1, 1)  # uverbs0; the kernel's memory
PATH = "/dev/infiniband/uverbs0"
SOMEONE = 1234


def make_node(path: Path, number: tuple[int, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(*number))


def test_a_device_node(device_nodes: None, tmp_path: Path) -> None:
    root, outside = tmp_path / "node", tmp_path / "outside"
    make_node(root / PATH[1:], WRONG)
    make_node(outside, NUMBER)
    other = root / "dev/infiniband/other"
    other.symlink_to(outside)
    with swapping(root / PATH[1:], other):
        causes = {cause_of(root) for _ in range(ROUNDS)}
    assert causes == {Cause.LINK, Cause.WRONG_NUMBER}  # both were met, and nothing else


@pytest.mark.parametrize("folder", ["dev", "dev/infiniband"])
def test_a_folder_on_the_way(device_nodes: None, tmp_path: Path, folder: str) -> None:
    root, outside = tmp_path / "node", tmp_path / "outside"
    make_node(root / PATH[1:], WRONG)
    make_node(outside / Path(PATH).relative_to(f"/{folder}"), NUMBER)
    other = root / "other"
    other.symlink_to(outside)
    with swapping(root / folder, other):
        causes = {cause_of(root) for _ in range(ROUNDS)}
    assert causes == {Cause.LINK, Cause.WRONG_NUMBER}


def cause_of(root: Path) -> Cause:
    with pytest.raises(DeviceNodeError) as caught:
        read_char_device(root, PATH, major=NUMBER[0], minor=NUMBER[1])
    return caught.value.cause


PROFILE = {
    "name": "two VFs",
    "host_bridges": [
        {
            "bus": "0000:17",
            "socket": 0,
            "numa": 0,
            "below": [
                {
                    "bdf": "0000:18:00.0",
                    "pf": {
                        "ibdev": "mlx5_0",
                        "netdev": "ib0",
                        "link_layer": "InfiniBand",
                        "total_vfs": 2,
                        "vfs": [{"bdf": "0000:18:00.2", "ibdevs": ["mlx5_1"]}, {"bdf": "0000:18:00.3", "ibdevs": ["mlx5_2"]}],
                    },
                }
            ],
        }
    ],
}


@pytest.mark.parametrize("swapped", ["uverbs", "function"])
def test_two_functions_in_sysfs(device_nodes: None, tmp_path: Path, swapped: str) -> None:
    """Check a driver that is unbound and bound again during reading: no VF is ever given another one's verbs device. A round
    reads some thirty files."""
    root = build(PROFILE, tmp_path / "node").root
    (pf,), _, _ = read_rdma(root)
    minors = {vf.ibdev: vf.uverbs.minor for vf in pf.vfs if vf.uverbs}
    assert len(minors) == 2
    if swapped == "function":
        one, other = (root / "sys/bus/pci/devices" / vf.bdf for vf in pf.vfs)
    else:
        one, other = (root / f"sys/class/infiniband_verbs/uverbs{minor - 192}" for minor in minors.values())
    counts: Counter[tuple[str, int]] = Counter()
    with swapping(one, other):
        for _ in range(ROUNDS // 4):
            pfs, _, _ = read_rdma(root)
            counts.update((vf.ibdev, vf.uverbs.minor) for pf in pfs for vf in pf.vfs if vf.uverbs and not vf.unhealthy)
    assert counts.keys() == set(minors.items())  # both were given, and neither as the other


@pytest.mark.parametrize("other", ["file", "link"])
def test_a_registration(tmp_path: Path, other: str) -> None:
    """Exchange a registration of root without an endpoint with another user's registration that has an endpoint."""
    need(os.geteuid() == 0, "root, to give a file to somebody else")
    folder, evil = tmp_path / "hooks.d", tmp_path / "evil"
    folder.mkdir(mode=0o755)
    (folder / "10.json").write_text("{}")
    evil.write_text(json.dumps({"remote-endpoint": "/tmp/evil.sock", "runtime-hooks": ["PreCreateContainer"]}))
    os.chown(evil, SOMEONE, SOMEONE)
    beside = folder / "10.json~"
    evil.rename(beside) if other == "file" else beside.symlink_to(evil)
    published: list[tuple[Registration, ...]] = []
    with open(os.devnull, "wb") as null:
        hooks_dir = HooksDir(folder, published.append, Log(LogfmtSink(null.fileno()), Level.ERROR))
        with swapping(folder / "10.json", beside):
            for _ in range(4 * ROUNDS):
                hooks_dir.read()
    assert published == [()]
