"""A node as an attacker meets it: both real daemons, pods through the proxy, and a runtime that keeps what reached it.

It takes annotations, environments and names of any content. It returns what the runtime was asked, or the refusal, and whether
the call reached neither the runtime nor the ledger. Also here: assignments as central writes and signs them.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
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
from simnode.cri import Cri, CriError, Pod
from simnode.daemons import LadingNode
from simnode.kubelet import ContainerOptions
from tests.hostile.runtime import KeepingRuntime
from tests.node.site import Refused, eventually, refusal_of

PRIVATE_KEY: Final = Ed25519PrivateKey.from_private_bytes(b"hostile tests, and nothing else.")
PUBLIC_KEY: Final = PRIVATE_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


@dataclass(frozen=True)
class RuntimeAt:
    """A runtime as `LadingNode` needs it: where it is."""

    socket: Path

    def client(self, *, via: Path | None = None, api: str = "v1") -> Cri:
        return Cri(via or self.socket, api=api)


def assignment(uid: str, gpu: str, *, gen: int = 1, node: str = "demo", container: str = "main") -> str:
    """Return an assignment of one GPU to one container, as central writes it."""
    of: dict[str, Any] = {"v": 1, "pod": uid, "node": node, "gen": gen, "containers": {container: {"gpus": [{"uuid": gpu}]}}}
    return json.dumps(of, separators=(",", ":"))


def annotated(text: str, *, key_id: str = "k1", key: Ed25519PrivateKey = PRIVATE_KEY) -> dict[str, str]:
    """The two annotations that central writes for that assignment."""
    return {ASSIGNMENT: text, ASSIGNMENT_SIGNATURE: sign(key, key_id, text)}


class Front:
    def __init__(self, lading: LadingNode, runtime: KeepingRuntime) -> None:
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
        """At the end of the block it is removed, and holds nothing any more."""
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
        """A pod with one container, as it reached the runtime."""
        with self.pod(of_pod, uid) as pod:
            container = pod.create_container(name, **options)
            yield self.runtime.created[container.id]

    def refused(
        self, of_pod: Mapping[str, str], *, uid: str = "", name: str = "main", **options: Unpack[ContainerOptions]
    ) -> Refused:
        """Such a pod is refused, and neither the runtime nor the ledger has anything of its container."""
        containers, grants = set(self.runtime.created), {grant.key for grant in self.grants()}
        with pytest.raises(CriError) as caught, self.created(of_pod, uid=uid, name=name, **options):
            pass
        assert set(self.runtime.created) == containers
        assert {grant.key for grant in self.grants()} == grants
        return refusal_of(caught.value)


def devices(request: cri.CreateContainerRequest) -> set[str]:
    return {device.container_path for device in request.config.devices}


def host_paths(request: cri.CreateContainerRequest) -> set[str]:
    """Every path of the host that the runtime is asked to give to the container, but for kubelet's own files."""
    nodes = {device.host_path for device in request.config.devices}
    return nodes | {mount.host_path for mount in request.config.mounts if "/kubelet/" not in mount.host_path}
