"""Test that a simulated node is laid out as the kernel lays out a real one."""

import stat
from pathlib import Path

import pytest

from lading.errors import ConfigError, HostError
from simnode.build import build, main
from simnode.profile import PROFILES, load_profile
from tests.conftest import BuildNode

SHIPPED = sorted(path.stem for path in PROFILES.glob("*.json"))


@pytest.mark.parametrize("name", SHIPPED)
def test_every_link_is_relative_and_stays_inside(name: str, tmp_path: Path) -> None:
    node = build(name, tmp_path / "node", char_devices=False)
    links = [path for path in node.root.rglob("*") if path.is_symlink()]
    assert links
    for link in links:
        assert not link.readlink().is_absolute()
        assert link.resolve(strict=True).is_relative_to(node.root)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_profiles_name_a_device_once(name: str) -> None:
    profile = load_profile(name)
    vfs = [vf for _, pf in profile.pfs for vf in pf.vfs]
    addresses = [bdf for bdf, _ in (*profile.gpus, *profile.pfs)] + [vf.bdf for vf in vfs]
    ibdevs = [pf.ibdev for _, pf in profile.pfs] + [ibdev for vf in vfs for ibdev in vf.ibdevs]
    minors = [gpu.minor for _, gpu in profile.gpus]
    for names in (addresses, ibdevs, minors, [gpu.uuid for _, gpu in profile.gpus]):
        assert len(names) == len(set(names))


def test_demo_node_catches_mix_ups() -> None:
    profile = load_profile("demo-8gpu")
    assert len(profile.gpus) == 8
    assert len(profile.pfs) == 8
    assert all(index != gpu.minor for index, (_, gpu) in enumerate(profile.gpus))
    ibdevs = {ibdev for _, pf in profile.pfs for vf in pf.vfs for ibdev in vf.ibdevs} | {pf.ibdev for _, pf in profile.pfs}
    assert {"mlx5_1", "mlx5_10"} <= ibdevs


def test_uverbs_number_is_not_the_ibdev_number(tmp_path: Path) -> None:
    node = build("demo-8gpu", tmp_path / "node", char_devices=False)
    assert [entry.name for entry in (node.pci("0000:18:00.2") / "infiniband").iterdir()] == ["mlx5_8"]
    assert [entry.name for entry in (node.pci("0000:18:00.2") / "infiniband_verbs").iterdir()] == ["uverbs1"]


def test_vf_has_the_parents_of_its_pf_and_gpus_share_a_switch(tmp_path: Path) -> None:
    node = build("demo-8gpu", tmp_path / "node", char_devices=False)
    assert node.pci("0000:18:00.2").parent == node.pci("0000:18:00.0").parent
    assert node.pci("0000:1a:00.0").parents[1] == node.pci("0000:18:00.0").parents[1]  # one upstream port
    assert node.pci("0000:3c:00.0").parents[1] != node.pci("0000:18:00.0").parents[1]


def test_device_nodes_are_character_devices_with_the_numbers_of_sysfs(build_node: BuildNode) -> None:
    node = build_node("demo-8gpu")
    status = (node.root / "dev/infiniband/uverbs1").stat()
    assert stat.S_ISCHR(status.st_mode)
    assert (node.root / "sys/class/infiniband_verbs/uverbs1/dev").read_text() == "231:193\n"
    assert (status.st_rdev >> 8, status.st_rdev & 0xFF) == (231, 193)
    assert stat.S_IMODE((node.root / "dev/nvidia2").stat().st_mode) == 0o666


def test_without_char_devices_dev_is_empty(tmp_path: Path) -> None:
    node = build("mig", tmp_path / "node", char_devices=False)
    assert not list((node.root / "dev").iterdir())


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("precious")
    with pytest.raises(HostError):
        build("workstation", tmp_path, char_devices=False)
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


def test_unknown_key_is_named() -> None:
    with pytest.raises(ConfigError, match="minr"):
        load_profile(
            {"name": "x", "host_bridges": [{"bus": "0000:00", "socket": 0, "numa": 0, "below": [{"bdf": "a", "minr": 1}]}]}
        )


def test_unknown_profile_lists_the_shipped_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        load_profile("no-such")
    assert "demo-8gpu" in caught.value.hint


def test_command_builds_a_node_that_needs_nothing_else(
    device_nodes: None, fake_nvml: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["workstation", str(tmp_path / "node")])
    printed = dict(line.split("=", 1) for line in capsys.readouterr().out.splitlines())
    assert printed.keys() == {"FAKE_NVML_STATE", "FAKE_NVML_LIBRARY", "HOST_ROOT"}
    assert all(Path(path).exists() for path in printed.values())
