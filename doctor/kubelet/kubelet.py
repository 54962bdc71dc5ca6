"""Find the runtime socket that kubelet uses now, the socket after its next start, and the file that sets it.

Take the running kubelet, its unit as systemd shows it, its configuration files, and its /configz. Return endpoints with their
source, and whether pods start without the proxy. /configz has the settings that the running kubelet uses. In the files, a flag
overrides the configuration file, the last of several equal flags counts, and the drop-ins of `--config-dir` override the file
of `--config`. `cgroupDriver` and `--hostname-override` are read in the same way. A kubelet of K3s or RKE2 gets its settings
from their configuration (doctor.kubelet.distribution).

Source: kubelet's cmd/kubelet/app (flags parsed again after the file), Kubernetes "Drop-in directory for kubelet configuration
files" (names that end in .conf, in order), kubeadm's 10-kubeadm.conf.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from doctor.kubelet.distribution import CONTAINERD, Service, redirect
from doctor.kubelet.unit import Unit, Word
from doctor.processes import Process
from lading.checks.model import Finding, failed, ok, skipped, warning

_FLAG: Final = "container-runtime-endpoint"
KEY: Final = "containerRuntimeEndpoint"
CGROUP_DRIVER: Final = "cgroupDriver"
_EXTRA_ARGS: Final = "KUBELET_EXTRA_ARGS"
_DROP_INS: Final = "/etc/systemd/system/kubelet.service.d"
_RESTART: Final = "systemctl daemon-reload && systemctl restart kubelet"
DEFAULT: Final = "kubelet's default"
COMMAND_LINE: Final = "its command line"
CONFIGZ: Final = "its /configz"
_ASK: Final = "kubectl get --raw /api/v1/nodes/NODE/proxy/configz; on the node itself: systemctl cat kubelet k3s k3s-agent"
_RUNTIME: Final = (
    f'runtime_endpoint = "{CONTAINERD}" in runtimeproxy.toml and in hooks.toml; '
    "systemctl restart lading-runtimeproxy lading-hooks"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    value: str
    source: str  # a file of the node, or one of the texts above


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Hold kubelet's command line, and the settings of the configuration files named there, by key."""

    words: tuple[Word, ...] = ()
    config: Mapping[str, Setting] = field(default_factory=dict)
    configz: Mapping[str, str] = field(default_factory=dict)  # settings of the running kubelet by key; empty: no answer

    def setting(self, flag: str, key: str, default: str) -> Setting:
        word = last_flag(self.words, flag)
        setting = Setting(value=word.text, source=word.file) if word else self.config.get(key)
        setting = setting or Setting(value=default, source=DEFAULT)
        effective = self.configz.get(key) or setting.value
        return setting if effective == setting.value else Setting(value=effective, source=CONFIGZ)

    @property
    def endpoint(self) -> Setting:
        return self.setting(_FLAG, KEY, "unix:///run/containerd/containerd.sock")

    @property
    def cgroup_driver(self) -> Setting:
        return self.setting("cgroup-driver", CGROUP_DRIVER, "cgroupfs")

    def node_name(self, hostname: str) -> str:
        named = last_flag(self.words, "hostname-override")
        return (named.text if named else hostname).strip().lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletReading:
    process: Process | None = None
    running: Command | None = None  # command of the running process; None: kubelet does not run
    unit: Unit = field(default_factory=Unit)
    by_systemd: bool = True  # whether systemd shows its units; False: what it would start is unknown
    planned: Command | None = None  # command that the unit would start now; None: no unit starts kubelet
    service: Service | None = None  # K3s or RKE2 if kubelet is part of it; None: kubelet is independent

    @property
    def name(self) -> str:
        inside = self.service is not None and self.process is not None and self.process.program != "kubelet"
        return f"kubelet inside {self.process}" if inside else str(self.process)

    @property
    def command(self) -> Command:
        return self.running or self.planned or Command()


def traced(argv: Sequence[str], planned: Sequence[Word]) -> tuple[Word, ...]:
    """Return the words of a running command line, each with the file of the unit that contains the same word, if any."""
    files = {word.text: word.file for word in planned}
    return tuple(Word(text, files.get(text, COMMAND_LINE)) for text in argv)


def last_flag(text: Sequence[Word], name: str) -> Word | None:
    """Return the value of the last `--name=value` or `--name value`; None if the flag is absent."""
    result = None
    for word, after in pairwise([*text, Word("", "")]):
        flag, equals, value = word.text.partition("=")
        if flag in (f"--{name}", f"-{name}"):
            result = Word(value, word.file) if equals else after
    return result


def same_socket(one: str, other: str) -> bool:
    return _socket_path(one) == _socket_path(other)


def _url(endpoint: str) -> str:
    return f"unix://{_socket_path(endpoint)}"


def _socket_path(text: str) -> str:
    path = text.removeprefix("unix://").removeprefix("unix:")
    return path.removeprefix("/var") if path.startswith("/var/run/") else path


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Hold kubelet, the proxy's socket, and the socket of the runtime behind the proxy. kubelet should use the proxy's socket,
    or the runtime's with `direct` (front_end = nri, without a proxy)."""

    kubelet: KubeletReading
    proxy: str
    runtime: str
    direct: bool = False


