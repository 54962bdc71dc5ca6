"""Define the kinds of other systems on the API server, as far as central uses them: their own CRDs are not in this
repository."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from simnode.kube_api import KubeApi, KubeError

CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DEFAULT: Final = "/api/v1/namespaces/default"
QUOTAS: Final = "lading.dev/quotas"  # annotation of a namespace: the quotas that its pods may use
MERGE: Final = "application/merge-patch+json"
OPEN: Final = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


@contextmanager
def served_kind(
    api: KubeApi, group: str, version: str, kind: str, properties: dict[str, Any], *, status: bool = False
) -> Iterator[None]:
    """Create the CRD; delete it, and its objects, at the end. `properties`: their schema. `status`: it is a subresource."""
    plural = f"{kind.lower()}s"
    schema = {"openAPIV3Schema": {"type": "object", "properties": properties}}
    served = {"name": version, "served": True, "storage": True, "schema": schema}
    spec = {
        "group": group,
        "names": {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()},
        "scope": "Namespaced",
        "versions": [served | ({"subresources": {"status": {}}} if status else {})],
    }
    annotations = {"api-approved.kubernetes.io": "unapproved, for a test"}  # asked for in groups of k8s.io
    name = f"{plural}.{group}"
    api.call("POST", CRDS, {"metadata": {"name": name, "annotations": annotations}, "spec": spec})
    try:
        yield
    finally:
        api.call("DELETE", f"{CRDS}/{name}")


def is_created(api: KubeApi, collection: str, body: dict[str, Any]) -> bool:
    """Create an object, and return True; return False where its kind is not served yet."""
    try:
        api.call("POST", collection, body)
    except KubeError:
        return False
    return True


def allow_quota(api: KubeApi, name: str) -> None:
    """Let pods of the namespace `default` use this quota, as an administrator does (deploy/admission/quotas.yaml)."""
    allowed = api.call("GET", DEFAULT)["metadata"].get("annotations", {}).get(QUOTAS, "")
    names = {*filter(None, allowed.split(",")), name}
    api.call("PATCH", DEFAULT, {"metadata": {"annotations": {QUOTAS: ",".join(sorted(names))}}}, content_type=MERGE)
