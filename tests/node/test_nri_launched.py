"""Test the guard that containerd launches: after containerd's start no container of a guarded pod is created bare."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from hooks.frontends.nri.guard.launched import PROGRAM
from lading.reasons import Reason
from simnode.containerd import PrivateContainerd
from simnode.cri import Cri, CriError
from tests.node.conftest import StartLading
from tests.node.site import eventually, open_site, refusal_of
from tests.node.test_nri import GPU, await_asked, create_within, start

pytestmark = pytest.mark.node

GUARDED: Final = {GPU: "0"}
_HOOKS: Final = str(Path(sys.executable).with_name("lading-hooks"))


@pytest.fixture(scope="module")
def launching(newer: PrivateContainerd, launched_guard: Path) -> Iterator[PrivateContainerd]:
    """Start a containerd with the guard in its folder of plugins."""
    run("install-guard", "--nri-plugin-path", folder_of(newer), "--program", launched_guard)
    newer.restart()
    yield newer
    run("remove-guard", "--nri-plugin-path", folder_of(newer))
    newer.restart()  # the guard that runs would go on


@pytest.fixture
def direct(launching: PrivateContainerd) -> Iterator[Cri]:
    with launching.client() as client:
        yield client


def folder_of(runtime: PrivateContainerd) -> Path:
    return runtime.layout.nri / "plugins"


def run(*text: object) -> str:
    done = subprocess.run([_HOOKS, *map(str, text)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def launched(runtime: PrivateContainerd) -> list[int]:
    """Return the processes of the launched guard."""
    program = folder_of(runtime) / PROGRAM
    result = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and (folder / "exe").readlink() == program:
                result.append(int(folder.name))
        except OSError:
            continue
    return result


def refused(client: Cri, annotations: dict[str, str]) -> Reason:
    with client.pod("refused", annotations=annotations) as pod:
        with pytest.raises(CriError) as error:
            pod.create_container()
        assert client.list_containers(pod_id=pod.id) == []
        return refusal_of(error.value).reason


def test_alone_it_refuses_guarded_pods_from_the_start_and_lets_others_run(direct: Cri) -> None:
    assert refused(direct, GUARDED) is Reason.UNGRANTED
    assert refused(direct, {"lading.dev/grant": "{}"}) is Reason.ANNOTATION_RESERVED
    with direct.pod("plain") as pod:
        assert pod.run_container().sh("echo runs").strip() == "runs"


def test_it_stays_when_containerd_restarts_beside_pods(direct: Cri, launching: PrivateContainerd) -> None:
    with direct.pod("plain") as pod:
        pod.run_container()
        (before,) = launched(launching)
        launching.restart()
        with launching.client() as client:
            assert refused(client, GUARDED) is Reason.UNGRANTED
        (after,) = launched(launching)
        assert after != before


def test_with_lading_and_both_guards_pods_get_their_devices(launching: PrivateContainerd, start_lading: StartLading) -> None:
    lading = start_lading(runtime=launching, nri=True)
    with open_site(lading, launching) as site:
        await_asked(site)
        with site.kubelet.pod("train", annotations=GUARDED) as pod:
            assert site.see(pod.run_container()).gpus == (site.gpu(0),)
        with site.kubelet.pod("plain") as pod:
            assert site.see(pod.run_container()).gpus == ()
        eventually(site.check_nothing_granted)


def test_it_refuses_when_lading_and_the_other_guard_are_killed(launching: PrivateContainerd, start_lading: StartLading) -> None:
    lading = start_lading(runtime=launching, nri=True)
    with open_site(lading, launching) as site:
        await_asked(site)
        with site.kubelet.pod("waits", annotations=GUARDED) as pod:
            lading.guard.kill()
            lading.hooks.kill()
            assert site.refused(pod).reason is Reason.UNGRANTED
            lading.guard.start()
            lading.hooks.start()
            assert site.see(start(create_within(pod))).gpus == (site.gpu(0),)
        eventually(site.check_nothing_granted)


def test_killed_it_is_launched_again_only_by_containerds_next_start(direct: Cri, launching: PrivateContainerd) -> None:
    """Check the gap that the second guard covers: with no guard and without Lading, a guarded pod starts bare."""
    (pid,) = launched(launching)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: deleted(launching))
    with direct.pod("bare", annotations=GUARDED) as pod:
        pod.create_container()
    assert launched(launching) == []
    launching.restart()
    with launching.client() as client:
        assert refused(client, GUARDED) is Reason.UNGRANTED


def deleted(runtime: PrivateContainerd) -> None:
    assert launched(runtime) == []
