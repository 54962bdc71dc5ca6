"""Run `kubectl-lading`, which kubectl finds as its plugin `kubectl lading`.

A command's module is imported when the command runs: `--help`, `--version` and completion read the table of commands here, so
that they answer as fast as kubectl does.
"""

import sys
from importlib import import_module
from io import TextIOWrapper
from typing import Final

import click

from kubectl_lading.completion import print_candidates
from kubectl_lading.flags import Group
from lading import __version__

SECTIONS: Final = {  # commands in the order of the help; of each, the module and the first line of its own help
    "Which devices there are, and who has them": {
        "nodes": ("where.nodes", "List what each node has, how much of it is held, and how much is used."),
        "pods": ("pods.pods", "List pods that wait for devices, or hold some."),
        "top": ("pods.top", "Show what pods, namespaces or nodes hold, how much of it they use, and what is idle."),
        "node": ("where.node", "Show the topology of NODE, and which pods hold its devices."),
        "gpu": ("where.gpu", "Show the pods on a card now, what is free of it, and the pods that held it before."),
        "pod": ("pods.pod", "Show what POD requests, what it was given, and its Events."),
        "quota": ("where.quota", "Show quotas of teams: what each is guaranteed, uses, borrows, lends and waits for."),
    },
    "Why a pod waits, and what would help": {
        "why": ("pods.why", "Show why a pod does not run, and what would help; without POD: why each waiting pod waits."),
        "simulate": (
            "plans.simulate",
            "Show where the pods of a manifest would go now, and with which devices, without creating them.",
        ),
        "defrag": (
            "plans.defrag",
            "Find running pods that would have to move so that waiting pods fit. Advice: nothing is changed.",
        ),
    },
    "Keep new pods from devices": {
        "cordon": ("where.cordon", "Keep new pods from devices. No pod is evicted."),
        "uncordon": ("where.cordon", "Let devices get pods again."),
    },
    "Install and operate Lading": {
        "install": ("install.install", "Install Lading in the cluster, upgrade it, or remove it, without kustomize or Helm."),
        "status": ("installation.status", "Show the whole installation on one screen: is it healthy, and if not, what to do."),
        "preflight": (
            "installation.preflight",
            "Check before an upgrade which versions run and work together, and what must not be in progress.",
        ),
        "sysdump": (
            "dump.sysdump",
            "Collect what a maintainer needs: objects, logs, metrics and status, redacted, in a folder and a .tar.gz.",
        ),
    },
    "Other": {
        "completion": ("completion", "Print the script that completes this command line in a shell."),
    },
}
COMMANDS: Final = {name: one for commands in SECTIONS.values() for name, one in commands.items()}


class Unloaded(click.Command):
    """Stand for a command whose module is not imported yet, in help and in completion."""

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return the whole line, which click would cut to `limit` characters."""
        return self.help or ""


class Commands(Group):
    """Import the module of a command when the command is given."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, line) for name, (_, line) in commands.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, load(name) if name in COMMANDS else command, rest


def load(name: str) -> click.Command:
    """Import the module of this command, and return the command."""
    command: click.Command = getattr(import_module(f"kubectl_lading.{COMMANDS[name][0]}"), name)
    return command


@click.group(
    cls=Commands,
    commands=[Unloaded(name, help=line) for name, (_, line) in COMMANDS.items()],
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="kubectl-lading")
def main() -> None:
    """Show where devices are, why a pod does not run, and what would help; install Lading."""
    for stream in (sys.stdout, sys.stderr):  # a terminal without UTF-8 shows a question mark for other characters
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def complete_for_kubectl() -> None:
    """Print candidates for `kubectl_complete-lading WORD… INCOMPLETE`."""
    print_candidates(main, sys.argv[1:])


if __name__ == "__main__":
    main()
