"""Test hooks that are missing, hang, or are not registered: no container of a guarded pod starts without them, and other pods
are not affected.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from lading.log import Event
from lading.reasons import Reason
from simnode.cri import Container
from simnode.daemons import LadingNode
from tests.node.conftest import StartLading, StartSite
from tests.node.site import Refused, Site, eventually, granted_in

pytestmark = pytest.mark.node

GPU = "lading.dev/gpus"
NOTICED_S = 2.0  # a change in the folder of registrations; nominally a twentieth of it


@pytest.fixture(scope="module")
def running(share_lading: StartLading) -> LadingNode:
    """Share the daemons among tests that leave both of them, and the registration, as they found them."""
    return share_lading("demo-8gpu")


@contextlib.contextmanager
def hung(lading: LadingNode) -> Iterator[None]:
    """Let the hook server accept connections and answer nothing."""
    os.kill(lading.hooks.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(lading.hooks.pid, signal.SIGCONT)


@contextlib.contextmanager
def registrations_changed(lading: LadingNode) -> Iterator[Path]:
    """Yield the folder of registrations for changes, and restore it afterwards."""
    before = {path: path.read_text() for path in lading.hooks_dir.iterdir()}
    try:
        yield lading.hooks_dir
    finally:
        for path in lading.hooks_dir.iterdir():
            path.unlink()
        for path, content in before.items():
            path.write_text(content)


def create_plain(site: Site) -> Container:
    """Create a container of a pod without guarded annotations, and check that it takes no longer than usual."""
    pod = site.kubelet.run_pod("plain")
    began = time.monotonic()
    container = pod.create_container()
    assert time.monotonic() - began < 3
    container.start()
    return container


def refused_for(site: Site, reason: Reason) -> Refused:
    """Wait until containers are refused for this reason. A container that is created before has its devices, and none is
    created without. The card is used by no other test: where a container was created, the node may not learn that its pod
    stops, because the hook is stopped by then. The node would keep the card for the grace period of a young grant, so the test
    releases the card itself."""
    made_before = []

    def check() -> Refused:
        with site.kubelet.pod("guarded", annotations={GPU: "7"}) as pod:
            made = site.create(pod)
            if not isinstance(made, Refused):
                made_before.append(made)
                assert granted_in(made) == ((site.gpu(7),), ())
            assert isinstance(made, Refused), "not yet"
            assert made.reason is reason
            assert site.direct.list_containers(pod_id=pod.id) == []
            return made

    refused = eventually(check, within_s=NOTICED_S)
    if made_before:
        hooks = site.lading.hooks
        subprocess.run([hooks.program, "release", "--config", str(hooks.config), site.gpu(7), "--force"], check=False)
    return refused


def test_without_a_hook_server_no_guarded_container_and_every_other_one(site: Site) -> None:
    lading = site.lading
    pod = site.kubelet.run_pod("guarded", annotations={GPU: "0"})
    lading.hooks.stop()
    try:
        refused = site.refused(pod)
        assert (refused.reason, refused.code) == (Reason.HOOK_UNAVAILABLE, grpc.StatusCode.UNAVAILABLE)
        assert str(lading.hooks.socket) in refused.message
        assert create_plain(site).env()["NVIDIA_VISIBLE_DEVICES"] == "void"  # the proxy does that without being told
    finally:
        lading.hooks.start()
    container = eventually(pod.create_container, within_s=1)
    container.start()
    assert site.see(container).gpus == (site.gpu(0),)
    assert site.logged(lading.proxy, Event.HOOK_BACK)


def test_a_hanging_hook_server_refuses_guarded_containers_only(site: Site) -> None:
    pod = site.kubelet.run_pod("guarded", annotations={GPU: "0"})
    with hung(site.lading):
        began = time.monotonic()
        refused = site.refused(pod)
        assert (refused.reason, refused.code) == (Reason.HOOK_TIMEOUT, grpc.StatusCode.UNAVAILABLE)
        assert time.monotonic() - began < 5  # the hook's deadline is two seconds
        create_plain(site)
    container = eventually(pod.create_container, within_s=1)
    container.start()
    assert site.see(container).gpus == (site.gpu(0),)


def test_guarded_pods_are_refused_while_the_registration_is_removed(site: Site) -> None:
    with registrations_changed(site.lading) as folder:
        (folder / "50-lading.json").unlink()
        refused = refused_for(site, Reason.NO_REGISTRATION)
        assert refused.code is grpc.StatusCode.UNAVAILABLE
        assert GPU in refused.message
        assert "NVIDIA_VISIBLE_DEVICES" not in create_plain(site).env()  # the registration also told the proxy to hide cards
    with site.kubelet.pod("back", annotations={GPU: "0"}) as pod:
        container = eventually(pod.create_container, within_s=NOTICED_S)
        container.start()
        assert site.see(container).gpus == (site.gpu(0),)


def test_an_endpoint_that_is_no_socket_is_not_asked(site: Site) -> None:
    with registrations_changed(site.lading) as folder:
        registration = json.loads((folder / "50-lading.json").read_text())
        (folder.parent / "no.sock").touch()
        (folder / "50-lading.json").write_text(json.dumps({**registration, "remote-endpoint": str(folder.parent / "no.sock")}))
        refused_for(site, Reason.HOOK_INVALID)


def test_two_hooks_that_claim_one_variable_learn_of_each_other(site: Site) -> None:
    with registrations_changed(site.lading) as folder:
        other = {
            "remote-endpoint": str(folder.parent / "nobody.sock"),
            "runtime-hooks": ["PreCreateContainer"],
            "annotation-prefixes": ["example.com/"],
            "static-adjustments": {"hide-unassigned": {"env": {"NVIDIA_VISIBLE_DEVICES": "none"}}},
        }
        (folder / "60-other.json").write_text(json.dumps(other))
        refused = refused_for(site, Reason.HOOK_CONFLICT)
        assert "50-lading.json" in refused.message
        assert "60-other.json" in refused.message


def test_without_any_registration_guarded_pods_are_refused(start_site: StartSite) -> None:
    site = start_site("workstation", proxy={"hooks_dir": "/none/such"})
    assert refused_for(site, Reason.NO_REGISTRATION).code is grpc.StatusCode.UNAVAILABLE
    create_plain(site)


def test_a_node_that_guards_nothing_and_has_no_hook_makes_every_container(start_site: StartSite) -> None:
    site = start_site("workstation", proxy={"hooks_dir": "/none/such", "guarded_prefixes": []})
    with site.kubelet.pod("bare", annotations={GPU: "0"}) as pod:
        assert site.see(pod.run_container()).nodes == frozenset()
