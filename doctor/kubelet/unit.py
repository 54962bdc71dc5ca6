"""Represent a systemd unit as systemd itself shows it, and compute the command line of its next start.

`systemctl show` merges unit files with drop-ins, and expands specifiers. Only variables remain in `ExecStart`, because systemd
reads environment files at each start; an environment file overrides `Environment=`. `$NAME` is split into words, and `${NAME}`
is one word. The file of a word is the last one that contains it.

Take the output of `systemctl show`, and the texts of the files that it names. Return units and words.

Source: systemctl(1) show, systemd.exec(5) (environment), systemd.service(5) (command lines).
"""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

PROPERTIES: Final = (
    "Id,LoadState,MainPID,ExecMainStartTimestampMonotonic,ExecStart,Environment,EnvironmentFiles,FragmentPath,DropInPaths,"
    "NeedDaemonReload"
)
_ARGV: Final = re.compile(r"argv\[\]=(.*?) ; ignore_errors=")
_ENVIRONMENT_FILE: Final = re.compile(r"^EnvironmentFiles=(.*) \(ignore_errors=\w+\)$", re.MULTILINE)
_VARIABLE: Final = re.compile(r"\$\{(\w+)\}|\$(\w+)")


class Word(NamedTuple):
    text: str
    file: str  # path on the node of the file with this word, such as /etc/default/kubelet


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    name: str = ""  # without suffix, such as k3s-agent
    pid: int = 0  # main process; 0: the unit does not run
    started_s: float = 0.0  # start of the main process, in seconds of the monotonic clock
    is_stale: bool = False  # whether files of the unit changed since systemd read them
    argv: tuple[str, ...] = ()  # words of ExecStart, with variables; empty: the unit starts nothing
    variables: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)  # text of the unit and its drop-ins, by path, in order
    environment: Mapping[str, str] = field(default_factory=dict)  # text of each existing environment file, by path, in order

    @property
    def planned(self) -> tuple[Word, ...]:
        """Return the command line of the next start."""
        return tuple(Word(word, self._file_of(word)) for text in self.argv for word in self._expand(text))

    def _expand(self, text: str) -> Iterator[str]:
        whole = _VARIABLE.fullmatch(text)
        if whole and whole[2]:
            yield from _split(self.variables.get(whole[2], ""))
        else:
            yield _VARIABLE.sub(lambda result: self.variables.get(result[1] or result[2], ""), text)

    def _file_of(self, word: str) -> str:
        texts = {**self.files, **self.environment}
        return next((path for path in [*texts][::-1] if word in texts[path]), next(iter(texts), ""))

    def environment_file(self, name: str) -> str:
        """Return the environment file that sets this variable; empty if none does."""
        return next((path for path in [*self.environment][::-1] if name in _assignments(self.environment[path])), "")


def parse_units(shown: str, read: Callable[[str], str | None]) -> tuple[Unit, ...]:
    """Parse the output of `systemctl show`; leave out units that do not exist. `read`: return a file's text, None if there is
    no such file."""
    blocks = (block for block in shown.strip().split("\n\n") if "LoadState=loaded" in block.splitlines())
    return tuple(_parse_unit(block, read) for block in blocks)


def _parse_unit(block: str, read: Callable[[str], str | None]) -> Unit:
    values = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
    match = _ARGV.search(values.get("ExecStart", ""))
    files = [values.get("FragmentPath", ""), *_split(values.get("DropInPaths", ""))]
    environment = {path: text for path in _ENVIRONMENT_FILE.findall(block) if (text := read(path)) is not None}
    variables = dict(pair.partition("=")[::2] for pair in _split(values.get("Environment", "")))
    for text in environment.values():
        variables |= _assignments(text)
    return Unit(
        name=values["Id"].removesuffix(".service"),
        pid=int(values.get("MainPID", 0)),
        started_s=int(values.get("ExecMainStartTimestampMonotonic", 0)) / 1e6,
        is_stale=values.get("NeedDaemonReload") == "yes",
        argv=tuple(match[1].split()) if match else (),
        variables=variables,
        files={path: text for path in files if path and (text := read(path)) is not None},
        environment=environment,
    )


def _assignments(text: str) -> dict[str, str]:
    """Return the variables that an environment file sets."""
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.partition("=") for line in lines if "=" in line and not line.startswith(("#", ";")))
    return {name.strip(): "".join(_split(value)) if value[:1] in "\"'" else value.strip() for name, _, value in pairs}


def _split(text: str) -> list[str]:
    """Split a text into words as a shell does. An unclosed quotation mark is part of the text, since systemd only warns."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()
