"""Parse a hook registration: one JSON file with the server to ask, the pods and stages, and the policy if the server fails.

Three fields are Koordinator's (`remote-endpoint`, `failure-policy`, `runtime-hooks`); docs/hook-api.md lists ours and the
differences. An unknown key is refused: a misspelt `failure-polcy` must not silently mean the default.

`decide_hidden` applies `hide-unassigned`, for which no hook is asked: it hides a vendor's cards from containers whose pod
requests none from a hook. Only a namespace that an operator configured exempts a container, never a declaration of the pod.
Devices that a vendor's device plugin supplied stay as they are. If the pod's own value of a variable would replace the
plugin's, the plugin's is put back. kubelet writes the plugin's value first, and the last value counts.
"""

import math
import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Final

import msgspec

from lading.errors import ConfigError
from protos.cri.runtime.v1 import api_pb2 as cri
from protos.hook.v1 import hook_pb2 as hook
from runtimeproxy.call.calls import HOOK_POINTS, Stage

DEFAULT_DEADLINE_S: Final = 2.0
MAX_DEADLINE_S: Final = 600.0  # kubelet gives up after 2 min (runtimeRequestTimeout), other clients are patient
SOCKET_PATH_MAX: Final = 107  # sockaddr_un.sun_path, less its NUL
_CDI_ANNOTATION: Final = "cdi.k8s.io/"


class FailurePolicy(StrEnum):
    FAIL = "Fail"
    IGNORE = "Ignore"


class _Table(msgspec.Struct, rename="kebab", forbid_unknown_fields=True, frozen=True, kw_only=True):
    pass


Texts = Annotated[tuple[Annotated[str, msgspec.Meta(min_length=1, max_length=256)], ...], msgspec.Meta(max_length=16)]
EnvName = Annotated[str, msgspec.Meta(pattern=r"\A[^=\0]+\Z")]
EnvValue = Annotated[str, msgspec.Meta(pattern=r"\A[^\0]*\Z")]


class Supplied(_Table, frozen=True):
    """Hold the marks of devices that a vendor's device plugin gave by way of kubelet. Texts only: a pattern could take long."""

    device_prefixes: Texts = ()  # prefixes of a device's path
    cdi_prefixes: Texts = ()  # prefixes of a CDI device's name
    mount_prefixes: Texts = ()  # prefixes of a mount's path in the container
    values: Texts = ()  # whole values of a variable of `env`
    value_prefixes: Texts = ()  # prefixes of all comma-separated entries of a variable of `env`


class HideUnassigned(_Table, frozen=True):
    """Hold the environment that hides a vendor's cards from containers whose pods carry none of the registration's prefixes."""

    env: Annotated[dict[EnvName, EnvValue], msgspec.Meta(min_length=1, max_length=16)]
    exempt_namespaces: frozenset[str] = frozenset()
    supplied: Supplied = Supplied()


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    name: str  # name of the file
    endpoint: str  # path of the hook server's socket
    hooks: frozenset[str]  # hook points, such as PreCreateContainer
    policy: FailurePolicy = FailurePolicy.FAIL
    prefixes: tuple[str, ...] | None = None  # prefixes of pod annotations; None: every pod
    deadlines_s: Mapping[str, float] = field(default_factory=dict)
    env_values: frozenset[str] = frozenset()
    hide_unassigned: tuple[HideUnassigned, ...] = ()  # an entry for each vendor

    def adjusts(self, stage: Stage) -> bool:
        return stage.pre in self.hooks

    def observes(self, stage: Stage) -> bool:
        return stage.post in self.hooks

    def wants(self, annotations: Iterable[str]) -> bool:
        """Return whether this server is asked about a pod with these annotation keys."""
        return self.prefixes is None or any(key.startswith(self.prefixes) for key in annotations)

    def claims(self, annotation: str) -> bool:
        """Return whether this server answers for an annotation: a prefix of it is registered. A server for every pod claims
        no annotation."""
        return self.prefixes is not None and annotation.startswith(self.prefixes)

    def deadline_s(self, point: str) -> float:
        return self.deadlines_s.get(point, DEFAULT_DEADLINE_S)


class _StaticAdjustments(_Table, frozen=True):
    hide_unassigned: Annotated[tuple[HideUnassigned, ...], msgspec.Meta(max_length=8)] | HideUnassigned = ()


class _File(_Table, frozen=True):
    remote_endpoint: str
    runtime_hooks: list[str]
    failure_policy: FailurePolicy = FailurePolicy.FAIL
    annotation_prefixes: list[str] | None = None
    deadlines: dict[str, float] = {}
    env_values: frozenset[EnvName] = frozenset()
    static_adjustments: _StaticAdjustments = _StaticAdjustments()