def decide_endpoint(route: Route) -> Iterator[Finding]:
    now, later = route.kubelet.running, route.kubelet.planned
    if now is None and later is None and not route.kubelet.by_systemd:
        yield skipped("no kubelet is visible here, and systemd, which could start one, does not answer", mend=_ASK)
    elif now is None and later is None:
        yield skipped("no kubelet runs here, and it has no unit (neither have k3s and rke2)")
    elif route.direct:
        yield from _decide_direct(route)
    elif now is None and later is not None:
        whose = f"{route.kubelet.service.distribution}'s kubelet" if route.kubelet.service else "kubelet"
        what = f"{whose} does not run; when it starts it talks to {later.endpoint.value}, as {later.endpoint.source} says"
        past = not same_socket(later.endpoint.value, route.proxy)
        yield failed(f"{what}: past the proxy", mend=_redirect(route, later)) if past else ok(what)
    elif now is not None and not same_socket(now.endpoint.value, route.proxy):
        yield _bypass(route, now, later)
    elif now is not None and later is not None and not same_socket(later.endpoint.value, route.proxy):
        what = (
            f"kubelet talks to the proxy until its next start, then to {later.endpoint.value}, as {later.endpoint.source} says"
        )
        yield warning(what, mend=_redirect(route, later))
    elif now is not None:
        yield _through_the_proxy(route, now)
    if route.kubelet.unit.is_stale:
        what = "the unit that starts kubelet changed on disk since systemd read it: its next start may use another endpoint"
        yield warning(what, mend="systemctl daemon-reload; lading-doctor --only kubelet-endpoint")


def _decide_direct(route: Route) -> Iterator[Finding]:
    """Check for front_end = nri that kubelet uses the runtime's socket. A proxy in between would refuse guarded pods."""
    plans = {"now": route.kubelet.running, "from its next start on": route.kubelet.planned}
    wrong = [
        (when, command.endpoint)
        for when, command in plans.items()
        if command is not None and not same_socket(command.endpoint.value, route.runtime)
    ]
    for when, endpoint in wrong:
        is_proxy = same_socket(endpoint.value, route.proxy)
        what = f"kubelet talks to {endpoint.value} {when}, as {endpoint.source} says"
        other = "the proxy, and front_end = nri: a node has one front end" if is_proxy else f"not to {route.runtime}, as Lading"
        mend = f"--{_FLAG}={_url(route.runtime)} where {endpoint.source} says it; {_RESTART}"
        yield failed(f"{what}: {other}", mend=mend if is_proxy else f"{mend}; or runtime_endpoint in hooks.toml")
    if not wrong:
        endpoint = route.kubelet.command.endpoint
        yield ok(f"kubelet talks to the runtime at {endpoint.value}, as {endpoint.source} says; it needs no proxy")


def _through_the_proxy(route: Route, now: Command) -> Finding:
    service, result = route.kubelet.service, now.endpoint
    talks = f"{route.kubelet.name} talks to the proxy at {result.value}, as {result.source} says"
    if service is None:
        return ok(talks if route.kubelet.by_systemd else f"{talks}; systemd does not answer about its next start")
    if not service.runs_containerd and same_socket(route.runtime, CONTAINERD):
        what = f"container-runtime-endpoint in {service.own_endpoint.file} turns off {service.distribution}'s own containerd"
        mend = f"take it out there; {redirect(service, _url(route.proxy))}"
        return failed(f"{what}, which is the runtime that the proxy asks", mend=mend)
    if service.runs_containerd and not same_socket(route.runtime, CONTAINERD):
        what = f"the proxy asks {route.runtime}, and {service.distribution}'s containerd listens at {CONTAINERD}"
        return failed(f"{route.kubelet.name} talks to the proxy; {what}", mend=_RUNTIME)
    if service.changed and not now.configz:
        what = f"{route.kubelet.name} was started before {service.changed} was written: what it talks to now is not known"
        return warning(f"{what}, from its next start on it is the proxy", mend=f"systemctl restart {service.unit}")
    return ok(talks)


def _bypass(route: Route, now: Command, later: Command | None) -> Finding:
    endpoint = now.endpoint
    what = f"{route.kubelet.name} talks to {endpoint.value}, as {endpoint.source} says: past the proxy at {route.proxy}"
    if later is not None and same_socket(later.endpoint.value, route.proxy):
        restart = f"systemctl restart {route.kubelet.service.unit}" if route.kubelet.service else _RESTART
        return failed(f"{what}; it was not restarted since {later.endpoint.source} says otherwise", mend=restart)
    return failed(what, mend=_redirect(route, later or now))


def _redirect(route: Route, command: Command) -> str:
    """Return commands after which kubelet uses the proxy from its next start on. They edit the file that sets the endpoint, or
    could set it."""
    unit, source, service = route.kubelet.unit, command.endpoint.source, route.kubelet.service
    socket = _url(route.proxy)
    if service:
        first = f"{_RUNTIME}; " if service.runs_containerd and not same_socket(route.runtime, CONTAINERD) else ""
        return f"{first}{redirect(service, socket)}"
    flag = f"--{_FLAG}={socket}"
    if winner := unit.environment_file(_EXTRA_ARGS):
        return f"give {_EXTRA_ARGS} in {winner}, which wins over drop-ins, {flag}; systemctl restart kubelet"
    if f"${_EXTRA_ARGS}" in unit.argv:  # 10-lading.conf sorts after kubeadm's 10-kubeadm.conf
        line = f'[Service]\\nEnvironment="{_EXTRA_ARGS}={flag}"\\n'
        return f"mkdir -p {_DROP_INS}; printf '{line}' > {_DROP_INS}/10-lading.conf; {_RESTART}"
    if command.config.get(KEY) == command.endpoint:
        return f"{KEY}: {socket} in {source}; systemctl restart kubelet"
    return f"{flag}{f' in {source}' if source.startswith('/') else ' on its command line'}; {_RESTART}"
