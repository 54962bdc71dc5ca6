"""Show what this node would inject into each container of a pod, or why it would refuse: `lading-hooks render`.

The input is a pod manifest (YAML or JSON), the node's configuration, its devices, and its ledger; no runtime is needed. The
output is the decision for each CreateContainer, as text or JSON, and warnings. Containers are decided in kubelet's order, and
each holds its devices while the next is decided. A pod whose uid is in the ledger keeps its devices. Device plugins, runtime
handlers and the runtime's support of CDI names are ignored, because a manifest does not show them.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import msgspec
import yaml

from hooks.grant.decide import Rules, View, decide
from hooks.model.assignment import Refusal
from hooks.model.attachment import WantedVf
from hooks.model.canonical import without_defaults
from hooks.model.container import Adjustment, Answer, Container, EnvVar, Sandbox
from hooks.model.grant import Grant, GrantKey, holding_of
from lading.errors import ConfigError
from lading.log import printable
from lading.vocabulary import GRANT, PREFIX, PodUid, adds_sys_admin, is_manual

_NO_UID: Final = "not-created-yet"  # stands for the uid of a pod that was not created yet


class _EnvVar(msgspec.Struct):
    name: str
    value: str | None = None


class _Capabilities(msgspec.Struct):
    add: list[str] | None = None


class _SecurityContext(msgspec.Struct):
    privileged: bool | None = None
    capabilities: _Capabilities | None = None

    @property
    def sys_admin(self) -> bool:
        return self.capabilities is not None and adds_sys_admin(self.capabilities.add or ())


class _Container(msgspec.Struct):
    name: str
    env: list[_EnvVar] | None = None
    securityContext: _SecurityContext | None = None  # noqa: N815  Kubernetes' name, as those below


class _Metadata(msgspec.Struct):
    name: str | None = None
    generateName: str | None = None  # noqa: N815
    namespace: str | None = None
    uid: str | None = None
    annotations: dict[str, str] | None = None


class _Spec(msgspec.Struct):
    containers: list[_Container]
    initContainers: list[_Container] | None = None  # noqa: N815
    ephemeralContainers: list[_Container] | None = None  # noqa: N815
    hostNetwork: bool | None = None  # noqa: N815
    hostUsers: bool | None = None  # noqa: N815


class Pod(msgspec.Struct):
    """Hold the fields of a manifest that a decision uses; Kubernetes checks the rest."""

    metadata: _Metadata
    spec: _Spec

    @property
    def containers(self) -> list[_Container]:
        """Return the containers in the order in which kubelet creates them."""
        spec = self.spec
        return [*(spec.initContainers or []), *spec.containers, *(spec.ephemeralContainers or [])]

    @property
    def annotations(self) -> dict[str, str]:
        return self.metadata.annotations or {}


class Rendered(NamedTuple):
    container: str
    result: Answer | Refusal


def read_pod(text: str, name: str) -> Pod:
    """Return the manifest's only object, a pod. Raise ConfigError that names the file, the key and the problem."""
    try:
        documents = [document for document in yaml.safe_load_all(text) if document is not None]
    except (yaml.YAMLError, RecursionError, ValueError) as e:
        raise ConfigError(f"cannot read {name}: {e}") from e
    kinds = [_shown(d.get("kind")) if isinstance(d, dict) else type(d).__name__ for d in documents]
    if kinds != ["Pod"]:
        raise ConfigError(f"cannot read {name}: it should hold one object of kind Pod, and holds {kinds[:10]}")
    try:
        pod = msgspec.convert(documents[0], Pod, strict=True)
        msgspec.json.encode(pod)
    except msgspec.ValidationError as e:
        raise _wrong(name, documents[0], str(e)) from e
    except UnicodeEncodeError as e:
        raise ConfigError(f"cannot read {name}: a text holds half of a surrogate pair (\\ud800 to \\udfff)") from e
    return pod


def _shown(value: object) -> str:
    """Show a value in at most 100 characters. A few lines of YAML can expand, by aliases or as a number, to more text than fits
    into memory."""
    plain = isinstance(value, str | float | None) or (isinstance(value, int) and value.bit_length() < 64)
    return str(value)[:100] if plain else type(value).__name__


def _wrong(name: str, pod: dict[str, Any], problem: str) -> ConfigError:
    """Make an error that names the wrong key. msgspec names no keys of a mapping ("$.metadata.annotations[...]"), so this
    function finds the annotation."""
    cause, _, at = problem.partition(" - at `$")
    key, cause = at.strip("`."), cause[:1].lower() + cause[1:]
    hint = ""
    if key.startswith("metadata.annotations["):
        key, value = next((k, v) for k, v in pod["metadata"]["annotations"].items() if not isinstance(v, str))
        key, hint = f"metadata.annotations.{key} = {_shown(value)}", "put it in quotes"
    return ConfigError(f"cannot read {name}: {key + ': ' if key else ''}{cause}", hint=hint)


