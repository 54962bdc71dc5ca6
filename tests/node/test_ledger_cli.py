"""Run `lading-hooks ledger` and `lading-hooks release` on a node with both daemons and VFs that move."""

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from lading.log import Event
from simnode.containerd import PrivateContainerd
from tests.node.conftest import StartVfs
from tests.node.site import eventually
from tests.node.vf_site import INSIDE, SETTINGS, VfNode, VfSite, netns_of, open_vf_site

pytestmark = pytest.mark.node

IN_USE = 3


@pytest.fixture(scope="module")
def node(share_vfs: StartVfs) -> VfNode:
    return share_vfs(pfs=1)


@pytest.fixture
def site(node: VfNode, containerd: PrivateContainerd) -> Iterator[VfSite]:
    with open_vf_site(node, containerd) as site:
        yield site


def asked(site: VfSite, *argv: str) -> tuple[int, dict[str, Any]]:
    """Exit status and answer of a command of a person's."""
    hooks = site.lading.hooks
    command = [hooks.program, argv[0], "--config", str(hooks.config), "-o", "json", *argv[1:]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def listed(site: VfSite, vf: str) -> dict[str, Any]:
    status, answer = asked(site, "ledger")
    assert status == 0
    result: dict[str, Any] = next(device for device in answer["devices"] if device["device"] == vf)
    return result


def test_a_vf_is_listed_where_it_is(site: VfSite) -> None:
    vf, other = site.vfs
    assert [listed(site, one)["state"] for one in (vf, other)] == ["free", "free"]
    pod = site.run_vf_pod("train", {"main": [site.entry(vf, **SETTINGS)]})
    pod.run_container()
    result = listed(site, vf)
    assert (result["state"], listed(site, other)["state"]) == ("attached", "free")
    assert result["attachment"]["netns"] == str(netns_of(site, pod))
    assert [(holder["pod"], holder["container"], holder["gen"]) for holder in result["holders"]] == [("train", "main", 1)]
    site.rig.fail("set_vf")
    pod.remove()
    stuck = listed(site, vf)
    assert stuck["state"] == "returning"
    assert stuck["attachment"]["failure"] in stuck["why"]
    site.rig.fail()
    site.await_as_before()
    eventually(lambda: free(site, vf))


def free(site: VfSite, vf: str) -> None:
    assert listed(site, vf)["state"] == "free"


def test_a_pod_that_runs_keeps_its_vf(site: VfSite) -> None:
    vf = site.vfs[0]
    container = site.run_vf_pod("train", {"main": [site.entry(vf, **SETTINGS)]}).run_container()
    status, answer = asked(site, "release", vf)
    assert (status, answer["steps"], len(answer["in_use"])) == (0, [], 2)  # the grant, and the VF in its sandbox
    status, answer = asked(site, "release", vf, "--force")
    assert (status, answer["steps"]) == (IN_USE, [])
    assert site.inside(container, "rdma5") == INSIDE


def test_what_a_pod_that_is_deleted_left_is_given_back_when_a_person_says_so(site: VfSite) -> None:
    """Remove the node's last pod while the daemon is stopped. For a minute after its start, the daemon does not believe an
    empty list. The removal bypasses the proxy, which would repeat the end of a pod to a daemon that is back within seconds.

    The pod is removed past the proxy, which would repeat the end of a pod to a daemon that is back within seconds."""
    vf = site.vfs[0]
    pod = site.run_vf_pod("gone", {"main": [site.entry(vf, **SETTINGS)]})
    pod.run_container()
    site.lading.hooks.kill()
    site.direct.remove_sandbox(pod.id)
    site.rig.await_returned(vf)
    alone, released = asked(site, "release", vf)  # without a daemon it looks itself
    assert (alone, released["in_use"], released["forced"]) == (0, [], False)
    site.lading.hooks.start()
    assert listed(site, vf)["state"] == "attached"
    assert asked(site, "release", vf) == (0, released)
    assert site.row(vf) is not None
    status, answer = asked(site, "release", vf, "--force")
    assert (status, answer["failed"], answer["steps"]) == (0, [], released["steps"])
    site.check_as_before()
    assert site.grants() == ()
    assert site.logged(site.lading.hooks, Event.RELEASE_FORCED, vf)
    next_owner = site.run_vf_pod("next", {"main": [site.entry(vf, **SETTINGS)]})
    assert site.inside(next_owner.run_container(), "rdma5") == INSIDE
