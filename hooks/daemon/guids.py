"""Give each InfiniBand VF without a GUID its own GUID, and rebind the VF's driver: `lading-hooks set-guids`.

A VF starts with the GUID 0, by which no peer can address it. GUIDs are set through the PF, and the VF's driver reads them only
when it is bound. A bind renumbers the VF's RDMA device, verbs node and network device. So the command runs at boot, before the
daemon reads the devices (`lading-ib-guids.service`), and skips VFs that a container of this boot was granted.

A GUID is derived from the PF's GUID and the VF's index. It is the same after each boot, so that a subnet manager's partitions
keep naming the right VF.

Source: ip-link(8) "vf" (node_guid, port_guid); linux/if_link.h (struct ifla_vf_guid); sysfs-bus-pci (bind, unbind); RFC 4291,
appendix A (the bits of an EUI-64 for "local" and "group").
"""

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from hooks.attach.kernel import KernelError
from hooks.attach.netlink import HostKernel
from hooks.daemon.settings import ledger_path, read_arguments
from hooks.host.attributes import read_attribute, read_boot_id, read_names
from hooks.host.rdma import read_rdma
from hooks.ledger.store import read_ledger
from hooks.model.inventory import INFINIBAND, Pf, Vf
from lading.errors import HostError
from lading.vocabulary import PciAddress

Rebind = Callable[[Path, Vf], None]

_LOCAL, _GROUP = 0x02, 0x01  # bits of a GUID's first octet: locally administered, group address
_SCANS: Final = 50
_SCAN_EVERY_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class GuidOutcome:
    """Hold the result for one VF. `problem` is empty if the VF has the GUID now."""

    vf: PciAddress
    pf: PciAddress
    index: int
    guid: str
    problem: str = ""


def set_guids(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="lading-hooks set-guids",
        description="Give each InfiniBand VF whose node GUID is 0 a GUID of its own, through its PF, and bind its driver to it "
        "again. A VF with a GUID, and a VF that a container of this boot was granted, stays as it is. "
        "Exit status 1 if one failed.",
    )
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    args, settings = read_arguments(parser, argv)
    host_root = Path(settings.host_root)
    boot_id = read_boot_id(host_root)
    grants = (grant for grant in read_ledger(ledger_path(settings)) if grant.boot_id == boot_id)
    granted = frozenset(vf.bdf for grant in grants for vf in grant.devices.vfs)
    outcomes = []
    for outcome in set_missing(host_root, HostKernel(host_root), granted=granted):
        outcomes.append(outcome)
        if args.output == "text":
            print(_describe(outcome), flush=True)  # the firmware needs a second per VF: show each at once
    if args.output == "json":
        print(json.dumps([asdict(outcome) for outcome in outcomes], indent=2))
    elif not outcomes:
        print("no InfiniBand VF is without a GUID")
    if any(outcome.problem for outcome in outcomes):
        sys.exit(1)


def _describe(outcome: GuidOutcome) -> str:
    what = f"VF {outcome.vf} (VF {outcome.index} of PF {outcome.pf})"
    return f"{what}: {outcome.problem}" if outcome.problem else f"{what} has the GUID {outcome.guid}"


def rebind(host_root: Path, vf: Vf) -> None:
    """Unbind the driver of a VF and bind it again. Raise OSError."""
    driver = host_root / "sys/bus/pci/drivers" / vf.driver
    (driver / "unbind").write_text(vf.bdf)
    (driver / "bind").write_text(vf.bdf)


def set_missing(
    host_root: Path, kernel: HostKernel, *, granted: frozenset[PciAddress], rebind: Rebind = rebind
) -> Iterator[GuidOutcome]:
    """Set the missing GUIDs, and yield the outcome for each InfiniBand VF whose node GUID was 0. Raise HostError where sysfs
    cannot be listed."""
    for pf in _read_pfs(host_root):
        pf_guid = read_attribute(host_root / "sys/class/infiniband" / pf.ibdev / "node_guid") or pf.bdf
        for vf in pf.vfs:
            if vf.link_layer != INFINIBAND or _read_guid(host_root, vf.bdf) != 0:
                continue
            guid = derive_guid(pf_guid, vf.index)
            if vf.bdf in granted:
                problem = "a container has it: its driver cannot be bound again before the container ends"
            else:
                problem = _set_one(host_root, kernel, pf, vf, guid, rebind)
            yield GuidOutcome(vf=vf.bdf, pf=pf.bdf, index=vf.index, guid=guid.to_bytes(8).hex(":"), problem=problem)


def derive_guid(pf_guid: str, index: int) -> int:
    """Return the GUID for the VF with this index of the PF with this GUID: never 0, marked as locally administered."""
    digest = bytearray(hashlib.blake2b(f"{pf_guid} {index}".encode(), digest_size=8).digest())
    digest[0] = digest[0] & ~_GROUP | _LOCAL
    return int.from_bytes(digest)


def _set_one(host_root: Path, kernel: HostKernel, pf: Pf, vf: Vf, guid: int, rebind: Rebind) -> str:
    """Set the GUID of one VF and rebind its driver. Return an error, or an empty string."""
    try:
        kernel.set_guid(pf.bdf, vf.index, guid)
        rebind(host_root, vf)
    except KernelError as e:
        return e.message
    except OSError as e:
        return f"cannot bind {vf.driver} to it again: {e}"
    result: int | None = None
    for _ in range(_SCANS):
        result = _read_guid(host_root, vf.bdf)
        if result == guid:
            return ""
        time.sleep(_SCAN_EVERY_S)
    if result is None:
        return f"it has no RDMA device after {vf.driver} was bound to it again"
    return f"its driver goes on with the GUID {result.to_bytes(8).hex(':')}"


def _read_pfs(host_root: Path) -> tuple[Pf, ...]:
    try:
        return read_rdma(host_root)[0]
    except OSError as e:
        raise HostError(f"cannot read the RDMA functions of this host: {e}") from e


def _read_guid(host_root: Path, vf: PciAddress) -> int | None:
    """Return the VF's node GUID; None for a VF without an RDMA device, as shortly after a bind."""
    for ibdev in read_names(host_root / "sys/bus/pci/devices" / vf / "infiniband"):
        guid = read_attribute(host_root / "sys/class/infiniband" / ibdev / "node_guid")
        return int(guid.replace(":", ""), 16) if guid else None
    return None
