"""Test case 12: the daemons' sockets under umask 000, planted links, other users, restarts at a bad moment.

Naive versions that fail: `bind` and then `chmod` (mode 0777 for a moment, or forever with umask 000); `unlink` of any existing
file; a listener without peer credentials; a folder whose link's target is checked, but not the link (as Lading did).
"""

import contextlib
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lading.errors import HostError
from lading.log import Event
from simnode.build import build
from simnode.child import answers
from simnode.cri import Cri
from simnode.daemons import Daemon, LadingNode, render_flat_toml
from tests.fakes.needs import need
from tests.faults.rig import logged, proxy_in
from tests.hostile.runtime import InMemoryRuntime
from tests.node.site import eventually
from tests.unit.lading.test_sockets import STRANGER

OTHERS = "nobody else's\n"


@pytest.fixture
def runtime(short_folder: Path) -> Iterator[InMemoryRuntime]:
    with InMemoryRuntime(short_folder / "runtime.sock") as runtime:
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
def daemon(
    request: pytest.FixtureRequest, device_nodes: None, runtime: InMemoryRuntime, short_folder: Path
) -> Iterator[Daemon]:
    """Return a daemon of Lading that is not started. Its socket's folder does not exist yet."""
    lading = LadingNode(short_folder, node=build("workstation", short_folder / "node"), runtime=runtime)
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


# Planted files and sockets. tests/unit/lading/test_sockets.py plants each kind; here is what a daemon answers.


def victim(folder: Path) -> Path:
    path = folder / "victim"
    path.write_text(OTHERS)
    path.chmod(0o640)
    return path


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


def test_another_user_is_cut_off_whatever_the_modes_are(root: None, daemon: Daemon) -> None:
    daemon.start()
    for path in (daemon.socket, *daemon.socket.parents):
        if path != Path("/tmp") and path != Path("/"):
            path.chmod(0o777)
    assert subprocess.check_output([sys.executable, "-c", STRANGER, daemon.socket], text=True) == "dialled\n0\n"
    eventually(lambda: _said(daemon, Event.CONNECTION_REJECTED))
    assert answers(daemon.socket)  # ours


def _said(daemon: Daemon, event: Event) -> None:
    assert logged(daemon, event)


# Restarts


def test_of_several_that_start_at_once_one_serves(runtime: InMemoryRuntime, short_folder: Path) -> None:
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


def test_killed_and_started_again(runtime: InMemoryRuntime, short_folder: Path) -> None:
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
