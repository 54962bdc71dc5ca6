"""Read sockets, HTTP, the runtime, systemd's units and configuration files of a node. Nothing is changed, nothing is decided.

To check a socket, connect, send a greeting and close. The kernel names the process that called listen() on the socket
(SO_PEERCRED, unix(7)); this is systemd for a socket of a systemd unit. HTTP is one request per connection, as the daemons serve
it (lading.health); proxies of the environment are not used. Functions marked "Blocks" are run in a thread.

Source: proc_pid_cmdline(5), runtime.v1 (Version, Status), systemctl(1) show.

Tests: tests/unit/doctor/test_sockets.py
"""

import argparse
import asyncio
import socket
import stat
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from doctor.config import ConfigReading
from doctor.kubelet.distribution import CONTAINERD
from doctor.processes import read_process
from doctor.ready import DaemonReply
from doctor.runtime import RuntimeReading
from doctor.sockets import SocketReading
from lading.errors import ConfigError, HostError
from lading.health import Address, parse_address
from lading.liveness import HELLO, find_silence
from lading.runtime import RuntimeClient
from lading.settings import load, load_usable
from lading.sockets import Access, peer_credentials
from lading.threads import in_thread

S = TypeVar("S", bound=msgspec.Struct)

ANSWER_S: Final = 4.0  # seconds for each request on a quiet node; a check may make two requests
PROC: Final = Path("/proc")  # not below the host root: the kernel names a peer by its pid in this process's namespace
_RETRY_S: Final = 0.1  # seconds between two requests, after a connection that ended without an answer
LARGEST: Final = 16 << 20  # maximum bytes of an HTTP answer; /metrics of a node with many devices has some 100 KB
RUNTIMES: Final = ("/run/containerd/containerd.sock", CONTAINERD, "/run/crio/crio.sock")
_BOOTED: Final = Path("run/systemd/system")  # exists if systemd runs: sd_booted(3)
_ANY: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  an address to listen on cannot be connected to


# ---- sockets


async def read_socket(path: Path, *, daemon: str, wanted: Access, answer_s: float = ANSWER_S) -> SocketReading:
    """Read a daemon's socket: connect, send a greeting and close. Raises PermissionError without permission to connect."""
    nothing = SocketReading(path=path, daemon=daemon, wanted=wanted)
    reading = await in_thread(lambda: _read_file(nothing, answer_s))
    if reading.holder is None:
        return reading
    return replace(reading, silence=await find_silence(path, hello=HELLO, timeout_s=answer_s))


def _read_file(nothing: SocketReading, answer_s: float) -> SocketReading:
    path = nothing.path
    try:
        there, folder = path.lstat(), path.parent.stat()
    except FileNotFoundError:
        return nothing
    is_socket = stat.S_ISSOCK(there.st_mode)
    pid = read_listener(path, answer_s) if is_socket else None
    holder = None if pid is None else read_process(PROC, pid)
    return replace(nothing, access=Access.of(there), is_socket=is_socket, folder=Access.of(folder), holder=holder)


