import asyncio
import contextlib
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lading.errors import ConfigError, HostError
from lading.sockets import Peer, access_problems, listen, parse_endpoint, peer_credentials, serve
from tests.fakes.needs import need

ROOT = Path(__file__).parents[3]


@pytest.fixture
def another_user() -> int:
    need(os.geteuid() == 0, "root, to give files to another user")
    return 1234


@pytest.fixture
def sockets_for_all() -> Iterator[Path]:
    """Return a folder that others can enter, unlike pytest's folders."""
    with tempfile.TemporaryDirectory(prefix="lading-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "x.sock"


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o777], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


def stale(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))


@pytest.mark.parametrize("text", ["/run/x.sock", "unix:///run/x.sock", "unix:/run/x.sock"])
def test_endpoints(text: str) -> None:
    assert parse_endpoint(text) == Path("/run/x.sock")


@pytest.mark.parametrize(
    "text", ["tcp://127.0.0.1:1", "run/x.sock", "unix://run/x.sock", "http://x/y", "", "unix://", "/a\0b", "/" + "a" * 107]
)
def test_endpoints_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError) as e:
        parse_endpoint(text)
    assert repr(text) in e.value.message


@pytest.mark.usefixtures("umask")
def test_directory_and_socket_are_ours_alone_under_any_umask(path: Path) -> None:
    with listen(path) as listener:
        assert mode_of(path.parent) == 0o700
        assert mode_of(path) == 0o600
        assert not listener.getblocking()
        assert not listener.get_inheritable()
        assert connects(path)


def test_at_no_moment_is_the_mode_wider(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the mode before the last step, which sets the requested mode."""
    paths: dict[Path, int] = {}
    chmod = Path.chmod

    def look_and_chmod(self: Path, mode: int) -> None:
        paths[self] = mode_of(self)
        chmod(self, mode)

    monkeypatch.setattr(Path, "chmod", look_and_chmod)
    before = os.umask(0)
    try:
        with listen(path, mode=0o660):
            assert mode_of(path) == 0o660
    finally:
        os.umask(before)
    assert paths == {path.parent: 0o700, path: 0o600}


def test_a_stale_socket_is_replaced(path: Path) -> None:
    stale(path)
    with listen(path):
        assert connects(path)


def test_a_socket_on_which_someone_listens_is_not(path: Path) -> None:
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(HostError, match=rf"process {os.getpid()}\b"):
            listen(path)
        assert connects(path)


def test_nor_one_whose_backlog_is_full(path: Path) -> None:
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as other, socket.socket(socket.AF_UNIX) as waiting:
        other.bind(str(path))
        other.listen(0)
        waiting.connect(str(path))
        with pytest.raises(HostError):
            listen(path)


def test_nor_a_datagram_socket(path: Path) -> None:
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(path))
        with pytest.raises(HostError):
            listen(path)
        assert path.is_socket()


def link(path: Path) -> None:
    (path.parent / "target").write_text("kept")
    path.symlink_to("target")


def dangling_link(path: Path) -> None:
    path.symlink_to("target")


def regular(path: Path) -> None:
    path.write_text("kept")


@pytest.mark.parametrize("plant", [link, dangling_link, regular, os.mkfifo, Path.mkdir])
def test_what_is_no_socket_is_neither_followed_nor_removed(path: Path, plant: Callable[[Path], None]) -> None:
    path.parent.mkdir()
    plant(path)
    before = sorted((p.name, p.lstat().st_ino) for p in path.parent.iterdir())
    with pytest.raises(HostError, match=r"x\.sock"):
        listen(path)
    after = sorted((p.name, p.lstat().st_ino) for p in path.parent.iterdir() if not p.name.endswith(".lock"))
    assert after == before


def test_a_link_to_a_live_socket_is_not_followed(path: Path, tmp_path: Path) -> None:
    path.parent.mkdir()
    stale_elsewhere = tmp_path / "elsewhere"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(stale_elsewhere))
    path.symlink_to(stale_elsewhere)
    with pytest.raises(HostError, match="symbolic link"):
        listen(path)
    assert stale_elsewhere.is_socket()


def test_a_second_instance_is_refused_and_the_first_still_serves(path: Path) -> None:
    with listen(path):
        with pytest.raises(HostError, match=rf"process {os.getpid()}\b"):
            listen(path)
        assert connects(path)
    with listen(path):
        assert connects(path)


def test_the_lock_of_an_instance_that_does_not_listen_yet_counts(path: Path) -> None:
    with listen(path):
        path.unlink()
        with pytest.raises(HostError, match="another instance"):
            listen(path)


def test_a_refused_instance_gives_the_lock_back(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("")
    with pytest.raises(HostError):
        listen(path)
    path.unlink()
    listen(path).close()


@pytest.mark.parametrize("plant", [link, dangling_link, os.mkfifo, Path.mkdir])
def test_a_planted_lock_is_not_used(path: Path, plant: Callable[[Path], None]) -> None:
    path.parent.mkdir()
    plant(path.with_name("x.sock.lock"))
    before = sorted((p.name, p.lstat().st_ino, p.lstat().st_size) for p in path.parent.iterdir())
    with pytest.raises(HostError, match="lock"):
        listen(path)
    assert sorted((p.name, p.lstat().st_ino, p.lstat().st_size) for p in path.parent.iterdir()) == before


def test_a_lock_that_is_a_hard_link_to_another_file_is_not_written(path: Path) -> None:
    path.parent.mkdir()
    (path.parent / "shadow").write_text("kept")
    path.with_name("x.sock.lock").hardlink_to(path.parent / "shadow")
    with pytest.raises(HostError):
        listen(path)
    assert (path.parent / "shadow").read_text() == "kept"


@pytest.mark.parametrize(("mode", "accepted"), [(0o755, True), (0o1777, True), (0o777, False), (0o770, False)])
def test_a_directory_in_which_others_can_replace_the_socket(path: Path, mode: int, accepted: bool) -> None:
    path.parent.mkdir()
    path.parent.chmod(mode)
    if accepted:
        listen(path).close()
    else:
        with pytest.raises(HostError, match=f"{mode:04o}"):
            listen(path)


def test_a_directory_of_another_user(path: Path, another_user: int) -> None:
    path.parent.mkdir()
    os.chown(path.parent, another_user, -1)
    with pytest.raises(HostError, match=str(another_user)):
        listen(path)


def test_a_directory_that_is_a_link_of_another_user(path: Path, another_user: int) -> None:
    """Check a link to a directory of the daemon: the link's owner could change its target as soon as the daemon listens."""
    path.parent.with_name("real").mkdir(mode=0o700)
    path.parent.symlink_to("real")
    os.chown(path.parent, another_user, -1, follow_symlinks=False)
    with pytest.raises(HostError, match=str(another_user)):
        listen(path)
    assert list(path.parent.iterdir()) == []


def test_a_directory_that_is_a_link_of_our_own(path: Path) -> None:
    """Check that the socket's directory may be a link, as /var/run is."""
    path.parent.with_name("real").mkdir(mode=0o700)
    path.parent.symlink_to("real")
    with listen(path):
        assert connects(path.parent.with_name("real") / path.name)


def test_a_parent_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="absent"):
        listen(tmp_path / "absent" / "run" / "x.sock")


