"""`kubectl lading status` of an installed cluster, as people and programs read it."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from kubectl_lading.installation.installation import Installation
from kubectl_lading.installation.status_view import CHECKS as STATUS_CHECKS
from kubectl_lading.installation.upgrade_checks import CHECKS as PREFLIGHT_CHECKS
from lading.checks.model import Check
from tests.docs import section
from tests.fakes.installed_cluster import InstalledCluster, served_installation
from tests.fakes.kubectl_lading import Cli
from tests.fakes.small_cluster import NOW
from tests.golden.recorded import assert_recorded

FOLDER = Path(__file__).parent
PAGE = "kubectl-lading.md"


@pytest.fixture
def cluster() -> InstalledCluster:
    return InstalledCluster()


@pytest.fixture
def cli(cluster: InstalledCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    monkeypatch.setattr("time.time", lambda: NOW)
    with served_installation(cluster, tmp_path) as cli:
        yield cli


def test_for_people(cluster: InstalledCluster, cli: Cli) -> None:
    done = cli.run("status")
    assert done.exit_code == 1
    assert_recorded(FOLDER / "status.txt", done.stdout)


def test_with_the_nodes(cluster: InstalledCluster, cli: Cli) -> None:
    assert_recorded(FOLDER / "status-wide.txt", cli.run("status", "-o", "wide").stdout)


def test_for_programs(cluster: InstalledCluster, cli: Cli) -> None:
    done = cli.run("status", "-o", "json")
    assert done.exit_code == 1
    assert_recorded(FOLDER / "status.json", done.stdout)


def test_before_an_upgrade(cluster: InstalledCluster, cli: Cli) -> None:
    done = cli.run("preflight", "--to", "0.3.0")
    assert done.exit_code == 1
    assert_recorded(FOLDER / "preflight.txt", done.stdout)


@pytest.mark.parametrize("command", ["status", "preflight"])
def test_the_page_shows_what_it_says(cli: Cli, command: str) -> None:
    shown = re.findall(
        r"^```\n\$ kubectl lading ([^\n]*)\n(.*?)^```", section(PAGE, f"## `{command}`"), re.MULTILINE | re.DOTALL
    )
    assert [message.split()[0] for message, _ in shown] == [command]
    for message, text in shown:
        assert "".join(line.rstrip() + "\n" for line in cli.run(*message.split()).stdout.splitlines()) == text


@pytest.mark.parametrize(("command", "checks"), [("status", STATUS_CHECKS), ("preflight", PREFLIGHT_CHECKS)])
def test_the_page_explains_every_check(command: str, checks: Iterable[Check[Installation]]) -> None:
    assert {check.name for check in checks} <= set(re.findall(r"`([a-z-]+)`", section(PAGE, f"## `{command}`")))