@lru_cache(maxsize=32)
def parse_registration(content: bytes, name: str) -> Registration:
    """Parse the content of a registration file. Raises ConfigError. Cached, because the files are read ten times a second."""
    try:
        file = msgspec.json.decode(content, type=_File)
    except msgspec.ValidationError as e:
        problem, _, at = str(e).partition(" - at `$")
        key = at.rstrip("`").lstrip(".")
        raise _error(name, key, f"{problem[:1].lower()}{problem[1:]}") from e
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise _error(name, "", f"not JSON: {e}") from e
    hide = file.static_adjustments.hide_unassigned
    if hide and file.annotation_prefixes is None:
        raise _error(
            name,
            "static-adjustments.hide-unassigned",
            "applies to pods that carry none of annotation-prefixes; without prefixes the hook is asked about every pod",
            hint="add annotation-prefixes",
        )
    return Registration(
        name=name,
        endpoint=_endpoint(file.remote_endpoint, name),
        hooks=_hooks(file.runtime_hooks, name),
        policy=file.failure_policy,
        prefixes=_prefixes(file.annotation_prefixes, name),
        deadlines_s=_deadlines(file.deadlines, file.runtime_hooks, name),
        env_values=file.env_values,
        hide_unassigned=hide if isinstance(hide, tuple) else (hide,),
    )


def clash(registration: Registration, accepted: Iterable[Registration]) -> ConfigError | None:
    """Return an error if one of `accepted` (earlier by name) asks the same endpoint at the same stage: an endpoint is asked
    once."""
    for earlier in accepted:
        twice = sorted(registration.hooks & earlier.hooks)
        if registration.endpoint == earlier.endpoint and twice:
            return _error(registration.name, "runtime-hooks", f"{earlier.name} already asks {earlier.endpoint} for {twice[0]}")
    return None


def _error(name: str, key: str, problem: str, *, hint: str = "") -> ConfigError:
    return ConfigError(f"{name}: {key}: {problem}" if key else f"{name}: {problem}", hint=hint)


def _endpoint(text: str, name: str) -> str:
    path = text.removeprefix("unix://").removeprefix("unix:")
    if not path.startswith("/") or path != posixpath.normpath(path) or path.startswith("//") or "\0" in path:
        raise _error(name, "remote-endpoint", f"{text!r} is not an absolute path of a socket", hint="/run/lading/hooks.sock")
    if len(path.encode("utf-8", "surrogatepass")) > SOCKET_PATH_MAX:
        raise _error(name, "remote-endpoint", f"{text!r} is longer than a socket's path can be ({SOCKET_PATH_MAX} bytes)")
    return path


def _hooks(points: list[str], name: str) -> frozenset[str]:
    for i, point in enumerate(points):
        if point not in HOOK_POINTS:
            raise _error(
                name, f"runtime-hooks[{i}]", f"unknown hook {point!r}", hint=f"known: {', '.join(sorted(HOOK_POINTS))}"
            )
    if not points:
        raise _error(name, "runtime-hooks", "empty: this server would never be asked")
    return frozenset(points)


def _prefixes(prefixes: list[str] | None, name: str) -> tuple[str, ...] | None:
    if prefixes is None:
        return None
    if not prefixes or not all(prefixes):
        raise _error(
            name, "annotation-prefixes", f"{prefixes!r} would match nothing or everything", hint="leave it out for every pod"
        )
    return tuple(prefixes)


def _deadlines(deadlines: dict[str, float], points: list[str], name: str) -> dict[str, float]:
    for point, seconds in deadlines.items():
        if point not in points:
            raise _error(name, f"deadlines.{point}", f"not one of runtime-hooks: {', '.join(points)}")
        if not (math.isfinite(seconds) and 0 < seconds <= MAX_DEADLINE_S):
            raise _error(name, f"deadlines.{point}", f"{seconds!r} is not above 0 and at most {MAX_DEADLINE_S:g} seconds")
    return dict(deadlines)


def decide_hidden(hide: HideUnassigned, request: cri.CreateContainerRequest) -> hook.Adjustment | None:
    """Return the variables to set on a container whose pod has none of the registration's prefixes; None for no change."""
    if request.sandbox_config.metadata.namespace in hide.exempt_namespaces:
        return None
    wanted = []
    for name, hiding in hide.env.items():
        values = [env.value.decode("utf-8", "replace") for env in request.config.envs if env.key == name]
        value = next((v for v in values if _is_supplied(v, hide.supplied)), hiding)
        if values != [value] and (values or not _has_supplied_device(request.config, hide.supplied)):
            wanted.append(hook.EnvUpsert(name=name, value=value))
    return hook.Adjustment(env=wanted) if wanted else None


def _is_supplied(value: str, supplied: Supplied) -> bool:
    prefixes = supplied.value_prefixes
    return value in supplied.values or all(entry.startswith(prefixes) and entry not in prefixes for entry in value.split(","))


def _has_supplied_device(config: cri.ContainerConfig, supplied: Supplied) -> bool:
    names = [device.name for device in config.CDI_devices]
    for key, value in config.annotations.items():
        if key.startswith(_CDI_ANNOTATION):
            names += [name.strip() for name in value.split(",")]
    return (
        any(name.startswith(supplied.cdi_prefixes) for name in names)
        or any(d.container_path.startswith(supplied.device_prefixes) for d in config.devices)
        or any(d.host_path.startswith(supplied.device_prefixes) for d in config.devices)
        or any(mount.container_path.startswith(supplied.mount_prefixes) for mount in config.mounts)
    )
