"""Attack a node: both real daemons, pods that are created through the proxy, and a runtime that records its requests.

Annotations, environments and names may have any content. The result is the runtime's request, or the refusal, and whether the
call reached neither the runtime nor the ledger. This module also writes and signs assignments as central does.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Final, Self, Unpack
from uuid import uuid4

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from hooks.ledger.store import read_ledger
from hooks.model.grant import Grant
from lading.signature import sign
from lading.vocabulary import ASSIGNMENT, ASSIGNMENT_SIGNATURE
from protos.cri.runtime.v1 import api_pb2 as cri
from simnode.cri import CriError, Pod
from simnode.daemons import LadingNode
from simnode.kubelet import ContainerOptions
from tests.hostile.runtime import InMemoryRuntime
from tests.node.site import Refused, eventually, refusal_of

PRIVATE_KEY: Final = Ed25519PrivateKey.from_private_bytes(b"hostile tests, and nothing else.")
PUBLIC_KEY: Final = PRIVATE_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def assignment(uid: str, gpu: str, *, gen: int = 1, node: str = "demo", container: str = "main") -> str:
    """Return an assignment of one GPU to one container, as central writes it."""
    of: dict[str, Any] = {"v": 1, "pod": uid, "node": node, "gen": gen, "containers": {container: {"gpus": [{"uuid": gpu}]}}}
    return json.dumps(of, separators=(",", ":"))


def annotated(text: str, *, key_id: str = "k1", key: Ed25519PrivateKey = PRIVATE_KEY) -> dict[str, str]:
    """Return the two annotations that central writes for this assignment."""
    return {ASSIGNMENT: text, ASSIGNMENT_SIGNATURE: sign(key, key_id, text)}


class Front:
    def __init__(self, lading: LadingNode, runtime: InMemoryRuntime) -> None:
        self.lading = lading
        self.runtime = runtime
        self.kubelet = lading.client()
        self._names = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kubelet.close()

    def reconnect(self) -> None:
        """Connect again, as kubelet does after the proxy's restart."""
        self.kubelet.close()
        self.kubelet = self.lading.client()

    def gpu(self, index: int) -> str:
        return self.lading.node.profile.gpus[index][1].uuid

    def card(self, index: int) -> str:
        return f"/dev/nvidia{self.lading.node.profile.gpus[index][1].minor}"

    @property
    def vfs(self) -> list[str]:
        return [vf.bdf for _, pf in self.lading.node.profile.pfs for vf in pf.vfs]

    def grants(self) -> tuple[Grant, ...]:
        """Return the grants in the ledger on disk."""
        return read_ledger(self.lading.folder / "state" / "node.db")

    @contextlib.contextmanager
    def pod(self, annotations: Mapping[str, str], uid: str = "") -> Iterator[Pod]:
        """Create a pod. It is removed at the end of the block, and then holds no device."""
        self._names += 1
        with self.kubelet.pod(f"pod-{self._names}", annotations=annotations, uid=uid or str(uuid4())) as pod:
            yield pod

        def released() -> None:
            assert pod.spec.uid not in {grant.pod for grant in self.grants()}

        eventually(released)

    @contextlib.contextmanager
    def created(
        self, of_pod: Mapping[str, str], *, uid: str = "", name: str = "main", **options: Unpack[ContainerOptions]
    ) -> Iterator[cri.CreateContainerRequest]:
        """Create a pod with one container, and yield the request that reached the runtime."""
        with self.pod(of_pod, uid) as pod:
            container = pod.create_container(name, **options)
            yield self.runtime.created[container.id]

    def refused(
        self, of_pod: Mapping[str, str], *, uid: str = "", name: str = "main", **options: Unpack[ContainerOptions]
    ) -> Refused:
        """Check that such a pod is refused, and that neither the runtime nor the ledger has its container. Return the
        refusal."""
        containers, grants = set(self.runtime.created), {grant.key for grant in self.grants()}
        with pytest.raises(CriError) as caught, self.created(of_pod, uid=uid, name=name, **options):
            pass
        assert set(self.runtime.created) == containers
        assert {grant.key for grant in self.grants()} == grants
        return refusal_of(caught.value)


def devices(request: cri.CreateContainerRequest) -> set[str]:
    return {device.container_path for device in request.config.devices}


def host_paths(request: cri.CreateContainerRequest) -> set[str]:
    """Return every host path that a request gives to the container, except for kubelet's own files."""
    nodes = {device.host_path for device in request.config.devices}
    return nodes | {mount.host_path for mount in request.config.mounts if "/kubelet/" not in mount.host_path}
