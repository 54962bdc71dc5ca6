"""Run `kubectl lading preflight [--to VERSION]`: check whether an upgrade may begin.

Show a table of the running versions and their compatibility with the target, then the obstacles. Exit status: 0 no obstacle,
1 an obstacle, 2 unusable arguments, 3 cannot tell.
"""

from dataclasses import replace
from typing import Any, Final

import click
import msgspec
from rich.console import Group, RenderableType

from kubectl_lading.access import connect
from kubectl_lading.command import command
from kubectl_lading.flags import Flags
from kubectl_lading.installation.installation import Installation
from kubectl_lading.installation.status import EXIT, end_untold, read_view
from kubectl_lading.installation.status_view import find_versions
from kubectl_lading.installation.upgrade_checks import CHECKS, count_platform
from kubectl_lading.objects import Deployment, Unread
from kubectl_lading.terminal.format import count
from kubectl_lading.terminal.output import show, table, text
from lading import __version__
from lading.checks.model import Finding, Verdict, worst, worst_first
from lading.checks.run import decide_all
from lading.checks.show import render_problems
from lading.versions import (
    Judgement,
    Support,
    judge_api_server,
    judge_kubelet,
    judge_runtime,
    judge_scheduler,
    judge_step,
    parse_version,
)

_STYLES: Final = {Support.FULL: "good", Support.LIMITED: "warn", Support.UNKNOWN: "warn", Support.NONE: "bad"}


class VersionRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    part: str
    version: str
    count: int = 1  # number of replicas or nodes
    goes: Support  # compatibility with the target; for parts that are not Lading's, with Lading and the API server
    why: str = ""


class PreflightView(msgspec.Struct, frozen=True, kw_only=True):
    target: str
    state: Verdict
    versions: tuple[VersionRow, ...]
    findings: tuple[Finding, ...]


class Target(click.ParamType[str]):
    name = "version"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if parse_version(str(value)) is None:
            self.fail(f"{value!r} is no version: write it as {__version__}", param, ctx)
        return str(value)


@command(
    "preflight",
    examples={"preflight --to 0.2.0": "What is in the way of that version."},
    columns=(
        ("PART", "What runs. The proxy's version is known on its node only: lading-doctor."),
        ("COUNT", "Replicas, pods of DaemonSets, or nodes that report."),
        ("GOES", "full, limited, none or unknown: with the target; what is not Lading's, with Lading and the API server."),
    ),
)
@click.option(
    "--to",
    "target",
    type=Target(),
    default=__version__,
    metavar="VERSION",
    help="Target version. Default: that of this kubectl-lading.",
)
async def preflight(flags: Flags, target: str) -> None:
    """Check before an upgrade which versions run and work together, and what must not be in progress.

    Exit status: 0 nothing is in the way, 1 something is, 2 unusable arguments, 3 cannot tell."""
    async with connect(flags) as client:
        view = await read_view(client, flags, lambda now: view_preflight(now, target))
    if isinstance(view, Unread):
        end_untold(view)
    show(view, flags, render_preflight(view))
    raise SystemExit(EXIT.get(view.state, 0))


def view_preflight(now: Installation, target: str) -> PreflightView:
    """Check an upgrade to `target`. Pure."""
    findings = worst_first(decide_all(CHECKS, replace(now, target=target)))
    return PreflightView(target=target, state=worst(findings), versions=tuple(_rows(now, target)), findings=findings)


def _rows(now: Installation, target: str) -> list[VersionRow]:
    rows = [
        _row(part, version, number, judge_step(version, target))
        for part, result in find_versions(now).items()
        for version, number in sorted(result.items())
    ]
    rows.append(_row("API server", now.api_server, 1, judge_api_server(now.api_server)))
    if isinstance(now.scheduler, Deployment) and now.scheduler.tag:
        judged = judge_scheduler(now.scheduler.tag, api_server=now.api_server)
        rows.append(_row("kube-scheduler", now.scheduler.tag, now.scheduler.spec.replicas, judged))
    platform = count_platform(now)
    for version, nodes in sorted(platform["kubelet"].items()):
        rows.append(_row("kubelet", version, nodes, judge_kubelet(version, api_server=now.api_server)))
    for version, nodes in sorted(platform["container runtime"].items()):
        rows.append(_row("container runtime", version, nodes, judge_runtime(version)))
    return rows


def _row(part: str, version: str, number: int, judged: Judgement) -> VersionRow:
    return VersionRow(part=part, version=version, count=number, goes=judged.support, why=judged.why)


def render_preflight(view: PreflightView) -> RenderableType:
    rows = [(one.part, one.version, str(one.count), text(one.goes, _STYLES[one.goes]), one.why) for one in view.versions]
    in_the_way = sum(one.verdict is Verdict.DEGRADED for one in view.findings)
    last = {
        Verdict.DEGRADED: f"{count(in_the_way, 'thing is', 'things are')} in the way of {view.target}.",
        Verdict.UNKNOWN: f"Cannot tell whether anything is in the way of {view.target}.",
    }.get(view.state, f"Nothing is in the way of {view.target}.")
    return Group(
        table(("PART", "VERSION", "COUNT", "GOES", ""), rows),
        render_problems(view.findings),
        text(""),
        text(last, "bad" if view.state is Verdict.DEGRADED else ""),
    )
