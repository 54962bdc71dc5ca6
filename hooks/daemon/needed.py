"""List the node's files that the hook server needs: files named in its settings, and files of the kernel."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from hooks.daemon.settings import FrontEndName, Settings, attaches
from hooks.ports import Vendor
from lading.cgroups import ROOT as CGROUPS
from lading.devices.isolation import IsolationName
from lading.needed import Needed
from lading.sockets import parse_endpoint

_LIST: Final = os.R_OK | os.X_OK


def list_needed(settings: Settings, vendors: Iterable[Vendor]) -> Iterator[Needed]:
    """Yield the files and folders that these settings need. An empty setting needs none."""
    root = Path(settings.host_root)
    yield Needed(path=parse_endpoint(settings.runtime_endpoint), what="runtime_endpoint", mode=os.W_OK, optional=True)
    if settings.front_end is FrontEndName.NRI:
        yield Needed(path=parse_endpoint(settings.nri_socket), what="nri_socket", mode=os.W_OK, optional=True)
    yield Needed(path=Path(settings.state_dir), what="state_dir", mode=_LIST | os.W_OK)
    files = {f"keys.{key_id}": path for key_id, path in settings.keys.items()}
    files |= {"kubeconfig": settings.kubeconfig if settings.report else ""}
    yield from (Needed(path=Path(path), what=key) for key, path in files.items() if "/" in path)
    for vendor in vendors:
        yield from vendor.needed(root)
    if settings.writes_specs:
        yield Needed(path=Path(settings.cdi_dir), what="cdi_dir", mode=_LIST | os.W_OK, optional=True)
    elif settings.by_cdi:
        folders = map(Path, settings.cdi_spec_dirs)
        yield from (Needed(path=folder, what="cdi_spec_dirs", mode=_LIST, optional=True) for folder in folders)
    if IsolationName.TOKENS in settings.isolations and settings.limits_by_driver:
        yield Needed(path=root / CGROUPS, what='memory_limits = "driver"', mode=os.W_OK)
    if IsolationName.MPS in settings.isolations:
        yield Needed(path=Path(settings.mps_control), what="mps_control", mode=os.R_OK | os.X_OK)
    if IsolationName.HAMI_CORE in settings.isolations:
        yield Needed(path=Path(settings.hami_library), what="hami_library")
    if attaches(settings):  # stands for the settings that hooks.attach.netlink writes
        sysctl = root / "proc/sys/net/ipv6/conf/default/accept_dad"
        yield Needed(path=sysctl, what="IPv6 settings of VFs", mode=os.W_OK, optional=True)
