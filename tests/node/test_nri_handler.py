"""Test the runtime handler `lading` alone: it creates no container of a guarded pod without a grant."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from hooks.frontends.nri.guard.handler import HANDLER, install
from hooks.main import main
from lading.reasons import Reason
from lading.vocabulary import ATTACHMENTS, GRANT
from protos.cri.runtime.v1 import api_pb2 as cri
from simnode.containerd import PrivateContainerd
from simnode.cri import Container, Cri, CriError, Pod
from tests.node.site import refusal_of
from tests.node.test_nri import GPU

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("runtime_handler")]

GUARDED: Final = {GPU: "0"}


@pytest.fixture
def direct(newer: PrivateContainerd) -> Iterator[Cri]:
    """Start a runtime without any plugin."""
    with newer.client() as client:
        yield client


@contextmanager
def pod_of(client: Cri, annotations: dict[str, str]) -> Iterator[Pod]:
    with client.pod("handled", runtime_handler=HANDLER, annotations=annotations) as pod:
        yield pod


def configured(client: Cri, container: Container) -> dict[str, str]:
    """Return the annotations in the container's configuration."""
    request = cri.ContainerStatusRequest(container_id=container.id, verbose=True)
    info = client.call("ContainerStatus", request, cri.ContainerStatusResponse).info["info"]
    result: dict[str, str] = json.loads(info)["runtimeSpec"]["annotations"]
    return result


def refused(container: Container) -> Reason:
    with pytest.raises(CriError) as error:
        container.start()
    status = container.status()
    assert (status.state, status.reason) == (cri.CONTAINER_EXITED, "StartError")
    assert "lading: ungranted: " in status.message
    return refusal_of(error.value).reason


def test_without_plugin_and_guards_a_guarded_pod_gets_no_container_and_others_run(direct: Cri) -> None:
    with pod_of(direct, GUARDED) as pod:
        assert refused(pod.create_container()) is Reason.UNGRANTED
    with pod_of(direct, {"other.dev/gpus": "0"}) as pod:
        container = pod.run_container()
        assert container.sh("echo runs").strip() == "runs"
        container.stop()
        assert container.wait() in (0, 137)


@pytest.mark.parametrize("forged", [{GRANT: "{}"}, {GRANT: ""}, {GRANT: "", ATTACHMENTS: "{}"}], ids=["both", "empty", "all"])
def test_a_grant_that_a_pod_writes_is_none(direct: Cri, forged: dict[str, str]) -> None:
    with pod_of(direct, {**GUARDED, **forged, "io.kubernetes.cri.container-type": "sandbox"}) as pod:
        container = pod.create_container(annotations={GRANT: "{}", "io.kubernetes.cri.container-type": "sandbox"})
        assert GPU in (annotations := configured(direct, container))
        assert GRANT not in annotations
        assert refused(container) is Reason.UNGRANTED


def test_it_is_removed_when_no_pod_needs_it_any_more(direct: Cri, newer: PrivateContainerd, tmp_path: Path) -> None:
    ours = install(newer.layout.handler, tmp_path / "bin")
    text = ["remove-handler", "--state-dir", str(tmp_path), "--runtime-endpoint", str(newer.socket)]
    with pod_of(direct, {}), pytest.raises(SystemExit):
        main(text)
    assert ours.exists()
    main(text)
    assert not ours.exists()
