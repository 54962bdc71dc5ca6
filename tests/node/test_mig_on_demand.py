"""Make MIG instances for a pod, and remove them after it, on a card that the node's configuration names."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hooks.vendors.nvidia.nvml import read_gpus
from lading.log import Event
from lading.reasons import Reason
from simnode.containerd import PrivateContainerd
from simnode.cri import Container
from simnode.nvml import NvmlState, Running
from tests.node.conftest import StartLading
from tests.node.site import Refused, Site, eventually, granted_in, open_site

pytestmark = pytest.mark.node

CONTROL = {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}
GPU = "lading.dev/gpus"


@pytest.fixture
def site(start_lading: StartLading, containerd: PrivateContainerd) -> Iterator[Site]:
    lading = start_lading("mig-on-demand", hooks={"mig_cards": ["all"], "inventory_interval": 1})
    with open_site(lading, containerd) as site:
        yield site
    eventually(site.check_nothing_granted)


def position(site: Site, name: str) -> str:
    return f"MIG-{site.gpu(0)}/{name}"


def made(site: Site, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the instances that the driver shows: position → UUID."""
    monkeypatch.setenv("FAKE_NVML_STATE", str(site.node.nvml_state))
    library = site.node.nvml_state.parent / "libnvidia-ml.so.1"
    _, gpus, problems = read_gpus(Path(site.node.root), library=library, divided=["all"])
    assert problems == ()
    return {mig.uuid.partition("/")[2]: mig.made_uuid for gpu in gpus for mig in gpu.mig if mig.made_uuid}


def test_an_instance_is_made_for_a_pod_and_removed_after_it(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    pod = site.kubelet.run_pod("small", annotations={GPU: position(site, "1g.10gb@6")})
    container = pod.run_container()
    assert made(site, monkeypatch).keys() == {"1g.10gb@6"}
    caps = {"/dev/nvidia-caps/nvidia-cap35", "/dev/nvidia-caps/nvidia-cap36"}
    assert site.see(container).nodes == CONTROL | {site.card(0)} | caps
    assert granted_in(container) == ((position(site, "1g.10gb@6"),), ())
    pod.remove()
    eventually(lambda: _is(made(site, monkeypatch), {}))


def test_positions_that_take_the_same_memory_are_given_to_one_pod(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    first = site.kubelet.run_pod("first", annotations={GPU: position(site, "2g.20gb@4")})
    first.run_container()
    for other in ("1g.10gb@5", "3g.40gb@4", "7g.80gb@0", "2g.20gb@4"):
        refused = site.refused_at_once({GPU: position(site, other)})
        assert refused.reason is Reason.DEVICE_HELD
        assert position(site, "2g.20gb@4") in refused.message
    beside = site.kubelet.run_pod("beside", annotations={GPU: position(site, "3g.40gb@0")})
    beside.run_container()
    assert made(site, monkeypatch).keys() == {"2g.20gb@4", "3g.40gb@0"}
    first.remove()
    beside.remove()
    whole = site.kubelet.run_pod("whole", annotations={GPU: position(site, "7g.80gb@0")})
    eventually(lambda: _is_made(site.create(whole)))
    assert made(site, monkeypatch).keys() == {"7g.80gb@0"}


def test_an_instance_outlives_lading_hooks_and_one_without_a_grant_does_not(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = site.kubelet.run_pod("kept", annotations={GPU: position(site, "1g.10gb@0")})
    kept.run_container()
    deleted = site.kubelet.run_pod("gone", annotations={GPU: position(site, "1g.10gb@1")})
    deleted.run_container()
    before = made(site, monkeypatch)
    site.lading.hooks.kill()
    deleted.remove()
    site.lading.hooks.start()
    eventually(lambda: _is(made(site, monkeypatch), {"1g.10gb@0": before["1g.10gb@0"]}))


def test_a_container_that_is_made_again_has_the_same_instance(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    pod = site.kubelet.run_pod("again", annotations={GPU: position(site, "1g.10gb@3")})
    container = pod.run_container()
    before, nodes = made(site, monkeypatch), site.see(container).nodes
    container.remove()
    assert site.see(pod.run_container(attempt=1)).nodes == nodes
    assert made(site, monkeypatch) == before


def test_an_instance_that_a_process_uses_stays_until_it_has_ended(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    pod = site.kubelet.run_pod("used", annotations={GPU: position(site, "1g.10gb@2")})
    pod.run_container()
    busy = Running(1, used_mib=100, instance=(1, 0))
    NvmlState(profile=site.node.profile, processes={0: [busy]}).write(site.node.nvml_state)
    pod.remove()
    site.await_log(site.lading.hooks, Event.MIG_FAILED, "1g.10gb@2")
    assert made(site, monkeypatch).keys() == {"1g.10gb@2"}
    NvmlState(profile=site.node.profile).write(site.node.nvml_state)
    eventually(lambda: _is(made(site, monkeypatch), {}))


def _is(result: object, expected: object) -> None:
    assert result == expected


def _is_made(result: Container | Refused) -> None:
    assert isinstance(result, Container), result
