"""Run `kubectl lading quota`: show the tree of quotas, with used, borrowed, lent and waiting amounts.

Read the cluster and the ElasticQuotas of both kinds. Show a row for each quota and resource. Devices that central holds for
pods between filter and bind are not included.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import click
from rich.console import RenderableType
from rich.text import Text

from central.controllers.quotas import QUOTA_RESOURCES, QuotaFeed
from central.loop.steps import exhaust
from central.quota.amounts import is_cards
from central.quota.objects import ElasticQuota
from central.request.cpu_memory import MEMORY
from central.state.quotas import Quotas
from central.view.quotas import QuotaAmount, QuotasView, QuotaView, view_quotas
from kubectl_lading.access import connect
from kubectl_lading.cluster import read_cluster
from kubectl_lading.command import command
from kubectl_lading.flags import Flags, Output, Scope, refuse
from kubectl_lading.lists import Listed, read_list
from kubectl_lading.run import not_found
from kubectl_lading.terminal.format import NONE
from kubectl_lading.terminal.output import Cell, show, table, text, warn
from kubectl_lading.terminal.progress import Progress
from lading.amounts import format_mib
from lading.kube.client import KubeClient
from lading.kube.errors import ForbiddenError, NotFoundError
from lading.kube.resource import Resource

COLUMNS: Final = (
    ("RESOURCE", "Limited resource; without -o wide only cards."),
    ("BAR", "█ used of what is guaranteed, ▓ borrowed, ░ lent, · guaranteed and free; bars of one resource have one scale."),
    ("USED", "What its pods hold, and those of the quotas below it."),
    ("MAY USE", "What it may use now: what it is guaranteed, and what others lend."),
    ("MIN", "What it is guaranteed."),
    ("MAX", "What it may use at most."),
    ("BORROWED", "What it uses beyond its min."),
    ("LENT", "What it is guaranteed and does not ask for, so that others may use it."),
    ("WAITING", "What its pods ask for and do not have."),
)
_BAR: Final = 24  # length of a bar, in columns
_NO_LIMIT: Final = 1e12  # a max of this amount or more means no limit


@command(
    "quota",
    columns=(("QUOTA", "Its name, below its parent."), *COLUMNS),
    scope=Scope.CLUSTER,
    examples={"quota": "The tree of quotas.", "quota team-a -o wide": "One quota and those below it, with cpu and memory."},
)
@click.argument("name", default="")
async def quota(flags: Flags, name: str) -> None:
    """Show quotas of teams: what each is guaranteed, uses, borrows, lends and waits for.

    With a NAME, that quota and those below it. Quotas that contradict themselves or others are named last, with the reason."""
    refuse(flags, Scope.CLUSTER)
    async with connect(flags) as client:
        cluster = await read_cluster(client)
        objects = {dialect: await read_quotas(client, resource) for dialect, resource in QUOTA_RESOURCES.items()}
    warn(*cluster.problems)
    quotas = Quotas(cluster.ledger, cluster.pending)
    for dialect, listed in objects.items():
        QuotaFeed(quotas, dialect).replaced(*listed)
    exhaust(quotas.scan())
    view = _only(view_quotas(quotas), name)
    show(view, flags, *draw(view, wide=flags.output is Output.WIDE))


async def read_quotas(client: KubeClient, resource: Resource) -> Listed[ElasticQuota]:
    """Return the quotas of one kind; none if the cluster has no such kind, or, after a warning, if the user may not read
    them."""
    try:
        with Progress("reading quotas") as progress:
            return await read_list(client, resource, ElasticQuota, progress)
    except NotFoundError:
        return [], ""
    except ForbiddenError as e:
        warn(f"quotas were not looked at: {e}")
        return [], ""


def _only(view: QuotasView, name: str) -> QuotasView:
    """Return the quota of that name and the quotas below it; all quotas without a name. Raise LadingError for an unknown
    name."""
    if not name:
        return view
    at = next((at for at, one in enumerate(view.quotas) if one.quota == name), None)
    if at is None:
        raise not_found("quota", name, [one.quota for one in view.quotas])
    own = view.quotas[at]
    below = []
    for one in view.quotas[at + 1 :]:
        if one.level <= own.level or one.problem:
            break
        below.append(one)
    return QuotasView(quotas=(own, *below), totals=view.totals)


def draw(view: QuotasView, *, wide: bool) -> list[RenderableType]:
    if not view.quotas:
        return [text("There are no quotas: no ElasticQuota of Koordinator or scheduler-plugins (docs/quotas.md).")]
    scales = _scales(view)
    rows = [row for one in view.quotas if not one.problem for row in _rows(one, scales, wide=wide)]
    renderable_types: list[RenderableType] = [table(["QUOTA", *(head for head, _ in COLUMNS)], rows)] if rows else []
    renderable_types += [
        text(f"{one.quota}: refused, and so are its pods: {one.problem}", "bad") for one in view.quotas if one.problem
    ]
    if uncounted := sorted({key for one in view.quotas for key in one.uncounted}):
        renderable_types.append(text(f"Not counted by Lading: {', '.join(uncounted)}", "warn"))
    return renderable_types


def _scales(view: QuotasView) -> dict[str, float]:
    """Return the amount that a full bar stands for, by resource."""
    most: dict[str, float] = dict(view.totals)
    for one in [amount for quota in view.quotas for amount in quota.amounts]:
        most[one.resource] = max(most.get(one.resource, 0.0), one.used, one.min)
    return most


def _rows(one: QuotaView, scales: Mapping[str, float], *, wide: bool) -> list[Sequence[Cell]]:
    shown = [amount for amount in one.amounts if wide or is_cards(amount.resource)] or list(one.amounts)
    name = "  " * one.level + one.quota
    if not shown:
        return [[name, *([NONE] * len(COLUMNS))]]
    return [[name if number == 0 else "", *_cells(amount, scales)] for number, amount in enumerate(shown)]


def _cells(one: QuotaAmount, scales: Mapping[str, float]) -> list[Cell]:
    over = one.used > one.runtime
    return [
        one.resource,
        draw_bar(one, scales[one.resource]),
        text(_number(one, one.used), "bad" if over else ""),
        *(_number(one, amount) for amount in (one.runtime, one.min, one.max)),
        *(_number(one, amount) if amount else NONE for amount in (one.borrowed, one.lent, one.waiting)),
    ]


def draw_bar(one: QuotaAmount, most: float) -> Text:
    own = one.used - one.borrowed
    parts = (
        (own, "█", "good"),
        (one.borrowed, "▓", "warn"),
        (one.lent, "░", "dim"),
        (max(0.0, one.min - own - one.lent), "·", "dim"),
    )
    bar, end, drawn = Text(), 0.0, 0
    for amount, sign, style in parts:
        end += amount
        until = round(min(1.0, end / most) * _BAR) if most else 0
        bar.append_text(text(sign * max(0, until - drawn), style))
        drawn = max(drawn, until)
    bar.append(" " * (_BAR - drawn))
    return bar


def _number(one: QuotaAmount, amount: float) -> str:
    if amount >= _NO_LIMIT:
        return "no limit"
    return format_mib(int(amount)) if one.resource == MEMORY else f"{amount:.3f}".rstrip("0").rstrip(".")
