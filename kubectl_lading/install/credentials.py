"""Make the credentials of an installation: certificates, the key that signs assignments, and its public key for the nodes.

Existing credentials are kept. cert-manager issues the certificates if the cluster has it. The private key is made here, and is
stored in its Secret only.

Tests: tests/unit/kubectl_lading/install/test_install.py
"""

from base64 import b64decode, b64encode
from typing import Any, Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from central.daemon.certificates import DAYS, SCHEDULER, render_secrets
from central.daemon.keys import make_pair
from kubectl_lading.install.apply import read
from kubectl_lading.install.manifests import Manifest, find_deploy, render
from lading.errors import LadingError
from lading.kube.client import KubeClient
from lading.kube.resource import Resource
from lading.vocabulary import CENTRAL, NODES_NAMESPACE, SYSTEM_NAMESPACE

SIGNING: Final = "lading-central-signing"
PUBLIC: Final = "lading-public-keys"
_SECRETS: Final = Resource("", "v1", "secrets")
_CONFIG_MAPS: Final = Resource("", "v1", "configmaps")
_PRIVATE: Final = "private.pem"
_CERT_MANAGER: Final = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions").path(
    name="certificates.cert-manager.io"
)


async def find_missing(client: KubeClient, key_id: str) -> list[Manifest]:
    """Return the missing credentials as objects to apply. Raise KubeError, LadingError."""
    return [*await _certificates(client), *await _keys(client, key_id)]


async def _certificates(client: KubeClient) -> list[Manifest]:
    paths = [_SECRETS.path(SYSTEM_NAMESPACE, f"{name}-tls") for name in (CENTRAL, SCHEDULER)]
    if all([await read(client, path) is not None for path in paths]):
        return []
    if await read(client, _CERT_MANAGER) is not None:
        return render(find_deploy() / "cert-manager")
    return list(render_secrets(SYSTEM_NAMESPACE, days=DAYS))


async def _keys(client: KubeClient, key_id: str) -> list[Manifest]:
    secret = await read(client, _SECRETS.path(SYSTEM_NAMESPACE, SIGNING))
    if secret is not None and await read(client, _CONFIG_MAPS.path(NODES_NAMESPACE, PUBLIC)) is not None:
        return []
    if secret is None:
        private, public = make_pair(key_id)
        missing = [_object("Secret", SYSTEM_NAMESPACE, SIGNING, {_PRIVATE: b64encode(private).decode()})]
    else:
        public, missing = _public_of(secret), []
    return [*missing, _object("ConfigMap", NODES_NAMESPACE, PUBLIC, {f"{key_id}.pub.pem": public.decode()})]


def _public_of(secret: Any) -> bytes:
    try:
        key = load_pem_private_key(b64decode(secret["data"][_PRIVATE]), password=None)
    except (KeyError, TypeError, ValueError, UnsupportedAlgorithm) as e:
        raise LadingError(
            f"cannot find the public key: Secret {SYSTEM_NAMESPACE}/{SIGNING} has no {_PRIVATE} with an unencrypted key",
            hint="lading-central new-key --id central-1 makes one",
        ) from e
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _object(kind: str, namespace: str, name: str, data: dict[str, str]) -> Manifest:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": namespace}, "data": data}
