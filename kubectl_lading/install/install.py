"""Run `kubectl lading install`: apply the objects of deploy/ without kustomize or Helm, with their keys and certificates.

The images that `--image` names are recorded in an annotation of central's Deployment, so that the next installation uses them
too. Objects that a Helm release owns are left to Helm.
"""

import json
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from rich.table import Table

from kubectl_lading.access import connect
from kubectl_lading.command import command
from kubectl_lading.flags import Duration, Flags
from kubectl_lading.install.apply import Done, What, apply, await_ready, delete, find_releases, in_order, read
from kubectl_lading.install.credentials import find_missing
from kubectl_lading.install.manifests import Manifest, find_deploy, pod_spec, render
from kubectl_lading.install.nodes import clean, find_chosen, find_holders, label
from kubectl_lading.terminal.format import count
from kubectl_lading.terminal.output import Cell, show, table, text
from kubectl_lading.terminal.progress import Progress
from lading.amounts import first_few
from lading.errors import ConfigError, LadingError
from lading.kube.client import KubeClient
from lading.kube.resource import Resource
from lading.log import printable
from lading.vocabulary import CENTRAL, FRONT_END, SYSTEM_NAMESPACE

_STYLES: Final = {What.CREATED: "good", What.CHANGED: "warn", What.DELETED: "warn", What.UNCHANGED: "dim", What.ABSENT: "dim"}
_NAMED: Final = 5
IMAGES: Final = "lading.dev/images"  # annotation of central's Deployment: the images of --image, by name, as JSON
_DEPLOYMENT: Final = Resource("apps", "v1", "deployments").path(SYSTEM_NAMESPACE, CENTRAL)
_WOULD: Final = {
    What.CREATED: "would be created",
    What.CHANGED: "would be changed",
    What.DELETED: "would be deleted",
    What.UNCHANGED: "unchanged",
    What.ABSENT: "absent",
}


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
        ("WHAT", "created, changed, unchanged, deleted, absent; with --dry-run: would be created, changed or deleted."),
        ("FIELDS", "The fields that change; left out if no object changes."),
    ),
    examples={
        "install --dry-run": "What would change in this cluster.",
        "install --wait": "Install or upgrade, and wait until all pods are ready.",
        "install --image lading-node=registry.example/lading-node": "Images of another registry, also for later installations.",
        "install --uninstall": "Clean the nodes, and remove all objects.",
    },
)
@click.option(
    "--image",
    "images",
    type=Image(),
    multiple=True,
    metavar="NAME=IMAGE",
    help="Image to use in place of the default, here and in later installations. May be repeated.",
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
        objects = render(find_deploy())
        if not uninstall:
            objects = with_images(objects, dict(images), recorded=await read_images(client))
        objects = in_order(objects)
        if not force and (releases := await find_releases(client, objects)):
            raise _owned(releases, "uninstall" if uninstall else "install")
        done, left = await (remove(client, objects, options) if uninstall else bring(client, objects, options))
        lines = [summarise(done)] if dry_run else []
        if not (uninstall or dry_run or await find_chosen(client)):
            lines.append(f"Next, for each node with devices: kubectl label node NODE {FRONT_END}=nri")
    show(done, flags, render_done(done), *map(text, lines))
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


def _owned(releases: list[str], verb: str) -> LadingError:
    namespace, _, name = releases[0].partition("/")
    return LadingError(
        f"cannot {verb}: Helm owns objects of Lading here, by release {first_few(releases, _NAMED)}",
        hint=f"helm {'uninstall' if verb == 'uninstall' else 'upgrade'} {name} -n {namespace}; --force does it all the same",
    )


async def read_images(client: KubeClient) -> dict[str, str]:
    """Return the images that earlier installations were given, by name. Raise KubeError."""
    live = await read(client, _DEPLOYMENT)
    return msgspec.json.decode(live["metadata"].get("annotations", {}).get(IMAGES, "{}"), type=dict[str, str]) if live else {}


def with_images(objects: list[Manifest], images: dict[str, str], *, recorded: dict[str, str]) -> list[Manifest]:
    """Return the objects with other images, by name in deploy/, and record these. Without a tag, the old tag stays. `recorded`:
    images of the last installation. Raise ConfigError."""
    unused = set(images)
    images = recorded | images
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
    if images := {name: image for name, image in images.items() if name in names}:
        (central,) = (one for one in objects if one["kind"] == "Deployment" and one["metadata"]["name"] == CENTRAL)
        central["metadata"].setdefault("annotations", {})[IMAGES] = json.dumps(images, sort_keys=True)
    return objects


def read_key_id(deploy: Path) -> str:
    return str(tomllib.loads((deploy / "central/central.toml").read_text())["key_id"])


def render_done(done: list[Done]) -> Table:
    """Return a table of the changes. A dry run lists only what would change, because all else is as it is."""
    shown = [one for one in done if not one.dry_run or one.what not in (What.UNCHANGED, What.ABSENT)]
    changed = any(one.fields for one in shown)
    rows: list[list[Cell]] = [
        [
            one.kind,
            one.namespace or "-",
            one.name,
            text(_WOULD[one.what] if one.dry_run else one.what, _STYLES[one.what]),
            *([", ".join(one.fields) or "-"] if changed else []),
        ]
        for one in shown
    ]
    return table(("KIND", "NAMESPACE", "NAME", "WHAT", *(["FIELDS"] if changed else [])), rows)


def summarise(done: list[Done]) -> str:
    counts = Counter(one.what for one in done)
    return f"Nothing was changed. {count(len(done), 'object')}: " + ", ".join(
        f"{number} {_WOULD[what]}" for what, number in counts.items()
    )


def _print(message: str) -> None:
    click.echo(printable(message), err=True)
