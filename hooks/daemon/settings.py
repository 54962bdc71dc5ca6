"""Define every setting of the hook server (configuration key, flag, default, help), and check and derive values from them."""

import os
import platform
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final
from uuid import UUID

import msgspec

from hooks.attach.cni import resource_problem
from hooks.forms import annotations
from hooks.forms.netdev import WrongSettingError, parse_settings, settings_conflict
from hooks.grant.dirty import CleanCheck
from hooks.grant.pod import PodPolicy
from hooks.grant.rdma import RdmaInjection
from hooks.grant.unhealthy import Unhealthy
from hooks.host.ldcache import NAME as LDCACHE
from hooks.host.ldcache import built_program
from hooks.isolation.library import LIBRARIES
from hooks.isolation.mps import MpsFolders
from hooks.model.assignment import Form, FormName, Trust
from hooks.model.attachment import NetdevPolicy, VfSettings
from hooks.vendors.nvidia.settings import NvidiaSettings
from lading.devices.identity import parse_pci_address, shown
from lading.devices.isolation import IsolationName
from lading.errors import ConfigError
from lading.health import parse_address
from lading.log import Level
from lading.nodedevices import MOST_RAIL, SHARES_PER_GPU
from lading.settings import Setting, add_flags, check_absolute, load
from lading.sharegrant import FOLDER
from lading.sharestatus import SOCKET_PATH
from lading.signature import read_public_keys
from lading.sockets import LONGEST_PATH, parse_endpoint
from lading.vocabulary import GpuUuid, PciAddress

CONFIG: Final = Path("/etc/lading/hooks.toml")
REGISTRATION: Final = Path("/etc/lading/hooks.d/50-lading.json")

GROUPS: Final = {  # titles in the help, by the first setting of each group
    "gpu_mode": "GPUs and the driver",
    "front_end": "the runtime, sockets and folders",
    "node_name": "assignments",
    "shares_per_gpu": "shares of a card",
    "hide_unassigned": "which containers get devices",
    "rdma_resource": "RDMA VFs",
    "unhealthy": "unhealthy and dirty devices",
    "inventory_interval": "readings and records",
    "report": "reports to the API server",
    "metrics": "metrics, traces and the log",
}
_SOME_UUID: Final = GpuUuid(f"GPU-{UUID(int=0)}")  # stands for any card's UUID, because all have the same length

# Keys in [vf], which apply to every VF. A MAC, an address and a route belong to one VF, so the VF's assignment has them.
_VF_KEYS: Final = frozenset(
    {"vlan", "vlan_qos", "vlan_proto", "min_tx_rate", "max_tx_rate", "spoofchk", "trust", "link_state", "mtu"}
)


class AttachBy(StrEnum):
    HOOKS = "hooks"
    CNI = "cni"


class MpsMemory(StrEnum):
    PROCESS = "process"
    CONTAINER = "container"


class FrontEndName(StrEnum):
    CRI_HOOK = "cri-hook"
    NRI = "nri"


