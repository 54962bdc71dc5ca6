"""Check which containers get devices, how long they hold them, and who gets them afterwards."""

import time

import pytest

from lading.log import Event
from lading.reasons import Reason
from simnode.cri import CriError
from tests.node.site import Site, eventually, granted_in

pytestmark = pytest.mark.node

GPU = "lading.dev/gpus"
VFS = "lading.dev/vfs"


def test_an_annotation_by_hand_is_for_every_container(site: Site) -> None:
    with site.kubelet.pod("every", annotations={GPU: "3", VFS: "1"}) as pod:
        init = pod.run_container("init", command=["true"])
        assert init.wait() == 0
        app, side = site.see(pod.run_container("app")), site.see(pod.run_container("side"))
        assert app.gpus == side.gpus == (site.gpu(3),)
        assert app.vfs == side.vfs == (site.vfs[0],)  # the pod's one VF, not one each
        assert granted_in(init) == (app.gpus, app.vfs)


def test_an_annotation_with_a_suffix_is_for_that_container(site: Site) -> None:
    with site.kubelet.pod("one", annotations={f"{GPU}.train": "3", f"{VFS}.train": "1"}) as pod:
        side = site.see(pod.run_container("side", env={"NVIDIA_VISIBLE_DEVICES": "all"}))
        assert side.nodes == frozenset()
        assert side.env["NVIDIA_VISIBLE_DEVICES"] == "void"
        train = site.see(pod.run_container("train"))
        assert (train.gpus, train.vfs) == ((site.gpu(3),), (site.vfs[0],))


def test_a_suffix_replaces_what_every_container_gets(site: Site) -> None:
    with site.kubelet.pod("both", annotations={GPU: "1", f"{GPU}.train": "2", f"{VFS}.a": "1", f"{VFS}.b": "1"}) as pod:
        assert site.see(pod.run_container("train")).gpus == (site.gpu(2),)
        a, b = site.see(pod.run_container("a")), site.see(pod.run_container("b"))
        assert a.gpus == b.gpus == (site.gpu(1),)
        assert (a.vfs, b.vfs) == ((site.vfs[0],), (site.vfs[1],))  # a number with a suffix is the container's own


def test_a_restarted_container_gets_the_devices_that_it_had(site: Site) -> None:
    before = site.kubelet.run_pod("before", annotations={VFS: "1"})
    before.run_container()
    with site.kubelet.pod("restarts", annotations={GPU: "4", VFS: "1"}) as pod:
        first = pod.run_container(command=["sh", "-c", "exit 1"])
        assert first.wait() == 1
        before.remove()  # from now on, a new choice would be another VF
        second = pod.run_container(attempt=1)
        assert granted_in(second) == granted_in(first) == ((site.gpu(4),), (site.vfs[1],))
        assert site.see(second).vfs == (site.vfs[1],)
        first.remove()
        assert len(site.logged(site.lading.hooks, Event.GRANT_REUSED)) >= 1


def test_a_sandbox_made_anew_for_the_same_pod_has_the_same_devices(site: Site) -> None:
    """Create a second sandbox of the same pod after the first one died, as kubelet does, which removes the first one later."""
    pod = site.kubelet.run_pod("again", annotations={GPU: "0", VFS: "mlx5_9"})
    had = site.see(pod.run_container())
    pod.stop()
    again = site.kubelet.run_pod("again", uid=pod.spec.uid, attempt=1, annotations=pod.spec.annotations)
    has = site.see(again.run_container(attempt=1))
    assert (has.gpus, has.vfs) == (had.gpus, had.vfs) == ((site.gpu(0),), (site.vfs[1],))
    pod.remove()
    for taken in ({GPU: "0"}, {VFS: "mlx5_9"}):  # the end of the old sandbox is not the end of the pod
        assert site.refused_at_once(taken).reason is Reason.DEVICE_HELD


def test_a_card_that_is_held_is_refused_naming_its_holder_and_free_soon_after(site: Site) -> None:
    holder = site.kubelet.run_pod("holder", namespace="team-a", annotations={GPU: "6"})
    container = holder.run_container("train")
    waiting = site.kubelet.run_pod("waiting", annotations={GPU: "6"})
    refused = site.refused(waiting)
    assert refused.reason is Reason.DEVICE_HELD
    assert "team-a/holder" in refused.message
    assert "container train" in refused.message
    assert site.gpu(6) in refused.message
    container.stop()
    assert site.refused(waiting).reason is Reason.DEVICE_HELD  # kubelet restarts that container
    holder.remove()
    began = time.monotonic()
    other = eventually(waiting.create_container)
    assert time.monotonic() - began < 3
    other.start()
    assert site.see(other).gpus == (site.gpu(6),)


def test_a_stopped_sandbox_holds_nothing_and_gets_nothing(site: Site) -> None:
    stopped = site.kubelet.run_pod("stopped", annotations={GPU: "6"})
    stopped.run_container()
    stopped.stop()
    other = site.kubelet.run_pod("other", annotations={GPU: "6"})
    container = site.started(other)
    assert site.see(container).gpus == (site.gpu(6),)
    late = site.refused(stopped, attempt=1)
    assert late.reason is Reason.SANDBOX_STOPPED


def test_a_container_that_the_runtime_does_not_make_does_not_keep_its_devices_from_a_retry(site: Site) -> None:
    with site.kubelet.pod("retried", annotations={GPU: "1", VFS: "1"}) as pod:
        with pytest.raises(CriError) as caught:
            pod.create_container(devices=[site.supplied("/dev/none-such")])
        assert "none-such" in caught.value.details  # the runtime's own words
        sight = site.see(pod.run_container())
        assert (sight.gpus, sight.vfs) == ((site.gpu(1),), (site.vfs[0],))
