"""Define the flags that every command accepts before or after its name, as kubectl does.

Turn click's command line into one `Flags`, the argument `flags` of each command's function. A flag after the command's name
overrides the same flag before the name.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeVar

import click

from lading.kube.resource import PAGE_TIMEOUT_S, TIMEOUT_S
from lading.vocabulary import SYSTEM_NAMESPACE

_DURATION: Final = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?", re.ASCII)
E = TypeVar("E", bound=StrEnum)


class Duration(click.ParamType[float]):
    """Parse a duration as kubectl does: `90s`, `5m`, `1h30m`; a bare number is in seconds. Refuse one below `least` seconds."""

    name = "duration"

    def __init__(self, *, least: float = 0.0) -> None:
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        match = _DURATION.fullmatch(str(value))
        if not value or match is None:
            self.fail(f"{value!r} is not a duration: write it as 90s, 5m or 1h", param, ctx)
        hours, minutes, seconds = (int(part or 0) for part in match.groups())
        duration = float(hours * 3600 + minutes * 60 + seconds)
        if duration < self._least:
            self.fail(f"{value} is too short: write {self._least:g}s or more", param, ctx)
        return duration


class Output(StrEnum):
    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


class Choice(click.Choice[E]):
    def normalize_choice(self, choice: Any, ctx: click.Context | None) -> str:
        return str(choice)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    kubeconfig: str = ""  # path of the kubeconfig; empty: kubectl's rules find it
    context: str = ""  # context of the kubeconfig; empty: its current context
    namespace: str = ""  # namespace of pods; empty: that of the context
    all_namespaces: bool = False
    output: Output = Output.TABLE
    no_headers: bool = False
    selector: str = ""  # label selector of the listed pods or nodes; empty: all
    as_user: str = ""  # user whose rights count, in place of the kubeconfig's
    central: str = ""  # URL of lading-central; empty: reach it through the API server
    lading_namespace: str = SYSTEM_NAMESPACE
    request_timeout_s: float | None = None  # seconds for one request to the API server; None: the client's default


OPTIONS: Final = (
    click.Option(
        ["--kubeconfig"], metavar="FILE", help="Kubeconfig file. Default: $KUBECONFIG, then ~/.kube/config, as kubectl."
    ),
    click.Option(["--context"], metavar="NAME", help="Context of the kubeconfig. Default: its current one."),
    click.Option(["--as", "as_user"], metavar="USER", help="Act as this user, whose rights count, as with kubectl."),
    click.Option(["-n", "--namespace"], metavar="NAME", help="Namespace of pods. Default: the context's."),
    click.Option(["-A", "--all-namespaces"], is_flag=True, default=None, help="Pods of all namespaces."),
    click.Option(["-l", "--selector"], metavar="LABELS", help="Only those with these labels: a=b,c, as with kubectl."),
    click.Option(
        ["-o", "--output"], type=Choice(Output), help="wide: more columns; json, yaml: for programs, keys are only added."
    ),
    click.Option(["--no-headers"], is_flag=True, default=None, help="Tables without headers, for scripts."),
    click.Option(["--central"], metavar="URL", help="URL of lading-central. Default: through the API server."),
    click.Option(["--lading-namespace"], metavar="NAME", help=f"Namespace of Lading. Default: {SYSTEM_NAMESPACE}."),
    click.Option(
        ["--request-timeout", "request_timeout_s"],
        type=Duration(least=1),
        help=f"Time limit of one request to the API server. Default: {TIMEOUT_S:g}s; {PAGE_TIMEOUT_S:g}s for a page of a list.",
    ),
)
NAMES: Final = tuple(str(option.name) for option in OPTIONS)
_OF_PODS: Final = {"namespace": "-n", "all_namespaces": "-A"}


class Scope(StrEnum):
    """Name the subject of a command, which decides whether the command accepts or refuses -n and -A."""

    CLUSTER = "the whole cluster"
    POD = "one pod"
    PODS = "pods"

    @property
    def refuses(self) -> frozenset[str]:
        return frozenset(_OF_PODS if self is Scope.CLUSTER else ["all_namespaces"] if self is Scope.POD else [])


def flags_of(ctx: click.Context) -> Flags:
    """Return the flags of a command line. Work during completion too, when click does not invoke the group."""
    before = ctx.obj or (ctx.parent.params if ctx.parent else {})
    return Flags(**{name: text[name] for text in (before, ctx.params) for name in NAMES if text.get(name) is not None})


def refuse(flags: Flags, scope: Scope, *, selects: bool = False) -> None:
    """Raise UsageError for a flag that has no effect on a command with this scope. `selects`: the command lists objects."""
    for name in sorted(scope.refuses):
        if getattr(flags, name):
            raise click.UsageError(f"cannot use {_OF_PODS[name]}: this is about {scope}", click.get_current_context())
    if flags.selector and not selects:
        raise click.UsageError("cannot use -l: this lists no pods or nodes by their labels", click.get_current_context())


class Sectioned(click.Command):
    """Show a help page in kubectl's order: text, examples, commands or columns, flags, usage."""

    hidden_names: frozenset[str] = frozenset()  # names of flags that the command refuses and its help omits

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_help_text(ctx, formatter)
        self.format_epilog(ctx, formatter)
        self.format_options(ctx, formatter)
        formatter.write_paragraph()
        self.format_usage(ctx, formatter)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the usage as of a plugin of kubectl, under whatever name the program was started."""
        path = ctx.command_path.removeprefix(ctx.find_root().info_name or "")
        formatter.write_usage(f"kubectl lading{path}", " ".join(self.collect_usage_pieces(ctx)))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own: list[tuple[str, str]] = []
        everywhere: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            shown = isinstance(param, click.Option) and param.name not in self.hidden_names
            if shown and (record := param.get_help_record(ctx)):
                (everywhere if param.name in NAMES else own).append(record)
        for title, records in (("Options", own), ("Global options", everywhere)):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class Group(Sectioned, click.Group):
    """Keep the flags before the command's name, for the command to merge with its own."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.params += OPTIONS

    def invoke(self, ctx: click.Context) -> Any:
        own = {name: value for name, value in ctx.params.items() if name not in NAMES}
        ctx.obj, ctx.params = ctx.params, own
        return super().invoke(ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_commands(ctx, formatter)
