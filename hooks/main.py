"""Run the command line of `lading-hooks`: without a command the daemon, else a command for the operator of a node.

Tests: tests/unit/hooks/frontends/nri/guard/test_launched.py
"""

import argparse
import asyncio
import faulthandler
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from hooks.attach.overlay import holdings_of, with_attached
from hooks.daemon import ledger_commands, render
from hooks.daemon.cdi_command import cdi_specs
from hooks.daemon.container_commands import copy_libraries, remove_state
from hooks.daemon.daemon import read_in_time, run
from hooks.daemon.guard_command import guard, install_guard, remove_guard
from hooks.daemon.guids import set_guids
from hooks.daemon.handler_command import install_handler, remove_handler
from hooks.daemon.parts import make_rules, make_vendors
from hooks.daemon.proxy_command import install_proxy
from hooks.daemon.registration import render_registration
from hooks.daemon.settings import CONFIG, GROUPS, REGISTRATION, Settings, check, ledger_path, read_arguments, read_trust
from hooks.forms.annotations import prefixes
from hooks.grant.decide import Rules, View
from hooks.host.attributes import read_boot_id
from hooks.host.lists import read_lists
from hooks.ledger.reconcile import rebuild
from hooks.ledger.store import read_journal, read_ledger, replace_ledger
from hooks.ledger.unmanaged import find_unmanaged
from hooks.model.assignment import Refusal
from hooks.model.grant import Grant
from hooks.node.hand_over import name_host_processes
from lading import __version__
from lading.errors import ConfigError, LadingError, die
from lading.files import replace_file
from lading.log import open_log, printable
from lading.runtime import RuntimeClient
from lading.settings import add_flags, parse_args
from lading.sockets import parse_endpoint


def main(argv: Sequence[str] | None = None) -> None:
    args = list(sys.argv[1:] if argv is None else argv)
    command = _COMMANDS.get(args[0]) if args else None
    try:
        if command:
            command[0](args[1:])
        else:
            serve(args)
    except LadingError as e:
        die(e)


def serve(argv: Sequence[str]) -> None:
    width = max(map(len, _COMMANDS))
    commands = "\n".join(f"  {name:{width}}  {line}" for name, (_, line) in _COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="lading-hooks",
        usage="lading-hooks COMMAND [FLAG ...]\n       lading-hooks [FLAG ...]",
        description="The hook server: knows this node's GPUs and RDMA VFs and their holders, and tells the CRI proxy or the "
        f"runtime\nwhat a container gets. Without a command it is the daemon.\n\ncommands (each has --help):\n{commands}",
        epilog="lading-doctor   checks this node.\n"
        "journalctl -t lading-hooks LADING_EVENT=grant.refused   shows what was refused, and why.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"lading-hooks {__version__}")
    add_flags(parser, Settings, config=CONFIG, groups=GROUPS)
    settings = parse_args(Settings, parser.parse_args(argv), check)
    faulthandler.enable()  # prints the stack of a hanging loop when systemd's watchdog ends this process
    asyncio.run(run(settings, open_log("lading-hooks", settings.log_level)))


def _render(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="lading-hooks render",
        description="Show what this node would inject into each container of a pod, or why it would refuse. "
        "Exit status 3 if anything is refused.",
    )
    parser.add_argument("-f", "--file", required=True, help="manifest of one Pod; - for standard input")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    add_flags(parser, Settings, config=CONFIG)
    args = parser.parse_args(argv)
    settings = parse_args(Settings, args, check)
    try:
        text = sys.stdin.read() if args.file == "-" else Path(args.file).read_text()
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"cannot read {args.file}: {e}") from e
    pod = render.read_pod(text, args.file)
    for warning in render.warnings(pod):
        print(f"warning: {printable(warning)}", file=sys.stderr)
    rendered = render.render_pod(pod, *_node_now(settings))
    if args.output == "json":
        print(json.dumps(render.as_json(rendered), indent=2))
    else:
        print(render.as_text(rendered), end="")
    if any(isinstance(one.result, Refusal) for one in rendered):
        raise SystemExit(3)