def test_owner_and_mode_follow_the_runtimes_socket(path: Path, tmp_path: Path, another_user: int) -> None:
    like = tmp_path / "runtime.sock"
    with socket.socket(socket.AF_UNIX) as runtime:
        runtime.bind(str(like))
        os.chown(like, another_user, 5678)
        like.chmod(0o620)
        with listen(path, like=like):
            result = path.lstat()
            assert (result.st_uid, result.st_gid, stat.S_IMODE(result.st_mode)) == (another_user, 5678, 0o620)
            assert access_problems(path, like=like) == ()
            assert len(access_problems(path)) == 2


@pytest.mark.parametrize("there", [False, True])
def test_nothing_is_taken_from_what_is_no_socket(path: Path, tmp_path: Path, there: bool) -> None:
    like = tmp_path / "runtime.sock"
    if there:
        like.write_text("")
        like.chmod(0o666)
    with listen(path, like=like):
        assert mode_of(path) == 0o600


def test_access_problems_name_what_differs(path: Path) -> None:
    assert len(access_problems(path)) == 1
    with listen(path):
        assert access_problems(path) == ()
        path.chmod(0o666)
        assert ["0666" in p for p in access_problems(path)] == [True]


def test_peer_credentials(path: Path) -> None:
    with listen(path) as listener, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        server, _ = listener.accept()
        with server:
            assert peer_credentials(server) == Peer(os.getpid(), os.geteuid(), os.getegid())


# systemd activation: a child with the socket as descriptor 3, as systemd passes it

_CHILD = """
import os, sys
from pathlib import Path
from lading.errors import HostError
from lading.sockets import listen
os.dup2(int(sys.argv[2]), 3)
os.environ.update(LISTEN_FDS="1", LISTEN_PID=sys.argv[3] or str(os.getpid()))
try:
    with listen(Path(sys.argv[1])) as listener:
        connection, _ = (listener.setblocking(True), listener.accept())[1]
        with connection:
            print(listener.fileno(), listener.get_inheritable(), connection.recv(5).decode())
except HostError as e:
    print("refused:", e)
"""


