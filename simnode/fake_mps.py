"""Simulate MPS: the programs `nvidia-cuda-mps-control`, `nvidia-cuda-mps-server` and `systemd-run`, chosen by the file's name.

This file is copied under these names (simnode/mps.py) and uses Python's standard library only. Observed with driver 595.91:
replies, "1044M" that is read back as "1G", a second start that ends with status 1, a socket that stays after `quit`, and the
refusal of a long socket path. From NVIDIA's pages: one server for one user unless `-multiuser-server`; FAULT until the clients
of the fault have ended; `quit` waits for clients, `quit -t` does not.

A client (simnode/mps.py) is a connection to the socket `control` that begins with the line `client <uid>`. The answer is
`server <pid> <percent> <memory limit>` once a server accepts the client, or `refused 807` while the server is in FAULT. The
line `fault` from a client simulates a fatal fault, of which each client is told by a line `fault`.

systemd-run runs the command with the environment of its options, and ignores other options; all options are kept in
`systemd-run.log` beside it.
"""

import contextlib
import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

SERVER = "nvidia-cuda-mps-server"
LONGEST_PATH = 107
UNITS = {"G": 1024, "M": 1}


def main() -> int:
    match Path(sys.argv[0]).name:
        case "systemd-run":
            return run_service()
        case name if name == SERVER:
            while True:
                signal.pause()
        case _ if "-d" in sys.argv:
            return start()
        case _:
            return ask()


def run_service() -> int:
    options, command = sys.argv[1 : sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1 :]
    with Path(sys.argv[0]).with_name("systemd-run.log").open("a") as log:
        log.write(" ".join(sys.argv[1:]) + "\n")
    setenv = dict(option.partition("=")[2].split("=", 1) for option in options if option.startswith("--setenv="))
    os.execve(command[0], command, {"PATH": os.environ["PATH"], **setenv})  # noqa: S606 -- what this program is for


def pipe_folder() -> Path:
    return Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))  # noqa: S108 -- NVIDIA's default


def no_daemon() -> int:
    print("Cannot find MPS control daemon process")
    return 1


def ask() -> int:
    path = pipe_folder() / "control"
    if len(os.fsencode(path)) > LONGEST_PATH:
        return no_daemon()
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(path))
        except OSError:
            return no_daemon()
        replies = connection.makefile("r")
        for line in sys.stdin:
            connection.sendall(line.encode())
            while (reply := replies.readline()) not in {".\n", ""}:
                print(reply, end="")
    return 0


