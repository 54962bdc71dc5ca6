"""Test case 5: device nodes that are links, files, FIFOs or another device; an image whose /dev is a link.

Naive versions that fail: `Path.stat` and `S_ISCHR` (follow the link to a perfect copy, accept another card's number); opening
the node to check it (hangs at the FIFO).
"""

import json
import os
import posixpath
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest

from hooks.main import main
from lading.reasons import Reason
from simnode import images, leftovers
from simnode.build import SimNode
from simnode.cri import CriError
from tests.conftest import BuildNode
from tests.hostile.front import annotated, assignment
from tests.node.site import Site, eventually

CARD, SECOND = "/dev/nvidia2", "/dev/nvidia3"  # indices 0 and 1 of demo-8gpu
CONTROL = "/dev/nvidiactl"


class Node(NamedTuple):
    sim: SimNode
    library: Path
    folder: Path

    def render(self, capsys: pytest.CaptureFixture[str], annotations: dict[str, str]) -> dict[str, Any]:
        """Return what this node would inject: the decision that a CreateContainer gets, over the real reading of /sys, /proc,
        /dev."""
        pod = {"kind": "Pod", "metadata": {"name": "p", "annotations": annotations}, "spec": {"containers": [{"name": "c"}]}}
        manifest = self.folder / "pod.json"
        manifest.write_text(json.dumps(pod))
        arguments = ["render", "-f", str(manifest), "-o", "json", "--assignments", "manual", "--host-root", str(self.sim.root)]
        arguments += ["--state-dir", str(self.folder / "state"), "--nvml-library", str(self.library)]
        capsys.readouterr()
        try:
            main([*arguments, "--config", str(self.folder / "empty.toml")])
        except SystemExit as e:
            assert e.code == 3  # noqa: PT017  refused
        answer: dict[str, Any] = json.loads(capsys.readouterr().out)[0]
        return answer


@pytest.fixture
def node(build_node: BuildNode, fake_nvml: Path, tmp_path: Path) -> Node:
    (tmp_path / "empty.toml").touch()
    return Node(build_node("demo-8gpu"), fake_nvml, tmp_path)


def given(answer: dict[str, Any]) -> set[str]:
    return {device["container_path"] for device in answer["adjustment"]["devices"]}


# Replacements of a device node that has the right number. The copy beside the node's folder is equal except for its path.
# tests/unit/hooks/host/test_devnodes.py has every other kind of file.


def a_link_to_a_copy(path: Path) -> None:
    copy = path.parents[1] / f"copy-{path.name}"
    os.mknod(copy, path.lstat().st_mode, path.lstat().st_rdev)
    replace(path, lambda p: p.symlink_to(copy))


def a_fifo(path: Path) -> None:
    replace(path, os.mkfifo)


def the_kernels_memory(path: Path) -> None:
    replace(path, lambda p: os.mknod(p, stat.S_IFCHR | 0o666, os.makedev(1, 2)))


def replace(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


PLANTS = [a_link_to_a_copy, a_fifo, the_kernels_memory]
parametrize_plants = pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)


@parametrize_plants
def test_in_a_cards_place(node: Node, capsys: pytest.CaptureFixture[str], plant: Callable[[Path], None]) -> None:
    plant(node.sim.root / CARD[1:])
    answer = node.render(capsys, {"lading.dev/gpus": "0"})
    assert answer["refused"]["reason"] == Reason.DEVICE_UNHEALTHY
    assert CARD in answer["refused"]["message"]
    assert "refused" in node.render(capsys, {"lading.dev/gpus": "1,0"})
    others = given(node.render(capsys, {"lading.dev/gpus": "1"}))
    assert SECOND in others
    assert CARD not in others


@parametrize_plants
def test_in_the_place_of_the_drivers_control_node(
    node: Node, capsys: pytest.CaptureFixture[str], plant: Callable[[Path], None]
) -> None:
    plant(node.sim.root / CONTROL[1:])
    answer = node.render(capsys, {"lading.dev/gpus": "0"})
    assert answer["refused"]["reason"] == Reason.DEVICE_NODE_INVALID
    assert CONTROL in answer["refused"]["message"]


