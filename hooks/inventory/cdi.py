"""Render the CDI specs of a node's devices from an inventory, and write them before that inventory is used.

VFs are in a separate spec, for programs that request a VF from a runtime by a CDI name with the VF's PCI address. The spec adds
the VF's verbs node, but no environment: one variable lists all VFs of a container. Lading's front ends give VFs as device
nodes, which a runtime without CDI supports too.

Tests: tests/unit/hooks/vendors/nvidia/test_cdi.py
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from hooks.host.cdi_files import write_specs
from hooks.host.cdi_spec import make_spec, nodes_of
from hooks.model.cdi import VF_KIND, CdiDevice, Edits, Spec
from hooks.model.inventory import Inventory
from hooks.ports import Vendor


def render_all(inventory: Inventory, vendors: Sequence[Vendor], *, mad: bool) -> tuple[tuple[Spec, ...], tuple[str, ...]]:
    """Return the CDI specs of all devices, and messages about devices that are missing in them. `mad`: add the umad and issm
    nodes of VFs."""
    made = [vendor.render_specs(inventory) for vendor in vendors]
    specs, problems = [spec for one, _ in made for spec in one], [problem for _, one in made for problem in one]
    if inventory.rdma_cm:
        common = Edits(device_nodes=nodes_of((inventory.rdma_cm,)))
        vfs, vf_problems = make_spec(VF_KIND, common, _vfs(inventory, mad=mad))
        specs += [vfs] if vfs else []
        problems += vf_problems
    return tuple(specs), tuple(problems)


def _vfs(inventory: Inventory, *, mad: bool) -> Iterator[CdiDevice]:
    for vf in inventory.vfs:
        if vf.uverbs:  # an unhealthy VF too: the state of a VF's port changes in a pod
            nodes = nodes_of((vf.uverbs, *(vf.umad if mad else ())))
            yield CdiDevice(name=vf.bdf, container_edits=Edits(device_nodes=nodes))


def name_devices(inventory: Inventory, vendors: Sequence[Vendor], *, mad: bool) -> Inventory:
    """Return the inventory with the CDI names that its specs define. Pure."""
    specs, problems = render_all(inventory, vendors, mad=mad)
    names = frozenset(name for spec in specs for name in spec.names)
    return replace(inventory, cdi_names=names, problems=(*inventory.problems, *problems))


def publish(inventory: Inventory, vendors: Sequence[Vendor], folder: Path, *, mad: bool) -> Inventory:
    """Write the CDI specs of the inventory into the folder. Return the inventory with the names that a runtime finds there;
    specs that could not be written are among its problems. Blocks."""
    specs, problems = render_all(inventory, vendors, mad=mad)
    names, write_problems = write_specs(folder, specs)
    return replace(inventory, cdi_names=names, problems=(*inventory.problems, *problems, *write_problems))
