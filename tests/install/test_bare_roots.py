"""Install as a new user does: the files of a release, and a bare node with systemd and no Python that Lading could use.

The nodes are Debian 12, and Debian 11, whose libc (2.31) is older than the image's and whose Python would be 3.9. The image
installs the proxy by the command of docs/install.md; pods with simulated cards go through it to a real containerd. Two minutes
for the images (or LADING_IMAGES, the tar of `make image`), one for each root the first time.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from hooks.daemon.proxy_command import SCRIPT
from lading import __version__
from simnode.build import SimNode, build
from simnode.containerd import PrivateContainerd
from simnode.control_plane import free_port
from simnode.daemons import render_flat_toml
from simnode.nvml import compile_fake_nvml
from tests.docs import ROOT
from tests.fakes.needs import need
from tests.fakes.private_systemd import private_folder, uncover
from tests.install.bare_root import BareRoot, system_of
from tests.install.images import import_images, unpack_image
from tests.install.node_installer import ENDPOINT
from tests.install.test_systemd import kubelet_command, no_unit_is_known, version_of
from tests.node.site import eventually, granted_in
from tests.started import short_folder

pytestmark = [pytest.mark.node, pytest.mark.timeout(1800), pytest.mark.long]

IMAGE = f"docker.io/library/lading-node:{__version__}"
HOOKS, PROXY = "lading-hooks.service", "lading-runtimeproxy.service"
SUITES = ("bookworm", "bullseye")
STAYS = ("var/lib/lading", "var/log", "var/lib/systemd")  # the ledger, as the last line says; and systemd's own


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a release, and nothing else of this checkout."""
    system_of(SUITES[0])  # where there is no root, no image is built for it either
    need(shutil.which("apt-get") is not None and shutil.which("dpkg-deb") is not None, "Debian's apt-get and dpkg-deb")
    given = os.environ.get("LADING_IMAGES")
    argv = [sys.executable, str(ROOT / "deploy/release.py"), "--out", str(tmp_path_factory.mktemp("release"))]
    done = subprocess.run([*argv, *(["--images", given] if given else [])], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip())
    if given:
        (folder / Path(given).name).symlink_to(given)
    return folder


@pytest.fixture(scope="module")
def ctr(files: Path, containerd: PrivateContainerd) -> Iterator[list[str]]:
    text = import_images(containerd, images_of(files))
    yield text
    subprocess.run([*text, "images", "remove", IMAGE], check=True, capture_output=True)


def images_of(files: Path) -> Path:
    return files / f"lading-images-{__version__}.tar"


@pytest.fixture
def cards() -> Iterator[SimNode]:
    with short_folder() as folder:
        yield build("demo-8gpu", folder / "node")


@pytest.fixture(params=SUITES)
def node(request: pytest.FixtureRequest, containerd: PrivateContainerd, cards: SimNode) -> Iterator[BareRoot]:
    """It has a kubelet as kubeadm leaves it, and Lading was never there."""
    with private_folder() as folder:
        cached = system_of(request.param)
        root = folder / "root"
        subprocess.run(["cp", "-a", "--reflink=auto", cached, root], check=True)  # with its device nodes as they are
        shared = [cards.root.parent, containerd.layout.folder]
        observed = uncover(*shared)
        state = f"[Service]\nEnvironment=FAKE_NVML_STATE={cards.nvml_state}\n"
        node = BareRoot(
            folder, root=root, shared=shared, wanted=["kubelet.service"], drop_ins={HOOKS: observed + state, PROXY: observed}
        )
        runtime = f"--container-runtime-endpoint=unix://{containerd.socket}"
        (node.units / "kubelet.service").write_text(
            f"[Service]\nExecStart=/bin/sh -c 'while :; do sleep 3600; done' kubelet {runtime} $KUBELET_EXTRA_ARGS\n"
        )
        with node:
            yield node


