"""Check that every command of Lading on a page exists, with its flags; and so do the named files and targets."""

import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import click
import pytest

from kubectl_lading.main import COMMANDS, load, main
from tests.docs import ROOT
from tests.unit.test_docs import PAGES

DAEMONS: Final = ("lading-hooks", "lading-runtimeproxy", "lading-central", "lading-doctor")
PROGRAMS: Final = ("kubectl lading", *DAEMONS, "make", "python -m", "deploy/install-node.sh")


class Shown(NamedTuple):
    page: str
    program: str
    words: tuple[str, ...]


def _shown() -> list[Shown]:
    result = {}
    for page in PAGES:
        for line in _lines((ROOT / page).read_text()):
            for program in PROGRAMS:
                if line == program or line.startswith(f"{program} "):
                    text = tuple(_words(line[len(program) :]))
                    result[page, program, text] = Shown(page, program, text)
    return list(result.values())


def _lines(text: str) -> Iterator[str]:
    """Yield the commands of shell blocks, without what may stand before and behind them, and the texts in backquotes."""
    for block in re.findall(r"^ *```(?:sh|shell|bash)?\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            yield from (part.strip() for part in re.split(r"&&|\||;|\$\(|>", line.split(" #")[0].strip().removeprefix("$ ")))
    without_blocks = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from (quoted.strip() for quoted in re.findall(r"`([^`\n]+)`", without_blocks))


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line.replace("…", "").replace("<", "").replace(")", ""))
    except ValueError:
        return line.split()


def _flags(args: tuple[str, ...]) -> list[str]:
    return [word.split("=")[0] for word in args if word.startswith("--") and len(word) > 2]


@cache
def _help(*command: str) -> str:
    program = str(Path(sys.executable).with_name(command[0])) if command[0] in DAEMONS else str(ROOT / command[0])
    done = subprocess.run([program, *command[1:], "--help"], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _known_flags(command: click.Command) -> set[str]:
    own = {name for group in (main, command) for param in group.params for name in (*param.opts, *param.secondary_opts)}
    return own | {"--help", "--version"}


@pytest.mark.parametrize(
    "shown", [pytest.param(one, id=f"{one.page}: {one.program} {' '.join(one.words)}") for one in _shown()]
)
def test_what_is_shown_exists(shown: Shown) -> None:
    message, flags = shown.words, _flags(shown.words)
    match shown.program:
        case "kubectl lading":
            name = next((word for word in message if not word.startswith("-")), "")
            assert not name or name in COMMANDS, f"no command {name}"
            assert set(flags) <= _known_flags(load(name) if name else main)
        case "make":
            assert set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)).issuperset(
                word for word in message if "=" not in word
            )
        case "python -m":
            assert importlib.util.find_spec(message[0]) is not None
        case program:
            named = message[:1] if message and re.fullmatch(r"[a-z][a-z-]+", message[0]) and program in DAEMONS else ()
            text = _help(program, *named)
            assert all(name in text.split("\n")[0] for name in named), f"no command {named[0]}"
            assert all(flag in text for flag in flags)
