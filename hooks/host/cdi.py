"""Read the names of the devices that a node's CDI specs define.

Source: cncf-tags/container-device-interface, pkg/cdi/cache.go and spec-dirs.go.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml


def read_cdi_names(folders: Iterable[Path]) -> frozenset[str]:
    """Return `vendor/class=name` of each device that the specs define. A device that two specs of one folder define is dropped,
    as in runtimes; a spec that cannot be read, or is invalid, defines nothing."""
    names: set[str] = set()
    dropped: set[str] = set()
    for folder in folders:
        here: set[str] = set()
        for path in sorted(folder.glob("*")):
            spec_names = _spec_names(path)
            dropped |= here & spec_names
            here |= spec_names
        names |= here
    return frozenset(names - dropped)


def _spec_names(path: Path) -> set[str]:
    """Return the names in a spec. Empty also for `.yml`, which runtimes do not read, and for a spec that names a device twice,
    which they refuse."""
    try:
        if path.suffix == ".json":
            spec: Any = json.loads(path.read_bytes())
        elif path.suffix == ".yaml":
            spec = yaml.safe_load(path.read_bytes())
        else:
            return set()
        names = [device["name"] for device in spec["devices"]]
        kind = spec["kind"]
    except (OSError, ValueError, yaml.YAMLError, RecursionError, KeyError, TypeError):
        return set()
    if not all(isinstance(text, str) for text in (kind, *names)) or len(set(names)) < len(names):
        return set()
    return {f"{kind}={name}" for name in names}
