"""Test the check `crun` with real file systems, one of them mounted noexec, and programs that answer as crun does."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from doctor.crun import CrunReading, decide_crun, read_crun
from doctor.runtime import RuntimeReading
from lading.checks.model import Verdict
from protos.cri.runtime.v1 import api_pb2 as cri
from tests.unit.doctor.verdicts import only, states

FOLDER = "/var/lib/lading/libraries"


@pytest.fixture
def noexec(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "noexec"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec,size=64k", "lading-test", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def runtime(*programs: str, name: str = "containerd") -> RuntimeReading:
    runtimes = {f"handler-{number}": {"options": {"BinaryName": program}} for number, program in enumerate(programs)}
    config = json.dumps({"containerd": {"runtimes": {"plain": {"options": None}, **runtimes}}})
    return RuntimeReading(
        endpoint=Path("/run/runtime.sock"),
        version=cri.VersionResponse(runtime_name=name, runtime_version="2.1.9"),
        status=cri.StatusResponse(info={"config": config}),
    )


def make_crun(folder: Path, says: str, name: str = "crun") -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{says}\n")
    path.chmod(0o755)
    return str(path)


def test_the_crun_of_each_handler_is_asked_where_libraries_are_on_noexec(noexec: Path, tmp_path: Path) -> None:
    crun = make_crun(tmp_path, "printf 'crun version 1.29.1\\ncommit: f41ea02\\nspec: 1.0.0\\n'")
    silent = make_crun(tmp_path, "exit 3", "crun-wasm")
    reading = read_crun(runtime(crun, "/usr/sbin/runc", silent), [noexec, tmp_path, noexec, tmp_path / "absent"])
    assert reading == CrunReading(folders=(str(noexec),), programs=((crun, "1.29.1"), (silent, "")))
    assert states(decide_crun(reading)) == [Verdict.FAILED, Verdict.WARNING]


def test_no_program_is_run_where_no_library_is_on_noexec(tmp_path: Path) -> None:
    crun = make_crun(tmp_path, f"touch {tmp_path}/ran")
    assert read_crun(runtime(crun), [tmp_path]) == CrunReading(folders=())
    assert not (tmp_path / "ran").exists()


def test_a_crun_that_is_not_there_has_no_version(noexec: Path) -> None:
    assert read_crun(runtime("/opt/none/crun"), [noexec]).programs == (("/opt/none/crun", ""),)


@pytest.mark.parametrize(
    ("version", "state"),
    [
        ("1.8.1", Verdict.OK),
        ("1.26", Verdict.OK),
        ("1.27", Verdict.FAILED),
        ("1.29.1", Verdict.FAILED),
        ("1.30", Verdict.OK),
        ("1.30.1", Verdict.OK),
        ("2.0", Verdict.OK),
        ("UNKNOWN", Verdict.WARNING),
        ("", Verdict.WARNING),
    ],
)
def test_versions_that_keep_noexec(version: str, state: Verdict) -> None:
    finding = only(decide_crun(CrunReading(folders=(FOLDER,), programs=(("/usr/bin/crun", version),))))
    assert finding.verdict is state
    if state is not Verdict.OK:
        assert FOLDER in finding.what
        assert "1.30" in finding.mend


def test_a_node_with_runc_or_without_noexec_has_no_finding() -> None:
    assert only(decide_crun(CrunReading(folders=(FOLDER,)))).verdict is Verdict.OK
    assert only(decide_crun(CrunReading(folders=()))).verdict is Verdict.OK
