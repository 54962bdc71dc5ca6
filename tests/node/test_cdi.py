"""Test mode `cdi` with the specs of nvidia-ctk: GPUs by CDI names, or a refusal if the runtime would ignore the names."""

import json
from pathlib import Path

import grpc
import pytest

from hooks.frontends.nri.messages import Runtime
from lading.reasons import Reason
from simnode.containerd import PrivateContainerd
from simnode.containerd_config import has_cdi
from simnode.cri import Container, Pod
from simnode.daemons import LadingNode
from tests.node.conftest import StartLading, StartSite
from tests.node.site import eventually, granted_in, open_site

pytestmark = pytest.mark.node

GPU = "lading.dev/gpus"
BY_CTK = {"gpu_mode": "cdi", "cdi_specs": "nvidia-ctk"}


def write_spec(lading: LadingNode, folder: Path) -> None:
    """Write the first three cards, as `nvidia-ctk cdi generate --device-name-strategy=uuid` does."""

    def edits(*paths: str, **env: str) -> dict[str, object]:
        nodes = [{"path": path, "hostPath": str(lading.node.root / path[1:]), "permissions": "rw"} for path in paths]
        return {"deviceNodes": nodes, "env": [f"{name}={value}" for name, value in env.items()]}

    cards = [card for _, card in lading.node.profile.gpus][:3]
    spec = {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [{"name": card.uuid, "containerEdits": edits(f"/dev/nvidia{card.minor}")} for card in cards],
        "containerEdits": edits("/dev/nvidiactl", "/dev/nvidia-uvm", EDITED_BY="cdi"),
    }
    folder.mkdir(exist_ok=True)
    (folder / "nvidia.json").write_text(json.dumps(spec))


def test_a_runtime_that_ignores_cdi_is_refused_by_name(
    containerd: PrivateContainerd, start_site: StartSite, short_folder: Path
) -> None:
    if has_cdi(containerd.version):
        pytest.skip(f"containerd {containerd.version} honours CDI")
    site = start_site(hooks={**BY_CTK, "cdi_spec_dirs": [str(short_folder)]})
    write_spec(site.lading, short_folder)
    refused = site.refused_at_once({GPU: "0"})
    assert refused.reason is Reason.CDI_UNAVAILABLE
    assert refused.code is grpc.StatusCode.FAILED_PRECONDITION
    assert f"containerd {containerd.version}" in refused.message
    with site.kubelet.pod("no-gpu", annotations={"lading.dev/vfs": "1"}) as pod:
        assert len(site.see(pod.run_container()).vfs) == 1  # needs no CDI


def test_a_runtime_that_honours_cdi_gives_what_the_spec_says(newer: PrivateContainerd, start_lading: StartLading) -> None:
    lading = start_lading(hooks={**BY_CTK, "cdi_spec_dirs": [str(newer.layout.cdi)]}, runtime=newer)
    write_spec(lading, newer.layout.cdi)
    lading.hooks.restart()  # a start reads the specs
    with open_site(lading, newer) as site, site.kubelet.pod("by-cdi", annotations={GPU: "0,2"}) as pod:
        container = site.started(pod)
        sight = site.see(container)
        assert sight.nodes == {site.card(0), site.card(2), "/dev/nvidiactl", "/dev/nvidia-uvm"}
        assert sight.env["EDITED_BY"] == "cdi"
        assert sight.env["NVIDIA_VISIBLE_DEVICES"] == "void"
        assert granted_in(container) == (sight.gpus, ())
        undefined = site.refused_at_once({GPU: "7"})
        assert undefined.reason is Reason.CDI_UNAVAILABLE
        assert site.gpu(7) in undefined.message


def test_by_nri_names_are_given_or_refused_by_the_runtimes_version(newer: PrivateContainerd, start_lading: StartLading) -> None:
    lading = start_lading(hooks={**BY_CTK, "cdi_spec_dirs": [str(newer.layout.cdi)]}, runtime=newer, nri=True)
    write_spec(lading, newer.layout.cdi)
    lading.hooks.restart()
    with open_site(lading, newer) as site, site.kubelet.pod("by-cdi", annotations={GPU: "0,2"}) as pod:
        if Runtime(name="containerd", version=newer.version).honours_cdi:
            sight = site.see(run(pod))
            assert sight.nodes == {site.card(0), site.card(2), "/dev/nvidiactl", "/dev/nvidia-uvm"}
            assert sight.env["EDITED_BY"] == "cdi"
            return

        def check() -> None:
            refused = site.refused(pod)
            assert refused.reason is Reason.CDI_UNAVAILABLE
            assert f"containerd {newer.version}" in refused.message

        eventually(check)


def run(pod: Pod) -> Container:
    container = eventually(pod.create_container)
    container.start()
    return container
