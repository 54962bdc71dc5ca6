"""Test which process has to be started anew after an upgrade. Where a driver is found is in the vendor's test_hosts.py."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lading.driverfiles import NVML, find_by_loader, find_outdated_nvml, read_loaded_nvml, read_module_version
from simnode.nvml import NvmlState
from tests.conftest import BuildNode

OLD, NEW = "550.127.05", "560.35.03"
# Load NVML, open a session, wait for a line, and print the reason and whether another session opens.
PROCESS = """
import ctypes, sys
from pathlib import Path
import pynvml
from lading.driverfiles import find_outdated_nvml, read_loaded_nvml
root, library = map(Path, sys.argv[1:])
ctypes.CDLL(str(library))
pynvml.nvmlInit()
pynvml.nvmlShutdown()
print(read_loaded_nvml(), flush=True)
for _ in sys.stdin:
    try:
        pynvml.nvmlInit()
        pynvml.nvmlShutdown()
        error = 0
    except pynvml.NVMLError as e:
        error = e.value
    print(f"{error} {find_outdated_nvml(root, lambda: library)}", flush=True)
"""


@pytest.mark.parametrize("bare", [False, True], ids=["path", "bare name"])
@pytest.mark.parametrize("upgraded", ["files", "module", "both"])
def test_a_process_with_another_nvml_than_the_module_is_outdated_once_the_right_one_is_installed(
    build_node: BuildNode, fake_nvml: Path, tmp_path: Path, upgraded: str, bare: bool
) -> None:
    node = build_node("workstation")
    library = tmp_path / NVML
    for version in (OLD, NEW):
        shutil.copy(fake_nvml, tmp_path / f"libnvidia-ml.so.{version}")
    library.symlink_to(f"libnvidia-ml.so.{OLD}")
    NvmlState(profile=node.profile).write(node.nvml_state)
    env = {**os.environ, "FAKE_NVML_STATE": str(node.nvml_state), "LD_LIBRARY_PATH": str(tmp_path)}
    command = [sys.executable, "-c", PROCESS, str(node.root), NVML if bare else str(library)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == f"{OLD}\n"
        if upgraded != "module":
            library.unlink()
            library.symlink_to(f"libnvidia-ml.so.{NEW}")
            (tmp_path / f"libnvidia-ml.so.{OLD}").unlink()
        if upgraded != "files":
            for file in (node.root / "proc/driver/nvidia/version", node.nvml_state):
                file.write_text(file.read_text().replace(OLD, NEW))
        process.stdin.write("\n")
        process.stdin.close()
        error, _, reason = process.stdout.readline().strip().partition(" ")
    assert error == ("0" if upgraded == "files" else "18")  # NVML_ERROR_LIB_RM_VERSION_MISMATCH
    assert (OLD in reason, NEW in reason) == (upgraded == "both", upgraded == "both")


def test_without_a_module_or_a_loaded_nvml_no_process_is_outdated(tmp_path: Path) -> None:
    installed = tmp_path / f"libnvidia-ml.so.{NEW}"
    assert find_outdated_nvml(tmp_path, lambda: installed) == ""
    assert find_outdated_nvml(tmp_path, lambda: None) == ""
    assert read_loaded_nvml() in {"", "1"}  # a fake without a version, which another test loaded


@pytest.mark.parametrize(
    "text",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.127.05  Tue Oct  8 03:22:07 UTC 2024\nGCC version: gcc 12.2",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.127.05  Release Build\n",
    ],
)
def test_the_version_of_the_module(tmp_path: Path, text: str) -> None:
    assert read_module_version(tmp_path) == ""
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(text)
    assert read_module_version(tmp_path) == OLD


def test_a_library_is_found_as_the_loader_of_this_machine_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", f":{tmp_path}")
    loaded = subprocess.run(["ldd", sys.executable], check=True, capture_output=True, text=True).stdout
    path = re.search(r"libc\.so\.6 => (\S+)", loaded)
    assert path
    assert find_by_loader("libc.so.6") == Path(path[1])
    (tmp_path / "libc.so.6").write_text("no library")
    assert find_by_loader("libc.so.6") == Path(path[1])
    shutil.copy(path[1], tmp_path / "libc.so.6")
    assert find_by_loader("libc.so.6") == tmp_path / "libc.so.6"
    assert find_by_loader("libno-such.so.1") is None