class Installer:
    """A container of the image on the node: it is in the node's namespace of process ids, and has a configuration."""

    def __init__(self, ctr: list[str], node: BareRoot, settings: Mapping[str, Mapping[str, object]]) -> None:
        self._ctr = ctr
        self._node = node
        self._config = node.folder / "config"
        self._config.mkdir()
        for name, values in settings.items():
            (self._config / name).write_text(render_flat_toml(values))

    def run(self, *options: str, status: int = 0) -> str:
        """Run the installer by the command of docs/install.md."""
        argv = [*self._ctr, "run", "--rm", "--privileged", "--with-ns", f"pid:{self._node.root.parent}/ns/pid"]
        argv += ["--mount", f"type=bind,src={self._config},dst=/etc/lading,options=rbind:ro"]
        done = subprocess.run(
            [*argv, IMAGE, f"lading-install-{os.getpid()}", "lading-hooks", "install-proxy", *options],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def installer(ctr: list[str], node: BareRoot, containerd: PrivateContainerd, cards: SimNode) -> Installer:
    runtime = {"runtime_endpoint": str(containerd.socket)}
    hooks = {
        **runtime,
        "host_root": str(cards.root),
        "nvml_library": str(compile_fake_nvml(cards.nvml_state.parent)),
        "assignments": ["manual"],
        "gpu_mode": "devices",
        "metrics": f"127.0.0.1:{free_port()}",
    }
    proxy = {**runtime, "metrics": f"127.0.0.1:{free_port()}"}
    return Installer(ctr, node, {"hooks.toml": hooks, "runtimeproxy.toml": proxy})


def test_the_image_installs_the_proxy_on_a_node_without_python(
    node: BareRoot, installer: Installer, containerd: PrivateContainerd, files: Path, cards: SimNode
) -> None:
    assert "python3" not in node.run("sh", "-c", "ls /usr/bin")
    before, kubelet = node.seen(), kubelet_command(node)
    print(installer.run("--node-name", "n1", "--dry-run"))
    assert node.seen() == before
    print(installer.run("--node-name", "n1"))
    assert kubelet_command(node)[-1] == ENDPOINT
    installed = version_of(node, HOOKS)
    made = node.seen()
    installer.run("--node-name", "n1")
    assert node.seen() == made  # a second time changes nothing

    with containerd.client(via=node.root / "run/lading/cri.sock") as client:
        with client.pod("card", annotations={"lading.dev/gpus": "0"}) as pod:
            container = pod.run_container()
            (uuid,), _ = granted_in(container)
            assert uuid.startswith("GPU-")
            assert container.env()["NVIDIA_VISIBLE_DEVICES"] == "void"
            installer.run("--uninstall", status=1)  # a pod's devices would belong to no pod any more

            image = cards.root.parent / "image"
            unpack_image(images_of(files), IMAGE, image)
            (image / "opt/lading/lib/later").write_text("another content is another version")
            later = str(image / "opt/lading" / SCRIPT)
            print(node.run(later, "--image", str(image)))
            assert version_of(node, HOOKS) == version_of(node, PROXY) != installed
            installer.run("--rollback")
            assert version_of(node, HOOKS) == version_of(node, PROXY) == installed
            assert granted_in(pod.create_container("second")) != ((), ())

            break_image(image)
            node.run(later, "--image", str(image), check=False)
            assert version_of(node, HOOKS) == version_of(node, PROXY) == installed
        eventually(lambda: installer.run("--uninstall"), within_s=60)

    assert kubelet_command(node) == kubelet
    no_unit_is_known(node)
    after = node.seen()
    assert {path for path in before.keys() ^ after.keys() if not path.startswith(STAYS)} == set()
    assert {path for path in before if before[path] != after[path] and not path.startswith(STAYS)} == set()
    assert "is not installed" in installer.run("--uninstall")


def break_image(image: Path) -> None:
    """Change the lading-hooks of the image so that it ends at once."""
    (module,) = image.glob("opt/lading/lib/python3*/site-packages/hooks/daemon/daemon.py")
    module.write_text('raise SystemExit("broken")\n')
    for path in module.parent.glob("__pycache__/daemon.*.pyc"):
        path.unlink()
