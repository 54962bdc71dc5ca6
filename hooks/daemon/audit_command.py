"""Show which pod held which device, from when to when, and by whose decision: `lading-hooks audit`.

The command only reads, with or without a running daemon.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Iterable, Sequence

from hooks.daemon.daemon import read_in_time
from hooks.daemon.settings import Settings, ledger_path, read_arguments
from hooks.ledger.audit import as_json, as_text, list_entries, parse_since
from hooks.ledger.period import Period
from hooks.ledger.store import read_history
from lading.devices.identity import parse_gpu_uuid, parse_mig_uuid, parse_pci_address, shown
from lading.errors import ConfigError


def audit(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="lading-hooks audit",
        description="Who held which device of this node, from when to when, and by whose decision, newest last. Kept for "
        "audit_days. Reads the ledger, with or without a daemon, and changes nothing.",
    )
    parser.add_argument("--device", default="", help="only of this PCI address, GPU UUID (with its MIG instances) or MIG UUID")
    parser.add_argument("--pod", default="", help="only of this pod: name, namespace/name, or uid")
    parser.add_argument("--since", default="", help="only what was held then or later: 30m, 12h, 7d, or a date or time")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    (args, settings), now = read_arguments(parser, argv), int(time.time())
    since = parse_since(args.since, now) if args.since else 0
    ledger = ledger_path(settings)
    periods = read_history(ledger, since=since)
    devices = _names(args.device, periods, settings) if args.device else None
    entries = list_entries(periods, devices=devices, pod=args.pod)
    if args.output == "json":
        print(json.dumps(as_json(entries, ledger=str(ledger), now=now), indent=2))
    else:
        print(as_text(entries), end="")


def _names(text: str, periods: Iterable[Period], settings: Settings) -> frozenset[str]:
    """Return the device's names in the history. The history names a card by its UUID, while `lading-hooks ledger` shows its PCI
    address. Raise HostError if the name may be a card's address, and the cards cannot be read."""
    address = parse_pci_address(text)
    if address is None:
        name = parse_gpu_uuid(text) or parse_mig_uuid(text)
        if name is None:
            raise ConfigError(
                f"cannot look for {shown(text)}: no PCI address, GPU UUID or MIG UUID",
                hint="lading-hooks ledger shows what there is",
            )
        return frozenset({name})
    if any(vf.bdf == address for period in periods for vf in period.devices.vfs):
        return frozenset({address})
    inventory = asyncio.run(read_in_time(settings))
    return frozenset({address, *(gpu.uuid for gpu in inventory.gpus if gpu.bdf == address)})