class Settings(NvidiaSettings, frozen=True, kw_only=True):
    front_end: Annotated[
        FrontEndName,
        Setting(
            "which program asks lading-hooks about containers: cri-hook (lading-runtimeproxy) or nri (the container runtime)"
        ),
    ] = FrontEndName.CRI_HOOK
    nri_socket: Annotated[str, Setting("front_end nri: the container runtime's NRI socket")] = "/var/run/nri/nri.sock"
    nri_plugin_path: Annotated[
        str, Setting("front_end nri: the folder of plugins that the runtime launches itself, its setting plugin_path")
    ] = "/opt/nri/plugins"
    listen: Annotated[str, Setting("socket of the hook server")] = "/run/lading/hooks.sock"
    runtime_endpoint: Annotated[str, Setting("the container runtime's CRI socket")] = "/run/containerd/containerd.sock"
    state_dir: Annotated[str, Setting("folder of the ledger, node.db")] = "/var/lib/lading"
    host_root: Annotated[str, Setting("sys, proc, dev and run are read below this folder")] = "/"
    node_name: Annotated[str, Setting("this node's name in Kubernetes; assignments for another one are refused")] = ""
    assignments: Annotated[
        tuple[FormName, ...],
        Setting("what this node accepts: signed and unsigned (by central), or manual (by hand, for testing)"),
    ] = (Form.SIGNED,)
    keys: Annotated[
        dict[str, str],
        Setting("central's public keys: key id = PEM file", flag=False),
    ] = msgspec.field(default_factory=dict)
    foreign_annotations: Annotated[
        tuple[str, ...], Setting("annotations below lading.dev/ of other systems, which pods with devices may have")
    ] = ()
    rails: Annotated[
        dict[str, Annotated[int, msgspec.Meta(ge=0, le=MOST_RAIL)]],
        Setting("report: the rail of each PF, by PCI address; by default the order of equal PFs", flag=False),
    ] = msgspec.field(default_factory=dict)
    shares_per_gpu: Annotated[
        int, msgspec.Meta(ge=1, le=1000), Setting("containers that may have a share of one card at a time; reported to central")
    ] = SHARES_PER_GPU
    isolations: Annotated[
        tuple[IsolationName, ...],
        msgspec.Meta(min_length=1),
        Setting("what keeps containers to their shares: none, tokens, mps, hami-core; the first is for pods that ask for none"),
    ] = (IsolationName.NONE,)
    shares_dir: Annotated[str, Setting("isolation tokens: folder of the grants that lading-shares reads")] = str(FOLDER)
    share_libraries: Annotated[
        str,
        Setting(
            "isolation tokens: folder of the libraries that replace libcuda and NVML in containers, and of the hook "
            "lading-ldcache; empty: those of Lading"
        ),
    ] = ""
    shares_socket: Annotated[str, Setting("isolation tokens: socket of lading-shares, its setting listen")] = SOCKET_PATH
    share_tolerance: Annotated[
        int,
        msgspec.Meta(ge=0),
        Setting("isolation tokens: MiB that each process may use beside its share, as for its context, before it is reported"),
    ] = 1024
    mps_control: Annotated[str, Setting("isolation mps: NVIDIA's program that starts and asks a card's MPS daemon")] = (
        "/usr/bin/nvidia-cuda-mps-control"
    )
    mps_memory: Annotated[
        MpsMemory,
        Setting("isolation mps: what keeps to a share of memory: each process, by MPS, or the container, by lading-shares"),
    ] = MpsMemory.PROCESS
    mps_dir: Annotated[str, Setting("isolation mps: folder of the daemons' pipes and logs")] = "/run/lading/mps"
    mps_shm_dir: Annotated[
        str, Setting("isolation mps: folder, on a tmpfs, of what containers of a card have as their /dev/shm")
    ] = "/dev/shm/lading-mps"  # noqa: S108 -- one folder, 0700
    hami_library: Annotated[str, Setting("isolation hami-core: path of libvgpu.so, which the operator provides")] = ""
    hami_dir: Annotated[str, Setting("isolation hami-core: folder, on a tmpfs, of what the library writes in containers")] = (
        "/dev/shm/lading-hami"  # noqa: S108 -- one folder, 0700
    )
    hide_unassigned: Annotated[bool, Setting("NVIDIA_VISIBLE_DEVICES=void for containers without a GPU from Lading")] = True
    exempt_namespaces: Annotated[tuple[str, ...], Setting("namespaces to which hide_unassigned does not apply")] = ()
    coexist: Annotated[bool, Setting("a device plugin serves this node too: leave alone what kubelet supplies")] = False
    allow_privileged: Annotated[
        bool, Setting("give devices to containers that are privileged or add SYS_ADMIN, which open every device")
    ] = False
    unsupported_handlers: Annotated[
        tuple[str, ...], Setting("runtime handlers (patterns) whose containers cannot be given devices")
    ] = PodPolicy().unsupported_handlers
    rdma_resource: Annotated[str, Setting("resource name in the environment variable PCIDEVICE_… of containers with VFs")] = (
        RdmaInjection().resource
    )
    rdma_mad: Annotated[bool, Setting("give containers with VFs the umad and issm device nodes too")] = False
    rdma_memlock: Annotated[bool, Setting("front_end nri: no limit of locked memory for containers with VFs")] = False
    rdma_ipc_lock: Annotated[bool, Setting("give containers with VFs the capability IPC_LOCK")] = False
    netdev: Annotated[
        bool | None,
        Setting("move a VF's network device into its pod; by default only if host_root is /"),
    ] = None
    attach: Annotated[AttachBy, Setting("what moves VFs into pods: hooks, or cni (Multus with sriov-cni)")] = AttachBy.HOOKS
    attach_deadline: Annotated[
        float, msgspec.Meta(ge=1, le=300), Setting("seconds after which a container whose VF is not in its pod is refused")
    ] = 30.0
    vf: Annotated[
        dict[str, Any],
        Setting("settings of VFs whose assignment does not set them: vlan, spoofchk, trust, mtu, …", flag=False),
    ] = msgspec.field(default_factory=dict)
    unhealthy: Annotated[
        Unhealthy,
        Setting("a container created again whose device became unhealthy: keep waits for it, give-up takes another free VF"),
    ] = Unhealthy.KEEP
    dirty_tolerance: Annotated[
        int,
        msgspec.Meta(ge=0),
        Setting("MiB that may be in use on a card that no grant holds; with more it is not clean"),
    ] = 64
    clean_checks: Annotated[
        tuple[CleanCheck, ...],
        Setting("what makes a card that no grant holds dirty, so that it is not granted: processes, memory, compute-mode, ecc"),
    ] = tuple(CleanCheck)
    tolerated_processes: Annotated[
        tuple[str, ...], Setting("names of processes of the host that may compute on a card that no grant holds")
    ] = ("nvidia-cuda-mps-server", "nv-hostengine", "dcgm-exporter")
    hand_over_command: Annotated[
        tuple[str, ...],
        Setting(
            "program, with arguments, to run for a card after its last grant ended, before it is granted again; {uuid}, {bdf}"
        ),
    ] = ()
    hand_over_deadline: Annotated[
        float, msgspec.Meta(ge=1, le=600), Setting("seconds after which the hand_over_command is ended, and has failed")
    ] = 60.0
    inventory_interval: Annotated[
        float, msgspec.Meta(ge=1, le=3600), Setting("seconds between two readings of the devices")
    ] = 10.0
    reconcile_interval: Annotated[
        float, msgspec.Meta(ge=1, le=3600), Setting("seconds between two comparisons with the runtime's lists")
    ] = 60.0
    audit_days: Annotated[
        int, msgspec.Meta(ge=1, le=3650), Setting("days for which lading-hooks audit shows which pod held which device")
    ] = 90
    report: Annotated[bool, Setting("report devices and grants to the API server, as NodeDevices, for central")] = False
    kubeconfig: Annotated[str, Setting("report: kubeconfig file; empty: in-cluster service account")] = ""
    report_use_interval: Annotated[
        float,
        msgspec.Meta(ge=0, le=86400),
        Setting("report: least seconds between two reports that change only the use of cards; 0: use is not reported"),
    ] = 60.0
    node_taint: Annotated[
        bool | None,
        Setting("report: taint this node lading.dev/not-ready while it may not start pods; by default if front_end is nri"),
    ] = None
    metrics: Annotated[str, Setting("address and port of /metrics, /healthz and /readyz; empty for none")] = "127.0.0.1:9441"
    otlp_endpoint: Annotated[
        str, Setting("URL of an OpenTelemetry collector, like http://127.0.0.1:4318/v1/traces; empty: no traces")
    ] = ""
    log_level: Annotated[Level, Setting("debug, info, warning or error")] = Level.INFO


