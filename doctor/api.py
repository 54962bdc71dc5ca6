"""Ask the API server about this node and the rights of its reporter. Only reviews are created, which the server does not store.

Source: SelfSubjectAccessReview (authorization.k8s.io/v1), Kubernetes "API discovery", kubelet's pkg/kubelet/server (/configz).

Tests: tests/unit/doctor/test_cluster.py
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from doctor.cluster import ApiReading
from hooks.report.reporter import Api, connect
from lading import nodedevices
from lading.errors import ConfigError, HostError, LadingError
from lading.kube.errors import NotFoundError, RefusedError, UnclearError, UnreachableError
from lading.kube.resource import NODES
from lading.threads import in_thread

_KUBELETS: Final = ("/etc/kubernetes/kubelet.conf", "/var/lib/rancher/*/agent/kubelet.kubeconfig")
_REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
Right = tuple[str, str, str, str]
# The reporter needs these rights (deploy/rbac/reporter.yaml): verb, API group, resource, subresource.
_RIGHTS: Final[Sequence[Right]] = (
    ("get", "", "nodes", ""),
    ("create", nodedevices.GROUP, nodedevices.PLURAL, ""),
    ("patch", nodedevices.GROUP, nodedevices.PLURAL, "status"),
)
_TAINTS: Final = ("patch", "", "nodes", "")


class _Configz(msgspec.Struct):
    kubeletconfig: dict[str, Any] = {}


async def read_api(node_name: str, *, report: bool, taints: bool, kubeconfig: str) -> ApiReading:
    """Return the API server's answers about the Node, NodeDevices and the reporter's rights. Raise LadingError if the API
    server is not reached."""
    if not report:
        return ApiReading(node_name=node_name, asked=False)
    if kubeconfig and not await in_thread(lambda: Path(kubeconfig).is_file()):
        hint = f'kubeconfig = "FILE" in hooks.toml, kubelet\'s own: ls {" ".join(_KUBELETS)}'
        raise ConfigError(f"there is no kubeconfig {kubeconfig}", hint=hint)
    try:
        async with connect(kubeconfig) as api:
            return await ask(api, node_name, rights_of(taints=taints))
    except (UnreachableError, UnclearError) as e:
        raise HostError(e.message, hint=_try_it(kubeconfig, node_name)) from e
    except ConfigError as e:
        raise ConfigError(e.message, hint=e.hint or _try_it(kubeconfig, node_name)) from e


async def read_configz(node_name: str, *, kubeconfig: str, answer_s: float) -> Mapping[str, str]:
    """Return the settings that the node's kubelet uses, by key, as far as they are texts. Return none without an answer, as for
    a user without the right to get nodes/proxy."""
    try:
        async with asyncio.timeout(answer_s), connect(kubeconfig) as api:
            return parse_configz(await api.get(NODES.path(name=node_name, subresource="proxy") + "/configz"))
    except (LadingError, OSError):
        return {}


def parse_configz(body: bytes) -> Mapping[str, str]:
    try:
        settings = msgspec.json.decode(body, type=_Configz).kubeletconfig
    except msgspec.DecodeError:
        return {}
    return {key: value for key, value in settings.items() if isinstance(value, str) and value}


def _try_it(kubeconfig: str, node_name: str) -> str:
    text = "journalctl -t lading-hooks LADING_EVENT=report.failed -n 5"
    return f"kubectl --kubeconfig {kubeconfig} get node {node_name}; {text}" if kubeconfig else text


def rights_of(*, taints: bool) -> Sequence[Right]:
    """Return the rights that lading-hooks needs at the API server. `taints`: lading-hooks keeps a taint on its node."""
    return (*_RIGHTS, _TAINTS) if taints else _RIGHTS


async def ask(api: Api, node_name: str, rights: Sequence[Right]) -> ApiReading:
    allowed = [await _may(api, node_name, right) for right in rights]
    return ApiReading(
        node_name=node_name,
        node=await _is_there(api, NODES.path(name=node_name)),
        served=await _is_there(api, f"/apis/{nodedevices.GROUP}/{nodedevices.VERSION}"),
        denied=tuple(_render_right(right) for right, may in zip(rights, allowed, strict=True) if not may),
    )


async def _may(api: Api, node_name: str, right: Right) -> bool:
    verb, group, resource, subresource = right
    attributes = {"verb": verb, "group": group, "resource": resource, "subresource": subresource}
    if verb != "create":  # an object to create has no name for the review
        attributes["name"] = node_name
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = msgspec.json.decode(await api.create(_REVIEWS, review))
    return bool(answer.get("status", {}).get("allowed"))


async def _is_there(api: Api, path: str) -> bool:
    try:
        await api.get(path)
    except NotFoundError:
        return False
    except RefusedError:
        return True  # the object may exist, but is not visible with these rights; `denied` reports missing rights
    return True


def _render_right(right: Right) -> str:
    verb, group, resource, subresource = right
    return f"{verb} {resource}{'/' + subresource if subresource else ''}{'.' + group if group else ''}"
