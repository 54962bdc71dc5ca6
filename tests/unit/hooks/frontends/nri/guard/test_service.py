"""Test the guard that connects to the runtime itself, over a real socket with a scripted runtime, and the guard's command."""

import asyncio
import fcntl
import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals

import pytest

from hooks.frontends.nri.conversation import NriCallError
from hooks.frontends.nri.guard.build import build
from hooks.frontends.nri.guard.lock import find_guard
from hooks.main import main
from lading import __version__
from lading.compiling import find_compiler
from lading.http2.messages import GrpcStatus
from lading.log import Event
from protos.nri.v1alpha1 import nri_pb2 as nri
from simnode.patience import await_until
from tests.fakes.nri_runtime import Connected, NriRuntime

GUARDED = {"lading.dev/gpus": "0"}
WAIT_S = 20.0


class Service:
    """Run the guard as a process, and read its log."""

    def __init__(self, program: Path, short_folder: Path, log: Path, *more: str) -> None:
        self.socket = short_folder / "nri.sock"
        self._lock = short_folder / "guard.lock"
        self._log = log
        with log.open("ab") as out:
            self.process = subprocess.Popen([program, *arguments(short_folder), *more], stdin=subprocess.DEVNULL, stderr=out)

    def events(self) -> list[str]:
        return re.findall(r"event=(\S+)", self._log.read_text())

    async def until(self, event: Event, count: int = 1) -> str:
        """Wait for the event, and return the last line of the log."""
        happened = f"{count} of the event {event}"
        await await_until(lambda: self.events().count(event) >= count, happened, idle_s=WAIT_S, logs=[self._log])
        return self._log.read_text().splitlines()[-1]

    @property
    def guards(self) -> bool:
        return not find_guard(self._lock)

    def end(self, number: Signals = SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(WAIT_S)


def arguments(short_folder: Path) -> list[str]:
    return ["--socket", f"{short_folder}/nri.sock", "--lock", f"{short_folder}/guard.lock", "--hide", "VISIBLE=void"]


@pytest.fixture
def service(program: Path, short_folder: Path, tmp_path: Path) -> Iterator[Service]:
    service = Service(program, short_folder, tmp_path / "guard.log")
    yield service
    service.end(SIGKILL)


@pytest.fixture
async def runtime(service: Service) -> AsyncIterator[NriRuntime]:
    async with NriRuntime(service.socket) as runtime:
        yield runtime


@pytest.fixture
async def plugin(service: Service) -> AsyncIterator[Connected]:
    """Yield the guard's connection to a runtime, which asks the guard."""
    async with NriRuntime(service.socket) as runtime:
        yield await guarding(service, runtime)


async def guarding(service: Service, runtime: NriRuntime) -> Connected:
    plugin = await runtime.plugin()
    assert await plugin.configure("2.1.9") == 0b101000
    await service.until(Event.NRI_CONNECTED)
    return plugin


def request(of_pod: dict[str, str], of_container: dict[str, str], *env: str) -> nri.ContainerRequest:
    container = nri.Container(name="train", annotations=of_container, env=env)
    return nri.ContainerRequest(pod=nri.PodSandbox(id="s", annotations=of_pod), container=container)


async def create(plugin: Connected, what: nri.ContainerRequest) -> nri.ContainerAdjustment:
    return (await plugin.ask("CreateContainer", what, nri.CreateContainerResponse)).adjust


async def test_the_guard_is_asked_last_and_before_a_container_is_created_or_started(plugin: Connected) -> None:
    registered = await plugin.registered
    assert (registered.plugin_idx, registered.plugin_name) == ("99", "ladingguard")


async def test_a_guard_that_answers_too_late_to_the_list_connects_again(service: Service, runtime: NriRuntime) -> None:
    """Check that a guard connects again if its answer to the list of pods was late: containerd then keeps the connection open,
    and does not call the guard."""
    large = nri.SynchronizeRequest(pods=[nri.PodSandbox(id="s", annotations={"large": "x" * 1000})])
    plugin = await runtime.plugin()
    await plugin.configure("1.7.24", parts=0)
    await plugin.ask("Synchronize", large, nri.SynchronizeResponse, timeout_s=0.2, pause_s=0.2)
    await plugin.closed.wait()
    assert "plugin_request_timeout" in await service.until(Event.NRI_LOST)
    assert not service.guards
    again = await runtime.plugin()
    await again.configure("1.7.24", parts=0)
    await again.ask("Synchronize", large, nri.SynchronizeResponse, timeout_s=20, pause_s=0.2)
    await service.until(Event.NRI_CONNECTED)
    assert service.guards


async def test_a_guard_that_is_always_late_waits_longer_each_time_and_logs_it_once(
    service: Service, runtime: NriRuntime
) -> None:
    late = nri.SynchronizeRequest(pods=[nri.PodSandbox(id="s", annotations={"large": "x" * 1000})])
    loop, waits = asyncio.get_running_loop(), list[float]()
    plugin = await runtime.plugin()
    for _ in range(3):
        await plugin.configure("1.7.24", parts=0)
        await plugin.ask("Synchronize", late, nri.SynchronizeResponse, timeout_s=0.05, pause_s=0.05)
        await plugin.closed.wait()
        closed = loop.time()
        plugin = await runtime.plugin()
        waits.append(loop.time() - closed)
    assert waits[1] > 0.7  # 0.4, 0.8, 1.6
    assert waits[2] > 1.5
    assert service.events().count(Event.NRI_LOST) == 1


async def test_a_guarded_container_passes_only_with_an_answer(plugin: Connected) -> None:
    assert await create(plugin, request(GUARDED, {"lading.dev/grant": ""})) == nri.ContainerAdjustment()
    with pytest.raises(NriCallError, match="lading: ungranted: ") as error:
        await create(plugin, request(GUARDED, {}))
    assert error.value.status == GrpcStatus.UNAVAILABLE


@pytest.mark.parametrize("by_method", [False, True], ids=["StateChange", "own method"])
async def test_a_container_that_was_created_without_an_answer_is_not_started(plugin: Connected, by_method: bool) -> None:
    async def start(container: nri.ContainerRequest) -> None:
        if by_method:
            await plugin.ask("StartContainer", container, nri.Empty)
        else:
            event = nri.StateChangeEvent(event=nri.START_CONTAINER, pod=container.pod, container=container.container)
            await plugin.ask("StateChange", event, nri.Empty)

    await start(request(GUARDED, {"lading.dev/grant": ""}))
    await start(request({}, {}))
    with pytest.raises(NriCallError, match="lading: ungranted: "):
        await start(request(GUARDED, {}))


async def test_a_plain_container_passes_and_sees_no_cards(plugin: Connected) -> None:
    assert await create(plugin, request({}, {}, "A=1")) == nri.ContainerAdjustment()
    adjusted = await create(plugin, request({}, {}, "VISIBLE=all"))
    assert [(env.key, env.value) for env in adjusted.env] == [("VISIBLE", "void")]


async def test_the_node_is_guarded_only_while_the_runtime_asks_the_guard(service: Service) -> None:
    assert "No such file or directory" in await service.until(Event.NRI_LOST)
    assert not service.guards
    async with NriRuntime(service.socket) as runtime:
        plugin = await guarding(service, runtime)
        assert service.guards
        for number in (1, 2):
            plugin.drop()
            assert "the runtime closed the connection" in await service.until(Event.NRI_LOST, number + 1)
            plugin = await runtime.registered()
            await service.until(Event.NRI_CONNECTED, number + 1)
            assert service.guards
    await service.until(Event.NRI_LOST, 4)  # the runtime has ended
    assert not service.guards


@pytest.mark.parametrize("number", [SIGTERM, SIGKILL])
@pytest.mark.usefixtures("plugin")
async def test_the_lock_ends_with_the_process(service: Service, number: Signals) -> None:
    assert service.guards
    assert service.end(number) == (0 if number is SIGTERM else -SIGKILL)
    assert not service.guards
    assert (Event.DAEMON_STOPPED in service.events()) is (number is SIGTERM)


async def test_the_lock_is_shared_by_guards(
    service: Service, runtime: NriRuntime, program: Path, short_folder: Path, tmp_path: Path
) -> None:
    await guarding(service, runtime)
    other = Service(program, short_folder, tmp_path / "other.log")
    try:
        await runtime.registered()
        await other.until(Event.NRI_CONNECTED)
        service.end()
        assert other.guards
    finally:
        other.end()
    assert not other.guards


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\0\0\0\1\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\1\1\0",
        b"\0\0\0\1\0\0\0\x0a\0\0\0\x05\0\0\0\1\2\0",
        b"\0\0\0\1\0\0\0\x20half",
    ],
    ids=["another protocol", "larger than any message", "an answer in place of a call", "half a message"],
)
async def test_the_guard_connects_again_after_unreadable_bytes(service: Service, data: bytes) -> None:
    await service.until(Event.NRI_LOST)
    async with NriRuntime(service.socket) as runtime:
        plugin = await guarding(service, runtime)
        plugin.send(data)
        if data.endswith(b"half"):
            plugin.drop()
        await service.until(Event.NRI_LOST, 2)
        again = await runtime.registered()
        with pytest.raises(NriCallError, match="lading: ungranted: "):
            await create(again, request(GUARDED, {}))


