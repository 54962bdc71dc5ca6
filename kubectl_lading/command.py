"""Declare a command of `kubectl lading`: a coroutine function that gets `flags`, and its errors as one line.

    @command("nodes")
    @click.argument("name")
    async def nodes(flags: Flags, name: str) -> None: ...

Tests: tests/unit/kubectl_lading/test_flags.py
"""

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import click

from kubectl_lading.flags import NAMES, OPTIONS, Scope, Sectioned, flags_of, refuse
from kubectl_lading.run import run

NO_EXAMPLES: Final[Mapping[str, str]] = MappingProxyType({})


class Command(Sectioned):
    """Run a command's function with `flags`. `columns` explains the columns of its table: head and meaning. `examples`: what a
    command line does, by its words after `kubectl lading`. `formats`: whether the command accepts --output and --no-headers.
    `selects`: whether it accepts -l."""

    def __init__(
        self,
        *args: Any,
        columns: tuple[tuple[str, str], ...] = (),
        examples: Mapping[str, str] = NO_EXAMPLES,
        formats: bool = True,
        scope: Scope = Scope.CLUSTER,
        selects: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self.columns = columns
        self.examples = examples
        self.scope = scope
        self.selects = selects
        self.hidden_names = scope.refuses | (frozenset() if selects else {"selector"})
        self.params += [option for option in OPTIONS if formats or option.name not in {"output", "no_headers"}]

    def invoke(self, ctx: click.Context) -> Any:
        flags = flags_of(ctx)
        refuse(flags, self.scope, selects=self.selects)
        ctx.params = {name: value for name, value in ctx.params.items() if name not in NAMES} | {"flags": flags}
        return run(super().invoke(ctx))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            with formatter.section("Examples"):
                formatter.write("\n".join(f"  # {text}\n  kubectl lading {line}\n" for line, text in self.examples.items()))
        if self.columns:
            with formatter.section("Columns"):
                formatter.write_dl(self.columns)
        super().format_epilog(ctx, formatter)


Declare = Callable[[Callable[..., Coroutine[Any, Any, None]]], Command]
command: Final[Callable[..., Declare]] = partial(click.command, cls=Command)
