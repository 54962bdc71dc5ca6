"""Declare a command of `kubectl lading`: a coroutine function that gets `flags`, and its errors as one line.

    @command("nodes")
    @click.argument("name")
    async def nodes(flags: Flags, name: str) -> None: ...

Tests: tests/unit/kubectl_lading/test_flags.py
"""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

import click

from kubectl_lading.flags import NAMES, OPTIONS, Scope, Sectioned, flags_of, refuse
from kubectl_lading.run import run


class Command(Sectioned):
    """Run a command's function with `flags`. `columns` explains the columns of its table: head and meaning. `formats`: whether
    the command accepts --output."""

    def __init__(
        self,
        *args: Any,
        columns: tuple[tuple[str, str], ...] = (),
        formats: bool = True,
        scope: Scope = Scope.CLUSTER,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self.columns = columns
        self.scope = scope
        self.hidden_names = scope.refuses
        self.params += [option for option in OPTIONS if formats or option.name != "output"]

    def invoke(self, ctx: click.Context) -> Any:
        flags = flags_of(ctx)
        refuse(flags, self.scope)
        ctx.params = {name: value for name, value in ctx.params.items() if name not in NAMES} | {"flags": flags}
        return run(super().invoke(ctx))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.columns:
            with formatter.section("Columns"):
                formatter.write_dl(self.columns)
        super().format_epilog(ctx, formatter)


Declare = Callable[[Callable[..., Coroutine[Any, Any, None]]], Command]
command: Final[Callable[..., Declare]] = partial(click.command, cls=Command)