def check(settings: Settings) -> None:
    """Check addresses, settings that depend on each other, and the files that settings name. Raise ConfigError."""
    for key in ("listen", "runtime_endpoint", "shares_socket", "nri_socket"):
        try:
            parse_endpoint(getattr(settings, key))
        except ConfigError as e:
            raise ConfigError(f"{key}: {e.message}", hint=e.hint) from e
    parse_address(settings.metrics)
    read_vf_settings(settings)
    _check_front_end(settings)
    _check_cni(settings)
    settings.check_cards()
    _check_isolations(settings)
    if settings.node_taint and not settings.report:
        raise ConfigError(
            "node_taint = true, and report = false: this node writes nothing to the API server",
            hint="report = true, with the kubeconfig of lading-reporter",
        )
    if settings.hand_over_command and not Path(settings.hand_over_command[0]).is_absolute():
        raise ConfigError(
            f"hand_over_command = {settings.hand_over_command[0]!r} is no absolute path",
            hint='hand_over_command = ["/usr/bin/nvidia-smi", "--gpu-reset", "-i", "{uuid}"]',
        )
    read_rails(settings)
    trust = read_trust(settings)
    if missing := _missing(settings, trust):
        raise ConfigError("; ".join(missing), hint="; ".join(missing.values()))


def _missing(settings: Settings, trust: Trust) -> dict[str, str]:
    """Return the missing settings that other settings need: an error for each, with a hint how to write it. All are returned at
    once, so that the author of a configuration does not find them one by one."""
    missing: dict[str, str] = {}
    of_central = sorted(trust.accepted & {Form.SIGNED, Form.UNSIGNED})
    if not settings.node_name and (of_central or settings.report):
        needed = "an assignment names the node that it is for" if of_central else "report = true needs it"
        missing[f"node_name is empty: {needed}"] = "node_name = the name that `kubectl get nodes` shows for this machine"
    if Form.SIGNED in trust.accepted and not trust.keys:
        hint = 'below [keys]: k1 = "/etc/lading/keys/k1.pem" (or assignments = ["manual"], for testing)'
        missing["keys is empty: signed assignments are checked with these keys"] = hint
    return missing