def read_listener(path: Path, answer_s: float = ANSWER_S) -> int | None:
    """Return the pid of the process that called listen() on this socket; None if no process listens. Raises PermissionError,
    and HostError if no process accepts connections."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dial:
        dial.settimeout(answer_s)
        try:
            dial.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return None
        except PermissionError as e:
            raise PermissionError(e.errno, e.strerror, str(path)) from e
        except (TimeoutError, BlockingIOError) as e:  # the socket's queue of connections is full
            raise HostError(f"cannot connect to {path}: no process accepts connections", hint=f"ss -xlp src {path}") from e
        return peer_credentials(dial).pid


# ---- what a daemon says of itself


async def read_reply(daemon: str, address_text: str, answer_s: float = ANSWER_S) -> DaemonReply:
    address = parse_address(address_text)
    if address is None:
        return DaemonReply(daemon=daemon, address="")
    readyz = await _get(address, "/readyz", answer_s)
    metrics = await _get(address, "/metrics", answer_s)
    text = None if metrics is None else metrics.decode(errors="replace")
    return DaemonReply(daemon=daemon, address=address_text, readyz=readyz, metrics=text)


async def _get(address: Address, path: str, answer_s: float) -> bytes | None:
    try:
        async with asyncio.timeout(answer_s):
            while not (answer := await _request(address, path)):  # noqa: ASYNC110  no event announces that the server answers
                await asyncio.sleep(_RETRY_S)
    except TimeoutError as e:
        hint = f"see what listens there: ss -tlnp sport = :{address.port}"
        raise HostError(f"no answer to {path} at {address.host}:{address.port} within {answer_s:.3g} s", hint=hint) from e
    except OSError:
        return None
    return answer.partition(b"\r\n\r\n")[2]


async def _request(address: Address, path: str) -> bytes:
    """Return the answer to one request; empty if the server closed the connection. A daemon does so if the request does not
    arrive within seconds, as on a slow node."""
    reader, writer = await asyncio.open_connection(_ANY.get(address.host, address.host), address.port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        return await _read_all(reader)
    except ConnectionResetError:
        return b""
    finally:
        writer.transport.abort()


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    """Return at most LARGEST bytes of an answer: another program may use the port, and send without end."""
    answer = bytearray()
    while len(answer) < LARGEST and (part := await reader.read(LARGEST - len(answer))):
        answer += part
    return bytes(answer)


# ---- the container runtime


async def read_runtime(endpoint: Path, answer_s: float = ANSWER_S) -> RuntimeReading:
    """Read version and status of the runtime. Raises HostError if no process listens, RuntimeUnavailableError if the runtime
    does not answer, PermissionError."""
    if await in_thread(lambda: read_listener(endpoint, answer_s)) is None:
        raise HostError(f"no process listens at {endpoint}", hint=_where_a_runtime_is(endpoint))
    async with RuntimeClient(endpoint, timeout_s=answer_s) as client:
        return RuntimeReading(endpoint=endpoint, version=await client.version(), status=await client.status_verbose())


def _where_a_runtime_is(endpoint: Path) -> str:
    others = [path for path in RUNTIMES if path != str(endpoint) and Path(path).is_socket()]
    if not others:
        return "systemctl status containerd; journalctl -u containerd -n 50; is runtime_endpoint its socket?"
    return f'runtime_endpoint = "{others[0]}" in runtimeproxy.toml and in hooks.toml (a runtime is there), and restart both'


# ---- systemd


def show_units(host_root: Path, properties: str, units: Sequence[str], answer_s: float) -> str | None:
    """Return what `systemctl show` prints; None if systemd does not run this node, or the host root is another node's."""
    if host_root != Path("/") or not (host_root / _BOOTED).is_dir():
        return None
    command = ["systemctl", "show", "--property", properties, *units]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=answer_s)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as e:
        raise HostError(f"cannot ask systemd about {', '.join(units)}: {e}") from e
    if done.returncode:
        raise HostError(f"cannot ask systemd about {', '.join(units)}: {done.stderr.strip()}")
    return done.stdout


# ---- configuration files


def read_config(
    schema: type[S], path: Path | None, default: Path, check: Callable[[S], None], *, daemon: str
) -> tuple[S, ConfigReading]:
    """Read a daemon's settings. An error in them is a finding, and the checks continue with the valid settings. `check`: the
    daemon's own check of settings that depend on each other."""
    args = argparse.Namespace(config=path, default_config=default)
    problem = None
    try:
        check(load(schema, args))
    except ConfigError as e:
        problem = e
    settings = load_usable(schema, args)
    reading = ConfigReading(daemon=daemon, path=path or default, access=read_access(path or default), problem=problem)
    return settings, reading


def read_access(path: Path) -> Access | None:
    try:
        return Access.of(path.stat())
    except OSError:
        return None
