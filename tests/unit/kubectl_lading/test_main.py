"""Test the installed command: a process of its own, on a pipe."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubectl_lading.main import COMMANDS, load
from tests.fakes.kubectl_lading import Cli, served
from tests.fakes.small_cluster import SmallCluster


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    with served(SmallCluster(), tmp_path_factory.mktemp("cli")) as made:
        yield made


def run(cli: Cli, *text: str, **env: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "kubectl_lading.main", *text]
    own = {name: value for name, value in os.environ.items() if name not in {"FORCE_COLOR", "NO_COLOR"}}
    env = own | {"KUBECONFIG": str(cli.kubeconfig)} | env
    return subprocess.run(program, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_a_table_without_colour(cli: Cli) -> None:
    done = run(cli, "nodes")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0].split()[:2] == ["NODE", "GPUS"]
    assert "\x1b" not in done.stdout


def test_json_for_programs(cli: Cli) -> None:
    assert len(json.loads(run(cli, "-o", "json", "nodes").stdout)["nodes"]) == 6


def test_another_context_is_looked_up(cli: Cli) -> None:
    done = run(cli, "nodes", "--context", "elsewhere")
    assert (done.returncode, done.stdout) == (2, "")
    assert "elsewhere" in done.stderr


def test_colour_where_it_is_asked_for_and_not_where_it_is_unwanted(cli: Cli) -> None:
    assert "\x1b[32m" in run(cli, "nodes", FORCE_COLOR="1", TERM="xterm").stdout
    assert "\x1b[32m" not in run(cli, "nodes", FORCE_COLOR="1", NO_COLOR="1", TERM="xterm").stdout


def test_a_terminal_that_is_not_utf8_is_served_too(cli: Cli) -> None:
    done = run(cli, "node", "h100-1", PYTHONIOENCODING="latin-1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "????" in done.stdout


def test_a_server_that_is_not_there_is_one_line_and_a_hint(tmp_path: Path, cli: Cli) -> None:
    config = tmp_path / "config"
    text = json.loads(cli.kubeconfig.read_text())
    text["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:1"
    config.write_text(json.dumps(text))
    done = run(cli, "nodes", "--kubeconfig", str(config))
    assert (done.returncode, done.stdout) == (1, "")
    assert [line.partition(":")[0] for line in done.stderr.splitlines()] == ["error", "hint"]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_line_about_a_command_is_the_first_of_its_own_help(name: str) -> None:
    own = load(name).help
    assert own is not None
    assert " ".join(own.partition("\n\n")[0].split()) == COMMANDS[name][1]


@pytest.mark.parametrize("text", ["['--version']", "['--help']", "['pods', '--no-such-flag']"])
def test_version_and_help_import_no_client_and_no_scheduler(text: str) -> None:
    """The first two are what a person waits for most often; the third shows that this test can fail."""
    code = f"""
import sys
import click
from kubectl_lading.main import main
try:
    main({text}, standalone_mode=False)
except click.ClickException:
    pass
print("imported:", *sorted({{"aiohttp", "asyncio", "msgspec", "numpy", "rich", "yaml"}} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    imported = done.stdout.splitlines()[-1].split()[1:]
    assert bool(imported) == ("no-such-flag" in text), imported
