"""Test `cordon` and `uncordon` with an API server: what is written, for which version, and which pods are named."""

import json
from typing import Any

import pytest
import yaml

from kubectl_lading.where.cordon import TRIES
from lading.kube.resource import NODE_DEVICES
from lading.nodedevices import GROUP, PLURAL
from lading.vocabulary import CORDON
from tests.docs import ROOT
from tests.fakes.kube_server import FakeKubeServer, Fault, Request
from tests.fakes.kubectl_lading import Cli

PATH = NODE_DEVICES.path(name="h100-1")
CARD = "GPU-00000001-4c61-6469-6e67-000000001efc"  # train-0 holds this card


def written(server: FakeKubeServer, node: str = "h100-1") -> str | None:
    text: str | None = server.store.objects[NODE_DEVICES.path(name=node)]["metadata"].get("annotations", {}).get(CORDON)
    return text


def changes(cli: Cli, *text: str) -> list[Any]:
    done = cli.run(*text, "-o", "json")
    assert done.exit_code == 0, done.output
    result: list[Any] = json.loads(done.stdout)
    return result


def test_a_device_and_who_holds_it(server: FakeKubeServer, cli: Cli) -> None:
    (change,) = changes(cli, "cordon", "h100-1/0")
    assert (change["device"], change["cordoned"], change["before"]) == (CARD, True, False)
    assert change["held_by"] == ["team-a/train-0"]
    assert written(server) == CARD
    (again,) = changes(cli, "cordon", "h100-1/0")
    assert again["before"]
    assert len(server.calls("PATCH")) == 1
    (back,) = changes(cli, "uncordon", CARD)
    assert (back["cordoned"], back["before"]) == (False, True)
    assert written(server) is None


def test_devices_of_two_nodes_are_one_patch_each(server: FakeKubeServer, cli: Cli) -> None:
    changes(cli, "cordon", "h100-1/0", "a100-1/0", "h100-1/1")
    assert len(server.calls("PATCH")) == 2
    assert (written(server) or "").count("GPU-") == 2


def test_a_port_is_held_by_the_holders_of_its_functions(cli: Cli) -> None:
    (change,) = changes(cli, "cordon", "h100-1/0000:18:00.0", "--dry-run")
    assert change["held_by"] == ["team-a/train-0"]


def test_all_of_a_node(server: FakeKubeServer, cli: Cli) -> None:
    assert len(changes(cli, "cordon", "--all", "--node", "h100-1")) > 8
    assert written(server) == "all"
    changes(cli, "uncordon", "--all", "--node", "h100-1")
    assert written(server) is None


def test_a_dry_run_writes_nothing(server: FakeKubeServer, cli: Cli) -> None:
    (change,) = changes(cli, "cordon", "h100-1/0", "--dry-run")
    assert change["dry_run"]
    assert not server.calls("PATCH")


def test_what_someone_else_wrote_meanwhile_stays(server: FakeKubeServer, cli: Cli) -> None:
    """Let another client write the object between the command's read and its patch."""

    def other(request: Request) -> bool:
        if request.method == "PATCH" and not written(server):
            report = server.store.objects[PATH]
            report["metadata"]["annotations"] = {CORDON: "GPU-other"}
            server.store.put(PATH, report)
        return False

    server.fail(Fault(status=500), when=other)
    changes(cli, "cordon", "h100-1/0")
    assert written(server) == f"GPU-other,{CARD}"
    assert len(server.calls("PATCH")) == 2


def test_who_is_never_first_gives_up(server: FakeKubeServer, cli: Cli) -> None:
    server.fail(Fault(status=409, reason="Conflict"), when=lambda r: r.method == "PATCH", times=TRIES)
    done = cli.run("cordon", "h100-1/0")
    assert done.exit_code == 1
    assert written(server) is None


def test_who_may_not_learns_of_the_role(server: FakeKubeServer, cli: Cli) -> None:
    server.fail(Fault(status=403, reason="Forbidden"), when=lambda r: r.method == "PATCH")
    done = cli.run("cordon", "h100-1/0")
    assert done.exit_code == 1
    assert "lading-operator" in done.stderr


@pytest.mark.parametrize("words", [[], ["--all"], ["--all", "--node", "h100-1", "GPU-1"]])
def test_which_devices_has_to_be_reported(cli: Cli, words: list[str]) -> None:
    assert cli.run("cordon", *words).exit_code == 2


def test_the_role_is_to_annotate_and_not_to_report() -> None:
    role = yaml.safe_load((ROOT / "deploy/rbac/operator.yaml").read_text())
    assert role["rules"] == [{"apiGroups": [GROUP], "resources": [PLURAL], "verbs": ["get", "list", "patch"]}]
