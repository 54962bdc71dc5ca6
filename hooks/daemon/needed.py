"""List the files of the node that the hook server uses: those of its settings, and the kernel's."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hooks.daemon.settings import FrontEndName, LimitsBy, Settings, attaches, by_cdi, writes_specs
from hooks.vendors.nvidia.inject import GpuMode
from lading.cgroups import ROOT as CGROUPS
from lading.devices.isolation import IsolationName
from lading.needed import Needed
from lading.sockets import parse_endpoint

_LIST: Final = os.R_OK | os.X_OK
_DEVICES: Final = ("dev/nvidiactl", "dev/nvidia-uvm", "dev/kmsg")


def list_needed(settings: Settings) -> Iterator[Needed]:
    """Yield what these settings use. A setting that is empty uses nothing."""
    root = Path(settings.host_root)
    yield Needed(path=parse_endpoint(settings.runtime_endpoint), what="runtime_endpoint", mode=os.W_OK, optional=True)
    if settings.front_end is FrontEndName.NRI:
        yield Needed(path=parse_endpoint(settings.nri_socket), what="nri_socket", mode=os.W_OK, optional=True)
    yield Needed(path=Path(settings.state_dir), what="state_dir", mode=_LIST | os.W_OK)
    files = {f"keys.{key_id}": path for key_id, path in settings.keys.items()}
    files |= {"nvml_library": settings.nvml_library, "kubeconfig": settings.kubeconfig if settings.report else ""}
    yield from (Needed(path=Path(path), what=key) for key, path in files.items() if "/" in path)
    if settings.driver_root and (settings.gpu_mode is GpuMode.DEVICES or writes_specs(settings)):
        key = "driver_mount" if settings.driver_mount else "driver_root"
        yield Needed(path=Path(getattr(settings, key)), what=key, mode=_LIST)
    if writes_specs(settings):
        yield Needed(path=Path(settings.cdi_dir), what="cdi_dir", mode=_LIST | os.W_OK, optional=True)
        yield Needed(path=Path(settings.cdi_hook), what="cdi_hook", mode=os.R_OK | os.X_OK, optional=True)
    elif by_cdi(settings):
        folders = map(Path, settings.cdi_spec_dirs)
        yield from (Needed(path=folder, what="cdi_spec_dirs", mode=_LIST, optional=True) for folder in folders)
    if IsolationName.TOKENS in settings.isolations and settings.memory_limits is LimitsBy.DRIVER:
        yield Needed(path=root / CGROUPS, what='memory_limits = "driver"', mode=os.W_OK)
    if IsolationName.MPS in settings.isolations:
        yield Needed(path=Path(settings.mps_control), what="mps_control", mode=os.R_OK | os.X_OK)
    if IsolationName.HAMI_CORE in settings.isolations:
        yield Needed(path=Path(settings.hami_library), what="hami_library")
    yield from (Needed(path=root / path, what="device node", optional=True) for path in _DEVICES)
    if attaches(settings):  # hooks.attach.neighbours
        sysctl = root / "proc/sys/net/ipv6/conf/default/accept_dad"
        yield Needed(path=sysctl, what="IPv6 settings of VFs", mode=os.W_OK, optional=True)
