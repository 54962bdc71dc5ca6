"""Render the registration for `lading-hooks registration`: the file that makes the CRI proxy call this node's hook server."""

from typing import Any, Final

from hooks.attach.preparer import STOP_WAIT_S
from hooks.daemon.parts import make_vendors, sum_waits_s
from hooks.daemon.settings import FrontEndName, Settings, attaches
from hooks.forms.annotations import prefixes
from lading.errors import ConfigError
from lading.sockets import parse_endpoint

_HOOKS: Final = (
    "PreCreateContainer",
    "PreStopPodSandbox",
    "PostStopPodSandbox",
    "PostRemovePodSandbox",
)
_MARGIN_S: Final = 2.0  # seconds for the work besides waiting; without them a timeout would replace a refusal and its reason


def render_registration(settings: Settings) -> dict[str, Any]:
    """Return the registration as JSON values. It contains the rules of `hide_unassigned`, because the proxy does not call the
    hook server for pods without Lading's annotations. Raise ConfigError for a `listen` that is not a socket, and on a node with
    another front end than the proxy."""
    if settings.front_end is not FrontEndName.CRI_HOOK:
        raise ConfigError(
            f"cannot register with lading-runtimeproxy: front_end = {settings.front_end}, and a node has one front end",
            hint="front_end = cri-hook, or no lading-runtimeproxy on this node",
        )
    vendors = make_vendors(settings)
    registration: dict[str, Any] = {
        "remote-endpoint": str(parse_endpoint(settings.listen)),
        "failure-policy": "Fail",
        "runtime-hooks": list(_HOOKS),
        "annotation-prefixes": list(prefixes()),
        "env-values": [name for vendor in vendors for name in vendor.hidden_env],
    }
    if waits_s := sum_waits_s(settings):
        registration["deadlines"] = {
            "PreCreateContainer": waits_s + _MARGIN_S,
            **({"PreStopPodSandbox": STOP_WAIT_S + _MARGIN_S} if attaches(settings) else {}),
        }
    if settings.hide_unassigned:
        exempt = {"exempt-namespaces": list(settings.exempt_namespaces)}
        hide = [
            {"env": dict(vendor.hidden_env), **exempt, **({"supplied": dict(vendor.supplied)} if settings.coexist else {})}
            for vendor in vendors
        ]
        registration["static-adjustments"] = {"hide-unassigned": hide}
    return registration