def _check_front_end(settings: Settings) -> None:
    """Refuse settings that the front end's protocol cannot express."""
    if settings.front_end is not FrontEndName.NRI:
        if settings.rdma_memlock:
            raise ConfigError(
                f"rdma_memlock = true, and front_end = {settings.front_end}: CRI has no field for it",
                hint="LimitMEMLOCK=infinity in the runtime's unit, or rdma_ipc_lock = true",
            )
        return
    lost = {
        "rdma_ipc_lock": "NRI cannot add capabilities; rdma_memlock = true serves as well",
        "coexist": "NRI shows the environment of a container only after a device plugin's part of it was replaced",
    }
    for key, reason in lost.items():
        if getattr(settings, key):
            raise ConfigError(f"{key} = true, and front_end = nri: {reason}", hint=f"leave {key} out (or front_end = cri-hook)")
    if settings.attach is AttachBy.CNI:
        raise ConfigError(
            "attach = cni, and front_end = nri: NRI does not say when CNI has given VFs back",
            hint="attach = hooks (or front_end = cri-hook)",
        )


def _check_cni(settings: Settings) -> None:
    """Refuse settings for moving VFs with attach = cni: Lading moves no VF then, so they would have no effect."""
    if settings.attach is not AttachBy.CNI:
        return
    for key in ("vf", "netdev", "attach_deadline"):
        if getattr(settings, key) != getattr(Settings(), key):
            raise ConfigError(
                f"{key} is set, and with attach = cni it is the cluster's CNI that brings VFs into pods",
                hint=f"leave {key} out: how a VF is set is up to the NetworkAttachmentDefinition (or attach = hooks)",
            )
    if problem := resource_problem(settings.rdma_resource):
        raise ConfigError(
            f"rdma_resource: {settings.rdma_resource!r} {problem}, and with attach = cni files about VFs are named after it",
            hint="rdma_resource = lading.dev/rdma",
        )


