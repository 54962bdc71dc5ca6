"""Prepare and clean a node where lading-hooks runs in a container (deploy/node): `copy-libraries` and `remove-state`.

The libraries of the isolation tokens are mounted into other pods' containers, and the runtime runs the hook for the loader's
cache, so both have to be files of the host. On a host with SELinux they get the label of files for containers. Only files that
Lading wrote are removed, by their names, with the launched guard, the runtime handler's program and CDI specs. A file of others
stays, and its folder too.
"""

import argparse
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from hooks.daemon.handler_command import handler_program, remove_program
from hooks.daemon.settings import Settings, guard_lock, ledger_path, read_arguments, ready_mark, share_libraries
from hooks.frontends.nri.guard.launched import remove
from hooks.host.cdi_files import remove_specs
from hooks.host.ldcache import NAME as LDCACHE
from hooks.host.ldcache import built_program
from hooks.isolation.library import LIBRARIES
from hooks.ledger.file import lock_directory
from hooks.ledger.store import read_journal, read_ledger
from lading.amounts import first_few
from lading.errors import HostError
from lading.files import replace_file
from lading.selinux import make_label
from lading.sockets import parse_endpoint

_NAMED = 5  # maximum number of holders that a refusal names


def copy_libraries(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="lading-hooks copy-libraries",
        description="Copy the libraries of the isolation tokens, and the hook for the loader's cache of containers, to a "
        "folder of the host, which share_libraries then names. Containers that have the ones before keep them.",
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--host-root", type=Path, default=Path("/"), help="the host's root, which shows whether it has SELinux")
    args = parser.parse_args(argv)
    ours, label = share_libraries(Settings()), make_label(args.host_root)
    args.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    label(args.folder)
    for file in filter(Path.is_file, (*(ours / name for name in LIBRARIES), built_program())):
        content, there = file.read_bytes(), args.folder / file.name
        if not there.is_file() or there.read_bytes() != content:
            replace_file(there, content, mode=0o755)
        label(there)


def remove_state(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="lading-hooks remove-state",
        description="Remove what lading-hooks keeps on this node: the ledger, sockets, libraries, the guard that the runtime "
        "launches, and CDI specs. Refused while a pod holds a device by the ledger, and while lading-hooks runs. Prints the "
        "folders that stay because of files of others.",
    )
    _, settings = read_arguments(parser, argv)
    state, run = Path(settings.state_dir), parse_endpoint(settings.listen).parent
    if not state.is_dir():
        print("removed the launched guard" if _remove_files_of_runtime(settings) else "nothing is there")
        return
    with lock_directory(state):
        if held := sorted(_held(settings)):
            named = first_few(held, _NAMED, rest=", and {} more")
            raise HostError(
                f"cannot remove {ledger_path(settings)}: these hold devices of this node: {named}",
                hint="delete these pods while lading-hooks runs, which then gives their devices back",
            )
        remove_program(settings)
        _remove_files_of_runtime(settings)
        for path in [*_files(settings, state, run), *_folders(settings, state, run)]:
            if not path.is_dir():
                path.unlink(missing_ok=True)
            elif not any(path.iterdir()):
                path.rmdir()
    left = [str(folder) for folder in (state, run) if folder.exists()]
    print(f"removed; these stay, with files that are not Lading's: {', '.join(left)}" if left else "removed")


def _remove_files_of_runtime(settings: Settings) -> bool:
    """Remove the CDI specs and the launched guard, which the container runtime reads. Return whether the guard was there; a
    running guard continues. Raise HostError."""
    if problems := remove_specs(Path(settings.cdi_dir)):
        raise HostError(problems[0])
    return remove(Path(settings.nri_plugin_path))


def _held(settings: Settings) -> set[str]:
    grants, rows = read_ledger(ledger_path(settings)), read_journal(ledger_path(settings))
    return {f"{one.namespace}/{one.pod_name}" for one in grants} | {f"VF {row.bdf}" for row in rows}


def _files(settings: Settings, state: Path, run: Path) -> Iterator[Path]:
    yield from state.glob(f"{ledger_path(settings).name}*")
    yield from (state / "libraries" / name for name in (*LIBRARIES, LDCACHE))
    sockets = (parse_endpoint(settings.listen), parse_endpoint(settings.shares_socket))
    yield from (path for socket in sockets for path in (socket, socket.with_name(f"{socket.name}.lock")))
    yield from (guard_lock(settings), ready_mark(settings))


def _folders(settings: Settings, state: Path, run: Path) -> Iterator[Path]:
    """Delete leftover folders of shares, and yield the folders to remove if empty, inner ones first."""
    yield from (state / "libraries", handler_program(settings).parent, state)
    shares = Path(settings.shares_dir)
    for folder in filter(Path.is_dir, shares.glob("*")):  # no container uses these folders: the ledger has no grants
        shutil.rmtree(folder)
    yield from (shares, run)
