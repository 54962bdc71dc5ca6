"""Parse verbose answers of containerd 1.6.20, 1.7.24 and 2.1.9, and of CRI-O's source, cut to the fields that are read."""

import json

import pytest

from hooks.host.netns import HOST, netns_path
from protos.cri.runtime.v1 import api_pb2 as cri

_PATH = "/var/run/netns/cni-ff51b962-d500-756c-62f0-32068179cd16"
_OTHERS = [{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}]


def said(info: object, *, network: int = cri.NamespaceMode.POD) -> cri.PodSandboxStatusResponse:
    status = cri.PodSandboxStatusResponse()
    status.status.linux.namespaces.options.network = network  # type: ignore[assignment]
    status.info["info"] = info if isinstance(info, str) else json.dumps(info)
    return status


def spec(*namespaces: object) -> dict[str, object]:
    return {"linux": {"namespaces": [*_OTHERS, *namespaces]}}


@pytest.mark.parametrize(
    "info",
    [
        {"pid": 3765, "netNamespaceClosed": False, "runtimeSpec": spec({"type": "network", "path": _PATH})},
        {"pid": 3765, "runtimeSpec": spec({"type": "network", "path": _PATH}), "sandboxMetadata": {"Version": "v1"}},
        {"image": "registry.k8s.io/pause:3.9", "pid": 4711, "runtimeSpec": spec({"type": "network", "path": _PATH})},
    ],
    ids=["containerd-1", "containerd-2", "cri-o"],
)
def test_the_path_of_the_oci_configuration_is_taken(info: object) -> None:
    assert netns_path(said(info)) == _PATH


@pytest.mark.parametrize(
    "status",
    [said({"pid": 12, "runtimeSpec": spec()}), said({"pid": 12}, network=cri.NamespaceMode.NODE), said("", network=2)],
    ids=["no network namespace in it", "CRI says so", "CRI says so, alone"],
)
def test_a_pod_of_the_hosts_network(status: cri.PodSandboxStatusResponse) -> None:
    assert netns_path(status) == HOST


def test_a_closed_namespace_is_none() -> None:
    closed = {"pid": 0, "netNamespaceClosed": True, "runtimeSpec": spec({"type": "network", "path": _PATH})}
    assert netns_path(said(closed)) is None


@pytest.mark.parametrize(
    "info",
    [
        "",
        "{",
        "[]",
        "null",
        "[" * 100_000,
        {},
        {"pid": 12},
        {"pid": 12, "runtimeSpec": None},
        {"pid": 12, "runtimeSpec": spec({"type": "network"})},
        {"runtimeSpec": {"linux": 3}},
    ],
)
def test_what_cannot_be_read_says_nothing(info: object) -> None:
    assert netns_path(said(info)) is None


@pytest.mark.parametrize("path", ["netns/cni-1", "", 7, None, "/run/netns/a\0b"])
def test_a_path_that_is_none_is_not_used(path: object) -> None:
    assert netns_path(said({"pid": 12, "runtimeSpec": spec({"type": "network", "path": path})})) is None


def test_an_answer_that_was_not_verbose_says_nothing() -> None:
    assert netns_path(cri.PodSandboxStatusResponse()) is None
