"""Test that an absent attribute is a value, and a read error is not."""

from pathlib import Path

import pytest

from hooks.host.attributes import read_attribute, read_device_number, read_int, read_link_name, read_names, read_numa


def test_what_is_not_there_is_absent(tmp_path: Path) -> None:
    deleted = tmp_path / "gone"
    assert read_attribute(deleted) is None
    assert read_int(deleted) is None
    assert read_names(deleted) == ()
    assert read_link_name(deleted) == ""
    assert read_device_number(deleted) is None


def test_dangling_link_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "driver").symlink_to("unbound")
    assert read_link_name(tmp_path / "driver") == ""


def test_other_errors_are_raised(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        read_attribute(tmp_path)


@pytest.mark.parametrize(("text", "numa"), [("-1", None), ("0", 0), ("7", 7), ("", None)])
def test_numa(tmp_path: Path, text: str, numa: int | None) -> None:
    folder = tmp_path / "sys/bus/pci/devices/0000:18:00.0"
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text(f"{text}\n")
    assert read_numa(tmp_path, "0000:18:00.0") == numa
    assert read_numa(tmp_path, "0000:18:00.1") is None


@pytest.mark.parametrize(("text", "number"), [("231:192\n", (231, 192)), ("231", None), ("231:-1", None), (":", None)])
def test_device_number(tmp_path: Path, text: str, number: tuple[int, int] | None) -> None:
    (tmp_path / "dev").write_text(text)
    assert read_device_number(tmp_path / "dev") == number