def start() -> int:
    pipe = pipe_folder()
    if len(os.fsencode(pipe / "control")) > LONGEST_PATH:
        return no_daemon()
    lock = os.open(pipe / "control_lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("An instance of this daemon is already running")
        return 1
    if os.fork():
        return 0  # the daemon may not be ready yet
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    MpsDaemon(pipe, multiuser="-multiuser-server" in sys.argv).serve()
    return 0


def shown(limit: str) -> str:
    """Return a limit as the daemon says it: from 1 GiB on, whole GiB."""
    match = re.fullmatch(r"([0-9]+)([GM])", limit)
    mib = int(match[1]) * UNITS[match[2]] if match else 0
    return f"{mib // 1024}G" if mib >= 1024 else f"{mib}M"


class Server:
    def __init__(self, uid: int, percent: str, memory: str) -> None:
        self.uid, self.percent, self.memory = uid, percent, memory
        self.process = subprocess.Popen([str(Path(sys.argv[0]).with_name(SERVER))])  # noqa: S603 -- a copy of this file
        self.clients: dict[int, socket.socket] = {}
        self.faulty: set[int] = set()  # clients that were there at a fault

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    @property
    def status(self) -> str:
        return "FAULT" if self.faulty else "ACTIVE"

    def end(self) -> None:
        self.process.terminate()
        self.process.wait()


class MpsDaemon:
    def __init__(self, pipe: Path, *, multiuser: bool) -> None:
        self.pipe = pipe
        self.multiuser = multiuser
        self.percent, self.memory = "100.0", ""
        self.servers: list[Server] = []
        self.lock = threading.RLock()

    def serve(self) -> None:
        for name in ("control", "control_privileged"):
            (self.pipe / name).unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.pipe / "control"))
        listener.listen()
        (self.pipe / "control_privileged").touch()
        with contextlib.suppress(FileExistsError):
            os.mkfifo(self.pipe / "log")
        (self.pipe / "nvidia-cuda-mps-control.pid").write_text(f"{os.getpid()}\n")
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=self.converse, args=(connection,), daemon=True).start()

    def converse(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            lines = connection.makefile("r")
            for line in lines:
                text = line.split()
                if text[:1] == ["client"]:
                    self.keep_client(connection, lines, int(text[1]))
                    return
                connection.sendall("".join(f"{reply}\n" for reply in (*self.answer(text), ".")).encode())
                if text[:1] == ["quit"]:
                    os._exit(0)  # the socket and the pid file stay

    def answer(self, args: list[str]) -> list[str]:
        with self.lock:
            self.servers = [server for server in self.servers if server.runs]
            match args:
                case ["get_default_active_thread_percentage"]:
                    return [self.percent]
                case ["set_default_active_thread_percentage", percent]:
                    self.percent = f"{float(percent):.1f}"
                    return [self.percent]
                case ["set_default_device_pinned_mem_limit", "0", limit]:
                    self.memory = limit
                    return [shown(limit)]
                case ["get_default_device_pinned_mem_limit", "0"]:
                    return [shown(self.memory)]
                case ["get_server_list"]:
                    return [str(server.pid) for server in self.servers]
                case ["quit", *options]:
                    pass
                case [command, pid, *values]:
                    server = next((server for server in self.servers if str(server.pid) == pid), None)
                    return self.answer_of(server, command, values) if server else [f"Server {pid} not found"]
                case _:
                    return ["Unknown command"]
        return self.end_servers(float(options[1]) if options[:1] == ["-t"] else float("inf"))

    def answer_of(self, server: Server, command: str, values: list[str]) -> list[str]:
        match command, values:
            case "get_server_status", []:
                return [server.status]
            case "get_client_list", []:
                return [str(client) for client in server.clients]
            case "set_active_thread_percentage", [percent]:
                server.percent = f"{float(percent):.1f}"
                return [server.percent]
            case "set_device_pinned_mem_limit", ["0", limit]:
                server.memory = limit
                return [shown(limit)]
            case _:
                return ["Unknown command"]

    def end_servers(self, within_s: float) -> list[str]:
        until = time.monotonic() + within_s
        while any(server.clients for server in self.servers) and time.monotonic() < until:
            time.sleep(0.02)
        for server in self.servers:
            server.end()
        return []

    def keep_client(self, connection: socket.socket, lines: object, uid: int) -> None:
        number = connection.fileno()
        while (server := self.admit(uid, connection)) is None:
            time.sleep(0.02)  # the other user's clients have to end first
        if server.faulty and number not in server.clients:
            connection.sendall(b"refused 807\n")  # CUDA_ERROR_MPS_SERVER_NOT_READY
            return
        connection.sendall(f"server {server.pid} {server.percent} {server.memory or 'none'}\n".encode())
        try:
            for line in lines:  # type: ignore[attr-defined]
                if line == "fault\n":
                    with self.lock:
                        server.faulty = set(server.clients)
                        for client in server.clients.values():
                            with contextlib.suppress(OSError):  # it has just ended
                                client.sendall(b"fault\n")
        finally:
            with self.lock:
                server.clients.pop(number, None)
                server.faulty.discard(number)

    def admit(self, uid: int, client: socket.socket) -> Server | None:
        """Return the server that takes, or refuses, this client; None while another user's clients have it."""
        uid = 0 if self.multiuser else uid
        with self.lock:
            self.servers = [server for server in self.servers if server.runs]
            if self.servers and self.servers[0].uid != uid:
                if self.servers[0].clients:
                    return None
                self.servers.pop().end()
            if not self.servers:
                self.servers.append(Server(uid, self.percent, self.memory))
            server = self.servers[0]
            if not server.faulty:
                server.clients[client.fileno()] = client
            return server


if __name__ == "__main__":
    sys.exit(main())
