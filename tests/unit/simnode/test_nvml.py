"""Test the fake NVML and its state file."""

import ctypes
from pathlib import Path

import pytest

from lading.errors import HostError
from simnode.nvml import Failure, NvmlState, Running, bus_id, compile_fake_nvml
from simnode.profile import load_profile


def test_bus_id_is_nvmls() -> None:
    assert bus_id("0000:9d:00.0") == "00000000:9D:00.0"
    assert bus_id("10000:01:00.0") == "00010000:01:00.0"


def test_no_compiler_is_a_host_error_with_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostError) as caught:
        compile_fake_nvml(tmp_path)
    assert caught.value.hint


def test_compiler_that_fails_is_a_host_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "false")
    with pytest.raises(HostError):
        compile_fake_nvml(tmp_path)


def test_library_refuses_calls_outside_a_session(fake_nvml: Path) -> None:
    count = ctypes.c_uint()
    assert ctypes.CDLL(str(fake_nvml)).nvmlDeviceGetCount_v2(ctypes.byref(count)) == 1  # NVML_ERROR_UNINITIALIZED


def test_library_refuses_a_state_that_it_cannot_use(
    fake_nvml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    state.write_text("driver 1.2\ngpoo 1\n")
    monkeypatch.setenv("FAKE_NVML_STATE", str(state))
    assert ctypes.CDLL(str(fake_nvml)).nvmlInit_v2() == 999
    assert "gpoo" in capfd.readouterr().err


def test_every_state_that_can_be_written_can_be_read(fake_nvml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / "state"
    failures = (Failure(status=15, gpu=0), Failure(status=9, function="nvmlSystemGetDriverVersion"))
    full = NvmlState(
        profile=load_profile("demo-8gpu"),
        processes={1: (42, Running(43, 512), Running(44, 512, (1, 0)), Running(45, 512, mps=True))},
        used={2: (512, 7)},
        remap_failures=(1,),
        unnamed_mig=(1,),
        links_down=((0, 17),),
        failures=failures,
    )
    full.write(state)
    state.write_text(state.read_text() + NvmlState(profile=load_profile("mig")).render())
    monkeypatch.setenv("FAKE_NVML_STATE", str(state))
    library = ctypes.CDLL(str(fake_nvml))
    assert library.nvmlInit_v2() == 0
    assert library.nvmlShutdown() == 0
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
