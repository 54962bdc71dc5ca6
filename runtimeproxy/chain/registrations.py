"""Parse a hook registration: one JSON file with the server to ask, the pods and stages, and the policy if the server fails.

Enters: the file's bytes and name. Leaves: a `Registration`, or a ConfigError that names file, key and value. Three fields are
Koordinator's (`remote-endpoint`, `failure-policy`, `runtime-hooks`); docs/hook-api.md lists ours and the differences. An
unknown key is refused: a misspelt `failure-polcy` must not silently mean the default.
"""

import math
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import msgspec

from lading.errors import ConfigError
from runtimeproxy.call.calls import HOOK_POINTS, Stage

DEFAULT_DEADLINE_S: Final = 2.0
MAX_DEADLINE_S: Final = 600.0  # kubelet gives up after 2 min (runtimeRequestTimeout), other clients are patient
SOCKET_PATH_MAX: Final = 107  # sockaddr_un.sun_path, less its NUL


class FailurePolicy(StrEnum):
    FAIL = "Fail"
    IGNORE = "Ignore"


@dataclass(frozen=True, slots=True, kw_only=True)
class HideUnassigned:
    """The environment that hides cards from containers of pods that the registration's hook is not asked about."""

    env: tuple[tuple[str, str], ...]
    exempt_namespaces: frozenset[str] = frozenset()
    keep_kubelet_devices: bool = False  # devices from a device plugin stay visible


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    name: str  # of the file
    endpoint: str  # path of the hook server's socket
    hooks: frozenset[str]  # Pre… and Post… points
    policy: FailurePolicy = FailurePolicy.FAIL
    prefixes: tuple[str, ...] | None = None  # of pod annotations; None: every pod
    deadlines_s: Mapping[str, float] = field(default_factory=dict)
    env_values: frozenset[str] = frozenset()
    hide_unassigned: HideUnassigned | None = None

    def adjusts(self, stage: Stage) -> bool:
        return stage.pre in self.hooks

    def observes(self, stage: Stage) -> bool:
        return stage.post in self.hooks

    def wants(self, annotations: Iterable[str]) -> bool:
        """Return whether this server is asked about a pod with these annotation keys."""
        return self.prefixes is None or any(key.startswith(self.prefixes) for key in annotations)

    def claims(self, annotation: str) -> bool:
        """Return whether this server answers for that annotation: it named a prefix of it. A server that sees every pod claims
        none."""
        return self.prefixes is not None and annotation.startswith(self.prefixes)

    def deadline_s(self, point: str) -> float:
        return self.deadlines_s.get(point, DEFAULT_DEADLINE_S)


class _Table(msgspec.Struct, rename="kebab", forbid_unknown_fields=True, frozen=True, kw_only=True):
    pass


class _HideUnassigned(_Table, frozen=True):
    env: dict[str, str]
    exempt_namespaces: list[str] = []
    keep_kubelet_devices: bool = False


class _StaticAdjustments(_Table, frozen=True):
    hide_unassigned: _HideUnassigned | None = None


class _File(_Table, frozen=True):
    remote_endpoint: str
    runtime_hooks: list[str]
    failure_policy: FailurePolicy = FailurePolicy.FAIL
    annotation_prefixes: list[str] | None = None
    deadlines: dict[str, float] = {}
    env_values: list[str] = []
    static_adjustments: _StaticAdjustments = _StaticAdjustments()


def parse_registration(content: bytes, name: str) -> Registration:
    """Parse a file named `name`. Raises ConfigError."""
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
        env_values=frozenset(_env_name(n, name, f"env-values[{i}]") for i, n in enumerate(file.env_values)),
        hide_unassigned=_hide(hide, name) if hide else None,
    )


def clash(registration: Registration, others: Iterable[Registration]) -> ConfigError | None:
    """Return an error if one of `others` (earlier by name) asks the same endpoint at the same stage: an endpoint is asked
    once."""
    for other in others:
        twice = sorted(registration.hooks & other.hooks)
        if registration.endpoint == other.endpoint and twice:
            return _error(registration.name, "runtime-hooks", f"{other.name} already asks {other.endpoint} for {twice[0]}")
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


def _hide(hide: _HideUnassigned, name: str) -> HideUnassigned:
    key = "static-adjustments.hide-unassigned.env"
    if not hide.env:
        raise _error(name, key, "empty: nothing would be hidden")
    for variable, value in hide.env.items():
        _env_name(variable, name, key)
        if "\0" in value:
            raise _error(name, f"{key}.{variable}", f"{value!r} contains NUL")
    return HideUnassigned(
        env=tuple(hide.env.items()),
        exempt_namespaces=frozenset(hide.exempt_namespaces),
        keep_kubelet_devices=hide.keep_kubelet_devices,
    )


def _env_name(variable: str, name: str, key: str) -> str:
    if not re.fullmatch(r"[^=\0]+", variable):
        raise _error(name, key, f"{variable!r} is not the name of an environment variable")
    return variable
