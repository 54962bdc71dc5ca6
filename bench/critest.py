"""Run critest, CRI's validation suite, on a runtime's socket: directly, through the proxy, or with the NRI plugin.

    python -m bench.critest --critest BIN --socket SOCKET [--nri-socket SOCKET] [--through | --plugin] [--out FILE]
                            [critest's own arguments]

`--nri-socket` adds critest's specs of NRI.

With `--through`, a new proxy in front of the socket holds every call for which hooks can be registered. Hooks add an
annotation and a label to each sandbox and container, an environment variable to each container, and an annotation to each
update of resources, so that these requests are decoded and encoded again. Other calls are held and forwarded unchanged. With
`--plugin`, Lading's plugin and its guard are connected to the runtime, on a simulated node; `asked` counts the runtime's calls
of the plugin. If both ways give the same result for each spec, Lading changes nothing that critest can observe.

The file is JSON: `{"passed": n, "failed": n, "skipped": n, "asked": n, "seconds": s, "specs": {name: state}}`. TMPDIR must be
on a shared mount, and the runtime must be able to pull critest's images; the caller of this program arranges both.
"""

import argparse
import asyncio
import json
import re
import sys
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen
from xml.etree import ElementTree

from protos.hook.v1 import hook_pb2 as hook
from runtimeproxy.call.calls import Stage
from simnode.build import build
from simnode.control_plane import free_port
from simnode.cri import Cri
from simnode.daemons import Daemon, LadingNode, render_flat_toml
from tests.fakes.hook_server import HookServer

_MADE = (Stage.RUN_POD_SANDBOX, Stage.CREATE_CONTAINER)
_MARK = {"critest.example/held": "yes"}
_ANSWERS = {
    "made": (_MADE, hook.Adjustment(annotations=_MARK, labels=_MARK)),
    "env": ((Stage.CREATE_CONTAINER,), hook.Adjustment(env=[hook.EnvUpsert(name="CRITEST_HELD", value="yes")])),
    "updated": ((Stage.UPDATE_CONTAINER_RESOURCES,), hook.Adjustment(annotations=_MARK)),
    "held": ([stage for stage in Stage if stage not in (*_MADE, Stage.UPDATE_CONTAINER_RESOURCES)], hook.Adjustment()),
}


@dataclass(frozen=True, slots=True)
class SocketOnly:
    socket: Path

    def client(self, *, via: Path | None = None, api: str = "v1") -> Cri:
        return Cri(via or self.socket, api=api)


async def run_critest(binary: Path, socket: Path, args: list[str], report: Path) -> None:
    """Run critest. Its output goes to stderr as it comes; failing specs do not raise an error."""
    config = report.with_name("crictl.yaml")
    config.touch()
    command = [
        *(str(binary), "--config", str(config)),
        *("--runtime-endpoint", f"unix://{socket}", "--image-endpoint", f"unix://{socket}"),
        *(
            "--ginkgo.junit-report",
            str(report),
            "--ginkgo.no-color",
            "--ginkgo.randomize-all=false",
            "--ginkgo.seed",
            "1",
            *args,
        ),
    ]
    await (await asyncio.create_subprocess_exec(*command, stdout=sys.stderr)).wait()


async def run_through(binary: Path, socket: Path, args: list[str], report: Path) -> int:
    """Run critest through a proxy. Return also the number of questions to the proxy's hooks, two for each container."""
    folder = report.parent
    async with AsyncExitStack() as stack:
        servers = []
        for name, (stages, answer) in _ANSWERS.items():
            server = await stack.enter_async_context(HookServer(folder / f"{name}.sock"))
            server.adjust(answer)
            servers.append(server)
            points = [*(stage.pre for stage in stages), *(stage.post for stage in stages)]
            registration = {"remote-endpoint": str(folder / f"{name}.sock"), "runtime-hooks": points}
            (folder / "hooks.d").mkdir(exist_ok=True)
            (folder / f"hooks.d/{name}.json").write_text(json.dumps(registration))
        settings = {
            "listen": str(folder / "cri.sock"),
            "runtime_endpoint": str(socket),
            "hooks_dir": str(folder / "hooks.d"),
            "max_connections": 4096,  # critest makes two for each spec and closes none
        }
        config = folder / "runtimeproxy.toml"
        config.write_text(render_flat_toml(settings))
        proxy = Daemon("lading-runtimeproxy", config=config, socket=folder / "cri.sock")
        await asyncio.to_thread(proxy.start)
        try:
            await run_critest(binary, proxy.socket, args, report)
        finally:
            await asyncio.to_thread(proxy.stop)
        return sum(len(server.asked) for server in servers)


async def run_beside(binary: Path, socket: Path, nri: Path, args: list[str], report: Path) -> int:
    """Run critest while the runtime asks Lading's plugin about every container. Return the number of the runtime's calls."""
    folder, metrics = report.parent, f"127.0.0.1:{free_port()}"
    node = await asyncio.to_thread(build, "demo-8gpu", folder / "node")
    with LadingNode(folder, node=node, runtime=SocketOnly(socket), nri=nri, hooks_settings={"metrics": metrics}):
        await run_critest(binary, socket, args, report)
        text = await asyncio.to_thread(_fetch, f"http://{metrics}/metrics")
        return sum(map(int, re.findall(r"^lading_hooks_nri_call_seconds_count\S* (\d+)", text, re.MULTILINE)))


def _fetch(url: str) -> str:
    with urlopen(url) as answer:  # noqa: S310 -- the plugin's own, on this machine
        return str(answer.read().decode())


def read_report(report: Path) -> dict[str, str]:
    """Return spec → state, from a JUnit file."""
    cases = ElementTree.parse(report).getroot().iter("testcase")  # noqa: S314 -- critest wrote it for this run
    result = ((str(case.get("name")), str(case.get("status"))) for case in cases)
    return {name.removeprefix("[It] "): state for name, state in result if name.startswith("[It] ")}


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.critest", description="critest against a socket, or through the proxy.")
    parser.add_argument("--critest", type=Path, required=True, metavar="BIN")
    parser.add_argument("--socket", type=Path, required=True, help="the runtime's")
    parser.add_argument("--nri-socket", type=Path, help="the runtime's for NRI")
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--through", action="store_true", help="through a proxy in front of it")
    way.add_argument("--plugin", action="store_true", help="with Lading's plugin and its guard")
    parser.add_argument("--out", type=Path, default=Path("bench/out/critest.json"))
    args, text = parser.parse_known_args()
    if args.plugin and not args.nri_socket:
        parser.error("--plugin needs --nri-socket")
    text += ["--nri-socket", str(args.nri_socket)] if args.nri_socket else []
    with tempfile.TemporaryDirectory(prefix="lading-critest-", dir="/tmp") as folder:  # sockets need short names
        report = Path(folder) / "junit.xml"
        begun = time.monotonic()
        if args.through:
            asked = asyncio.run(run_through(args.critest, args.socket, text, report))
        elif args.plugin:
            asked = asyncio.run(run_beside(args.critest, args.socket, args.nri_socket, text, report))
        else:
            asked = 0
            asyncio.run(run_critest(args.critest, args.socket, text, report))
        specs = read_report(report)
    counts = Counter(specs.values())
    result = {state: counts[state] for state in ("passed", "failed", "skipped")}
    result |= {"asked": asked, "seconds": round(time.monotonic() - begun)}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps({**result, "specs": dict(sorted(specs.items()))}, indent=1) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
