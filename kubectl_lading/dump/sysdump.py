"""Run `kubectl lading sysdump`: collect data for a maintainer, without secrets, in a folder that only its owner can read.

Everything is read with the user's rights. A failed read is listed in the dump, and the dump continues, because a sysdump is
made for clusters with problems. Nothing is written to the cluster, and Secrets are not read.
"""

import contextlib
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from kubectl_lading.access import connect
from kubectl_lading.central import Central
from kubectl_lading.command import command
from kubectl_lading.dump.dump_folder import DumpFolder
from kubectl_lading.dump.redact import scrub, scrubbed
from kubectl_lading.dump.shapes import SECTIONS, Redact, Section, concerns_us, event, is_about, redact_pod, render_readme
from kubectl_lading.flags import Flags
from kubectl_lading.installation.control_checks import NAME_LABEL, SCHEDULER
from kubectl_lading.installation.read_installation import read_installation, replica_path
from kubectl_lading.installation.status_view import view_status
from kubectl_lading.objects import Unread
from kubectl_lading.terminal.format import count
from kubectl_lading.terminal.progress import Progress
from lading import __version__
from lading.errors import ConfigError, LadingError
from lading.kube.client import KubeClient, ListPage
from lading.kube.errors import ForbiddenError, KubeError, RefusedError
from lading.kube.resource import EVENTS, NODE_DEVICES, NODES, PODS
from lading.vocabulary import CENTRAL

# Reading this many bytes puts a noticeable load on the API server, so the user is asked first.
LARGE_BYTES: Final = 100 << 20
LOG_LINES: Final = 50_000  # maximum lines of a log, the newest ones; about 10 MB
LOG_TIMEOUT_S: Final = 60.0  # seconds for one log or page
WHYS: Final = 100  # maximum number of pending pods to ask central about
_MIB: Final = 1 << 20

Json = Any


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    remaining_item_count: int = 0


class _First(msgspec.Struct):
    """Represent the first page of a list, with one element and the number of remaining elements."""

    metadata: _Meta = _Meta()
    items: list[msgspec.Raw] | None = None


@command("sysdump", formats=False, examples={"sysdump": "A folder and a .tar.gz to attach to an issue."})
@click.option(
    "-o",
    "--output",
    "folder",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Folder to create. Default: lading-sysdump-TIME.",
)
@click.option("--yes", is_flag=True, help="Do not ask on a large cluster.")
async def sysdump(flags: Flags, folder: Path | None, yes: bool) -> None:
    """Collect what a maintainer needs: objects, logs, metrics and status, redacted, in a folder and a .tar.gz.

    Environment values, command lines, volume sources and other people's annotations are left out, Secrets are not read.
    Folders have mode 0700, files 0600. Look through it before you give it away: its README.md says what is in it."""
    at = datetime.fromtimestamp(time.time(), UTC)
    path = folder or Path(f"lading-sysdump-{at.strftime('%Y%m%dT%H%M%SZ')}")
    async with connect(flags) as client:
        with contextlib.suppress(RefusedError):  # a server that does not answer ends the command here
            await client.get("/version")
        _agree(await estimate(client), yes=yes)
        dump = Dump(client, DumpFolder(path), flags)
        await dump.run()
        archive = dump.end(at)
    click.echo(f"{path}/\n{archive}")
    if dump.failures:
        click.echo(f"{count(len(dump.failures), 'thing')} could not be read; README.md in it says which", err=True)
        if dump.forbidden:
            click.echo("hint:  ClusterRole and Role lading-sysdump (deploy/rbac/sysdump.yaml) have the rights", err=True)


# ---- size


async def estimate(client: KubeClient) -> dict[str, tuple[int, int]]:
    """Return the number of objects and the approximate bytes of the largest lists, by kind."""
    sizes = {}
    for resource in (PODS, NODES, NODE_DEVICES, EVENTS):
        with contextlib.suppress(KubeError, msgspec.DecodeError):  # the dump itself reports a list that cannot be read
            first = msgspec.json.decode(await client.get(resource.path(), query={"limit": "1"}), type=_First)
            number = len(first.items or ()) + first.metadata.remaining_item_count
            sizes[resource.plural] = number, sum(map(len, first.items or ())) * number
    return sizes


