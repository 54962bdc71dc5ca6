"""Run `kubectl lading status`: show the whole installation on one screen, and summarise it in the exit status.

Exit status: 0 all is well, 1 something is degraded, 2 unusable arguments, 3 cannot tell. The last means that the API server
does not answer, or that rights to read are missing. With `--wait`, check again until all is well, as after an installation.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn, TypeVar

import click
from rich.console import Group, RenderableType
from rich.text import Text

from kubectl_lading.access import connect
from kubectl_lading.central import Central
from kubectl_lading.command import command
from kubectl_lading.flags import Duration, Flags, Output
from kubectl_lading.installation.installation import Installation
from kubectl_lading.installation.read_installation import read_installation
from kubectl_lading.installation.status_view import StatusView, view_status
from kubectl_lading.objects import Unread
from kubectl_lading.terminal.output import show, table, text
from lading.checks.model import Verdict
from lading.checks.show import STYLES, render_problems
from lading.kube.client import KubeClient
from lading.kube.errors import KubeError
from lading.log import printable

UNKNOWN_STATUS: Final = 3
EXIT: Final = {Verdict.UNKNOWN: UNKNOWN_STATUS, Verdict.DEGRADED: 1}  # other worst verdicts: 0
AGAIN_S: Final = 2.0  # seconds between two checks of --wait; each lists all pods


ReadView = Callable[[], Awaitable[StatusView | Unread]]
V = TypeVar("V")


@command(
    "status",
    examples={
        "status": "What is wrong, and what to do.",
        "status --wait --timeout 10m": "Wait until all is well, as in a script.",
    },
    columns=(
        ("PART", "Part of the installation; each needs those above it."),
        ("STATE", "ok; note: worth knowing; unknown: could not be read; degraded: what to do stands below the table."),
        ("VERSION", "Version that runs: of central, what it says itself, else its image's; of nodes, that of lading-hooks."),
        ("CHANGED", "With -o wide: when what the node reports changed last; on a quiet node that is long ago."),
    ),
)
@click.option("--wait", is_flag=True, help="Wait until no part is degraded or unknown.")
@click.option("--timeout", "timeout_s", type=Duration(), default="5m", show_default=True, help="Time limit of --wait.")
async def status(flags: Flags, wait: bool, timeout_s: float) -> None:
    """Show the whole installation on one screen: is it healthy, and if not, what to do.

    Exit status: 0 all is well, 1 degraded, 2 unusable arguments, 3 cannot tell."""
    async with connect(flags) as client:
        observed = await wait_until_well(
            lambda: read_view(client, flags, view_status),
            timeout_s=timeout_s if wait else 0.0,
            announce=lambda message: click.echo(message, err=True),
        )
    if isinstance(observed, Unread):
        end_untold(observed)
    show(observed, flags, render_status(observed), *([render_nodes(observed)] if flags.output is Output.WIDE else []))
    raise SystemExit(EXIT.get(observed.state, 0))


def end_untold(unread: Unread) -> NoReturn:
    """Exit with status 3, because the cluster itself cannot be read."""
    click.echo(f"error: cannot tell: {printable(unread.why)}", err=True)
    click.echo("hint:  kubectl get nodes,pods -A, with the same --context and --kubeconfig, has to work", err=True)
    raise SystemExit(UNKNOWN_STATUS)


async def read_view(client: KubeClient, flags: Flags, view: Callable[[Installation], V]) -> V | Unread:
    """Return a view of the installation; `Unread` if the cluster itself cannot be read."""
    try:
        return view(await read_installation(client, flags.lading_namespace, Central(client, flags)))
    except KubeError as e:
        return Unread(why=e.message)


async def wait_until_well(
    read_view: ReadView,
    *,
    timeout_s: float,
    announce: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> StatusView | Unread:
    """Check again until all is well, or until the timeout. Return the last result. `announce` gets a line about the open
    findings whenever they change."""
    until = clock() + timeout_s
    printed = ""
    while True:
        view = await read_view()
        if (isinstance(view, StatusView) and view.state not in EXIT) or clock() + AGAIN_S > until:
            return view
        waits = awaited(view)
        if waits != printed:
            announce(f"waiting: {waits}")
            printed = waits
        await sleep(AGAIN_S)


def awaited(view: StatusView | Unread) -> str:
    if isinstance(view, Unread):
        return view.why
    return "; ".join(f"{one.group}: {one.what}" for one in view.findings if one.verdict in EXIT)


# ---- for people


def render_status(view: StatusView) -> RenderableType:
    rows = [(one.part.value, Text(one.state, STYLES[one.state]), one.version, one.what) for one in view.parts]
    return Group(table(("PART", "STATE", "VERSION", ""), rows), render_problems(view.findings))


def render_nodes(view: StatusView) -> RenderableType:
    rows = [
        (
            one.name,
            one.reporter,
            _yes(one.ready),
            _yes(not one.tainted),
            _yes(one.reconciled),
            one.changed_at or "-",
            str(len(one.problems) or "-"),
        )
        for one in view.nodes
    ]
    return Group(text(""), table(("NODE", "HOOKS", "READY", "UNTAINTED", "RECONCILED", "CHANGED", "PROBLEMS"), rows))


def _yes(good: bool) -> Text:
    return text("yes", "good") if good else text("no", "bad")
