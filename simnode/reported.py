"""Read the reports of simulated nodes from files: the status of their NodeDevices, without root and without a compiler.

The files are written by the code of lading-hooks from the profiles (`simnode/profiles`), for nodes without held devices. A test
compares files and profiles. `python -m simnode.reported` writes the files again; that needs root and a C compiler.
"""

import os
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from hooks.inventory.read import read_inventory
from hooks.report.build import build_status
from hooks.vendors.nvidia.nvswitch import read_partitions
from hooks.vendors.nvidia.settings import NvidiaSettings
from hooks.vendors.nvidia.vendor import Nvidia
from lading.nodedevices import Status
from simnode.build import SimNode, build
from simnode.nvml import compile_fake_nvml
from simnode.profile import PROFILES

FILES: Final = Path(__file__).parent / "nodedevices"


def read_status(profile: str) -> Status:
    return msgspec.json.decode((FILES / f"{profile}.json").read_bytes(), type=Status)


def build_reported(node: SimNode, nvml_library: Path) -> Status:
    """Return the reports. FAKE_NVML_STATE is the node's. The boot id and the version of lading-hooks, which differ between
    starts, are left out."""
    partitions = read_partitions(node.profile.nvswitch_partitions)
    divided = frozenset(gpu.uuid for _, gpu in node.profile.gpus if gpu.mig == ())
    nvidia = Nvidia(NvidiaSettings(nvml_library=str(nvml_library), mig_cards=tuple(divided)), partitions=partitions)
    inventory = read_inventory(node.root, vendors=[nvidia])
    return build_status(inventory, (), unmanaged={}, reconciled=True, boot_id="", reporter="")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="lading-reported-") as folder:
        library = compile_fake_nvml(Path(folder))
        for profile in sorted(PROFILES.glob("*.json")):
            node = build(profile, Path(folder) / profile.stem)
            os.environ["FAKE_NVML_STATE"] = str(node.nvml_state)
            status = msgspec.json.encode(build_reported(node, library))
            (FILES / profile.name).write_bytes(msgspec.json.format(status, indent=1) + b"\n")


if __name__ == "__main__":
    main()
