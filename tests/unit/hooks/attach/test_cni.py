"""Compare with golden files: an example of the Device Information Specification 1.1.0 (§4.3) with straight quotes, and one with
an RDMA device (§3.1.3.3)."""

import asyncio
import contextlib
import json
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from hooks.attach.cni import (
    FOLDER,
    DeviceInfoFiles,
    decide_files,
    file_name,
    keep_device_info,
    render_device_info,
    resource_problem,
)
from hooks.model.inventory import Inventory
from lading.errors import HostError
from lading.log import Event
from lading.vocabulary import PciAddress
from tests.fakes.records import Records
from tests.unit.hooks.inventories import inventory, vf

GOLDEN: Final = Path(__file__).parents[3] / "golden/cni"
RESOURCE: Final = "lading.dev/rdma"


def golden(name: str) -> Any:
    return json.loads((GOLDEN / f"device-info-{name}.json").read_text())


def names(root: Path) -> set[str]:
    return {path.name for path in (root / FOLDER).iterdir()}


def test_a_vf_with_an_rdma_device_is_reported_as_the_specification_says() -> None:
    assert json.loads(render_device_info(vf(1))) == golden("rdma")


def test_what_is_not_there_is_left_out() -> None:
    plain = replace(vf(0), bdf=PciAddress("0000:01:02.2"), pf=PciAddress("0000:01:02.0"), ibdev="")
    assert json.loads(render_device_info(plain)) == golden("pci")


def test_a_file_is_named_by_resource_and_device() -> None:
    assert file_name(RESOURCE, PciAddress("0000:3b:00.2")) == "lading.dev-rdma-0000:3b:00.2-device.json"


@pytest.mark.parametrize("ibdev", ["", "mlx5_\udcff"])  # the second is how Python has a name that is no UTF-8
def test_a_vf_without_an_rdma_device_that_can_be_named_is_not_reported(ibdev: str) -> None:
    given = inventory(vfs=(vf(0), replace(vf(1), ibdev=ibdev)))
    assert set(decide_files(given, RESOURCE)) == {file_name(RESOURCE, vf(0).bdf)}


@pytest.mark.parametrize("resource", ["lading.dev/rdma", "a/b", "nvidia.com/Roce_v2.x-1"])
def test_a_resource_name(resource: str) -> None:
    assert resource_problem(resource) == ""


@pytest.mark.parametrize(
    "resource", ["", "rdma", "/rdma", "lading.dev/", "a/b/c", "../x", "a/..", "a /b", "A/b", "x" * 199 + "/y"]
)
def test_no_resource_name(resource: str) -> None:
    assert resource_problem(resource) != ""


# ---- the folder


def test_files_follow_the_inventory(tmp_path: Path) -> None:
    files = DeviceInfoFiles(tmp_path, RESOURCE)
    files.write(inventory(vfs=(vf(0), vf(1))))
    assert names(tmp_path) == {file_name(RESOURCE, vf(n).bdf) for n in (0, 1)}
    files.write(inventory(vfs=(vf(1), vf(2))))
    assert names(tmp_path) == {file_name(RESOURCE, vf(n).bdf) for n in (1, 2)}
    assert json.loads((tmp_path / FOLDER / file_name(RESOURCE, vf(1).bdf)).read_text()) == golden("rdma")
    files.clear()
    assert names(tmp_path) == set()


def test_a_vf_whose_rdma_device_was_renamed_is_reported_anew(tmp_path: Path) -> None:
    files = DeviceInfoFiles(tmp_path, RESOURCE)
    files.write(inventory(vfs=(vf(1),)))
    files.write(inventory(vfs=(replace(vf(1), ibdev="mlx5_9"),)))
    device_info = json.loads((tmp_path / FOLDER / file_name(RESOURCE, vf(1).bdf)).read_text())
    assert device_info["pci"]["rdma-device"] == "mlx5_9"


def test_what_is_as_it_should_be_is_not_written_again(tmp_path: Path) -> None:
    files = DeviceInfoFiles(tmp_path, RESOURCE)
    path = tmp_path / FOLDER / file_name(RESOURCE, vf(0).bdf)
    files.write(inventory(vfs=(vf(0),)))
    before = path.stat()
    files.write(inventory(vfs=(vf(0),)))
    assert path.stat().st_mtime_ns == before.st_mtime_ns


