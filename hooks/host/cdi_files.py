"""Keep the node's CDI specs in their folder, and read the names of the devices that the specs of a node define.

Each kind has one file, written beside and renamed. It is written if its content is another one than it should be, also where
another program changed or removed it. The name of a file that is being written does not end as that of a spec, so that no
runtime reads half of one.

Source: cncf-tags/container-device-interface, pkg/cdi/cache.go and spec-dirs.go.
"""

import json
import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from hooks.host.cdi_spec import SpecError, render_spec
from hooks.model.cdi import KINDS, Spec
from lading.errors import HostError
from lading.files import replace_file


def spec_path(folder: Path, kind: str) -> Path:
    return folder / f"{kind.replace('/', '-')}.json"


def write_specs(folder: Path, specs: Sequence[Spec]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Write a file for each of these specs, and remove the files of kinds without a spec. Return the CDI names that a runtime
    finds from now on, and error messages."""
    by_kind = {spec.kind: spec for spec in specs}
    names: set[str] = set()
    problems = []
    for kind in KINDS:
        path, spec = spec_path(folder, kind), by_kind.get(kind)
        try:
            if spec is None:
                _remove(path)
            else:
                _write(path, render_spec(spec))
                names |= spec.names
        except SpecError as e:
            problems.append(e.message)
            problems += remove_specs(folder, [kind])  # specs of an older state of the node
        except HostError as e:
            problems.append(e.message)
    defined = read_cdi_names([folder], kinds=KINDS)
    if twice := sorted(names - defined):
        problems.append(f"CDI device {twice[0]} is defined in another file of {folder} too, so that runtimes ignore it")
    return frozenset(names & defined), tuple(problems)


def remove_specs(folder: Path, kinds: Collection[str] = KINDS) -> list[str]:
    """Remove the files of these kinds. Return an error message for each file that could not be removed."""
    problems = []
    for path in (spec_path(folder, kind) for kind in kinds):
        for one in (path, path.with_name(f".{path.name}.new")):  # a writer that was killed leaves its `.new` file
            try:
                _remove(one)
            except HostError as e:
                problems.append(e.message)
    return problems


def _write(path: Path, content: bytes) -> None:
    try:
        if path.read_bytes() == content and not path.is_symlink():
            return
    except OSError:
        pass
    replace_file(path, content)


def _remove(path: Path) -> None:
    try:
        if os.path.lexists(path):  # where there is nothing to remove, the file system may be read-only
            path.unlink(missing_ok=True)
    except OSError as e:
        raise HostError(f"cannot remove {path}: {e.strerror or e}") from e


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
