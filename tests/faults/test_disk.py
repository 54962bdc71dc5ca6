"""Test full and read-only disks, and missing and damaged files: guarded pods wait, other pods run, and both recover."""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from hooks.ledger.store import read_ledger
from lading.errors import HostError
from lading.log import Event
from lading.reasons import Reason
from lading.vocabulary import MANUAL_GPUS
from simnode.cri import Cri, CriError, Pod
from simnode.daemons import Daemon, LadingNode
from tests.faults.conftest import StartLading
from tests.faults.rig import GUARDED, PLAIN, ScriptedHooks, cards_in_use, fill, logged, proxy_in, register, running
from tests.hostile.runtime import InMemoryRuntime
from tests.node.site import Refused, eventually, refusal_of

WANTS: Final = {MANUAL_GPUS: "0"}


def refused(pod: Pod) -> Refused:
    """Return the refusal of a new container. Raise AssertionError if it is not refused, so that `eventually` tries again."""
    try:
        pod.create_container()
    except CriError as e:
        return refusal_of(e)
    raise AssertionError("a container was made")


# ---- the ledger's disk


def use_up(kubelet: Cri) -> tuple[list[Pod], Pod]:
    """Create pods with a card each until the ledger's disk is full (SQLite may have reserved some space). Return these pods,
    and the refused pod."""
    made: list[Pod] = []
    for card in range(1, 8):
        pod = kubelet.run_pod(f"fills-{card}", annotations={MANUAL_GPUS: str(card)})
        try:
            pod.create_container()
        except CriError:
            break
        made.append(pod)
    assert refused(pod).reason is Reason.LEDGER_UNAVAILABLE
    return made, pod


def test_a_full_disk_refuses_new_grants_and_nothing_else(
    start_lading: StartLading, runtime: InMemoryRuntime, small_disk: Path
) -> None:
    lading = start_lading(state_dir=str(small_disk))
    ledger = small_disk / "node.db"
    with lading.client() as kubelet:
        holder = kubelet.run_pod("holder", annotations=WANTS)
        holder.create_container()
        filler = fill(small_disk)
        made, late = use_up(kubelet)
        assert len(cards_in_use(runtime)) == 1 + len(made)

        holder.create_container(attempt=1)  # this grant is in the ledger already
        kubelet.run_pod("plain", annotations=PLAIN).create_container()
        holder.remove()
        rival = kubelet.run_pod("rival", annotations=WANTS)
        assert refused(rival).reason in {Reason.DEVICE_HELD, Reason.LEDGER_UNAVAILABLE}
        assert logged(lading.hooks, Event.LEDGER_FAILED)

        filler.unlink()
        eventually(rival.create_container)
        late.create_container()
        in_use = cards_in_use(runtime)
        assert len(in_use) == len(set(in_use)) == 2 + len(made)
        lading.hooks.kill()  # each answered call is on the disk
        assert {g.pod for g in read_ledger(ledger)} == {p.spec.uid for p in (*made, late, rival)}
        lading.hooks.start()


def test_hooks_that_cannot_open_their_ledger_say_so_and_plain_pods_run(
    start_lading: StartLading, runtime: InMemoryRuntime, small_disk: Path
) -> None:
    lading = start_lading(state_dir=str(small_disk))
    with lading.client() as kubelet:
        guarded = kubelet.run_pod("guarded", annotations=WANTS)
        lading.hooks.stop()
        subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
        with pytest.raises(HostError) as failed:
            lading.hooks.start()
        assert str(small_disk) in str(failed.value)
        assert refused(guarded).reason is Reason.HOOK_UNAVAILABLE
        kubelet.run_pod("plain", annotations=PLAIN).create_container()
        kubelet.remove_sandbox(kubelet.run_pod("ends", annotations=WANTS).id)
        subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
        lading.hooks.start()
        eventually(guarded.create_container)
        assert len(cards_in_use(runtime)) == 1


def the_file(state: Path) -> None:
    (state / "node.db").unlink()


def all_files(state: Path) -> None:
    for path in state.iterdir():
        path.unlink()


def the_folder(state: Path) -> None:
    shutil.rmtree(state)


@pytest.mark.parametrize("remove", [the_file, all_files, the_folder])
def test_a_ledger_removed_underneath_takes_no_grant_and_is_made_anew_from_the_runtime(
    start_lading: StartLading, runtime: InMemoryRuntime, remove: Callable[[Path], None]
) -> None:
    lading = start_lading()
    state = lading.folder / "state"
    with lading.client() as kubelet:
        holder, ends = kubelet.run_pod("holder", annotations=WANTS), kubelet.run_pod("ends", annotations={MANUAL_GPUS: "1"})
        holder.create_container()
        ends.create_container()
        remove(state)
        other = kubelet.run_pod("other", annotations={MANUAL_GPUS: "2"})
        assert refused(other).reason is Reason.LEDGER_UNAVAILABLE
        kubelet.run_pod("plain", annotations=PLAIN).create_container()
        ends.remove()
        assert logged(lading.hooks, Event.LEDGER_FAILED)
        lading.hooks.stop()
        if remove is the_file:  # the write-ahead log exists: its grants must not be lost in silence
            with pytest.raises(HostError, match="lading-hooks rebuild-ledger"):
                lading.hooks.start()
            rebuild(lading)
        lading.hooks.start()
        eventually(other.create_container)
        rival = kubelet.run_pod("rival", annotations=WANTS)
        assert refused(rival).reason is Reason.DEVICE_HELD
        in_use = cards_in_use(runtime)
        assert len(in_use) == len(set(in_use)) == 2