def activated_child(path: Path, passed: socket.socket, *, listen_pid: str = "") -> str:
    child = subprocess.run(
        [sys.executable, "-W", "error", "-c", _CHILD, str(path), str(passed.fileno()), listen_pid],
        pass_fds=(passed.fileno(),),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert child.stderr == ""
    return child.stdout.strip()


def test_systemds_socket_is_taken_as_it_is(path: Path) -> None:
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as passed, socket.socket(socket.AF_UNIX) as client:
        passed.bind(str(path))
        path.chmod(0o666)
        passed.listen()
        client.connect(str(path))
        client.send(b"hello")
        assert activated_child(path, passed) == "3 False hello"
        assert mode_of(path) == 0o666
        assert len(access_problems(path)) == 1


def bound_elsewhere(path: Path) -> socket.socket:
    passed = socket.socket(socket.AF_UNIX)
    passed.bind(str(path) + ".other")
    passed.listen()
    return passed


def not_listening(path: Path) -> socket.socket:
    passed = socket.socket(socket.AF_UNIX)
    passed.bind(str(path))
    return passed


def datagram(path: Path) -> socket.socket:
    passed = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    passed.bind(str(path))
    return passed


def tcp(_: Path) -> socket.socket:
    passed = socket.socket()
    passed.bind(("127.0.0.1", 0))
    passed.listen()
    return passed


@pytest.mark.parametrize("make", [bound_elsewhere, not_listening, datagram, tcp])
def test_a_socket_that_is_another_is_refused(path: Path, make: Callable[[Path], socket.socket]) -> None:
    path.parent.mkdir()
    with make(path) as passed:
        assert activated_child(path, passed).startswith("refused: ")


def test_variables_for_another_process_are_not_ours(path: Path) -> None:
    """Check a daemon that is a child of the process which systemd started: it finds the live socket, and does not take it."""
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as passed:
        passed.bind(str(path))
        passed.listen()
        answer = activated_child(path, passed, listen_pid="1")
        assert answer.startswith("refused: ")
        assert f"process {os.getpid()}" in answer


# peers that are let in


def test_our_own_user_is_let_in(path: Path) -> None:
    strangers: list[Peer] = []
    with listen(path, rejected=strangers.append) as listener, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        connection, _ = listener.accept()
        with connection:
            assert peer_credentials(connection) == (os.getpid(), os.geteuid(), os.getegid())
        assert strangers == []
        with pytest.raises(BlockingIOError):
            listener.accept()


# Dials as someone else, says so, and waits to be cut off.
STRANGER = """
import os, socket, sys
os.setgroups([]); os.setgid(1234); os.setuid(1234)
with socket.socket(socket.AF_UNIX) as connection:
    connection.settimeout(10)
    connection.connect(sys.argv[1])
    print("dialled", flush=True)
    print(len(connection.recv(1)))
"""


def test_a_stranger_is_cut_off_and_who_comes_behind_is_let_in(another_user: int, sockets_for_all: Path) -> None:
    path = sockets_for_all / "x.sock"
    strangers: list[Peer] = []
    with listen(path, mode=0o666, rejected=strangers.append) as listener:
        child = subprocess.Popen([sys.executable, "-c", STRANGER, path], stdout=subprocess.PIPE, text=True)
        with child, socket.socket(socket.AF_UNIX) as client:
            assert child.stdout is not None
            assert child.stdout.readline() == "dialled\n"
            client.connect(str(path))
            connection, _ = listener.accept()
            with connection:
                assert peer_credentials(connection).uid == os.geteuid()
            assert child.stdout.readline() == "0\n"
        assert [(peer.pid, peer.uid) for peer in strangers] == [(child.pid, another_user)]
        assert child.returncode == 0


def test_the_file_stays_when_a_server_is_closed(path: Path) -> None:
    async def serve_once(listener: socket.socket) -> None:
        server = await serve(asyncio.Protocol, listener)
        server.close()
        await server.wait_closed()

    with listen(path) as listener, socket.socket(fileno=os.dup(listener.fileno())):  # systemd keeps the socket while we restart
        asyncio.run(serve_once(listener))
        assert connects(path)


def test_a_server_keeps_the_place_for_connections_that_wait(path: Path) -> None:
    """asyncio's own default is 100, also for a socket that systemd made with more."""

    async def fill(listener: socket.socket) -> None:
        async with await serve(asyncio.Protocol, listener):  # the loop accepts none meanwhile
            for _ in range(200):
                connection = waiting.enter_context(socket.socket(socket.AF_UNIX))
                connection.setblocking(False)
                connection.connect(str(path))

    with listen(path) as listener, contextlib.ExitStack() as waiting:
        asyncio.run(fill(listener))


def test_all_daemons_start_their_unix_servers_by_serve() -> None:
    """Check the code of all daemons: asyncio's own function removes systemd's socket, from Python 3.13 on."""
    packages = ("central", "doctor", "hooks", "kubectl_lading", "lading", "runtimeproxy", "shares", "simnode")
    sources = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    assert [path.relative_to(ROOT) for path in sources if "unix_server(" in path.read_text()] == [Path("lading/sockets.py")]
