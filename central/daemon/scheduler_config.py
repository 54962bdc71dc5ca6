"""Print a KubeSchedulerConfiguration that asks central about the pods of all enabled dialects.

kube-scheduler calls an extender for pods with one of its `managedResources`, and leaves these out of its own count. Dialects
that request by labels or annotations need an extender that is called for all pods. It cannot have managedResources, so that
another entry, without a verb, has them.

Source: kubernetes, pkg/scheduler/extender.go (IsInterested) and scheduler.go (ignoredExtendedResources).
"""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import yaml

from central.daemon.settings import CONFIG, Settings
from central.request.parse import Dialects
from lading.errors import ConfigError
from lading.settings import load
from lading.vocabulary import CENTRAL, PREFIX

_VERBS: Final = ("filterVerb", "prioritizeVerb", "preemptVerb", "bindVerb")
_OF_CALLS: Final = (*_VERBS, "weight", "httpTimeout")

Configuration = dict[str, Any]


def print_scheduler_config(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog=f"{CENTRAL} scheduler-config",
        description="Write the resources of the enabled dialects into a KubeSchedulerConfiguration.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="KubeSchedulerConfiguration, as deploy/scheduler/config.yaml")
    parser.add_argument("--config", type=Path, default=None, metavar="FILE", help=f"central's TOML file [{CONFIG}]")
    parser.set_defaults(default_config=CONFIG)
    args = parser.parse_args(argv)
    dialects = Dialects(load(Settings, args).dialects)
    try:
        given = yaml.safe_load(args.file.read_text())
    except (OSError, yaml.YAMLError) as e:
        raise ConfigError(f"cannot read {args.file}: {e}") from e
    yaml.safe_dump(with_dialects(given, dialects), sys.stdout, sort_keys=False)


def with_dialects(given: Configuration, dialects: Dialects) -> Configuration:
    """Return the configuration with the resources of these dialects. Raise ConfigError if no extender filters and binds."""
    extenders: list[Configuration] = given.get("extenders") or [] if isinstance(given, dict) else []
    main = next((one for one in extenders if one.get("filterVerb") and one.get("bindVerb")), None)
    if main is None:
        raise ConfigError("no extender of the file has filterVerb and bindVerb", hint="take deploy/scheduler/config.yaml")
    managed = {
        "managedResources": [{"name": name, "ignoredByScheduler": True} for name in sorted_resources(dialects.resources)]
    }
    if not dialects.by_metadata:
        changed = [main | managed]
    else:
        of_all = {key: value for key, value in main.items() if key != "managedResources"}
        changed = [of_all, {key: value for key, value in of_all.items() if key not in _OF_CALLS} | managed]
    # An extender that is called for all pods replaces the one that only names a node for pods without devices.
    replaced = main["urlPrefix"] if dialects.by_metadata else None
    others = [one for one in extenders if one is not main and one.get("urlPrefix") != replaced]
    return given | {"extenders": [*changed, *others]}


def sorted_resources(resources: Iterable[str]) -> list[str]:
    """Return the resources by name, Lading's own first."""
    return sorted(resources, key=lambda name: (not name.startswith(PREFIX), name))
