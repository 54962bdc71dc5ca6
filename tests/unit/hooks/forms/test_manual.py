import time

import pytest

from hooks.forms.manual import MAX_CHARACTERS, parse_manual, parse_memory_mib
from hooks.model.assignment import Assignment, ContainerRequest, Form, GpuRequest, Refusal, VfRequest
from lading.devices.isolation import IsolationName
from lading.reasons import Reason
from lading.vocabulary import is_manual

UUID = "GPU-00000001-2222-3333-4444-555555555555"
MIG = "MIG-00000001-2222-3333-4444-555555555555"


def every(**annotations: str) -> ContainerRequest:
    result = parse_manual({f"lading.dev/{key}": value for key, value in annotations.items()})
    assert isinstance(result, Assignment), result
    assert result.form == Form.MANUAL
    assert not result.containers
    return result.every_container


def gpus(value: str) -> list[tuple[str, int | None, int | None]]:
    request = every(gpus=value)
    assert all(gpu.pod_wide for gpu in request.gpus)
    return [(gpu.name, gpu.memory_mib, gpu.core_percent) for gpu in request.gpus]


def refused(key: str, value: str) -> str:
    result = parse_manual({key: value})
    assert isinstance(result, Refusal), result
    assert result.reason == Reason.ANNOTATION_MALFORMED
    assert len(result.message.encode()) < 600
    return result.message


def test_gpus_by_each_kind_of_name() -> None:
    assert gpus("0,1") == [("0", None, None), ("1", None, None)]
    assert gpus(" 07 ,\n1 ") == [("7", None, None), ("1", None, None)]
    assert gpus(UUID.lower()) == [(UUID, None, None)]
    assert gpus(f"{MIG},00000000:1B:00.0") == [(MIG, None, None), ("0000:1b:00.0", None, None)]
    assert gpus("all") == [("all", None, None)]


def test_a_share_may_say_its_limit_and_its_isolation() -> None:
    first, second, third = every(gpus="0:core=30,limit=60,isolation=tokens,1:limit=100,memory=1Gi,2:isolation=none,core=5").gpus
    assert (first.core_percent, first.core_limit_percent, first.isolation) == (30, 60, IsolationName.TOKENS)
    assert (second.memory_mib, second.core_percent, second.core_limit_percent, second.isolation) == (1024, None, 100, None)
    assert (third.core_percent, third.core_limit_percent, third.isolation) == (5, None, IsolationName.NONE)
    assert every(gpus="0:core=30,limit=30").gpus[0].core_limit_percent == 30


def test_shares_end_where_the_next_device_begins() -> None:
    assert gpus("0:memory=8Gi,core=30") == [("0", 8192, 30)]
    assert gpus("0:core=30 , memory=8138Mi,1") == [("0", 8138, 30), ("1", None, None)]
    assert gpus("2,0:memory=1Gi,1:core=100") == [("2", None, None), ("0", 1024, None), ("1", None, 100)]
    assert gpus("0000:1b:00.0:memory=1Gi") == [("0000:1b:00.0", 1024, None)]
    assert gpus(f"{UUID}:core=5") == [(UUID, None, 5)]


@pytest.mark.parametrize(
    ("quantity", "mib"),
    [
        ("8Gi", 8192),
        ("8138Mi", 8138),
        ("1.5Gi", 1536),
        ("8G", 7630),  # 7629.39…
        ("1M", 1),
        ("1Ki", 1),
        ("1049k", 2),  # 1.0004 MiB: up
        ("1Ti", 1048576),
        ("0.5T", 476838),
        ("0Gi", 0),
        ("8138", None),
        ("8GB", None),
        ("8GiB", None),
        ("8 Gi", None),
        ("-8Gi", None),
        ("1e3Mi", None),
        ("8gi", None),
        (".5Gi", None),
        ("", None),
        ("٨Gi", None),
        ("9" * 13 + "Gi", None),
    ],
)
def test_memory_in_mib_rounded_up(quantity: str, mib: int | None) -> None:
    assert parse_memory_mib(quantity) == mib


def test_vfs_by_name_and_by_number() -> None:
    assert every(vfs="0000:3B:00.2, mlx5_7") == ContainerRequest(vfs=(VfRequest(name="0000:3b:00.2"), VfRequest(name="mlx5_7")))
    assert every(vfs=" 2 ") == ContainerRequest(any_vfs=2, any_vfs_pod_wide=True)


def test_each_kind_is_looked_up_on_its_own() -> None:
    result = parse_manual(
        {
            "lading.dev/gpus": "0",
            "lading.dev/gpus.train": "1,2:core=10",
            "lading.dev/vfs": "2",
            "lading.dev/vfs.side": "1",
            "lading.dev/topology": "not looked at",
        }
    )
    assert isinstance(result, Assignment)
    every_gpu = (GpuRequest(name="0", pod_wide=True),)
    assert result.for_container("init") == ContainerRequest(gpus=every_gpu, any_vfs=2, any_vfs_pod_wide=True)
    assert result.for_container("train") == ContainerRequest(
        gpus=(GpuRequest(name="1"), GpuRequest(name="2", core_percent=10)), any_vfs=2, any_vfs_pod_wide=True
    )
    assert result.for_container("side") == ContainerRequest(gpus=every_gpu, any_vfs=1)


