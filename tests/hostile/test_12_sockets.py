"""Test case 12: the daemons' sockets under umask 000, planted links, other users, restarts at a bad moment.

Naive versions that fail: `bind` and then `chmod` (mode 0777 for a moment, or forever with umask 000); `unlink` of any existing
file; a listener without peer credentials; a folder whose link's target is checked, but not the link (as Lading did).
"""

import contextlib
import os
import signal
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lading.errors import HostError
from lading.log import Event
from lading.sockets import listen
from simnode.build import build
from simnode.child import answers
from simnode.cri import Cri
from simnode.daemons import Daemon, LadingNode, render_flat_toml
from tests.fakes.needs import need
from tests.faults.rig import logged, proxy_in
from tests.hostile.front import RuntimeAt
from tests.hostile.runtime import KeepingRuntime
from tests.node.site import eventually

SOMEONE = 1234
OTHERS = "nobody else's\n"


@pytest.fixture
def runtime(short_folder: Path) -> Iterator[KeepingRuntime]:
    with KeepingRuntime(short_folder / "runtime.sock") as runtime:
        runtime.path.chmod(0o600)
        yield runtime


@pytest.fixture
def root() -> None:
    need(os.geteuid() == 0, "root, to become somebody else")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def under_umask(daemon: Daemon, umask: str) -> Daemon:
    daemon.argv = ["/bin/sh", "-c", f'umask {umask}; exec "$@"', "sh", *daemon.argv]
    return daemon


@pytest.fixture(params=["lading-hooks", "lading-runtimeproxy"])
def daemon(request: pytest.FixtureRequest, device_nodes: None, runtime: KeepingRuntime, short_folder: Path) -> Iterator[Daemon]:
    """Return a daemon of Lading that is not started. Its socket's folder does not exist yet."""
    lading = LadingNode(short_folder, node=build("workstation", short_folder / "node"), runtime=RuntimeAt(runtime.path))
    lading.write_config()
    one = lading.hooks if request.param == "lading-hooks" else lading.proxy
    one.socket = short_folder / "run" / "ours.sock"
    text = one.config.read_text().replace(str(lading.hooks.socket), "").replace(str(lading.cri_socket), "")
    lines = [line for line in text.splitlines() if not line.startswith("listen")]
    one.config.write_text(render_flat_toml({"listen": str(one.socket)}) + "\n".join(lines))
    yield one
    one.stop()


# Modes


@pytest.mark.parametrize("umask", ["000", "022", "077", "277"])
def test_modes_do_not_depend_on_the_umask(daemon: Daemon, umask: str) -> None:
    under_umask(daemon, umask).start()
    assert mode_of(daemon.socket.parent) == 0o700
    assert mode_of(daemon.socket) == 0o600
    state = daemon.config.parent / "state"
    if state.exists():  # the hook server's
        assert {mode_of(path) & 0o077 for path in (state, *state.iterdir())} == {0}


# Planted files and sockets


def victim(folder: Path) -> Path:
    path = folder / "victim"
    path.write_text(OTHERS)
    path.chmod(0o640)
    return path


def a_link_to_a_file(socket_path: Path) -> None:
    socket_path.symlink_to(victim(socket_path.parents[1]))


def a_dangling_link(socket_path: Path) -> None:
    socket_path.symlink_to(socket_path.parents[1] / "made-by-us")


def a_file(socket_path: Path) -> None:
    socket_path.write_text(OTHERS)


def a_link_for_a_lock(socket_path: Path) -> None:
    socket_path.with_name(socket_path.name + ".lock").symlink_to(victim(socket_path.parents[1]))


def a_hard_link_for_a_lock(socket_path: Path) -> None:
    os.link(victim(socket_path.parents[1]), socket_path.with_name(socket_path.name + ".lock"))


def a_folder_that_others_write(socket_path: Path) -> None:
    socket_path.parent.chmod(0o777)


def a_folder_of_someone(socket_path: Path) -> None:
    os.chown(socket_path.parent, SOMEONE, SOMEONE)


def a_folder_that_is_a_link_of_someone(socket_path: Path) -> None:
    """Check a link to root's folder: the link's owner could change its target as soon as the daemon listens."""
    folder = socket_path.parent
    folder.rename(folder.with_name("real"))
    folder.symlink_to("real")
    os.chown(folder, SOMEONE, SOMEONE, follow_symlinks=False)


