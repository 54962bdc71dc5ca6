"""Derive the configuration key, flag, default, check, help text and docs of a setting from one declaration.

A daemon declares a frozen `msgspec.Struct` whose fields are `Annotated[type, Setting("help")]`. `load` reads the TOML file
and the command line (which wins) and returns an instance, or raises ConfigError with file, key, value and the allowed values.
An unknown key is an error: a misspelt `failure_polcy` must not silently mean the default. An error in the file is reported with
line and column.
"""

import argparse
import contextlib
import difflib
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from lading.errors import ConfigError
from lading.log import printable

S = TypeVar("S", bound=msgspec.Struct)

NO_GROUPS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Setting:
    help: str
    flag: bool = True  # False for nested tables, which only the file can set


def declared(schema: type[msgspec.Struct]) -> list[tuple[str, Any, Setting, Any]]:
    """Return (key, type, setting, default) of each setting, in order of declaration."""
    hints = get_type_hints(schema, include_extras=True)
    out = []
    for field in msgspec.structs.fields(schema):
        hint = hints[field.name]
        setting = next(m for m in get_args(hint)[1:] if isinstance(m, Setting))
        default = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
        out.append((field.name, get_args(hint)[0] if get_origin(hint) is Annotated else hint, setting, default))
    return out


def add_flags(
    parser: argparse.ArgumentParser, schema: type[msgspec.Struct], *, config: Path, groups: Mapping[str, str] = NO_GROUPS
) -> None:
    """Add `--config`, `--check-config`, `--print-config` and one flag for each setting. `groups`: titles in the help, by the
    first setting of each group."""
    parser.add_argument("--config", type=Path, default=None, metavar="FILE", help=f"TOML file [{config}]")
    parser.add_argument("--check-config", action="store_true", help="check the configuration, print what is wrong, exit")
    parser.add_argument(
        "--print-config",
        action="store_true",
        help="print the configuration in force as TOML, exit; errors go to stderr",
    )
    parser.set_defaults(default_config=config)
    group: argparse._ActionsContainer = parser
    for key, kind, setting, default in declared(schema):
        if key in groups:
            group = parser.add_argument_group(groups[key])
        if not setting.flag:
            continue
        name = "--" + key.replace("_", "-")
        shown = setting.help if default is msgspec.NODEFAULT else f"{setting.help} [{_toml(default)}]"
        shown = shown.replace("%", "%%")
        if kind is bool or kind == bool | None:
            group.add_argument(name, dest=f"set_{key}", action=argparse.BooleanOptionalAction, default=None, help=shown)
        else:
            group.add_argument(name, dest=f"set_{key}", default=None, metavar=key.upper(), help=shown)


def load(schema: type[S], args: argparse.Namespace) -> S:
    """Return the settings in force. The file of `--config` must exist; the default file may be absent. Raises
    ConfigError."""
    text, flags = _read_file(args), _read_flags(schema, args)
    values, where = _parse(text, _path(args)), str(_path(args))
    source = dict.fromkeys(values, where) | {key: "--" + key.replace("_", "-") for key in flags}
    return convert(schema, values | flags, source, where, text)


def load_usable(schema: type[S], args: argparse.Namespace) -> S:
    """Return the settings without the values that `load` would refuse, for callers that must continue and report the errors
    elsewhere. Every key must have a default."""
    try:
        values = _parse(_read_file(args), _path(args))
    except ConfigError:
        values = {}
    usable: dict[str, Any] = {}
    for key, value in (values | _read_flags(schema, args)).items():
        with contextlib.suppress(ConfigError):
            convert(schema, {key: value}, {}, "")
            usable[key] = value
    return convert(schema, usable, {}, "")


def _path(args: argparse.Namespace) -> Path:
    path: Path = args.config or args.default_config
    return path


def _read_file(args: argparse.Namespace) -> str:
    """Return the text of the configuration file; empty if the default file is absent."""
    path, content = _path(args), b""
    try:
        content = path.read_bytes()
        return content.decode()
    except FileNotFoundError as e:
        if args.config:
            raise ConfigError(f"cannot read {path}: no such file") from e
        return ""
    except UnicodeDecodeError as e:
        at = _position(content[: e.start].decode())
        raise ConfigError(f"cannot read {path}: byte 0x{content[e.start]:02x} is not UTF-8 (at {at})") from e
    except OSError as e:
        raise ConfigError(f"cannot read {path}: {e}") from e


