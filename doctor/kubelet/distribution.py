"""Derive kubelet's command line from the configuration of K3s or RKE2, and find the place where to change it.

K3s runs kubelet inside its own process, and overwrites the command line of that process. RKE2 runs kubelet as a child with the
same flags. Both read `config.yaml`, then `config.yaml.d/*.yaml` by name (a later value replaces an earlier one, `key+` adds to
it), then the flags of their command. `kubelet-arg` is passed to kubelet unchanged, and overrides everything else. In contrast,
`container-runtime-endpoint` of K3s or RKE2 turns off the containerd that they run.

Take these files and flags. Return the words of kubelet's command line, each with its file. Source: K3s' pkg/configfilearg,
pkg/agent/config, pkg/daemons; RKE2's pkg/podexecutor; docs.k3s.io "Configuration Options", docs.rke2.io "Agent Configuration
Reference".
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from doctor.kubelet.unit import Unit, Word

_ROLES: Final = ("server", "agent")
CONTAINERD: Final = "/run/k3s/containerd/containerd.sock"  # socket of the containerd of K3s, and of RKE2
_DOCKERD: Final = "/run/k3s/cri-dockerd/cri-dockerd.sock"
_ENDPOINT: Final = "container-runtime-endpoint"
_ARG: Final = "kubelet-arg"
_SHORT: Final = {"c": "config", "d": "data-dir"}


class Distribution(StrEnum):
    K3S = "k3s"
    RKE2 = "rke2"


class Option(NamedTuple):
    """Hold a setting of K3s or RKE2, and the file that contains it."""

    key: str
    value: str
    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Represent K3s or RKE2 on a node: the unit that runs it, and its settings."""

    distribution: Distribution
    unit: str  # name without suffix, such as k3s-agent
    options: tuple[Option, ...] = ()
    changed: str = ""  # configuration file that is newer than the running process, which may have other settings; empty: none

    @property
    def config(self) -> str:
        return option(self.options, "config") or f"/etc/rancher/{self.distribution}/config.yaml"

    @property
    def own_endpoint(self) -> Option:
        """Return the endpoint of the container runtime that kubelet uses if no `kubelet-arg` overrides it."""
        if result := _last(self.options, _ENDPOINT):
            return result
        if result := _last(self.options, "docker", "true"):
            return result._replace(value=f"unix://{_DOCKERD}")
        return Option(_ENDPOINT, f"unix://{CONTAINERD}", f"{self.distribution}'s default")

    @property
    def runs_containerd(self) -> bool:
        return not option(self.options, _ENDPOINT) and option(self.options, "docker") != "true"

    @property
    def kubelet_folder(self) -> str:
        """Return the folder of kubelet's configuration, which K3s or RKE2 writes at each start."""
        return f"{option(self.options, 'data-dir') or f'/var/lib/rancher/{self.distribution}'}/agent/etc/kubelet.conf.d"


def distribution_of(unit: Unit) -> Distribution | None:
    """Return the distribution that a unit runs with a kubelet, as in `k3s agent`; else None."""
    name, role = (unit.argv[0].rpartition("/")[2], unit.argv[1]) if len(unit.argv) > 1 else ("", "")
    return Distribution(name) if name in list(Distribution) and role in _ROLES else None


def option(options: Sequence[Option], key: str) -> str:
    result = _last(options, key)
    return result.value if result else ""


def _last(options: Sequence[Option], key: str, value: str = "") -> Option | None:
    return next((o for o in reversed(options) if o.key == key and o.value and value in ("", o.value)), None)


def merge(files: Sequence[tuple[str, Mapping[str, Any]]]) -> tuple[Option, ...]:
    """Merge the options of configuration files, given as path and content in the order of reading."""
    merged: dict[str, list[Option]] = {}
    for path, content in files:
        for key, value in content.items():
            name = str(key).removesuffix("+")
            values = value if isinstance(value, list) else [value]
            added = [Option(name, _text(one), path) for one in values]
            merged[name] = [*merged.get(name, ()), *added] if str(key).endswith("+") else added
    return tuple(one for options in merged.values() for one in options)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)


def flags(text: Sequence[Word]) -> tuple[Option, ...]:
    """Parse the options of a command line: `k3s agent --kubelet-arg=v=2 --docker`."""
    return tuple(_flags(text))


def _flags(text: Sequence[Word]) -> Iterator[Option]:
    texts = [*(word.text for word in text), "-"]
    for word, after in zip(text, texts[1:], strict=True):
        if word.text.startswith("-"):
            name, equals, value = word.text.lstrip("-").partition("=")
            given = value if equals else "true" if after.startswith("-") else after
            yield Option(_SHORT.get(name, name), given, word.file)


def kubelet_words(options: Sequence[Option]) -> tuple[Word, ...]:
    """Return kubelet's command line from the options of K3s or RKE2. `arg+=` and `arg-=` are read as `arg=`: only their
    position differs."""
    named = [Word(f"--hostname-override={o.value}", o.file) for o in options if o.key == "node-name" and o.value]
    return (*named, *(Word(_kubelet_flag(o.value), o.file) for o in options if o.key == _ARG))


def _kubelet_flag(text: str) -> str:
    name, equals, value = text.removeprefix("--").partition("=")
    return f"--{name.rstrip('+-')}={value if equals else 'true'}"


# ---- what to change


def redirect(service: Service, socket: str) -> str:
    """Return commands after which kubelet uses the socket (unix://…) from its next start on. containerd is not changed."""
    arg = f"{_ENDPOINT}={socket}"
    winner = next(
        (o for o in reversed(service.options) if o.key == _ARG and _kubelet_flag(o.value).startswith(f"--{_ENDPOINT}=")), None
    )
    restart = f"systemctl restart {service.unit}"
    if winner:
        reload = "systemctl daemon-reload && " if winner.file.endswith((".service", ".conf")) else ""
        return f"{_ARG}: {arg} in {winner.file}, in place of {winner.value}; {reload}{restart}"
    folder = f"{service.config}.d"
    return f"mkdir -p {folder}; printf '{_ARG}+:\\n- {arg}\\n' > {folder}/99-lading.yaml; {restart}"
