"""The images: built from Debian's packages and the wheel, loaded into a real containerd, and run.

It takes two minutes: the pinned packages come from the package index, Debian's from apt.
"""

import base64
import hashlib
import json
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from central.daemon.certificates import render_secrets
from central.daemon.keys import write_pair
from deploy.wheel import build
from lading import __version__
from lading.vocabulary import CENTRAL
from protos.cri.runtime.v1 import api_pb2 as cri
from simnode.containerd import PrivateContainerd
from simnode.cri import Container, Cri, Pod
from simnode.kubelet import ContainerSpec, Mount, render_container
from tests.docs import ROOT
from tests.fakes.needs import need
from tests.install.images import build_images, import_images

pytestmark = [pytest.mark.node, pytest.mark.timeout(600), pytest.mark.long]

NAME = f"docker.io/library/lading-central:{__version__}"
NODE = f"docker.io/library/lading-node:{__version__}"
DEPLOYMENT = ROOT / "deploy/central/deployment.yaml"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need(shutil.which("apt-get") is not None and shutil.which("dpkg-deb") is not None, "Debian's apt-get and dpkg-deb")
    return build(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def image(wheel: Path) -> Iterator[Path]:
    path = build_images(wheel, wheel.parent)
    yield path
    path.unlink()  # 360 MB


@pytest.fixture(scope="module")
def client(image: Path, containerd: PrivateContainerd) -> Iterator[Cri]:
    """With the image in its containerd, by the command that docs/install.md has for nodes."""
    ctr = import_images(containerd, image)
    with containerd.client() as client:
        yield client
    subprocess.run([*ctr, "images", "remove", NAME, NODE], check=True, capture_output=True)


def run_as_the_deployment(client: Cri, pod: Pod, name: str, args: list[str], mounts: list[Mount]) -> Container:
    """A container of it as kubelet would make it: its security context, its user, nothing to write to."""
    template = yaml.safe_load(DEPLOYMENT.read_text().split("\n---")[0])["spec"]["template"]["spec"]
    (central,) = template["containers"]
    spec = ContainerSpec(name=name, image=NAME, command=(), args=args, mounts=mounts)
    image_id = client.image_id(NAME)
    assert image_id
    config = render_container(pod.spec, spec, image_id=image_id, folders=client.folders)
    security = config.linux.security_context
    security.run_as_user.value = template["securityContext"]["runAsUser"]
    security.run_as_group.value = template["securityContext"]["runAsGroup"]
    security.readonly_rootfs = central["securityContext"]["readOnlyRootFilesystem"]
    security.no_new_privs = not central["securityContext"]["allowPrivilegeEscalation"]
    security.capabilities.drop_capabilities.extend(central["securityContext"]["capabilities"]["drop"])
    assert security.readonly_rootfs
    return create(client, pod, spec, config)


def create(client: Cri, pod: Pod, spec: ContainerSpec, config: cri.ContainerConfig) -> Container:
    pod.write_files(spec, config)
    request = cri.CreateContainerRequest(pod_sandbox_id=pod.id, config=config, sandbox_config=pod.config)
    made = client.call("CreateContainer", request, cri.CreateContainerResponse)
    container = Container(client, made.container_id, Path(pod.config.log_directory) / config.log_path)
    container.start()
    return container


def test_it_runs_as_the_deployment_has_it(client: Cri, tmp_path: Path) -> None:
    signing, tls = tmp_path / "signing", tmp_path / "tls"
    for folder in (tmp_path, signing, tls):
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)
    private, _ = write_pair(signing, "central-1")
    private.rename(signing / "private.pem").chmod(0o644)  # the mode that a Secret's file has for its fsGroup
    (secret,) = (one for one in render_secrets("lading-system", days=1) if one["metadata"]["name"] == f"{CENTRAL}-tls")
    for name, content in secret["data"].items():
        (tls / name).write_bytes(base64.b64decode(content))
    mounts = [
        Mount(container_path="/etc/lading/central.toml", host_path=ROOT / "deploy/central/central.toml", readonly=True),
        Mount(container_path="/etc/lading/tls", host_path=tls, readonly=True),
        Mount(container_path="/etc/lading/signing", host_path=signing, readonly=True),
    ]
    with client.pod("central") as pod:
        version = run_as_the_deployment(client, pod, "version", ["--version"], [])
        assert version.wait() == 0
        assert version.logs().split() == ["lading-central", __version__]
        replay = run_as_the_deployment(client, pod, "replay", ["simulate", "--help"], [])  # another package, another process
        assert replay.wait() == 0, replay.logs()
        args = ["--config", "/etc/lading/central.toml", "--advertise", "192.0.2.1", "--check-config"]
        check = run_as_the_deployment(client, pod, "check", args, mounts)
        assert check.wait() == 0, check.logs()
        wrong = run_as_the_deployment(client, pod, "wrong", args, mounts[:2])  # without the key
        assert wrong.wait() == 2
        assert "signing_key" in wrong.logs()


@pytest.mark.parametrize("command", ["lading-hooks", "lading-shares", "lading-doctor"])
def test_the_image_of_nodes_has_every_command_of_a_node(client: Cri, command: str) -> None:
    with client.pod("node") as pod:
        spec = ContainerSpec(name="version", image=NODE, command=[command], args=["--version"])
        config = render_container(pod.spec, spec, image_id=client.image_id(NODE) or "", folders=client.folders)
        config.linux.security_context.readonly_rootfs = True
        container = create(client, pod, spec, config)
        assert container.wait() == 0, container.logs()
        assert container.logs().split() == [command, __version__]


def test_the_same_wheel_gives_the_same_bytes(wheel: Path, image: Path, tmp_path: Path) -> None:
    again = build_images(wheel, tmp_path, umask=0o077)
    assert digest_of(again) == digest_of(image)
    again.unlink()


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def test_its_layers_are_what_its_configuration_says(image: Path) -> None:
    with tarfile.open(image) as archive:

        def read(name: str) -> bytes:
            file = archive.extractfile(name)
            assert file
            return file.read()

        for_docker, of_nodes = json.loads(read("manifest.json"))
        assert for_docker["Layers"] == of_nodes["Layers"]
        config = json.loads(read(for_docker["Config"]))
        digests = [f"sha256:{hashlib.sha256(read(name)).hexdigest()}" for name in for_docker["Layers"]]
        assert config["rootfs"]["diff_ids"] == digests
        assert [one["RepoTags"] for one in (for_docker, of_nodes)] == [
            [name.removeprefix("docker.io/library/")] for name in (NAME, NODE)
        ]
        named, _ = json.loads(read("index.json"))["manifests"]
        manifest: dict[str, Any] = json.loads(read(f"blobs/{named['digest'].replace(':', '/')}"))
        assert [layer["digest"] for layer in manifest["layers"]] == digests
        last = archive.extractfile(for_docker["Layers"][-1])
        with tarfile.open(fileobj=last) as layer:
            theirs = [entry.name for entry in layer if "/lading" not in entry.name.removeprefix("opt/lading")]
        assert theirs  # another version of Lading is this layer alone
        assert not [name for name in theirs if "numpy" in name or name.startswith("usr/")]
