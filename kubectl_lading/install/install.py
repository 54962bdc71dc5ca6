"""Run `kubectl lading install`: apply the objects of deploy/ without kustomize or Helm, with their keys and certificates."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
from rich.table import Table

from kubectl_lading.access import connect
from kubectl_lading.command import command
from kubectl_lading.flags import Duration, Flags
from kubectl_lading.install.apply import Done, What, apply, await_ready, delete, in_order
from kubectl_lading.install.credentials import find_missing
from kubectl_lading.install.manifests import Manifest, find_deploy, pod_spec, render
from kubectl_lading.install.nodes import clean, find_chosen, find_holders, label
from kubectl_lading.terminal.output import show, table, text
from kubectl_lading.terminal.progress import Progress
from lading.amounts import first_few
from lading.errors import ConfigError, LadingError
from lading.kube.client import KubeClient
from lading.log import printable

_STYLES: Final = {What.CREATED: "good", What.CHANGED: "warn", What.DELETED: "warn", What.UNCHANGED: "dim", What.ABSENT: "dim"}
_NAMED: Final = 5


class Image(click.ParamType[tuple[str, str]]):
    """Parse `NAME=IMAGE`, with or without a tag, into name and image."""

    name = "image"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, _, image = str(value).partition("=")
        if not name or not image:
            self.fail(f"{value!r} names no image: write it as lading-node=registry.example/lading-node", param, ctx)
        return name, image


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    dry_run: bool
    wait: bool
    force: bool
    timeout_s: float


@command(
    "install",
    columns=(
        ("KIND, NAMESPACE, NAME", "Each object of deploy/, and what it needs."),
        ("WHAT", "created, changed, unchanged, deleted, absent; with --dry-run, what would be."),
    ),
)
@click.option(
    "--image",
    "images",
    type=Image(),
    multiple=True,
    metavar="NAME=IMAGE",
    help="Image to use in place of the default; may be repeated.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")
@click.option("--wait", is_flag=True, help="Wait until all pods of Lading are ready.")
@click.option(
    "--timeout", "timeout_s", type=Duration(), default="5m", show_default=True, help="Time limit of --wait and --uninstall."
)
@click.option("--uninstall", is_flag=True, help="Remove Lading, also from the nodes with the label lading.dev/front-end.")
@click.option(
    "--force",
    is_flag=True,
    help="Overwrite fields that other clients changed; with --uninstall, uninstall even if pods hold devices.",
)
async def install(
    flags: Flags,
    images: tuple[tuple[str, str], ...],
    dry_run: bool,
    wait: bool,
    timeout_s: float,
    uninstall: bool,
    force: bool,
) -> None:
    """Install Lading in the cluster, upgrade it, or remove it, without kustomize or Helm.

    Keys and certificates that are missing are made; those that are there stay. Nodes are chosen afterwards, by the label
    lading.dev/front-end=nri. Exit status: 0 done, 1 not, or not all is ready."""
    options = Options(dry_run=dry_run, wait=wait, force=force, timeout_s=timeout_s)
    async with connect(flags) as client:
        objects = in_order(with_images(render(find_deploy()), dict(images)))
        done, left = await (remove(client, objects, options) if uninstall else bring(client, objects, options))
    show(done, flags, render_done(done))
    for line in left:
        click.echo(printable(line), err=True)
    if left:
        raise SystemExit(1)


async def bring(client: KubeClient, objects: list[Manifest], options: Options) -> tuple[list[Done], list[str]]:
    """Apply the objects. Return the change of each, and texts about pods that are not ready."""
    spaces = [one for one in objects if one["kind"] == "Namespace"]
    others = [one for one in objects if one["kind"] != "Namespace"]
    with Progress("installing") as progress:
        done = await apply(client, spaces, dry_run=options.dry_run, force=options.force, announce=progress.show_count)
        missing = await find_missing(client, read_key_id(find_deploy()))
        rest = in_order([*missing, *others])
        done += await apply(client, rest, dry_run=options.dry_run, force=options.force, announce=progress.show_count)
    if options.dry_run or not options.wait:
        return done, []
    return done, await await_ready(client, objects, timeout_s=options.timeout_s, announce=_print)


async def remove(client: KubeClient, objects: list[Manifest], options: Options) -> tuple[list[Done], list[str]]:
    """Clean the nodes and delete the objects. Return the changes, and texts about files left on nodes. Without `force`, raise
    LadingError while pods hold devices, or if a node cannot be cleaned."""
    holders = await find_holders(client)
    if holders and not options.force:
        named = first_few(holders, _NAMED, rest=", and {} more")
        raise LadingError(
            f"cannot uninstall: these pods hold devices: {named}",
            hint="delete them first; with --force they keep their devices, and their nodes keep the ledger",
        )
    left: dict[str, str] = {}
    if not options.dry_run and (chosen := await find_chosen(client)):
        left = await clean(client, chosen, timeout_s=options.timeout_s, announce=_print)
        if left and not options.force:
            for node in left:
                await label(client, node, chosen[node])
            reason = "; ".join(f"{node}: {message}" for node, message in left.items())
            raise LadingError(f"cannot clean these nodes, which go on as before: {reason}", hint="--force leaves their files")
    with Progress("removing") as progress:
        done = await delete(client, objects, dry_run=options.dry_run, announce=progress.show_count)
    return done, [f"stays on {node}: /var/lib/lading, /run/lading: {reason}" for node, reason in left.items()]


def with_images(objects: list[Manifest], images: dict[str, str]) -> list[Manifest]:
    """Return the objects with other images, by name in deploy/. Without a tag, the old tag stays. Raise ConfigError."""
    unused = set(images)
    names = set()
    for spec in map(pod_spec, objects):
        for container in (*spec.get("initContainers", ()), *spec.get("containers", ())):
            name, _, tag = container["image"].partition(":")
            names.add(name)
            if image := images.get(name):
                unused.discard(name)
                container["image"] = image if ":" in image.rpartition("/")[2] or "@" in image else f"{image}:{tag}"
    if unused:
        raise ConfigError(
            f"--image: there is no image {', '.join(sorted(unused))}", hint=f"there are {', '.join(sorted(names))}"
        )
    return objects


def read_key_id(deploy: Path) -> str:
    return str(tomllib.loads((deploy / "central/central.toml").read_text())["key_id"])


def render_done(done: list[Done]) -> Table:
    rows = [(one.kind, one.namespace or "-", one.name, text(one.what, _STYLES[one.what])) for one in done]
    return table(("KIND", "NAMESPACE", "NAME", "WHAT"), rows)


def _print(message: str) -> None:
    click.echo(printable(message), err=True)
