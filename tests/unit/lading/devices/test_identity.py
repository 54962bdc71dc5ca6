import pytest

from lading.devices.identity import (
    is_container_name,
    is_ibdev,
    is_ifname,
    parse_gpu_uuid,
    parse_mig_uuid,
    parse_pci_address,
    shown,
)

UUID = "0000000a-1111-2222-3333-444444444444"


@pytest.mark.parametrize(
    ("written", "address"),
    [
        ("0000:3b:00.2", "0000:3b:00.2"),
        ("00000000:9D:00.0", "0000:9d:00.0"),
        ("10000:E1:1F.7", "10000:e1:1f.7"),
        ("3b:00.2", None),
        ("000:3b:00.2", None),
        ("0000:3b:00.8", None),
        ("0000:3b:20.0", None),
        ("0000:3b:00.2\n", None),
        ("0000:3b:0\u0660.2", None),
    ],
)
def test_pci_addresses_have_one_spelling(written: str, address: str | None) -> None:
    assert parse_pci_address(written) == address


def test_uuids_have_one_spelling() -> None:
    assert parse_gpu_uuid(f"gpu-{UUID.upper()}") == f"GPU-{UUID}"
    assert parse_mig_uuid(f"MIG-{UUID}") == f"MIG-{UUID}"
    assert parse_mig_uuid(f"MIG-GPU-{UUID}/01/0") == f"MIG-GPU-{UUID}/1/0"
    assert parse_mig_uuid(f"mig-gpu-{UUID}/1G.10gb@6") == f"MIG-GPU-{UUID}/1g.10gb@6"
    for wrong in (UUID, f"GPU-{UUID[:-1]}", f"GPU-{UUID} ", f"MIG-{UUID}/1", "GPU-"):
        assert parse_gpu_uuid(wrong) is None
        assert parse_mig_uuid(wrong) is None


def test_container_names_are_dns_labels() -> None:
    assert all(map(is_container_name, ["a", "train", "x-1", "a" * 63]))
    assert not any(map(is_container_name, ["", "-a", "a-", "A", "a.b", "a_b", "a" * 64, "a\n", "é"]))


def test_kernel_names() -> None:
    assert all(map(is_ibdev, ["mlx5_7", "rocep59s0f1v2", "mlx5_bond_0"]))
    assert not any(map(is_ibdev, ["", "7", "/dev", "a/b", "a" * 64]))
    assert all(map(is_ifname, ["rdma0", "eth0.100"]))
    assert not any(map(is_ifname, ["", ".", "..", "a/b", "a b", "a" * 16, "lo", "all", "default"]))


def test_what_a_message_repeats_is_bounded_and_can_be_sent() -> None:
    text = shown("\ud800\x1b[31m\u202e\n" + "x" * 10_000)
    assert len(text) < 120
    assert text.encode().isascii() or text.endswith("…")
    assert "\x1b" not in text
    assert "\n" not in text