def _agree(sizes: dict[str, tuple[int, int]], *, yes: bool) -> None:
    total = sum(size for _, size in sizes.values())
    if total < LARGE_BYTES:
        return
    counts = ", ".join(f"{count} {plural}" for plural, (count, _) in sizes.items())
    click.echo(f"warning: this reads about {total // _MIB} MiB from the API server: {counts}", err=True)
    if yes:
        return
    if not sys.stdin.isatty():
        raise LadingError("cannot dump a large cluster unasked", hint="kubectl lading sysdump --yes")
    click.confirm("Go on?", err=True, abort=True)


# ---- the dump


class Dump:
    def __init__(self, client: KubeClient, folder: DumpFolder, flags: Flags) -> None:
        self.failures: list[str] = []
        self.forbidden = False  # True: at least one read failed because of missing rights
        self._client = client
        self._folder = folder
        self._flags = flags
        self._namespace = flags.lading_namespace
        self._central = Central(client, flags)
        self._descriptions: dict[str, str] = {}  # description of each file, for the README
        self._log: list[str] = []

    async def run(self) -> None:
        with Progress("dumping") as progress:
            await self._status()
            for n, section in enumerate(SECTIONS):
                progress.show_count("kinds of objects", n)
                await self._section(section)
            pods = await self._pods(progress)
            await self._events(frozenset(pod["metadata"].get("uid", "") for pod in pods), progress)
            await self._daemons([pod for pod in pods if pod["metadata"].get("namespace") == self._namespace], progress)
            await self._ask_central([pod for pod in pods if _waits(pod)], progress)

    def end(self, at: datetime) -> Path:
        """Write the dump's log and README, and pack the folder. Return the archive's path."""
        self._write("sysdump.log", "what was read, and what failed", "".join(f"{line}\n" for line in self._log).encode())
        readme = render_readme(
            version=__version__,
            at=at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            context=f"context {self._flags.context}" if self._flags.context else "the current context",
            files=self._descriptions,
            failures=self.failures,
        )
        self._folder.write("README.md", readme.encode())
        return self._folder.pack()

    def _write(self, name: str, description: str, content: bytes) -> None:
        self._folder.write(name, content)
        self._descriptions[self._folder.names[-1]] = description

    def _failed(self, what: str, error: Exception | str) -> None:
        text = scrub(f"{what}: {error}")
        self.forbidden |= isinstance(error, ForbiddenError)
        self.failures.append(text)
        self._log.append(f"failed: {text}")

    async def _status(self) -> None:
        try:
            view = view_status(await read_installation(self._client, self._namespace, self._central))
        except (KubeError, ConfigError) as e:
            self._failed("status", e)
            return
        content = msgspec.json.format(msgspec.json.encode(scrubbed(msgspec.to_builtins(view))), indent=2)
        self._write("status.json", "what `kubectl lading status -o json` says", content)

    # ---- objects

    async def _pods(self, progress: Progress) -> list[Json]:
        """Dump the pods that concern Lading. Return them, redacted."""
        pods: list[Json] = []

        def redacted(pod: Json) -> Json | None:
            return redact_pod(pod) if concerns_us(pod, self._namespace) else None

        pages = self._client.list_pages(PODS.path())
        await self._list("pods", "pods that have to do with Lading", pages, redacted, progress=progress, kept=pods)
        return pods

    async def _events(self, uids: frozenset[str], progress: Progress) -> None:
        def redacted(one: Json) -> Json | None:
            ours = (one.get("involvedObject") or {}).get("namespace") == self._namespace
            return event(one, ours=ours) if is_about(one, uids, self._namespace) else None

        description = "Events of these pods, of NodeDevices, and of our namespace"
        await self._list("events", description, self._client.list_pages(EVENTS.path()), redacted, progress=progress)

    async def _section(self, section: Section) -> None:
        path = section.resource.path(self._namespace if section.own_namespace else "", section.name)
        pages = self._single(path) if section.name else self._client.list_pages(path)
        await self._list(section.kind, section.description, pages, section.redact)

    async def _single(self, path: str) -> AsyncGenerator[ListPage, None]:
        yield ListPage(items=[msgspec.Raw(await self._client.get(path))], resource_version="", first=True)

    async def _list(
        self,
        kind: str,
        description: str,
        pages: AsyncGenerator[ListPage, None],
        redact: Redact,
        *,
        progress: Progress | None = None,
        kept: list[Json] | None = None,
    ) -> None:
        """Dump a list, and append its redacted objects to `kept`. Record a failure if the list cannot be read to its end."""
        file = f"objects/{kind}.json"
        try:
            with self._folder.items(file) as items:
                async with contextlib.aclosing(pages):
                    async for page in pages:
                        if page.first:  # the list began again: the pages before belong to an older version of it
                            items.restart()
                            if kept is not None:
                                kept.clear()
                        for one in filter(None, (redact(msgspec.json.decode(raw)) for raw in page.items)):
                            items.add(one)
                            if kept is not None:
                                kept.append(one)
                        if progress is not None:
                            progress.show_count(kind, items.count)
        except (KubeError, msgspec.DecodeError) as e:
            self._failed(file, e)
            self._descriptions[file] = f"{description} (not all)"
        else:
            self._descriptions[file] = f"{description} ({items.count})"
            self._log.append(f"{file}: {items.count} objects")

    # ---- daemons

    async def _daemons(self, pods: Sequence[Json], progress: Progress) -> None:
        for n, pod in enumerate(pods):
            progress.show_count("pods' logs", n)
            name, labels = pod["metadata"]["name"], pod["metadata"].get("labels") or {}
            if labels.get(NAME_LABEL) not in (CENTRAL, SCHEDULER):
                continue
            restarts = {one.get("name"): one.get("restartCount", 0) for one in pod["status"].get("containerStatuses") or ()}
            for container in (one["name"] for one in pod["spec"].get("containers") or ()):
                await self._log_of(name, container)
                if restarts.get(container):
                    await self._log_of(name, container, previous=True)
            if labels[NAME_LABEL] == CENTRAL:
                await self._page(f"central/{name}/metrics.txt", "its /metrics", replica_path(self._namespace, name, "/metrics"))
                await self._page(f"central/{name}/readyz.json", "its /readyz", replica_path(self._namespace, name, "/readyz"))

    async def _log_of(self, pod: str, container: str, *, previous: bool = False) -> None:
        query = {"container": container, "tailLines": str(LOG_LINES), "timestamps": "true"}
        query |= {"previous": "true"} if previous else {}
        name = f"logs/{pod}/{container}{'.previous' if previous else ''}.log"
        description = f"the newest {LOG_LINES} lines{' of its life before' if previous else ''}"
        await self._page(name, description, PODS.path(self._namespace, pod, "log"), query)

    async def _page(self, name: str, description: str, path: str, query: dict[str, str] | None = None) -> None:
        try:
            body = await self._client.get(path, query=query, timeout_s=LOG_TIMEOUT_S)
        except KubeError as e:
            self._failed(name, e)
            return
        self._write(name, description, scrub(body.decode(errors="replace")).encode())
        self._log.append(f"{name}: {len(body)} bytes")

    # ---- what only central knows

    async def _ask_central(self, waiting: Sequence[Json], progress: Progress) -> None:
        if not await self._answer("central/cluster.json", "what central sees: GET /v1/cluster", "/v1/cluster"):
            return
        for n, pod in enumerate(waiting[:WHYS]):
            progress.show_count("reasons", n)
            where = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
            if not await self._answer(f"central/why/{where}.json", "why this pod waits", f"/v1/why/{where}"):
                return
        if len(waiting) > WHYS:
            self._failed("central/why", f"{len(waiting)} pods wait; central was asked about {WHYS}")

    async def _answer(self, name: str, description: str, path: str) -> bool:
        """Write central's answer to a file. Return whether central can be asked."""
        try:
            text = await self._central.answer(path)
        except ConfigError as e:
            text = Unread(why=e.message)
        match text:
            case Unread(why=reason):
                self._failed(name, reason)
                return False
            case None:
                self._log.append(f"{name}: central knows nothing of it")
            case body:
                try:
                    content = msgspec.json.encode(scrubbed(msgspec.json.decode(body)))
                except msgspec.DecodeError as e:
                    self._failed(name, e)
                else:
                    self._write(name, description, content)
        return True


def _waits(pod: Json) -> bool:
    return not pod["spec"].get("nodeName") and pod["status"].get("phase") == "Pending"