def test_what_another_one_broke_or_a_killed_daemon_left_is_made_good(tmp_path: Path) -> None:
    files = DeviceInfoFiles(tmp_path, RESOURCE)
    name = file_name(RESOURCE, vf(1).bdf)
    files.write(inventory(vfs=(vf(1),)))
    (tmp_path / FOLDER / name).unlink()
    (tmp_path / FOLDER / name).write_text("{")
    (tmp_path / FOLDER / f".{name}.new").write_text("{")
    files.write(inventory(vfs=(vf(1),)))
    assert names(tmp_path) == {name}
    assert json.loads((tmp_path / FOLDER / name).read_text()) == golden("rdma")


@pytest.mark.parametrize(
    "other",
    [
        "lading.dev-rdma-x-0000:3b:00.2-device.json",
        "ladingxdev-rdma-0000:3b:00.2-device.json",
        "openshift.io-mlnx-0000:3b:00.2-device.json",
        "lading.dev-rdma-mlx5_core.sf.4-device.json",
    ],
)
def test_files_of_another_resource_stay(other: str, tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir(parents=True)
    (tmp_path / FOLDER / other).write_text("theirs")
    files = DeviceInfoFiles(tmp_path, RESOURCE)
    files.write(inventory(vfs=(vf(0),)))
    files.clear()
    assert names(tmp_path) == {other}


def test_everybody_may_read_and_no_one_write(tmp_path: Path) -> None:
    umask = os.umask(0o077)
    try:
        DeviceInfoFiles(tmp_path, RESOURCE).write(inventory(vfs=(vf(0),)))
    finally:
        os.umask(umask)
    path = tmp_path / FOLDER / file_name(RESOURCE, vf(0).bdf)
    assert stat.S_IMODE(path.stat().st_mode) == 0o444
    assert [stat.S_IMODE((tmp_path / FOLDER / up).resolve().stat().st_mode) for up in (".", "..", "../..")] == [0o755] * 3


def test_a_node_without_vfs_gets_no_folder(tmp_path: Path) -> None:
    files = DeviceInfoFiles(tmp_path, RESOURCE)
    files.write(Inventory())
    files.clear()
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_place_of_a_file_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir(parents=True)
    (tmp_path / "theirs").write_text("theirs")
    for name in (file_name(RESOURCE, vf(0).bdf), f".{file_name(RESOURCE, vf(0).bdf)}.new"):
        (tmp_path / FOLDER / name).symlink_to(tmp_path / "theirs")
    DeviceInfoFiles(tmp_path, RESOURCE).write(inventory(vfs=(vf(0),)))
    assert (tmp_path / "theirs").read_text() == "theirs"
    assert not (tmp_path / FOLDER / file_name(RESOURCE, vf(0).bdf)).is_symlink()


def test_a_folder_that_cannot_be_made_is_an_error_of_the_host(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(HostError):
        DeviceInfoFiles(tmp_path, RESOURCE).write(inventory(vfs=(vf(0),)))


# ---- over the daemon's life


async def test_files_come_back_while_it_runs_and_go_when_it_stops(tmp_path: Path) -> None:
    records, path = Records(), tmp_path / FOLDER / file_name(RESOURCE, vf(0).bdf)
    inventories: list[Inventory | None] = [None]
    files = DeviceInfoFiles(tmp_path, RESOURCE)
    keeping = asyncio.create_task(keep_device_info(files, lambda: inventories[0], interval_s=0.0, log=records.log))
    await turns()
    assert not path.exists()  # nothing has been read yet
    inventories[0] = inventory(vfs=(vf(0),))
    await turns()
    assert path.exists()
    path.unlink()
    await turns()
    assert path.exists()
    keeping.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await keeping
    assert not path.exists()
    assert records.seen == []


async def test_a_failure_is_reported_once_and_the_next_one_again(tmp_path: Path) -> None:
    records = Records()
    (tmp_path / "run").write_text("")
    files = DeviceInfoFiles(tmp_path, RESOURCE)
    given = inventory(vfs=(vf(0),))
    keeping = asyncio.create_task(keep_device_info(files, lambda: given, interval_s=0.0, log=records.log))
    await turns()
    assert records.count(Event.DEVICE_INFO_FAILED) == 1
    (tmp_path / "run").unlink()
    await turns()
    assert (tmp_path / FOLDER).is_dir()
    (tmp_path / FOLDER / file_name(RESOURCE, vf(0).bdf)).unlink()
    (tmp_path / FOLDER).rmdir()
    (tmp_path / FOLDER).write_text("")
    await turns()
    keeping.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await keeping
    assert records.count(Event.DEVICE_INFO_FAILED) == 2


async def turns() -> None:
    """Wait for enough turns of the event loop that the task has run once."""
    for _ in range(5):
        await asyncio.sleep(0)