def render_pod(pod: Pod, rules: Rules, view: View, grants: Sequence[Grant]) -> list[Rendered]:
    """Decide for each container of a pod. `grants` is the ledger: each decision uses the container's own grant and those of
    others. `view` holds the rest of the node's state."""
    metadata, spec = pod.metadata, pod.spec
    sandbox = Sandbox(
        name=metadata.name or metadata.generateName or "",
        namespace=metadata.namespace or "default",
        uid=metadata.uid or _NO_UID,
        annotations=pod.annotations,
        host_network=bool(spec.hostNetwork),
        user_namespace=spec.hostUsers is False,
    )
    ledger = {grant.key: grant for grant in grants}
    out = []
    for container in map(_projected, pod.containers):
        key = GrantKey(PodUid(sandbox.uid), container.name)
        moment = replace(
            view,
            own=ledger.get(key),
            pod_gen=max((grant.gen for grant in ledger.values() if grant.pod == sandbox.uid), default=0),
            held=(*view.held, *(holding_of(grant) for grant in ledger.values() if grant.key != key)),
        )
        result = decide(sandbox, container, rules, moment)
        out.append(Rendered(container.name, result))
        if isinstance(result, Answer) and result.grant:
            ledger[result.grant.key] = result.grant
    return out


def _projected(container: _Container) -> Container:
    security = container.securityContext
    return Container(
        name=container.name,
        env=tuple(EnvVar(env.name, env.value or "") for env in container.env or []),
        privileged=bool(security and security.privileged),
        sys_admin=bool(security and security.sys_admin),
    )


def warnings(pod: Pod) -> list[str]:
    """Return warnings about probable mistakes that are not refused: an annotation for a container that the pod does not
    have."""
    names = [container.name for container in pod.containers]
    return [
        f"{key} is for container {suffix}, and this pod has {', '.join(names)}"
        for key in sorted(filter(is_manual, pod.annotations))
        if (suffix := key.removeprefix(PREFIX).partition(".")[2]) and suffix not in names
    ]


def as_json(rendered: Sequence[Rendered]) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for one in rendered:
        if isinstance(one.result, Refusal):
            refusal = {"reason": one.result.reason.value, "message": one.result.message}
            out.append({"container": one.container, "refused": refusal})
        else:
            adjustment = msgspec.to_builtins(without_defaults(one.result.adjustment))
            attach = [_attached(wanted) for wanted in one.result.attach if wanted.netdev]
            out.append({"container": one.container, "adjustment": adjustment, **({"attach": attach} if attach else {})})
    return out


def as_text(rendered: Sequence[Rendered]) -> str:
    return "".join(printable(line) + "\n" for one in rendered for line in _lines(one))


def _lines(one: Rendered) -> Iterator[str]:
    if isinstance(one.result, Refusal):
        yield f"container {one.container}: refused ({one.result.reason})"
        yield f"  {one.result.message}"
        return
    adjustment = one.result.adjustment
    note = " nothing" if adjustment == Adjustment() else " as granted before" if one.result.reused else ""
    yield f"container {one.container}:{note}"
    rows = [("env", f"{env.name}={env.value}") for env in adjustment.env]
    rows += [
        ("device", f"{d.container_path} {d.permissions}" + _from(d.host_path, d.container_path)) for d in adjustment.devices
    ]
    rows += [("mount", f"{m.container_path} ro" + _from(m.host_path, m.container_path)) for m in adjustment.mounts]
    rows += [("cdi", name) for name in adjustment.cdi_devices]
    rows += [("netdev", _netdev(wanted)) for wanted in one.result.attach if wanted.netdev]
    rows += [("capability", name) for name in adjustment.add_capabilities]
    rows += [("annotation", f"{key} = {value}") for key, value in adjustment.annotations.items() if key != GRANT]
    for kind, text in rows:
        yield f"  {kind:<11}{text}"


def _netdev(wanted: WantedVf) -> str:
    text = {name: value for name, value in _attached(wanted).items() if name not in {"vf", "ifname"}}
    settings = "".join(f" {name}={json.dumps(value)}" for name, value in text.items())
    return f"{wanted.ifname or 'rdma<n>'}  (of {wanted.vf.bdf}){settings}"


def _attached(wanted: WantedVf) -> dict[str, Any]:
    """Return the VF with its interface name and all its settings, as JSON values."""
    settings: dict[str, Any] = msgspec.to_builtins(without_defaults(wanted.settings))
    config = settings.pop("config", {})
    return {"vf": wanted.vf.bdf, **({"ifname": wanted.ifname} if wanted.ifname else {}), **config, **settings}


def _from(host_path: str, container_path: str) -> str:
    return "" if host_path == container_path else f"  ({host_path} on the host)"
