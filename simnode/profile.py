"""Read the profile of a simulated node, a small JSON file. An unknown or missing key is an error that names the key.

    {"name": "…", "driver": {"version": "550.127.05"},            no "driver": a node without NVIDIA's
     "nvswitch_partitions": "h100",                               optional, as lading-hooks is configured there
     "majors": {"nvidia-uvm": 507, "nvidia-caps": 237},           optional, as /proc/devices would list them
     "host_bridges": [{"bus": "0000:15", "socket": 0, "numa": 0,  numa -1: the kernel does not know
       "below": [                                                 a PCI tree; a switch is a bridge with bridges below it
         {"bdf": "0000:15:01.0", "below": [                       a bridge: root port, upstream or downstream switch port
           {"bdf": "0000:1a:00.0", "gpu": {"uuid": "GPU-…", "model": "…", "minor": 2, "module_id": 5,   no "module_id": no board
             "memory_mib": 81559, "reserved_mib": 551, "nvlinks": {"0000:c5:00.0": 5},   links by peer: a GPU, else an NVSwitch
             "mig": [{"uuid": "MIG-…", "gi": 1, "ci": 0, "memory_mib": 9856, "profile": "1g.10gb",
               "cap_minors": [12, 13]}]}},   no "mig": mode off
           {"bdf": "0000:18:00.0", "pf": {"ibdev": "mlx5_0", "netdev": "ib0", "link_layer": "InfiniBand", "total_vfs": 8,
             "vfs": [{"bdf": "0000:18:00.2", "ibdevs": ["mlx5_8"], "netdev": "ib0v0"}]}}]}]}]}   "driver": mlx5_core unless said

A GPU's index is not written: NVML counts by PCI address. Its `minor` is, because the two differ on many nodes.
"""

from pathlib import Path
from typing import Annotated, Any

import msgspec

from lading.errors import ConfigError

PROFILES = Path(__file__).parent / "profiles"


class Mig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    uuid: str
    gi: int
    ci: int
    memory_mib: int
    profile: Annotated[str, msgspec.Meta(pattern=r"^([1-9]c\.)?[1-9]g\.[1-9][0-9]*gb(\+me)?$")]
    cap_minors: tuple[int, int]  # minors of nvidia-caps: the GPU instance's and the compute instance's


class GpuCard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    uuid: str
    model: str
    minor: int
    memory_mib: int
    reserved_mib: int
    module_id: int = 0  # NVML's answer for a card that is not on a board
    nvlinks: dict[str, int] = {}  # links by the peer's PCI address; a peer that is not a GPU here is an NVSwitch
    mig: tuple[Mig, ...] | None = None  # None: MIG mode is off; none: on, and instances can be made


class VfFunction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    bdf: str
    driver: str = "mlx5_core"  # empty: no driver is bound
    ibdevs: tuple[str, ...] = ()
    netdev: str = ""


class PfFunction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    ibdev: str
    netdev: str
    link_layer: str
    total_vfs: int
    vfs: tuple[VfFunction, ...] = ()


class PciNode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Represent a PCI function: a bridge (`below`), a GPU or a PF. The VFs of a PF are beside it, as the kernel places them."""

    bdf: str
    below: tuple["PciNode", ...] = ()
    gpu: GpuCard | None = None
    pf: PfFunction | None = None


class HostBridge(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    bus: str  # 0000:15
    socket: int
    numa: int
    below: tuple[PciNode, ...] = ()


class NvidiaDriver(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: str


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    driver: NvidiaDriver | None = None
    nvswitch_partitions: str = ""  # the setting of lading-hooks
    majors: dict[str, int] = {}
    host_bridges: tuple[HostBridge, ...] = ()

    def major(self, driver: str) -> int:
        return self.majors.get(driver, DEFAULT_MAJORS[driver])

    @property
    def endpoints(self) -> tuple[tuple[HostBridge, PciNode], ...]:
        """Yield every GPU and PF with its host bridge, by PCI address."""
        result = [(bridge, node) for bridge in self.host_bridges for node in _flatten(bridge.below) if node.gpu or node.pf]
        return tuple(sorted(result, key=lambda item: item[1].bdf))

    @property
    def gpus(self) -> tuple[tuple[str, GpuCard], ...]:
        """Return (bdf, card) in NVML's order, which is the index."""
        return tuple((node.bdf, node.gpu) for _, node in self.endpoints if node.gpu)

    @property
    def pfs(self) -> tuple[tuple[str, PfFunction], ...]:
        return tuple((node.bdf, node.pf) for _, node in self.endpoints if node.pf)


DEFAULT_MAJORS = {
    "nvidia": 195,  # fixed: LANANA's list
    "nvidia-uvm": 507,  # these two are dynamic on a real host
    "nvidia-caps": 237,
    "infiniband": 231,  # fixed: umad at 0, issm at 64, uverbs at 192 (drivers/infiniband/core)
    "misc": 10,
}


def load_profile(source: Path | str | dict[str, Any]) -> Profile:
    """Load a profile from a file, from `profiles/` by name, or from what such a file decodes to. Raises ConfigError."""
    try:
        if isinstance(source, dict):
            return msgspec.convert(source, Profile)
        path = Path(source)
        if not path.suffix:
            path = PROFILES / f"{path.name}.json"
        return msgspec.json.decode(path.read_bytes(), type=Profile)
    except (OSError, msgspec.DecodeError) as e:
        shipped = ", ".join(sorted(p.stem for p in PROFILES.glob("*.json")))
        raise ConfigError(f"cannot read profile {source}: {e}", hint=f"shipped profiles: {shipped}") from e


def _flatten(nodes: tuple[PciNode, ...]) -> list[PciNode]:
    return [result for node in nodes for result in (node, *_flatten(node.below))]
