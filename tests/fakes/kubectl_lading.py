"""Run `kubectl-lading` as a person does, on a pipe or a terminal, against a small API server."""

import asyncio
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner, Result

from kubectl_lading.main import main
from simnode.api_server import ApiServer, write_kubeconfig
from tests.fakes.small_cluster import SmallCluster

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class Cli:
    kubeconfig: Path

    def run(self, *text: str, env: Mapping[str, str] | None = None) -> Result:
        """Run the command with its output on a pipe."""
        return CliRunner().invoke(main, text, env={"KUBECONFIG": str(self.kubeconfig), **(env or {})})

    def on_terminal(self, *text: str, columns: int) -> str:
        """Return the output as a terminal of that width shows it, without colours."""
        done = self.run(*text, env={"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": str(columns)})
        assert done.exit_code == 0, done.output
        return _COLOURS.sub("", done.stdout)


@contextmanager
def served(cluster: SmallCluster, folder: Path, *, server: ApiServer | None = None) -> Iterator[Cli]:
    """Serve the cluster on an event loop in a thread, because the command runs its own loop."""
    loop = asyncio.new_event_loop()
    started = threading.Event()
    server = server or ApiServer(first_version=1000)

    async def serve() -> None:
        async with server:
            cluster.fill(server.store)
            started.set()
            await stop.wait()
            for _ in range(5):
                await asyncio.sleep(0)  # the server closes connections only once it has accepted them

    stop = asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert started.wait(10)
        yield Cli(write_kubeconfig(folder / "kubeconfig", server.url))
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
