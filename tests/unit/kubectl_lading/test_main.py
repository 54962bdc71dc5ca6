"""Test the installed command: a process of its own, on a pipe."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from kubectl_lading.command import Command
from kubectl_lading.main import COMMANDS, load, main
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


# Modules that take long to import: an HTTP client, a library of vectors, metrics, and central's scheduler, which ranks nodes.
HEAVY = frozenset({"aiohttp", "central.decide.scheduler", "numpy", "prometheus_client"})
# A command needs these of them. The client calls the API server; what central would decide needs its scheduler, and vectors.
LIGHT = frozenset({"aiohttp"})
DECIDES = LIGHT | {"central.decide.scheduler", "numpy"}
IMPORTED = {
    **dict.fromkeys(("cordon", "gpu", "node", "nodes", "pod", "pods", "quota", "top", "uncordon", "why"), LIGHT),
    **dict.fromkeys(("defrag", "simulate"), DECIDES),
    "completion": frozenset[str](),
}


@pytest.mark.parametrize("name", IMPORTED)
def test_a_command_imports_no_heavy_module_that_it_does_not_need(name: str) -> None:
    code = f"import sys; from kubectl_lading.main import load; load({name!r}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert HEAVY & set(done.stdout.split()) == IMPORTED[name]


def test_the_answer_about_a_pod_that_does_not_wait_needs_no_scheduler(cli: Cli) -> None:
    """Run the whole command, because `why` imports the scheduler only when the pod waits for devices."""
    code = "import atexit, sys; atexit.register(lambda: print(*sys.modules)); from kubectl_lading.main import main; main()"
    env = {**os.environ, "KUBECONFIG": str(cli.kubeconfig)}
    imports = {}
    for pod in ("train-0", "next-run"):  # one runs, one waits
        argv = [sys.executable, "-c", code, "why", pod, "-n", "team-a"]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True, timeout=60)
        imports[pod] = HEAVY & set(done.stdout.split())
    assert imports["train-0"] == LIGHT
    assert imports["next-run"] >= DECIDES


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_in_the_order_of_kubectl_with_examples_that_can_be_run(name: str) -> None:
    command = load(name)
    output = CliRunner().invoke(main, [name, "--help"]).output
    assert output.splitlines()[-1].startswith(f"Usage: kubectl lading {name} ")
    if isinstance(command, Command):
        assert output.index("Examples:") < output.index("Options:") < output.index("Global options:")
        assert command.examples
        for line in command.examples:
            first, *words = line.split()
            assert first == name
            command.make_context(name, words)
    assert "…" not in output
    assert "..." not in output.partition("Usage:")[0]


def test_the_help_names_every_command_by_what_it_is_for() -> None:
    output = CliRunner().invoke(main, ["--help"]).output
    assert [line.split()[0] for line in output.splitlines() if line.startswith("  ") and line.split()[0] in COMMANDS] == [
        *COMMANDS
    ]


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
