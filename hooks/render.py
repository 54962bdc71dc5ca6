"""`lading-hooks render`: what this node would inject for a pod, container by container, or why not. No runtime is needed.

Enters: a pod manifest (YAML or JSON), the node's configuration, its devices, its ledger. Leaves: the decision that a
CreateContainer would get, as text or JSON. Containers are taken in kubelet's order, and each holds what it was given while the
next is decided. What only kubelet and the runtime know (device plugins, runtime handlers) is not in a manifest.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml
from google.protobuf.json_format import MessageToDict

from hooks.assignment.model import Refusal
from hooks.decide import Answer, Rules, View, decide
from hooks.grant.choose import Holding
from lading.errors import ConfigError
from lading.vocabulary import GRANT, PodUid
from protos.hook.v1 import hook_pb2

_SANDBOX: Final = "rendered"
_KINDS: Final = ("initContainers", "containers", "ephemeralContainers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    container: str
    result: Answer | Refusal


def read_pod(text: str, name: str) -> Mapping[str, Any]:
    """The one pod of a manifest. Raises ConfigError naming the file and what is wrong."""
    try:
        documents = [document for document in yaml.safe_load_all(text) if document is not None]
    except (yaml.YAMLError, RecursionError) as e:
        raise ConfigError(f"cannot read {name}: {e}") from e
    if len(documents) != 1 or not isinstance(documents[0], dict) or documents[0].get("kind") != "Pod":
        kinds = [d.get("kind") if isinstance(d, dict) else type(d).__name__ for d in documents]
        raise ConfigError(f"cannot read {name}: it should hold one object of kind Pod, and holds {kinds}")
    pod: dict[str, Any] = documents[0]
    if not isinstance(pod.get("metadata"), dict) or not isinstance(pod.get("spec"), dict):
        raise ConfigError(f"cannot read {name}: a Pod has metadata and spec")
    annotations = pod["metadata"].get("annotations") or {}
    if not isinstance(annotations, dict):
        raise ConfigError(f"cannot read {name}: metadata.annotations is no mapping")
    for key, value in annotations.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise ConfigError(
                f"cannot read {name}: metadata.annotations.{key} = {value!r} is no string", hint="put it in quotes"
            )
    return pod


def render_pod(pod: Mapping[str, Any], rules: Rules, view: View) -> list[Rendered]:
    metadata, spec = pod["metadata"], pod["spec"]
    sandbox = hook_pb2.PodSandbox(
        id=_SANDBOX,
        name=metadata.get("name") or metadata.get("generateName") or "",
        namespace=metadata.get("namespace") or "default",
        uid=metadata.get("uid") or "",
        annotations=metadata.get("annotations") or {},
        host_network=bool(spec.get("hostNetwork")),
        user_namespace=spec.get("hostUsers") is False,
    )
    out = []
    for container in _containers(spec):
        result = decide(sandbox, container, rules, view)
        out.append(Rendered(container=container.name, result=result))
        if isinstance(result, Answer) and result.grant:
            holding = Holding(
                pod=PodUid(sandbox.uid),
                pod_name=f"{sandbox.namespace}/{sandbox.name}",
                container=container.name,
                devices=result.grant.devices,
            )
            view = replace(view, held=(*view.held, holding))
    return out


def _containers(spec: Mapping[str, Any]) -> Iterator[hook_pb2.Container]:
    for kind in _KINDS:
        for container in spec.get(kind) or []:
            env = [hook_pb2.EnvVar(name=str(e.get("name", "")), value=e.get("value")) for e in container.get("env") or []]
            security = container.get("securityContext") or {}
            yield hook_pb2.Container(name=str(container.get("name", "")), env=env, privileged=bool(security.get("privileged")))


def as_json(rendered: Sequence[Rendered]) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for one in rendered:
        if isinstance(one.result, Refusal):
            refusal = {"reason": one.result.reason.value, "message": one.result.message}
            out.append({"container": one.container, "refused": refusal})
        else:
            adjustment = MessageToDict(one.result.adjustment, preserving_proto_field_name=True)
            out.append({"container": one.container, "adjustment": adjustment})
    return out


def as_text(rendered: Sequence[Rendered]) -> str:
    return "\n".join(line for one in rendered for line in _lines(one)) + "\n"


def _lines(one: Rendered) -> Iterator[str]:
    if isinstance(one.result, Refusal):
        yield f"container {one.container}: refused ({one.result.reason})"
        yield f"  {one.result.message}"
        return
    adjustment = one.result.adjustment
    yield f"container {one.container}:" + ("" if adjustment.ByteSize() else " nothing")
    rows = [("env", f"{env.name}={env.value}") for env in adjustment.env]
    rows += [
        ("device", f"{d.container_path} {d.permissions}" + _from(d.host_path, d.container_path)) for d in adjustment.devices
    ]
    rows += [("mount", f"{m.container_path} ro" + _from(m.host_path, m.container_path)) for m in adjustment.mounts]
    rows += [("cdi", name) for name in adjustment.cdi_devices]
    rows += [("capability", name) for name in adjustment.add_capabilities]
    rows += [("annotation", f"{key} = {value}") for key, value in adjustment.annotations.items() if key != GRANT]
    for kind, text in rows:
        yield f"  {kind:<11}{text}"


def _from(host_path: str, container_path: str) -> str:
    return "" if Path(host_path) == Path(container_path) else f"  ({host_path} on the host)"
