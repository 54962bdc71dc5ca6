"""Complete names of nodes and pods, read from the API server while the user waits for the candidates.

Tests: tests/unit/kubectl_lading/test_completion.py
"""

import asyncio
from typing import Final

import click
from click.shell_completion import CompletionItem

from kubectl_lading.access import connect, find_namespace
from kubectl_lading.flags import Flags, flags_of
from kubectl_lading.lists import read_all
from lading.errors import LadingError
from lading.kube.objects import Object
from lading.kube.resource import NODE_DEVICES, PODS

PATIENCE_S: Final = 2.0  # maximum seconds between the Tab key and the candidates


def complete_nodes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _candidates(flags_of(ctx), NODE_DEVICES.path(), incomplete)


def complete_pods(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    try:
        namespace = find_namespace(flags_of(ctx))
    except LadingError:
        return []
    return _candidates(flags_of(ctx), PODS.path(namespace), incomplete)


def _candidates(flags: Flags, path: str, incomplete: str) -> list[CompletionItem]:
    try:
        names = asyncio.run(_names(flags, path))
    except (LadingError, TimeoutError):
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


async def _names(flags: Flags, path: str) -> list[str]:
    async with asyncio.timeout(PATIENCE_S), connect(flags) as client:
        return [one.metadata.name for one in await read_all(client, path, Object)]
