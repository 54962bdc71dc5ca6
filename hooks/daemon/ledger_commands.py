"""Show the holders of devices, and release devices on a person's request: `lading-hooks ledger`, `audit` and `release`.

`audit` shows which pod held which device, from when to when, and by whose decision. `ledger` and `audit` only read, with or
without a running daemon. A running daemon does the release, because it owns the ledger and changes
the VFs. Without a daemon, the command opens the ledger itself, and the ledger's lock prevents a daemon from starting meanwhile.
"""

import argparse
import asyncio
import json
import os
import socket
import sys
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NoReturn
from urllib.parse import quote

import grpc

from hooks.attach.netlink import HostKernel
from hooks.attach.overlay import find_strays, with_attached
from hooks.daemon.daemon import make_attacher, read_in_time
from hooks.daemon.settings import Settings, attaches, ledger_path, read_arguments
from hooks.forms.annotations import prefixes
from hooks.frontends.cri_hook.ledger_service import SERVICE, forced, log_forced
from hooks.host.attributes import read_boot_id
from hooks.host.lists import read_lists
from hooks.ledger import audit, table
from hooks.ledger.listing import Entry, LedgerContent, list_devices
from hooks.ledger.period import Period
from hooks.ledger.store import Ledger, read_history, read_journal, read_ledger, read_tombstones
from hooks.ledger.unmanaged import decide_unmanaged
from hooks.node.release import Outcome, carry_out, find_release, read_content
from hooks.node.unreported import read_empty_until
from lading.cgroups import read_cgroups
from lading.devices.identity import parse_gpu_uuid, parse_mig_uuid, parse_pci_address, shown
from lading.errors import ConfigError, HostError, RuntimeUnavailableError
from lading.log import open_log, printable
from lading.runtime import RuntimeClient
from lading.sockets import Peer, parse_endpoint
from protos.hook.v1 import hook_pb2

IN_USE: Final = 3  # exit status of a refused release; `render` has the same status for a refused pod
_DIAL_S: Final = 2.0
_ANSWER_S: Final = 120.0  # seconds for several successive kernel calls, each of which may take the attach deadline


def list_ledger(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="lading-hooks ledger",
        description="Show which pod holds which device of this node, since when, and why a device is not free. Reads the "
        "ledger and the devices, with or without a daemon, and changes nothing.",
    )
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    args, settings = read_arguments(parser, argv)
    entries, now = _listing(settings), int(time.time())
    if args.output == "json":
        print(json.dumps(table.as_json(entries, ledger=str(ledger_path(settings)), now=now), indent=2))
    else:
        print(table.as_text(entries, now=now), end="")


def _listing(settings: Settings) -> tuple[Entry, ...]:
    """Return the list of devices with their holders. The journal is read before and after the devices, so that a VF that was
    moved meanwhile is not shown as unmanaged."""
    before = _read_file(settings)
    inventory = asyncio.run(read_in_time(settings))
    said = _read_file(settings)
    rows = (*before.attachments, *said.attachments)
    strays = find_strays(inventory, rows) if attaches(settings) and settings.netdev is not False else frozenset()
    pids = [pid for gpu in inventory.gpus for pid in gpu.process_ids]
    return list_devices(
        with_attached(inventory, said.attachments, strays=strays),
        said,
        unmanaged=decide_unmanaged(inventory.gpus, read_cgroups(Path(settings.host_root), pids), said.grants),
        strays=strays,
    )


def _read_file(settings: Settings) -> LedgerContent:
    path = ledger_path(settings)
    return LedgerContent(
        grants=read_ledger(path),
        attachments=read_journal(path),
        stopped=dict(read_tombstones(path)),
        empty_until=read_empty_until(path.parent),
    )


