"""The checks of `lading-runtimeproxy doctor`: one row each, with the same words as in docs/doctor.md."""

from typing import Final

from lading.doctor.config import decide_config
from lading.doctor.kubelet import decide_endpoint
from lading.doctor.model import Check, then
from lading.doctor.runtime import decide_runtime
from lading.doctor.sockets import decide_socket
from lading.doctor.units import decide_units
from lading.doctor.versions import decide_versions
from runtimeproxy.doctor.hooks import decide_connections, decide_folder, decide_servers
from runtimeproxy.doctor.host import Host
from runtimeproxy.doctor.ready import decide_ready

_OURS: Final = "Lading on this node"
_KUBELET: Final = "kubelet"
_RUNTIME: Final = "container runtime"
_HOOKS: Final = "hook servers"

CHECKS: Final[tuple[Check[Host], ...]] = (
    Check(
        name="config",
        group=_OURS,
        what="the configuration file is valid, and only root can change it",
        why="the proxy does not start with a setting that it does not understand, and then kubelet reaches no runtime",
        look=then(Host.config_file, decide_config),
    ),
    Check(
        name="socket",
        group=_OURS,
        what="the proxy's socket: who listens, whether it is answered, owner and mode as the runtime's own",
        why="it is kubelet's way to the runtime: without an answer no pod starts or stops",
        look=then(Host.socket, decide_socket),
    ),
    Check(
        name="ready",
        group=_OURS,
        what="what lading-runtimeproxy reports at /readyz",
        why="it knows best what it cannot do now: no runtime, unusable registrations, a hook server that does not answer",
        look=then(Host.said, decide_ready),
    ),
    Check(
        name="connections",
        group=_OURS,
        what="connections in use, of max_connections, and those that were rejected",
        why="kubelet's next connection is rejected when all are in use",
        look=then(Host.load, decide_connections),
    ),
    Check(
        name="units",
        group=_OURS,
        what="systemd's units: installed, enabled, running",
        why="what is not enabled does not start at the next boot, and then kubelet reaches no runtime",
        look=then(Host.units, decide_units),
    ),
    Check(
        name="versions",
        group=_OURS,
        what="the versions of both running daemons, and of this command",
        why="the daemons may be at most one minor version apart; an upgrade ends with a restart",
        look=then(Host.versions, decide_versions),
    ),
    Check(
        name="kubelet-endpoint",
        group=_KUBELET,
        what="the socket that kubelet talks to now and after its next start, and the file that says so",
        why="if kubelet bypasses the proxy, pods start without the devices that they were given",
        look=then(Host.route, decide_endpoint),
    ),
    Check(
        name="runtime",
        group=_RUNTIME,
        what="the container runtime answers, its version, its own conditions",
        why="it answers every call of kubelet",
        look=then(Host.runtime, decide_runtime),
    ),
    Check(
        name="hooks-dir",
        group=_HOOKS,
        what="the folder of registrations: readable, writable by root only, each file valid, a hook for every guarded prefix",
        why="a registration that cannot be trusted is ignored, and guarded pods without one are refused",
        look=then(Host.folder, decide_folder),
    ),
    Check(
        name="hooks",
        group=_HOOKS,
        what="each registered hook server: its socket is root's, a process listens, and greets",
        why="if a server does not answer, its pods are refused, or start without it where its policy is Ignore",
        look=then(Host.servers, decide_servers),
    ),
)