def _check_isolations(settings: Settings) -> None:
    """Refuse isolations that this version lacks, or that do not work with the node's other settings."""
    known = set(IsolationName) - {IsolationName.MIG}
    if unknown := [name for name in settings.isolations if name not in known]:
        raise ConfigError(
            f"isolations: this version has no {', '.join(unknown)}", hint=f"write some of {', '.join(sorted(known))}"
        )
    if IsolationName.TOKENS in settings.isolations:
        _check_library(settings, "isolations has tokens")
    if IsolationName.MPS in settings.isolations:
        _check_mps(settings)
    elif settings.mps_memory is MpsMemory.CONTAINER:
        raise ConfigError(
            'mps_memory = "container", and isolations has no mps', hint='isolations = ["mps"], or leave mps_memory out'
        )
    if IsolationName.HAMI_CORE in settings.isolations:
        _check_hami(settings)


def _check_library(settings: Settings, reason: str) -> None:
    """Refuse settings with which the library of shares cannot take the place of the driver's. `reason`: why it is needed."""
    if not settings.mounts_driver:
        raise ConfigError(
            f"{reason}, which replaces libcuda.so.1 among the driver's files that Lading mounts", hint='gpu_mode = "devices"'
        )
    if missing := [name for name in LIBRARIES if not (share_libraries(settings) / name).is_file()]:
        raise ConfigError(
            f"{reason}, and {share_libraries(settings)} has no {' and no '.join(missing)}",
            hint="share_libraries = the folder of the built libraries (make share-library builds them)",
        )


def _check_mps(settings: Settings) -> None:
    if not Path(settings.mps_control).is_file():
        raise ConfigError(
            f"isolations has mps, and mps_control = {settings.mps_control} is no file",
            hint="the driver installs it as nvidia-cuda-mps-control",
        )
    if settings.mps_memory is MpsMemory.CONTAINER:
        _check_library(settings, 'isolations has mps, and mps_memory = "container"')
    check_absolute(settings, "mps_dir", "mps_shm_dir")
    socket = f"{mps_folders(settings).pipe(_SOME_UUID)}/control_privileged"
    if (over := len(os.fsencode(socket)) - LONGEST_PATH) > 0:
        raise ConfigError(
            f"mps_dir = {settings.mps_dir} is {over} bytes too long: a daemon's socket in it would be {socket}, and "
            f"a socket's path has {LONGEST_PATH} at most",
            hint=f"mps_dir = {Settings().mps_dir}",
        )


def _check_hami(settings: Settings) -> None:
    if not Path(settings.hami_library).is_file():
        raise ConfigError(
            f"isolations has hami-core, and hami_library = {settings.hami_library!r} is no file",
            hint="hami_library = the path of libvgpu.so, built from HAMi-core; Lading does not bring it along",
        )
    check_absolute(settings, "hami_library", "hami_dir")


def mps_folders(settings: Settings) -> MpsFolders:
    return MpsFolders(mps_dir=settings.mps_dir, shm_dir=settings.mps_shm_dir)


def has_share_library(settings: Settings) -> bool:
    """Return whether containers get Lading's library, which asks lading-shares."""
    by_mps = IsolationName.MPS in settings.isolations and settings.mps_memory is MpsMemory.CONTAINER
    return by_mps or IsolationName.TOKENS in settings.isolations


def share_libraries(settings: Settings) -> Path:
    """Return the folder of the libraries of shares for this machine's architecture."""
    if settings.share_libraries:
        return Path(settings.share_libraries)
    return Path(__file__).parents[2] / "shares/library/built" / platform.machine()