@parametrize_plants
def test_in_a_vfs_place(node: Node, capsys: pytest.CaptureFixture[str], plant: Callable[[Path], None]) -> None:
    vf = node.sim.profile.pfs[0][1].vfs[0].bdf
    (verbs,) = (node.sim.pci(vf) / "infiniband_verbs").iterdir()
    path = f"/dev/infiniband/{verbs.name}"
    assert path in given(node.render(capsys, {"lading.dev/vfs": vf}))
    plant(node.sim.root / path[1:])
    answer = node.render(capsys, {"lading.dev/vfs": vf})
    assert answer["refused"]["reason"] == Reason.DEVICE_UNHEALTHY
    free = node.render(capsys, {"lading.dev/vfs": "1"})  # one that is free is another one
    assert path not in given(free)


@pytest.mark.parametrize("folder", ["dev", "dev/infiniband"])
def test_a_folder_that_is_a_link_to_a_perfect_copy(node: Node, capsys: pytest.CaptureFixture[str], folder: str) -> None:
    real, copy = node.sim.root / folder, node.folder / "copy"
    real.rename(copy)
    real.symlink_to(copy)
    vf = node.sim.profile.pfs[0][1].vfs[0].bdf
    assert node.render(capsys, {"lading.dev/vfs": vf})["refused"]["reason"] == Reason.DEVICE_UNHEALTHY
    if folder == "dev":
        assert "refused" in node.render(capsys, {"lading.dev/gpus": "0"})


@pytest.mark.node
@pytest.mark.parametrize("target", ["/escape", "../../../../../../escape", "/proc/1/root/escape", "/proc/self/cwd/../escape"])
def test_an_image_whose_dev_is_a_link(real: Site, short_folder: Path, target: str) -> None:
    """Check that no device of Lading is created on the host, and that the container has exactly the granted card. runc creates
    the nodes inside the image. (Old versions of runc create their own links, such as /dev/fd, on the host, also without
    Lading.)"""
    escape = short_folder / "escape"
    name = f"localhost/lading/linked-{uuid4().hex[:8]}:1"
    import_image(real, short_folder / "image.tar", name, target.replace("escape", str(escape).lstrip("/")))
    uid = str(uuid4())
    plain = real.direct.run_pod("linked-plain")
    granted = real.kubelet.run_pod("linked", uid=uid, annotations=annotated(assignment(uid, real.gpu(0))))
    landed = []
    for pod in (plain, granted):
        escape.mkdir()
        try:
            container = pod.run_container(image=name)
        except CriError as e:
            assert not e.details.startswith("lading: ")  # noqa: PT017  it may also work
        else:
            if pod is granted:
                container.sh(f"mknod /tmp/another c 195 {real.node.profile.gpus[1][1].minor}")
                assert container.try_open(real.card(0)) in (["ok"], ["ENXIO"])
                assert container.try_open("/tmp/another") == ["EPERM"]
        landed.append({path.name for path in escape.iterdir()})
        pod.remove()
        leftovers.remove_tree(escape)
    assert landed[1] == landed[0]


def import_image(site: Site, tar: Path, name: str, dev: str) -> None:
    """Build the busybox image with a link in place of /dev."""
    cache = images.default_cache()
    programs = images.compile_c(images._PAUSE_C), images.compile_c(images._TRY_OPEN_C)
    files = images._busybox_files(images.find_busybox(cache), *programs)
    inside = posixpath.normpath(f"/{dev}").strip("/")  # where the link leads as long as it stays in the image
    files |= {"dev": images.Entry(link=dev), f"{inside}/own": images.Entry(content=b"the image's")}
    tar.write_bytes(images.render_image(name, files, {"Cmd": ["sh"]}))
    runtime = site.runtime
    ctr = [str(runtime.binaries.folder / "ctr"), "--address", str(runtime.socket), "--namespace", "k8s.io", "images", "import"]
    subprocess.run([*ctr, "--snapshotter", runtime.snapshotter, str(tar)], check=True, capture_output=True)

    def there() -> None:
        assert site.kubelet.image_id(name)

    eventually(there)