def test_a_suffix_alone_leaves_the_other_containers_without() -> None:
    result = parse_manual({"lading.dev/gpus.train": "0"})
    assert isinstance(result, Assignment)
    assert result.for_container("side").empty
    assert result.for_container("train").gpus == (GpuRequest(name="0"),)


@pytest.mark.parametrize("value", ["", "   ", ",", "0,", ",0", "0,,1"])
def test_empty_values_and_devices(value: str) -> None:
    refused("lading.dev/gpus", value)
    refused("lading.dev/vfs", value)


@pytest.mark.parametrize("value", ["/", "/dev/nvidia0", "/dev/sda", "/dev/../etc/shadow", "/proc/1/root", "..", "a/../b"])
def test_paths_of_the_host(value: str) -> None:
    for key in ("lading.dev/gpus", "lading.dev/vfs.train"):
        message = refused(key, f"mlx5_1,{value}" if "vfs" in key else f"0,{value}")
        assert key in message
        assert repr(value) in message
        assert "device 2" in message


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("nvidia0", "nvidia0"),
        ("-1", "-1"),
        ("0-3", "0-3"),
        ("0 1", "0 1"),
        ('["0"]', '["0"]'),
        ("GPU-0123", "GPU-0123"),
        ("1b:00.0", "0000:1b:00.0"),
        ("0,0", "'0'"),
        ("0,00", "'00'"),
        ("0:memory=1Gi,0:memory=2Gi", "device 2"),
        ("all,0", "all"),
        ("all,all", "device 2"),
        ("all:core=10", "all"),
        (f"{MIG}:memory=1Gi", MIG),
        ("memory=8Gi", "0:memory=8Gi"),
        ("3,memory=8Gi", "3:memory=8Gi"),
        ("0:mem=8Gi", "0:mem=8Gi"),
        ("0:memory=8Gi,cores=5", "cores=5"),
        ("0:memory=8Gi,memory=8Gi", "memory= twice"),
        ("0:core=1,memory=1Gi,core=1", "core= twice"),
        ("0:memory=8138", "'8138'"),
        ("0:memory=0Gi", "'0Gi'"),
        ("0:core=0", "'0'"),
        ("0:core=101", "'101'"),
        ("0:core=30%", "'30%'"),
        ("0:core=1.5", "'1.5'"),
        ("0:core=30,limit=20", "30 to 100"),
        ("0:core=30,limit=0", "limit='0'"),
        ("0:core=30,limit=101", "limit='101'"),
        ("0:limit=50", "memory= or core="),
        ("0:limit=50,limit=60", "limit= twice"),
        ("0:isolation=tokens", "memory= or core="),
        ("0:core=30,isolation=Tokens", "isolation='Tokens'"),
        ("0:core=30,isolation=", "none, tokens"),
        ("0:core=30,isolation=tokens,isolation=none", "isolation= twice"),
        ("0:memory=8Gi,isolation=tokens,core=abc", "core='abc'"),
        ("all:isolation=tokens", "all"),
        (f"{MIG}:isolation=tokens", MIG),
        ("\ud800", "\\ud800"),
        ("\x1b[31m", "\\x1b"),
    ],
)
def test_gpus_that_are_none_name_what_was_written(value: str, named: str) -> None:
    message = refused("lading.dev/gpus", value)
    assert "lading.dev/gpus" in message
    assert named in message


@pytest.mark.parametrize(
    "value", ["0", "1025", "99999999999", "2,3", "mlx5_1,2", "mlx5_1,mlx5_1", "mlx5_1:core=3", "-1", "1.5"]
)
def test_vfs_that_are_none(value: str) -> None:
    assert "lading.dev/vfs" in refused("lading.dev/vfs", value)


@pytest.mark.parametrize("suffix", ["", "Train", "a.b", "a_b", "x" * 64, "é", "\n"])
def test_a_suffix_that_is_no_container_name(suffix: str) -> None:
    refused(f"lading.dev/gpus.{suffix}", "0")


def test_one_wrong_annotation_refuses_all() -> None:
    assert isinstance(parse_manual({"lading.dev/gpus": "0", "lading.dev/vfs.side": "/"}), Refusal)


def test_a_value_is_bounded() -> None:
    started = time.process_time()
    refused("lading.dev/gpus", "0," * 130_000)
    refused("lading.dev/gpus", "0:memory=1Gi" + ",memory=1Gi" * ((MAX_CHARACTERS - 12) // 11))
    refused("lading.dev/gpus", ":" * MAX_CHARACTERS)
    refused("lading.dev/vfs", "9" * MAX_CHARACTERS)
    assert time.process_time() - started < 1


def test_which_keys_are_manual() -> None:
    assert all(map(is_manual, ["lading.dev/gpus", "lading.dev/vfs", "lading.dev/gpus.a", "lading.dev/vfs."]))
    assert not any(map(is_manual, ["lading.dev/gpu", "lading.dev/gpus-a", "lading.dev/assignment", "gpus"]))