def rebuild(lading: LadingNode) -> None:
    subprocess.run(
        [lading.hooks.argv[0], "rebuild-ledger", "--config", str(lading.hooks.config)], check=True, capture_output=True
    )


# ---- the registrations' disk


@pytest.fixture
def hooks(short_folder: Path) -> Iterator[ScriptedHooks]:
    with ScriptedHooks(short_folder / "hooks.sock") as hooks:
        yield hooks


def unreadable(path: Path) -> None:
    """Make a path unreadable by a dangling link, because root can read every file."""
    path.symlink_to(path.with_name("nowhere"))


def give_away(path: Path) -> None:
    path.write_text("{}")
    os.chown(path, 65534, 65534)


BAD: Final[dict[str, Callable[[Path], object]]] = {
    "empty": lambda path: path.write_bytes(b""),
    "corrupt": lambda path: path.write_bytes(os.urandom(512)),
    "no-json": lambda path: path.write_text('{"remote-endpoint": '),
    "deep": lambda path: path.write_text("[" * 60_000),
    "huge": lambda path: path.write_bytes(b" " * (1 << 20)),
    "fifo": os.mkfifo,
    "folder": lambda path: path.mkdir(),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "unreadable": unreadable,
    "of-another-user": give_away,
    "loop": lambda path: path.symlink_to(path.name),
}


def exchange(path: Path, other: Path) -> None:
    """Exchange the names of two files of any kind in one step. Source: rename(2), RENAME_EXCHANGE."""
    libc, at_cwd = ctypes.CDLL(None, use_errno=True), -100
    if libc.renameat2(at_cwd, os.fsencode(path), at_cwd, os.fsencode(other), 2):
        raise OSError(ctypes.get_errno(), "cannot exchange", str(path))


def test_bad_registrations_are_reported_and_the_last_good_one_stays(
    runtime: InMemoryRuntime, hooks: ScriptedHooks, short_folder: Path
) -> None:
    proxy = proxy_in(short_folder, runtime.path)
    good = register(short_folder, hooks.path, "50-good.json")
    content = good.read_text()
    (new := short_folder / "new").mkdir()
    with running(proxy), runtime.client(via=proxy.socket) as kubelet:
        for name, spoil in BAD.items():
            text, back = len(logged(proxy, Event.HOOK_INVALID)), len(logged(proxy, Event.HOOK_REGISTERED))
            spoil(new / good.name)
            exchange(new / good.name, good)  # between two steps, the proxy might see none
            remove(new / good.name)
            spoil(beside := good.with_name(f"60-{name}.json"))
            eventually(partial(more_said, proxy, Event.HOOK_INVALID, text + 1))
            with kubelet.pod(name, annotations=GUARDED) as pod:
                assert hooks.marked(runtime.created[pod.create_container().id]), name
            remove(beside)
            remove(good)
            eventually(lambda: no_registration(kubelet))  # a file that is gone is out of force
            good.write_text(content)
            eventually(partial(more_said, proxy, Event.HOOK_REGISTERED, back))
        assert proxy.running


def test_a_proxy_that_starts_with_bad_registrations_only_serves_plain_pods(
    runtime: InMemoryRuntime, hooks: ScriptedHooks, short_folder: Path
) -> None:
    proxy = proxy_in(short_folder, runtime.path)
    for name, spoil in BAD.items():
        spoil(short_folder / "hooks.d" / f"50-{name}.json")
    with running(proxy), runtime.client(via=proxy.socket) as kubelet:
        assert {text["hook"] for text in logged(proxy, Event.HOOK_INVALID)} == {f"50-{name}.json" for name in BAD}
        kubelet.run_pod("plain", annotations=PLAIN).create_container()
        no_registration(kubelet)
        register(short_folder, hooks.path)
        pod = kubelet.run_pod("guarded", annotations=GUARDED)
        container = eventually(pod.create_container)
        assert hooks.marked(runtime.created[container.id])


def test_registrations_on_a_full_or_read_only_disk_stay_in_force(
    runtime: InMemoryRuntime, hooks: ScriptedHooks, short_folder: Path, small_disk: Path
) -> None:
    """Check that the old registration stays in force: an editor leaves an empty file on a full disk, a package leaves the old
    file on a read-only disk."""
    proxy = proxy_in(short_folder, runtime.path, hooks_dir=str(small_disk))
    registered = small_disk / "50-good.json"
    registered.write_bytes(register(short_folder, hooks.path).read_bytes())
    small_disk.chmod(0o755)
    with running(proxy), runtime.client(via=proxy.socket) as kubelet:
        fill(small_disk)
        content = registered.read_text()
        with pytest.raises(OSError, match="No space left"):
            registered.write_text(" " * (64 << 10) + content)
        eventually(partial(more_said, proxy, Event.HOOK_INVALID, 0))
        subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
        with kubelet.pod("guarded", annotations=GUARDED) as pod:
            assert hooks.marked(runtime.created[pod.create_container().id])
        assert proxy.running


def more_said(daemon: Daemon, event: Event, than: int) -> None:
    assert len(logged(daemon, event)) > than


def no_registration(kubelet: Cri) -> None:
    with kubelet.pod("nobody-answers", annotations=GUARDED) as pod:
        assert refused(pod).reason is Reason.NO_REGISTRATION


def remove(path: Path) -> None:
    path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
