"""Measure how much readers of central's page delay kube-scheduler, at 5,000 nodes. Write JSON and print a table.

    python -m bench.page

lading-central, the API server and the readers of the page are separate processes, as in bench.central. This process asks as
kube-scheduler does, one filter and one prioritize after the other. Each answer holds devices on a node for a moment, so that
the page changes with every pod.

* `unwatched`, `first_look`, `watched`, `unwatched_again`: filter and prioritize together, in ms: before the page was opened;
  while it is opened for the first time, for which every node is rendered; with WATCHERS readers that follow every change; and
  after they have ended, which shows how much the machine's speed changed meanwhile.
* `first_look_s`, `again_s`: from the request to the last byte, of the first one and of a later one; `gzip_mb`, `mb`: its size.
* `node_us`: rendering one node, in this process. `rss_mb_unwatched`, `rss_mb_watched`: of lading-central.
"""

import argparse
import asyncio
import gzip
import http.client
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from bench import api_server
from bench.api_server import SHAPES
from bench.central import Asker, central
from bench.figures import percentile, write_results
from bench.procfs import read_rss_mb
from central.api.objects import Node
from central.controllers.informer import DevicesFeed, NodeFeed
from central.daemon.settings import Settings
from central.ledger.ledger import Ledger
from central.state.node_reports import Reports
from central.view.build import node_view, totals
from lading.nodedevices import NodeDevices
from simnode.child import Child

OUT: Final = Path("bench/out/page.json")
NODES: Final = 5000
WATCHERS: Final = 10
PODS: Final = 1000  # pods for each figure
MEANWHILE: Final = 3000  # at most, while the page is opened
PATH: Final = "/v1/cluster"
FOLLOWS: Final = "follows"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="bench.page", description="What the page costs kube-scheduler.")
    parser.add_argument("--nodes", type=int, default=NODES, metavar="N", help=f"[{NODES}]")
    parser.add_argument("--watch", type=int, metavar="PORT", help="only watch, as the bench has it done")
    parser.add_argument("-o", "--output", type=Path, default=OUT, metavar="FILE", help=f"[{OUT}]")
    args = parser.parse_args(argv)
    if args.watch is not None:
        asyncio.run(watch(args.watch))
        return
    results = measure(args.nodes)
    write_results(args.output, results)
    for name, figure in results.items():
        text = [f"{figure:.2f}"] if isinstance(figure, float) else [f"{key} {value:.2f}" for key, value in figure.items()]
        print(f"{name:18} {'   '.join(text)}")


def measure(count: int) -> dict[str, Any]:
    names = [api_server.node_name(number) for number in range(count)]
    with central(count, holding=4 * count, others=0, policy=Settings().policy) as started:
        asker = Asker(started.port, names)
        warm, alone, first, watched, left = asker.create(started, 8 * len(SHAPES), PODS, MEANWHILE, PODS, PODS)
        for pod in warm:
            asker.ask(pod)
        unwatched = [asker.ask(pod)[0] for pod in alone]
        rss_mb_unwatched = read_rss_mb(started.pid)
        page_load = threading.Thread(target=(opened := PageLoad(started.page_port)).run)
        page_load.start()
        meanwhile = []
        for pod in first:
            meanwhile.append(asker.ask(pod)[0])
            if not page_load.is_alive():
                break
        page_load.join()
        again = PageLoad(started.page_port)
        again.run()
        with tempfile.TemporaryDirectory(prefix="lading-bench-page-") as folder:
            argv = [sys.executable, "-m", "bench.page", "--watch", str(started.page_port)]
            watchers = Child(argv, log=(log := Path(folder) / "watchers.log"))
            watchers.start()
            try:
                watchers.wait_until(lambda: FOLLOWS in log.read_text(), "everybody to watch")
                with_watchers = [asker.ask(pod)[0] for pod in watched]
            finally:
                watchers.stop()
        rss_mb_watched = read_rss_mb(started.pid)
        unwatched_again = [asker.ask(pod)[0] for pod in left]
    return {
        "unwatched": _in_ms(unwatched),
        "first_look": _in_ms(meanwhile),
        "watched": _in_ms(with_watchers),
        "unwatched_again": _in_ms(unwatched_again),
        "first_look_s": opened.took_s,
        "again_s": again.took_s,
        "gzip_mb": len(opened.body) / 1e6,
        "mb": len(gzip.decompress(opened.body)) / 1e6,
        "node_us": measure_node(min(count, 1000)) * 1e6,
        "rss_mb_unwatched": rss_mb_unwatched,
        "rss_mb_watched": rss_mb_watched,
    }


def _in_ms(seconds: Sequence[float]) -> dict[str, float]:
    return {
        "p50_ms": percentile(seconds, 0.5) * 1e3,
        "p99_ms": percentile(seconds, 0.99) * 1e3,
        "max_ms": max(seconds) * 1e3,
        "pods": float(len(seconds)),
    }


class PageLoad:
    def __init__(self, port: int) -> None:
        self._port = port
        self.took_s = 0.0
        self.body = b""

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60.0)
        began = time.perf_counter()
        connection.request("GET", PATH, headers={"Accept-Encoding": "gzip"})
        self.body = connection.getresponse().read()
        self.took_s = time.perf_counter() - began
        connection.close()


async def watch(port: int) -> None:
    """Start WATCHERS readers, each of which requests the changes since its last answer until this process ends."""
    url = f"http://127.0.0.1:{port}{PATH}"
    async with aiohttp.ClientSession(auto_decompress=False, timeout=aiohttp.ClientTimeout(total=120)) as session:

        async def ask(after: str = "") -> str:
            async with session.get(url + (f"?after={after}" if after else "")) as answer:
                answer.raise_for_status()
                async for _ in answer.content.iter_any():
                    pass
                return answer.headers["ETag"].strip('"')

        revisions = [await ask() for _ in range(WATCHERS)]
        print(FOLLOWS, flush=True)

        async def follow(revision: str) -> None:
            while True:
                revision = await ask(revision)

        await asyncio.gather(*map(follow, revisions))


def measure_node(count: int) -> float:
    """Return the seconds for a node's view, as JSON, and its totals."""
    ledger, reports = Ledger(), Reports()
    NodeFeed(ledger).replaced([msgspec.convert(one, Node) for one in api_server.nodes(count)], "1000")
    DevicesFeed(ledger, reports).replaced([msgspec.convert(one, NodeDevices) for one in api_server.reports(count)], "1000")
    ledger.conflicts()
    names = ledger.nodes()
    began = time.process_time()
    for name in names:
        view = node_view(ledger, reports.get(name), name)
        msgspec.json.encode(view)
        totals([view])
    return (time.process_time() - began) / count


if __name__ == "__main__":
    main()