def ldcache_program(settings: Settings) -> Path | None:
    """Return the hook for the loader's cache, at its path on the host. None: neither NRI nor a CDI spec of Lading has the
    runtime run it, or lading-hooks is in a container and the program was not copied to the host."""
    by_nri = settings.front_end is FrontEndName.NRI and settings.mounts_driver
    if not by_nri and not settings.writes_specs:
        return None
    copied = share_libraries(settings) / LDCACHE
    if copied.is_file():
        return copied
    return None if settings.driver_mount else built_program()


def taints_node(settings: Settings) -> bool:
    """Return whether Lading taints the node while the node is not ready."""
    by_default = settings.front_end is FrontEndName.NRI
    return settings.report and (by_default if settings.node_taint is None else settings.node_taint)


def guard_lock(settings: Settings) -> Path:
    """Return the lock file by which lading-hooks detects a connected guard."""
    return parse_endpoint(settings.listen).with_name("nri-guard.lock")


def ready_mark(settings: Settings) -> Path:
    """Return the file that exists if this node was ready at least once since its boot."""
    return parse_endpoint(settings.listen).with_name("was-ready")


def ledger_path(settings: Settings) -> Path:
    return Path(settings.state_dir) / "node.db"


def read_arguments(parser: ArgumentParser, argv: Sequence[str]) -> tuple[Namespace, Settings]:
    """Return the arguments of a command, for which each setting is a flag too, and the settings. Raise ConfigError."""
    add_flags(parser, Settings, config=CONFIG)
    args = parser.parse_args(argv)
    return args, load(Settings, args)


def read_trust(settings: Settings) -> Trust:
    """Return the accepted assignment forms, central's keys, and accepted foreign annotations. Raise ConfigError."""
    forms = [form for dialect in annotations.DIALECTS for form in dialect.forms]
    if unknown := sorted({*settings.assignments}.difference(forms)):
        raise ConfigError(f"assignments: {unknown[0]!r} is none of {', '.join(forms)}")
    foreign = frozenset(settings.foreign_annotations)
    return Trust(accepted=frozenset(settings.assignments), keys=read_public_keys(settings.keys), foreign=foreign)


def read_rails(settings: Settings) -> Mapping[PciAddress, int]:
    """Return the rails in `[rails]`. Raise ConfigError."""
    rails: dict[PciAddress, int] = {}
    for name, rail in settings.rails.items():
        bdf = parse_pci_address(name)
        if bdf is None:
            raise ConfigError(f"rails: {shown(name)} is no PCI address", hint='below [rails]: "0000:18:00.0" = 0')
        if bdf in rails:
            raise ConfigError(f"rails: {bdf} is there twice, as {rails[bdf]} and {rail}", hint="name each PF once")
        rails[bdf] = rail
    return rails


def max_age_s(interval_s: float) -> float:
    """Return the maximum age of values read at this interval: three intervals plus 30 s for a slow driver (10 s → 60 s)."""
    return 3 * interval_s + 30.0


def attaches(settings: Settings) -> bool:
    """Return whether Lading moves VFs into pods: their network devices, and in exclusive mode their RDMA devices."""
    return settings.attach is AttachBy.HOOKS and (Path(settings.host_root) == Path("/") or settings.netdev is True)


def read_vf_settings(settings: Settings) -> VfSettings:
    """Return the settings in `[vf]`. Raise ConfigError."""
    if unknown := [f"vf.{key}" for key in settings.vf if key not in _VF_KEYS]:
        raise ConfigError(f"{', '.join(unknown)}: no setting of every VF", hint=f"known keys: {', '.join(sorted(_VF_KEYS))}")
    try:
        result = parse_settings(settings.vf)
    except WrongSettingError as e:
        raise ConfigError(f"vf.{e.key} {e.cause}") from e
    if conflict := settings_conflict(result):
        raise ConfigError(f"vf: {conflict}")
    return result


def netdev_policy(settings: Settings) -> NetdevPolicy:
    return NetdevPolicy(
        attaches=attaches(settings),
        by_cni=settings.attach is AttachBy.CNI,
        by_default=settings.netdev is not False,
        settings=read_vf_settings(settings),
    )
