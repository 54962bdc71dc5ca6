"""Read the CDI specs that lading-hooks wrote, and check that the files in them exist.

Tests: tests/unit/doctor/nvidia/test_cards.py
"""

import os
from pathlib import Path

from doctor.nvidia.gpus import OwnSpecs
from hooks.daemon.settings import Settings
from hooks.host.cdi_files import spec_path
from hooks.host.cdi_spec import SpecError, parse_spec
from hooks.model.cdi import KINDS, Edits, Spec


def read_own_specs(settings: Settings) -> OwnSpecs:
    """Return a reading of the CDI specs in cdi_dir. Raise OSError if a file cannot be read."""
    specs: list[Spec] = []
    invalid: list[str] = []
    for path in (spec_path(Path(settings.cdi_dir), kind) for kind in KINDS):
        try:
            specs.append(parse_spec(path.read_bytes()))
        except FileNotFoundError:
            continue
        except SpecError as e:
            invalid.append(f"{path}: {e.message}")
    edits = [one for spec in specs for one in (spec.container_edits, *(device.container_edits for device in spec.devices))]
    paths = dict.fromkeys(path for one in edits for path in _host_paths(one))
    return OwnSpecs(
        folder=settings.cdi_dir,
        invalid=tuple(invalid),
        missing=tuple(path for path in paths if not os.path.lexists(path)),
        libraries=frozenset(Path(mount.container_path).name for one in edits for mount in one.mounts),
        hooked=any(one.hooks for one in edits),
        hook=settings.cdi_hook,
    )


def _host_paths(edits: Edits) -> list[str]:
    nodes, mounts = [node.host_path for node in edits.device_nodes], [mount.host_path for mount in edits.mounts]
    return [*nodes, *mounts, *(hook.path for hook in edits.hooks)]