def _parse(text: str, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        problem = str(e).replace("(at end of document)", f"(at {_position(text)}, the end of the file)")
        raise ConfigError(f"cannot read {path}: {problem}") from e


def _position(before: str) -> str:
    """Return the position after this text, as tomllib writes it."""
    return f"line {before.count(chr(10)) + 1}, column {len(before) - before.rfind(chr(10))}"


def _locate(key: str, text: str) -> str:
    """Return the position at which the file sets a key, as tomllib writes it; empty if the file does not set the key. It is
    the last line before which the text parses and lacks the key."""
    lines = text.splitlines(keepends=True)
    for count in range(len(lines), 0, -1):
        before = "".join(lines[: count - 1])
        with contextlib.suppress(tomllib.TOMLDecodeError):
            if key not in tomllib.loads(before):
                indent = len(lines[count - 1]) - len(lines[count - 1].lstrip())
                return f" (at {_position(before + lines[count - 1][:indent])})"
    return ""


def _read_flags(schema: type[msgspec.Struct], args: argparse.Namespace) -> dict[str, Any]:
    flags = {}
    for key, kind, setting, _ in declared(schema):
        given = getattr(args, f"set_{key}", None) if setting.flag else None
        if given is not None:
            flags[key] = given if isinstance(given, bool) else _from_flag(kind, given)
    return flags


def convert(schema: type[S], values: dict[str, Any], source: dict[str, str], where: str, text: str = "") -> S:
    """Convert the values to the schema. `source` names the file or flag that set each key, `where` the file for keys that
    neither set, `text` is the file's text. Raises ConfigError."""
    kinds = {key: kind for key, kind, *_ in declared(schema)}
    if unknown := [key for key in values if key not in kinds]:
        named = ", ".join(f"{key!r}{_locate(key, text)}" for key in unknown)
        meant = [f"{near}? " for key in unknown for near in difflib.get_close_matches(key, kinds, n=1)]
        hint = f"{''.join(meant)}known keys: {', '.join(sorted(kinds))}"
        raise ConfigError(f"{where}: unknown key{'s' if len(unknown) > 1 else ''} {named}", hint=hint)
    try:
        return msgspec.convert(values, schema, strict=True)
    except msgspec.ValidationError as e:
        problem, at = _split(str(e))
        key = re.split(r"[.\[]", at)[0]
        if key not in values:  # a key without default that is missing
            raise ConfigError(f"{where}: {problem}") from e
        allowed = ", ".join(_choices(kinds[key]))
        place = _locate(key, text) if source.get(key) == where else ""
        raise ConfigError(
            f"{source.get(key, where)}: {at} = {values[key]!r}: {problem}{place}",
            hint=f"one of: {allowed}" if allowed else "",
        ) from e


def _split(error: str) -> tuple[str, str]:
    """Split "Expected `int`, got `str` - at `$.keys[...].path`" of msgspec into problem and place."""
    problem, _, at = error.partition(" - at ")
    match = re.search(r"\$\.?([^`]*)", at)
    return problem[:1].lower() + problem[1:], match[1] if match else ""


def _choices(kind: Any) -> Iterator[str]:
    """Yield the values that an enum or Literal inside this type allows."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        yield from (str(member.value) for member in kind)
    elif get_origin(kind) is Literal:
        yield from map(str, get_args(kind))
    else:
        for argument in get_args(kind):
            yield from _choices(argument)


def check_absolute(settings: msgspec.Struct, *keys: str) -> None:
    """Check that settings are absolute paths. Raises ConfigError. Every setting must have a default."""
    for key in keys:
        if not Path(written := getattr(settings, key)).is_absolute():
            instead = getattr(type(settings)(), key) or Path(written).resolve()
            raise ConfigError(f"{key} = {written!r} is no absolute path", hint=f"{key} = {instead}")


def render_toml(settings: msgspec.Struct) -> str:
    """Return the settings as a TOML file that `load` reads back, each with its help as a comment."""
    lines = []
    for key, _, setting, _ in declared(type(settings)):
        value = msgspec.to_builtins(getattr(settings, key))
        if value is None:
            lines.append(f"# {setting.help}\n# {key} =\n")
        else:
            lines.append(f"# {setting.help}\n{key} = {_toml(value)}\n")
    return "\n".join(lines)


def _from_flag(kind: Any, text: str) -> Any:
    """Convert the flag's text to a value of the file; unfit text stays text, and msgspec reports the expected type."""
    if get_origin(kind) in (Union, UnionType):
        kind = next(k for k in get_args(kind) if k is not type(None))
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) in (tuple, list, frozenset):
        return [_from_flag(get_args(kind)[0], item.strip()) for item in text.split(",") if item.strip()]
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            return text
    return text


def _toml(value: Any) -> str:
    match msgspec.to_builtins(value):
        case bool(b):
            return "true" if b else "false"
        case int() | float() as n:
            return str(n)
        case None:
            return "none"
        case list(items) | tuple(items):
            return "[" + ", ".join(_toml(i) for i in items) + "]"
        case dict(items):
            return "{ " + ", ".join(f"{_key(k)} = {_toml(v)}" for k, v in items.items()) + " }" if items else "{}"
        case other:
            return _quote(str(other))


def _key(text: str) -> str:
    return text if text.replace("_", "").replace("-", "").isalnum() and text.isascii() else _quote(text)


def _quote(text: str) -> str:
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007f")  # this makes a JSON string a TOML basic string


def parse_args(schema: type[S], args: argparse.Namespace, check: Callable[[S], None]) -> S:
    """Return the settings, or carry out `--check-config` and `--print-config` and exit. `check` raises ConfigError for
    problems of several settings together, or of the files that they name. `--print-config` prints the configuration even if
    `check` finds a problem, so that a person can see an incomplete one. With both flags, the problem is an error."""
    settings = load(schema, args)
    problem = _find_problem(settings, args, check)
    if args.print_config:
        print(render_toml(settings), end="")
    elif args.check_config and not problem:
        print("configuration ok")
    if problem and (args.check_config or not args.print_config):
        raise problem
    if problem:
        print(f"invalid configuration: {printable(problem.message)}", file=sys.stderr)
        if problem.hint:
            print(f"hint:  {printable(problem.hint)}", file=sys.stderr)
    if args.print_config or args.check_config:
        raise SystemExit(0)
    return settings


def _find_problem(settings: S, args: argparse.Namespace, check: Callable[[S], None]) -> ConfigError | None:
    try:
        check(settings)
    except ConfigError as e:
        problem = ConfigError(f"{args.config or args.default_config}: {e.message}", hint=e.hint)
        problem.__cause__ = e
        return problem
    return None