PLANTS = [
    *(a_link_to_a_file, a_dangling_link, a_file, a_link_for_a_lock, a_hard_link_for_a_lock),
    *(a_folder_that_others_write, a_folder_of_someone, a_folder_that_is_a_link_of_someone),
]


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_what_was_planted_is_neither_followed_nor_removed(root: None, tmp_path: Path, plant: Callable[[Path], None]) -> None:
    path = tmp_path / "run" / "x.sock"
    path.parent.mkdir(mode=0o700)
    plant(path)
    before = everything_below(tmp_path)
    with pytest.raises(HostError):
        listen(path)
    after = everything_below(tmp_path)
    after.pop(path.with_name(path.name + ".lock"), None)
    before.pop(path.with_name(path.name + ".lock"), None)
    assert after == before


def test_a_link_of_roots_own_may_lead_to_the_folder(root: None, tmp_path: Path) -> None:
    """Check that the socket's folder may be a link, as /var/run is."""
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "run").symlink_to("real")
    with listen(tmp_path / "run" / "x.sock"):
        assert answers(tmp_path / "real" / "x.sock")


def everything_below(folder: Path) -> dict[Path, tuple[int, int, str]]:
    """Return mode, owner, and content or target of each path below the folder."""
    result = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        content = str(path.readlink()) if path.is_symlink() else path.read_text() if path.is_file() else ""
        result[path] = status.st_mode, status.st_uid, content
    return result


def test_a_daemon_says_what_is_in_its_way(daemon: Daemon) -> None:
    daemon.socket.parent.mkdir(mode=0o700)
    target = victim(daemon.config.parent)
    daemon.socket.symlink_to(target)
    with pytest.raises(HostError):
        daemon.start()
    assert str(daemon.socket) in daemon.log.read_text()
    assert daemon.socket.readlink() == target
    assert (target.read_text(), mode_of(target)) == (OTHERS, 0o640)


# Other users


def connects_as_someone(path: Path) -> bytes:
    """Return what a process of another user gets from the socket until it is closed; the file's mode is not what stops it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.setgroups([])
            os.setgid(SOMEONE)
            os.setuid(SOMEONE)
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(10)
                connection.connect(str(path))
                os.write(writing, b"connected ")
                with contextlib.suppress(ConnectionError):
                    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
                with contextlib.suppress(ConnectionError):
                    os.write(writing, connection.recv(1 << 16))
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return text


def test_another_user_is_cut_off_whatever_the_modes_are(root: None, daemon: Daemon) -> None:
    daemon.start()
    for path in (daemon.socket, *daemon.socket.parents):
        if path != Path("/tmp") and path != Path("/"):
            path.chmod(0o777)
    assert connects_as_someone(daemon.socket) == b"connected "
    eventually(lambda: _said(daemon, Event.CONNECTION_REJECTED))
    assert answers(daemon.socket)  # ours


def _said(daemon: Daemon, event: Event) -> None:
    assert logged(daemon, event)


# Restarts


def test_of_several_that_start_at_once_one_serves(runtime: KeepingRuntime, short_folder: Path) -> None:
    proxies = []
    for number in range(3):
        config = short_folder / f"proxy-{number}.toml"
        proxy_in(short_folder, runtime.path).config.rename(config)
        proxies.append(Daemon("lading-runtimeproxy", config=config, socket=short_folder / "cri.sock"))
    threads = [threading.Thread(target=_start, args=(proxy,)) for proxy in proxies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        eventually(lambda: _one_runs(proxies))
        with Cri(short_folder / "cri.sock") as kubelet:
            assert kubelet.version().runtime_name == "keeping"
    finally:
        for proxy in proxies:
            proxy.stop()


def _start(proxy: Daemon) -> None:
    with contextlib.suppress(HostError):
        proxy.start()


def _one_runs(proxies: list[Daemon]) -> None:
    assert [proxy.running for proxy in proxies].count(True) == 1


def _ended(proxy: Daemon) -> None:
    assert not proxy.running


def test_killed_and_started_again(runtime: KeepingRuntime, short_folder: Path) -> None:
    """Check that a leftover socket of the daemon is replaced, and that another file at its path is not."""
    proxy = proxy_in(short_folder, runtime.path)
    try:
        for _ in range(3):
            proxy.start()
            with Cri(proxy.socket) as kubelet:
                kubelet.version()
            os.kill(proxy.pid, signal.SIGKILL)
            proxy.stop()
            assert stat.S_ISSOCK(proxy.socket.lstat().st_mode)
        proxy.socket.unlink()
        proxy.socket.symlink_to(runtime.path)
        proxy.start()  # whatever answers there is not the proxy
        eventually(lambda: _ended(proxy))
        assert proxy.socket.readlink() == runtime.path
        with Cri(runtime.path) as direct:
            direct.version()
    finally:
        proxy.stop()
