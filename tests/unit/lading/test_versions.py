"""Test which versions go together."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.runtime import decide_cdi_support
from lading.versions import (
    Support,
    find_skews,
    go_together,
    judge_api_server,
    judge_kubelet,
    judge_runtime,
    judge_scheduler,
    judge_step,
    parse_version,
)
from protos.cri.runtime.v1 import api_pb2 as cri

VERSIONS = st.builds("{}.{}.{}".format, st.integers(0, 2), st.integers(0, 5), st.integers(0, 9))


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0.1.0", (0, 1, 0)),
        ("v1.36.2+k3s1", (1, 36, 2)),
        ("1.7.28-0ubuntu1~24.04", (1, 7, 28)),
        ("1.30", (1, 30, 0)),
        ("", None),
        ("latest", None),
        ("1", None),
        ("1.2.3.4", None),
        ("sha256:1.2.3", None),
    ],
)
def test_a_version_is_read(text: str, numbers: tuple[int, int, int] | None) -> None:
    assert parse_version(text) == numbers


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ("0.1.0", "0.1.9", True),
        ("0.1.0", "0.2.0", True),
        ("0.1.0", "0.3.0", False),
        ("0.9.0", "1.0.0", False),
        ("dev", "dev", True),
        ("dev", "0.1.0", False),
    ],
)
def test_parts_are_at_most_a_minor_version_separate(one: str, other: str, together: bool) -> None:
    assert go_together(one, other) is together


@given(VERSIONS, VERSIONS)
def test_it_is_the_same_from_both_sides(one: str, other: str) -> None:
    assert go_together(one, other) == go_together(other, one)
    assert go_together(one, one)


@given(VERSIONS, VERSIONS)
def test_a_step_is_open_exactly_between_neighbours(one: str, other: str) -> None:
    assert (judge_step(one, other).support is Support.NONE) == (not go_together(one, other))


def test_every_pair_that_is_too_far_separate_is_named() -> None:
    skews = find_skews({"central": "0.3.0", "hooks": "0.1.0", "proxy": "0.2.0", "page": ""})
    assert [(skew.parts, skew.versions) for skew in skews] == [(("central", "hooks"), ("0.3.0", "0.1.0"))]
    assert "0.3.0" in skews[0].why


@pytest.mark.parametrize(
    ("running", "target", "support"),
    [
        ("0.1.0", "0.2.0", Support.FULL),
        ("0.1.0", "0.1.0", Support.FULL),
        ("0.2.0", "0.1.0", Support.LIMITED),
        ("0.1.0", "0.3.0", Support.NONE),
        ("0.9.0", "1.0.0", Support.NONE),
        ("0.1.0", "newest", Support.UNKNOWN),
    ],
)
def test_an_upgrade_goes_by_minor_versions(running: str, target: str, support: Support) -> None:
    assert judge_step(running, target).support is support


@pytest.mark.parametrize(
    ("running", "target", "via"), [("0.1.0", "0.4.0", "0.2.0"), ("0.4.0", "0.1.0", "0.3.0"), ("0.9.0", "1.0.0", "")]
)
def test_a_step_that_is_too_long_goes_by_another(running: str, target: str, via: str) -> None:
    assert judge_step(running, target).via == via


@pytest.mark.parametrize(("text", "support"), [("v1.29.9", "none"), ("v1.30.0", "full"), ("v1.36.2", "full"), ("?", "unknown")])
def test_the_api_server_has_admission_policies(text: str, support: str) -> None:
    assert judge_api_server(text).support == support


@pytest.mark.parametrize(
    ("text", "kubelet", "scheduler"),
    [
        ("v1.36.2", "full", "full"),
        ("v1.35.0", "full", "full"),
        ("v1.33.0", "full", "none"),
        ("v1.32.0", "none", "none"),
        ("v1.37.0", "none", "none"),
        ("", "unknown", "unknown"),
    ],
)
def test_what_runs_beside_the_api_server(text: str, kubelet: str, scheduler: str) -> None:
    assert judge_kubelet(text, api_server="v1.36.0").support == kubelet
    assert judge_scheduler(text, api_server="v1.36.0").support == scheduler


@pytest.mark.parametrize(
    ("text", "support"),
    [
        ("containerd://1.5.18", "none"),
        ("containerd://1.6.20~ds1", "limited"),
        ("containerd://1.7.1", "limited"),
        ("containerd://1.7.2", "full"),
        ("containerd://2.1.0", "full"),
        ("containerd://unknown", "unknown"),
        ("cri-o://1.34.0", "unknown"),
        ("", "unknown"),
    ],
)
def test_the_runtime(text: str, support: str) -> None:
    assert judge_runtime(text).support == support


@pytest.mark.parametrize("version", ["1.6.20", "1.7.0", "1.7.1", "1.7.2", "2.0.0"])
def test_cdi_is_judged_as_the_node_does(version: str) -> None:
    enabled = cri.StatusResponse(info={"config": json.dumps({"enableCDI": True})})
    named = cri.VersionResponse(runtime_name="containerd", runtime_version=version)
    full = judge_runtime(f"containerd://{version}").support is Support.FULL
    assert decide_cdi_support(named, enabled).supported == full
