"""Check the runtime handler, where containerd has it."""

import json
from pathlib import Path
from typing import Any

import pytest

from doctor.handler import decide_handler, read_handler
from doctor.runtime import RuntimeReading
from hooks.frontends.nri.guard.handler import PROGRAM, VERSION_MARK, pod_annotations
from lading.checks.model import Finding, Verdict
from protos.cri.runtime.v1 import api_pb2 as cri
from tests.unit.doctor.verdicts import states


def found(table: dict[str, Any] | None, installed: str = "1.2.3") -> list[Finding]:
    config = {"containerd": {"runtimes": {"runc": {}, "lading": table}}}
    runtime = RuntimeReading(
        endpoint=Path("/x.sock"),
        version=cri.VersionResponse(runtime_name="containerd", runtime_version="1.7.24"),
        status=cri.StatusResponse(info={"config": json.dumps(config)}),
    )
    return [*decide_handler(read_handler(runtime, installed=installed))]


@pytest.fixture
def well(tmp_path: Path) -> dict[str, Any]:
    """Return the handler's table, with a program that exists."""
    path = tmp_path / PROGRAM
    path.write_bytes(VERSION_MARK.encode() + b"1.2.3\0")
    return {"PodAnnotations": list(pod_annotations()), "ContainerAnnotations": None, "options": {"BinaryName": str(path)}}


def test_it_is_optional_and_well_as_in_the_docs(well: dict[str, Any]) -> None:
    assert states(found(None)) == [Verdict.OK]
    assert states(found({**well, "PodAnnotations": [*pod_annotations(), "other.dev/*"]})) == [Verdict.OK]


@pytest.mark.parametrize(
    ("changed", "installed", "expected", "says"),
    [
        ({}, "1.2.4", [Verdict.WARNING], "1.2.3"),
        ({"options": {"BinaryName": "/usr/sbin/runc"}}, "1.2.3", [Verdict.FAILED], "/usr/sbin/runc"),
        ({"options": None}, "1.2.3", [Verdict.FAILED], "no program"),
        ({"PodAnnotations": ["lading.dev/*", *pod_annotations()]}, "1.2.3", [Verdict.FAILED], "passes lading.dev/*"),
        ({"ContainerAnnotations": ["lading.dev/gran[^s]"]}, "1.2.3", [Verdict.FAILED], "passes lading.dev/gran[^s]"),
        ({"PodAnnotations": ["*/*"]}, "1.2.3", [Verdict.FAILED, Verdict.FAILED], "can write lading.dev/grant"),
        ({"PodAnnotations": None}, "1.2.3", [Verdict.FAILED], "does not pass lading.dev/[^g]*"),
    ],
)
def test_what_is_wrong_with_it(
    well: dict[str, Any], changed: dict[str, Any], installed: str, expected: list[Verdict], says: str
) -> None:
    verdicts = found({**well, **changed}, installed)
    assert states(verdicts) == expected
    assert says in verdicts[0].what
    assert all(one.mend for one in verdicts)
