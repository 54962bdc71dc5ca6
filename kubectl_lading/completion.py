"""Complete command lines in bash, zsh and fish by click, and `kubectl lading` by the program `kubectl_complete-lading`.

Source: click "Shell Completion"; kubectl's plugins since 1.26: one line for each candidate, with a tab before its description;
the last line is a colon with cobra's directives (4: no file names).
"""

from collections.abc import Sequence
from typing import Final

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from kubectl_lading.flags import Sectioned

PROGRAM: Final = "kubectl-lading"
_VARIABLE: Final = "_KUBECTL_LADING_COMPLETE"
_SHELLS: Final = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}
_NO_FILES: Final = 4
_DEFAULT: Final = 0


@click.command(cls=Sectioned)
@click.argument("shell", type=click.Choice(list(_SHELLS)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes this command line in a shell.

    source <(kubectl-lading completion bash)"""
    click.echo(_SHELLS[shell](ctx.find_root().command, {}, PROGRAM, _VARIABLE).source())


def print_candidates(command: click.Command, typed: Sequence[str]) -> None:
    """Print the candidates for the last word of `typed`, the words after the command."""
    *text, incomplete = typed or [""]
    completions = ShellComplete(command, {}, PROGRAM, _VARIABLE).get_completions(text, incomplete)
    for one in completions:
        if one.type == "plain":
            print(f"{one.value}\t{one.help}" if one.help else one.value)
    print(f":{_NO_FILES if all(one.type == 'plain' for one in completions) else _DEFAULT}")
