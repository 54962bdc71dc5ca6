"""Find a sandbox's network namespace in its runtime's answer.

The input is a PodSandboxStatus response that was requested with `verbose`. Its `info` is the runtime's own JSON, without a
fixed form: containerd (1.6 to 2.x) and CRI-O both have the sandbox's OCI configuration in it, with the path of the namespace.
Any other form counts as no answer. (The namespace of the sandbox's process cannot be used: Lading's unit has capabilities for
namespaces and networks only, and these do not allow reading it.)

Source: containerd internal/cri/server/sandbox_status.go (toCRISandboxInfo), CRI-O server/sandbox_status.go, OCI runtime-spec
"Namespaces", CRI NamespaceMode.
"""

import json
from collections.abc import Mapping
from typing import Final

from protos.cri.runtime.v1 import api_pb2 as cri

HOST: Final = ""  # the sandbox has no network namespace of its own


def netns_path(status: cri.PodSandboxStatusResponse) -> str | None:
    """Return the path; HOST if the pod uses the host's network; None if the runtime does not report it, or has closed the
    namespace."""
    if status.status.linux.namespaces.options.network == cri.NamespaceMode.NODE:
        return HOST
    info = _parse_info(status)
    if info.get("netNamespaceClosed") is True:
        return None
    namespaces = _find_namespaces(info)
    if namespaces is None:
        return None
    for namespace in namespaces:
        if isinstance(namespace, dict) and namespace.get("type") == "network":
            path = namespace.get("path")
            return path if isinstance(path, str) and path.startswith("/") and "\0" not in path else None
    return HOST


def _parse_info(status: cri.PodSandboxStatusResponse) -> Mapping[str, object]:
    try:
        info = json.loads(status.info.get("info", ""))
    except (ValueError, RecursionError):
        return {}
    return info if isinstance(info, dict) else {}


def _find_namespaces(info: Mapping[str, object]) -> list[object] | None:
    match info:
        case {"runtimeSpec": {"linux": {"namespaces": list(namespaces)}}} if namespaces:
            return namespaces
        case _:
            return None