async def test_a_runtime_that_refuses_the_guard_is_asked_again_and_named_once(
    service: Service, runtime: NriRuntime, tmp_path: Path
) -> None:
    runtime.refuse_registration = 'not "today"\n'
    for _ in range(3):
        await (await runtime.plugin()).closed.wait()
    runtime.refuse_registration = ""
    await runtime.registered()
    await service.until(Event.NRI_CONNECTED)
    assert (tmp_path / "guard.log").read_text().count(r"the runtime refused the plugin: not \x22today\x22\x0a") == 1


def test_records_go_to_the_journal_if_stderr_does(tmp_path: Path, short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hooks.frontends.nri.guard.build.JOURNAL_SOCKET", str(short_folder / "journal"))
    build(tmp_path / "ladingguard", find_compiler(), flags=("-O1",))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal, (tmp_path / "stderr").open("wb") as stderr:
        journal.bind(str(short_folder / "journal"))
        journal.settimeout(WAIT_S)
        status = os.fstat(stderr.fileno())
        env = {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
        process = subprocess.Popen([tmp_path / "ladingguard", *arguments(short_folder)], stderr=stderr, env=env)
        started, lost = (dict(line.split("=", 1) for line in journal.recv(1 << 12).decode().splitlines()) for _ in range(2))
        process.terminate()
        assert process.wait(WAIT_S) == 0
    assert started["LADING_EVENT"] == Event.DAEMON_STARTED
    assert started["LADING_VERSION"] == __version__
    assert (lost["SYSLOG_IDENTIFIER"], lost["PRIORITY"]) == ("lading-nri-guard", "4")
    assert lost["MESSAGE"].startswith("nri.lost plugin=99-ladingguard ")
    assert (tmp_path / "stderr").read_bytes() == b""


async def test_only_records_of_the_log_level_are_written(program: Path, short_folder: Path, tmp_path: Path) -> None:
    service = Service(program, short_folder, tmp_path / "guard.log", "--log-level", "warning")
    try:
        await service.until(Event.NRI_LOST)
    finally:
        service.end()
    assert service.events() == [Event.NRI_LOST]


@pytest.mark.parametrize(
    "wrong",
    [
        ["--socket", "x" * 200],
        ["--hide", "VISIBLE"],
        ["--hide", f"VISIBLE={'x' * 200}"],
        ["--hide", "A=b"] * 9,
        ["--lock", "/none/such"],
        ["--other"],
    ],
    ids=["socket", "no value", "long value", "many", "lock", "unknown"],
)
def test_invalid_arguments_are_an_error(program: Path, wrong: list[str]) -> None:
    done = subprocess.run([program, *wrong], capture_output=True, text=True, check=False, env={})
    assert done.returncode == 2
    assert done.stderr


def test_a_lock_that_is_a_link_is_an_error(program: Path, short_folder: Path) -> None:
    lock = short_folder / "guard.lock"
    lock.symlink_to("elsewhere")
    done = subprocess.run([program, *arguments(short_folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert str(lock) in done.stderr
    assert "no guard" in find_guard(lock)


def test_finding_a_guard_takes_no_lock_away(tmp_path: Path) -> None:
    path = tmp_path / "guard.lock"
    assert "no guard" in find_guard(path)
    path.touch()
    assert "no guard" in find_guard(path)
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


# ---- the command


def write_config(folder: Path, sockets: Path, front_end: str) -> list[str]:
    values = {"front_end": front_end, "nri_socket": str(sockets / "nri.sock"), "listen": str(sockets / "run/hooks.sock")}
    (folder / "hooks.toml").write_text("".join(f'{key} = "{value}"\n' for key, value in values.items()))
    return ["nri-guard", "--config", str(folder / "hooks.toml")]


async def test_the_command_becomes_the_guard(program: Path, tmp_path: Path, short_folder: Path) -> None:
    command = [*write_config(tmp_path, short_folder, "nri"), "--program", str(program)]
    process = subprocess.Popen([sys.executable, "-m", "hooks.main", *command], stderr=subprocess.DEVNULL)
    try:
        async with NriRuntime(short_folder / "nri.sock") as runtime:
            plugin = await runtime.registered()
            adjusted = await create(plugin, request({}, {}, "NVIDIA_VISIBLE_DEVICES=all"))
            assert [(env.key, env.value) for env in adjusted.env] == [("NVIDIA_VISIBLE_DEVICES", "void")]
        assert Path(f"/proc/{process.pid}/exe").readlink() == program
        process.terminate()
        assert process.wait(WAIT_S) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("front_end", "says"), [("cri-hook", "front_end = cri-hook"), ("nri", "make launched-guard")], ids=["proxy", "no program"]
)
def test_a_command_that_cannot_guard_reports_the_reason(
    tmp_path: Path, front_end: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main([*write_config(tmp_path, tmp_path, front_end), "--program", str(tmp_path / "none")])
    assert end.value.code
    assert says in capsys.readouterr().err
