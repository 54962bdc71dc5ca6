"""Find the command line that systemd will start a unit with, and the file of each word.

Take the unit's files (the unit, then its drop-ins in order) and the environment files that they name. Return words. The rules
are systemd's for `ExecStart=`, `Environment=` and `EnvironmentFile=`, as far as kubelet's units use them. A later line
overrides, and an empty line resets the list. An environment file overrides `Environment=`. `$NAME` is split into words, and
`${NAME}` is one word.

Source: systemd.unit(5) (drop-ins), systemd.exec(5) (environment), systemd.service(5) (command lines).
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

_VARIABLE: Final = re.compile(r"\$\{(\w+)\}|\$(\w+)")


class Word(NamedTuple):
    text: str
    file: str  # path on the node of the file with this word, such as /etc/default/kubelet


class UnitFile(NamedTuple):
    path: str  # path on the node, without the host root
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    files: tuple[UnitFile, ...] = ()  # the unit, then its drop-ins in order; empty: there is no such unit
    environment: Mapping[str, str] = field(default_factory=dict)  # text of each existing environment file, by path


def environment_files(files: Sequence[UnitFile]) -> tuple[str, ...]:
    """Return the environment files in the order in which the unit names them."""
    named: list[str] = []
    for _, value in _assignments(files, "EnvironmentFile"):
        named = [*named, value.removeprefix("-")] if value else []
    return tuple(named)


def plan_command(unit: Unit) -> tuple[Word, ...]:
    """Return the command line that the unit would start; empty if the unit starts nothing."""
    variables = environment(unit)
    line = Word("", "")
    for file, value in _assignments(unit.files, "ExecStart"):
        line = Word(value, file)
    return tuple(word for text in _split(line.text) for word in _expand(text, line.file, variables))


def environment(unit: Unit) -> dict[str, Word]:
    """Return the variables that the unit sets, each with its file."""
    variables: dict[str, Word] = {}
    for file, value in _assignments(unit.files, "Environment"):
        if not value:
            variables = {}
        for pair in _split(value):
            name, _, text = pair.partition("=")
            variables[name] = Word(text, file)
    for path in environment_files(unit.files):
        for line in _lines(unit.environment.get(path, "")):
            name, _, text = line.partition("=")
            variables[name.strip()] = Word("".join(_split(text)) if text[:1] in "\"'" else text.strip(), path)
    return variables


def _expand(text: str, file: str, variables: Mapping[str, Word]) -> Iterator[Word]:
    whole = _VARIABLE.fullmatch(text)
    if whole and whole[2]:
        value = variables.get(whole[2], Word("", file))
        yield from (Word(word, value.file) for word in _split(value.text))
        return
    sources = [variables[name].file for found in _VARIABLE.finditer(text) if (name := found[1] or found[2]) in variables]
    expanded = _VARIABLE.sub(lambda found: variables.get(found[1] or found[2], Word("", file)).text, text)
    yield Word(expanded, sources[-1] if sources else file)


def _assignments(files: Sequence[UnitFile], key: str) -> Iterator[tuple[str, str]]:
    for file in files:
        for line in _lines(file.text.replace("\\\n", " ")):
            name, _, value = line.partition("=")
            if name.strip() == key:
                yield file.path, value.strip()


def _lines(text: str) -> Iterator[str]:
    for line in text.splitlines():
        stripped = line.strip()
        if stripped and not stripped.startswith(("#", ";", "[")) and "=" in stripped:
            yield stripped


def _split(text: str) -> list[str]:
    """Split a text into words as a shell does. An unclosed quotation mark is part of the text, since systemd only warns."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()