def _node_now(settings: Settings) -> tuple[Rules, View, tuple[Grant, ...]]:
    """Return the node's rules, its current view and its grants, read without a daemon or a runtime. The ledger is only read."""
    host_root = Path(settings.host_root)
    inventory = asyncio.run(read_in_time(settings))
    grants = read_ledger(ledger_path(settings))
    rows = read_journal(ledger_path(settings))
    inventory = with_attached(inventory, rows)
    unmanaged = find_unmanaged(host_root, inventory, grants)
    processes = name_host_processes(host_root, unmanaged)
    view = View(inventory=inventory, held=holdings_of(rows), unmanaged=unmanaged.held, host_processes=processes)
    return make_rules(settings, read_trust(settings), make_vendors(settings), cdi_refusal=""), view, grants


def _registration(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="lading-hooks registration",
        description="Print the registration of this hook server, or write it into the CRI proxy's folder of registrations.",
    )
    parser.add_argument(
        "--write",
        type=Path,
        nargs="?",
        const=REGISTRATION,
        metavar="FILE",
        help=f"replace this file; on any error it stays as it is [{REGISTRATION}]",
    )
    args, settings = read_arguments(parser, argv)
    text = json.dumps(render_registration(settings), indent=2) + "\n"
    if args.write is None:
        print(text, end="")
    else:
        replace_file(args.write, text.encode())


def _rebuild_ledger(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="lading-hooks rebuild-ledger",
        description="Writes a new ledger from what the runtime's containers say they were granted. The old one is set aside. "
        "Stop lading-hooks first.",
    )
    _, settings = read_arguments(parser, argv)
    asyncio.run(_rebuild(settings))


async def _rebuild(settings: Settings) -> None:
    path, now = ledger_path(settings), int(time.time())
    async with RuntimeClient(parse_endpoint(settings.runtime_endpoint)) as runtime:
        lists = await read_lists(runtime, prefixes=prefixes())
    actions = rebuild(lists, now=now, boot_id=read_boot_id(Path(settings.host_root)))
    for problem in actions.problems:
        print(f"problem: {problem.message}", file=sys.stderr)
    aside, history = replace_ledger(path, actions.adopt, actions.restore, now=now)
    kept = f"; the old ledger is {aside}, {history} grants of its history were read" if aside else ""
    print(f"{path}: {len(actions.adopt)} grants{kept}")


_COMMANDS: Final[dict[str, tuple[Callable[[Sequence[str]], None], str]]] = {
    "ledger": (ledger_commands.list_ledger, "show which pod holds which device now, and why a device is not free"),
    "audit": (ledger_commands.show_history, "show who held which device, and when"),
    "render": (_render, "show what the containers of a pod would get, without starting it"),
    "release": (ledger_commands.release, "release the device of a pod that is gone"),
    "rebuild-ledger": (_rebuild_ledger, "write a new ledger from the runtime's containers"),
    "cdi-specs": (cdi_specs, "print or remove the CDI specs of this node"),
    "set-guids": (set_guids, "give InfiniBand VFs without a GUID one each"),
    "registration": (_registration, "print or write the registration with the CRI proxy"),
    "nri-guard": (guard, "run the guard beside lading-hooks, on a node with NRI"),
    "install-guard": (install_guard, "have the runtime launch the guard"),
    "remove-guard": (remove_guard, "take the guard from the runtime's plugins"),
    "install-handler": (install_handler, "install the program of the runtime handler"),
    "remove-handler": (remove_handler, "remove the program of the runtime handler"),
    "copy-libraries": (copy_libraries, "copy the libraries of shares to a folder of the host"),
    "install-proxy": (install_proxy, "install the CRI proxy on the node, from a container"),
    "remove-state": (remove_state, "remove what lading-hooks keeps on this node"),
}

if __name__ == "__main__":
    main()
