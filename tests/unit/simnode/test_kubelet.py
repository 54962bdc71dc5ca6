"""Compare the rig's requests with a real kubelet's: the same fields are set, with the same defaults."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.message import Message

from protos.cri.runtime.v1 import api_pb2 as cri
from simnode.kubelet import ContainerSpec, Device, NodeFolders, PodSpec, render_container, render_sandbox

GOLDEN = Path(__file__).parents[2] / "golden/cri"
FOLDERS = NodeFolders(logs=Path("/var/log/pods"), pods=Path("/var/lib/kubelet/pods"), cgroup_root="")


def fields(message: Message, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Return every field that is set: scalars with their value, maps as their keys, repeated messages under one name."""
    for descriptor, value in message.ListFields():
        name = f"{prefix}{descriptor.name}"
        if descriptor.message_type is None:
            yield name, tuple(value) if isinstance(value, list) or hasattr(value, "append") else value
        elif descriptor.message_type.GetOptions().map_entry:
            yield name, frozenset(value)
        elif hasattr(value, "append"):
            for item in value:
                yield from fields(item, f"{name}[].")
        else:
            yield name, "set"
            yield from fields(value, f"{name}.")


def sandbox(name: str) -> cri.PodSandboxConfig:
    return cri.RunPodSandboxRequest.FromString((GOLDEN / f"RunPodSandbox-{name}.binpb").read_bytes()).config


def container(name: str) -> cri.ContainerConfig:
    return cri.CreateContainerRequest.FromString((GOLDEN / f"CreateContainer-{name}.binpb").read_bytes()).config


# Fields that may differ on a rig: another machine's address, dates, hashes, names of files.
VARIES = {"dns_config.servers", "image.image", "image.user_specified_image", "mounts[].host_path", "envs[].key", "envs[].value"}


@pytest.mark.parametrize(
    ("name", "options"), [("crash", {}), ("assigned", {"host_network": True, "privileged": True})], ids=["plain", "privileged"]
)
def test_a_pod_is_as_kubelet_has_it(name: str, options: dict[str, bool]) -> None:
    theirs = sandbox(name)
    written = {k: v for k, v in theirs.annotations.items() if not k.startswith("kubernetes.io/")}
    ours = render_sandbox(
        PodSpec(
            name=theirs.metadata.name,
            uid=theirs.metadata.uid,
            annotations=written,
            host_network=options.get("host_network", False),
            privileged=options.get("privileged", False),
        ),
        FOLDERS,
    )
    assert {k: v for k, v in fields(ours) if k not in VARIES} == {k: v for k, v in fields(theirs) if k not in VARIES}
    assert dict(ours.labels) == dict(theirs.labels)


@pytest.mark.parametrize(
    ("pod", "name", "attempt", "privileged"),
    [("crash", "c", 2, False), ("assigned", "c", 0, True)],
    ids=["restart", "privileged"],
)
def test_a_container_is_as_kubelet_has_it(pod: str, name: str, attempt: int, privileged: bool) -> None:
    theirs = container(f"{pod}-{name}-{attempt}")
    ours = render_container(
        PodSpec(name=pod, uid=theirs.labels["io.kubernetes.pod.uid"], host_network=privileged),
        ContainerSpec(name=name, command=list(theirs.command), privileged=privileged, attempt=attempt),
        image_id="sha256:0",
        folders=FOLDERS,
    )
    # The service account's token is not the rig's to give.
    del theirs.mounts[:-2]
    assert {k: v for k, v in fields(ours) if k not in VARIES} == {k: v for k, v in fields(theirs) if k not in VARIES}
    assert [m.container_path for m in ours.mounts] == [m.container_path for m in theirs.mounts]
    assert {e.key for e in ours.envs} == {e.key for e in theirs.envs}
    assert dict(ours.labels) == dict(theirs.labels)


def test_the_authors_env_comes_before_the_services_and_keeps_its_order() -> None:
    spec = ContainerSpec(name="c", env={"Z": "1", "A": "2"}, devices=[Device(host_path=Path("/d"), container_path="/dev/d")])
    ours = render_container(PodSpec(name="p"), spec, image_id="sha256:0", folders=FOLDERS)
    assert [e.key for e in ours.envs][:2] == ["Z", "A"]
    assert [(d.host_path, d.container_path, d.permissions) for d in ours.devices] == [("/d", "/dev/d", "rwm")]
