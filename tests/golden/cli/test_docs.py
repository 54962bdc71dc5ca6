"""docs/kubectl-lading.md shows what is said, word by word; it has every command and every flag."""

import re

import pytest

from kubectl_lading.command import Command
from kubectl_lading.main import COMMANDS, load
from tests.docs import ROOT, section
from tests.fakes.kubectl_lading import Cli

PAGE = "kubectl-lading.md"
SHOWN = ("nodes", "top", "node", "gpu", "pods", "pod", "quota")
_EXAMPLE = re.compile(r"^```\n\$ kubectl lading ([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", SHOWN)
def test_what_a_command_says(cli: Cli, name: str) -> None:
    examples = _EXAMPLE.findall(section(PAGE, f"## `{name}`"))
    assert examples
    for message, text in examples:
        assert "".join(line.rstrip() + "\n" for line in cli.run(*message.split()).stdout.splitlines()) == text


def test_every_command_has_a_section() -> None:
    headings = set(re.findall(r"^## `(\w+)`$", (ROOT / "docs" / PAGE).read_text(), re.MULTILINE))
    assert headings == COMMANDS.keys() - {"completion", "uncordon"}  # the docs describe these two under other commands


def test_every_global_flag_has_a_row() -> None:
    command = load("defrag")
    assert isinstance(command, Command)
    shown = set(re.findall(r"`(--?[\w-]+)", "".join(re.findall(r"^\| (`-[^|]*) \|", section(PAGE, "## Flags"), re.MULTILINE))))
    assert shown == {name for param in command.params for name in param.opts if name.startswith("-")}


def test_every_column_is_explained_in_help(cli: Cli) -> None:
    """`node` draws its heads itself; the others' are those of their tables."""
    for text, own in (
        ("nodes -o wide", "nodes"),
        ("node h100-1", "node"),
        ("pods -o wide -n team-a", "pods"),
        ("top namespaces", "top"),
    ):
        heads = re.split(r" {2,}", next(line for line in cli.run(*text.split()).stdout.splitlines() if "HELD" in line).strip())
        command = load(own)
        assert isinstance(command, Command)
        assert {head for head, _ in command.columns} == set(heads)