def release(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="lading-hooks release",
        description="Release what is left of a pod that is gone. Without --force, only show what would be done. A device "
        "that a running pod can still use is not released, even with --force: delete the pod. "
        "Exit status 0: done, or it was free; 3: still in use; 1: something failed; 2: no such device.",
    )
    parser.add_argument("device", help="PCI address, GPU UUID or MIG UUID, as lading-hooks ledger shows them")
    parser.add_argument("--force", action="store_true", help="release the device; without --force, only show the steps")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    args, settings = read_arguments(parser, argv)
    request = hook_pb2.ReleaseRequest(device=args.device, force=args.force)
    listen = parse_endpoint(settings.listen)
    answer = _ask(listen, request) if _is_served(listen) else asyncio.run(_alone(settings, request))
    _show(answer, forced=args.force, output=args.output)


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dial:
        dial.settimeout(_DIAL_S)
        try:
            dial.connect(os.fspath(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except BlockingIOError:  # the server runs, and its queue of connections is full
            return True
        except OSError as e:
            raise HostError(f"cannot connect to {path}: {e.strerror}", hint="only root may") from e
    return True


def _ask(path: Path, request: hook_pb2.ReleaseRequest) -> hook_pb2.ReleaseResponse:
    with grpc.insecure_channel(f"unix://{quote(str(path))}", options=[("grpc.default_authority", "localhost")]) as channel:
        call = channel.unary_unary(
            f"/{SERVICE}/Release",
            request_serializer=hook_pb2.ReleaseRequest.SerializeToString,
            response_deserializer=hook_pb2.ReleaseResponse.FromString,
        )
        try:
            answer: hook_pb2.ReleaseResponse = call(request, timeout=_ANSWER_S)
        except grpc.RpcError as e:
            _refused(path, e)
    return answer


def _refused(path: Path, error: grpc.RpcError) -> NoReturn:
    said = f"{error.details()}"
    match error.code():
        case grpc.StatusCode.NOT_FOUND:
            raise ConfigError(said, hint="lading-hooks ledger shows what there is") from error
        case grpc.StatusCode.UNAVAILABLE:
            hint = f"is lading-hooks, which listens at {path}, healthy? journalctl -t lading-hooks"
            raise RuntimeUnavailableError(f"cannot release: {said}", hint=hint) from error
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            raise HostError(
                f"no answer at {path} within {_ANSWER_S:g} s; what was begun goes on", hint="lading-hooks ledger shows how far"
            ) from error
        case code:
            raise HostError(
                f"cannot release by {path}: {code.name}: {said}", hint="is lading-hooks of this version?"
            ) from error


async def _alone(settings: Settings, request: hook_pb2.ReleaseRequest) -> hook_pb2.ReleaseResponse:
    host_root = Path(settings.host_root)
    inventory = await read_in_time(settings)
    async with RuntimeClient(parse_endpoint(settings.runtime_endpoint)) as runtime:
        lists = partial(read_lists, runtime, prefixes=prefixes())
        if not request.force:
            found = await find_release(request.device, inventory, lambda: _read_file(settings), lists)
            outcome = Outcome(done=tuple(found.steps))
        else:
            log = open_log("lading-hooks", settings.log_level)
            with Ledger.open(ledger_path(settings)) as ledger:
                found = await find_release(request.device, inventory, lambda: read_content(ledger), lists)
                kernel, boot_id = HostKernel(host_root), read_boot_id(host_root)
                attacher = make_attacher(settings, kernel, runtime, ledger, boot_id, log)
                peer = Peer(os.getpid(), os.getuid(), os.getgid())
                outcome = await carry_out(found, ledger, attacher, log, end=forced(peer, time.time()))
            log_forced(log, found.device, outcome, peer)
    return hook_pb2.ReleaseResponse(device=found.device, steps=outcome.done, in_use=found.in_use, failed=outcome.failed)


def _show(answer: hook_pb2.ReleaseResponse, *, forced: bool, output: str) -> None:
    if output == "json":
        shown = {"device": answer.device, "forced": forced}
        print(json.dumps({**shown, **{key: [*getattr(answer, key)] for key in ("steps", "in_use", "failed")}}, indent=2))
    else:
        _print(answer, forced=forced)
    if forced and (answer.failed or answer.in_use):
        raise SystemExit(1 if answer.failed else IN_USE)


def _print(answer: hook_pb2.ReleaseResponse, *, forced: bool) -> None:
    if answer.steps:
        print(f"{answer.device}: {'released' if forced else 'with --force, in this order'}:")
    elif not answer.in_use and not answer.failed:
        print(f"{answer.device}: no pod holds it")
    for step in answer.steps:
        print(f"  {printable(step)}")
    for failed in answer.failed:
        print(f"FAILED: {printable(failed)}", file=sys.stderr)
    for holder in answer.in_use:
        print(f"IN USE: {printable(holder)}", file=sys.stderr)
    if answer.in_use:
        print(
            "  a device that a pod can still use is not released: delete the pod, or remove what is left of it (crictl)",
            file=sys.stderr,
        )


def show_history(argv: Sequence[str]) -> None:
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
    since = audit.parse_since(args.since, now) if args.since else 0
    ledger = ledger_path(settings)
    periods = read_history(ledger, since=since)
    devices = _names(args.device, periods, settings) if args.device else None
    entries = audit.list_entries(periods, devices=devices, pod=args.pod)
    if args.output == "json":
        print(json.dumps(audit.as_json(entries, ledger=str(ledger), now=now), indent=2))
    else:
        print(audit.as_text(entries), end="")


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
