"""Check the container runtime: whether it answers, its version, and whether its settings agree with kubelet's.

Take the answers to CRI's Version and verbose Status. Return verdicts. A setting that the runtime does not report is no error.

Source: runtime.v1 (RuntimeCondition), containerd's docs/cri/config.md (SystemdCgroup), Kubernetes "Container runtimes" (cgroup
drivers), KEP-4033 (kubelet asks the runtime for its cgroup driver).
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from doctor.kubelet.kubelet import CGROUP_DRIVER, DEFAULT, KubeletReading
from lading.checks.model import Finding, failed, ok, skipped, warning
from lading.versions import Support, judge_runtime, parse_version
from protos.cri.runtime.v1 import api_pb2 as cri

# kubelet requires these conditions of the runtime. Others only inform, such as containerd 2.2's about deprecated settings.
_REQUIRED: Final = ("RuntimeReady", "NetworkReady")
# containerd since this major version reports its cgroup driver to kubelet, so that kubelet needs no setting.
_REPORTS_DRIVER: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeReading:
    endpoint: Path
    version: cri.VersionResponse
    status: cri.StatusResponse

    @property
    def name(self) -> str:
        return f"{self.version.runtime_name} {self.version.runtime_version}"


def decide_runtime(reading: RuntimeReading) -> Iterator[Finding]:
    judged = judge_runtime(f"{reading.version.runtime_name}://{reading.version.runtime_version}")
    mend = "docs/operations.md, Install: containerd 1.6 or newer; 1.7.2 or newer for gpu_mode = cdi"
    match judged.support:
        case Support.NONE:
            yield failed(judged.why, mend=mend)
        case Support.UNKNOWN:
            yield warning(judged.why, mend=mend)
        case Support.LIMITED | Support.FULL:
            pass  # the check `cdi` reports missing functions
    lacking = [condition for condition in reading.status.status.conditions if not condition.status]
    for condition in lacking:
        what = f"{reading.name}: {condition.type} does not hold: {condition.reason}: {condition.message}"
        judge = failed if condition.type in _REQUIRED else warning
        yield judge(what, mend="crictl info; journalctl -u containerd -n 50")
    if not any(condition.type in _REQUIRED for condition in lacking) and judged.support is not Support.NONE:
        yield ok(f"{reading.name} answers at {reading.endpoint}, and is ready")


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupDrivers:
    kubelet: KubeletReading
    runtime: RuntimeReading


def decide_cgroup_driver(reading: CgroupDrivers) -> Iterator[Finding]:
    if reading.kubelet.running is None:
        yield skipped("no kubelet runs here")
        return
    if reading.kubelet.service and reading.kubelet.running.cgroup_driver.source == DEFAULT:
        yield skipped(
            f"{reading.kubelet.service.distribution} sets its kubelet's and containerd's cgroup driver, without reporting it"
        )
        return
    systemd = systemd_cgroups(reading.runtime.status)
    if systemd is None:
        yield skipped(f"{reading.runtime.name} does not report its cgroup driver")
        return
    mine, theirs = reading.kubelet.running.cgroup_driver, "systemd" if systemd else "cgroupfs"
    version = parse_version(reading.runtime.version.runtime_version)
    mend = _set_driver(reading.kubelet, theirs)
    if mine.value == theirs:
        yield ok(f"kubelet and {reading.runtime.name} both use {theirs}")
    elif version and version.major >= _REPORTS_DRIVER:
        runtime = reading.runtime.name
        what = f"kubelet is set to {mine.value} ({mine.source}), which one before 1.31 follows; {runtime} uses {theirs}"
        yield warning(what, mend=mend)
    else:
        what = f"kubelet uses {mine.value} ({mine.source}), {reading.runtime.name} uses {theirs}"
        yield failed(what, mend=f"on a drained node: {mend}")


def _set_driver(kubelet: KubeletReading, driver: str) -> str:
    """Return commands that set kubelet's cgroup driver in the place that counts. A flag overrides the configuration file; K3s
    and RKE2 write both again at each start."""
    mine, service = kubelet.command.cgroup_driver, kubelet.service
    if service:
        return f"kubelet-arg: cgroup-driver={driver} in {service.config}; systemctl restart {service.unit}"
    place = mine.source if mine.source.startswith("/") else ""
    if mine.source == DEFAULT or mine == kubelet.command.config.get(CGROUP_DRIVER):
        return f"{CGROUP_DRIVER}: {driver} in {place or '/var/lib/kubelet/config.yaml'}; systemctl restart kubelet"
    flag = f"--cgroup-driver={driver} {f'in {place}' if place else 'on its command line'}"
    return f"{flag}; systemctl daemon-reload && systemctl restart kubelet"


def systemd_cgroups(status: cri.StatusResponse) -> bool | None:
    """Return `SystemdCgroup` of containerd's default runtime: whether systemd manages cgroups; None if it is not reported."""
    default = runtimes_of(status).get(_containerd(status).get("defaultRuntimeName", "runc"))
    options = default.get("options") if isinstance(default, dict) else None
    if not isinstance(options, dict):
        return None
    return options.get("SystemdCgroup") is True


def runtimes_of(status: cri.StatusResponse) -> dict[str, Any]:
    """Return containerd's configuration of runtime handlers, by name; empty if it is not reported."""
    result = _containerd(status).get("runtimes")
    return result if isinstance(result, dict) else {}


def is_selinux_used(status: cri.StatusResponse) -> bool | None:
    """Return whether containerd gives containers domains of SELinux (`enable_selinux`); None if it is not reported."""
    used = _config(status).get("enableSelinux")
    return used if isinstance(used, bool) else None


def _containerd(status: cri.StatusResponse) -> dict[str, Any]:
    result = _config(status).get("containerd")
    return result if isinstance(result, dict) else {}


def _config(status: cri.StatusResponse) -> dict[str, Any]:
    try:
        result = json.loads(status.info.get("config", "{}"))
    except ValueError:
        return {}
    return result if isinstance(result, dict) else {}
