"""Read the names of the devices that a node's CDI specs define.

Source: cncf-tags/container-device-interface, pkg/cdi/cache.go and spec-dirs.go.

Tests: tests/unit/hooks/host/test_cdi_files.py
"""

import json
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import yaml


def read_cdi_names(folders: Iterable[Path], *, kinds: Collection[str] = ()) -> frozenset[str]:
    """Return `vendor/class=name` of each device that the specs define. A device that two specs of one folder define is dropped,
    as in runtimes; a spec that cannot be read, or is invalid, defines nothing. `kinds`: only these, so that other specs, which
    can be long, are not parsed."""
    names: set[str] = set()
    dropped: set[str] = set()
    for folder in folders:
        here: set[str] = set()
        for path in sorted(folder.glob("*")):
            spec_names = _spec_names(path, kinds)
            dropped |= here & spec_names
            here |= spec_names
        names |= here
    return frozenset(names - dropped)


def _spec_names(path: Path, kinds: Collection[str]) -> set[str]:
    """Return the names in a spec, of these kinds if some are named. Empty also for `.yml`, which runtimes do not read, and for
    a spec that names a device twice, which they refuse."""
    if path.suffix not in {".json", ".yaml"}:
        return set()
    try:
        content = path.read_bytes()
        if kinds and not any(kind.partition("/")[0].encode() in content for kind in kinds):
            return set()
        spec: Any = json.loads(content) if path.suffix == ".json" else yaml.safe_load(content)
        names = [device["name"] for device in spec["devices"]]
        kind = spec["kind"]
    except (OSError, ValueError, yaml.YAMLError, RecursionError, KeyError, TypeError):
        return set()
    if not all(isinstance(text, str) for text in (kind, *names)) or len(set(names)) < len(names):
        return set()
    if kinds and kind not in kinds:
        return set()
    return {f"{kind}={name}" for name in names}
