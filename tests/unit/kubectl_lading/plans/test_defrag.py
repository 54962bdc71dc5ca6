"""`defrag` against an API server: who may not be moved is left out, and it is planned again. Nothing is ever written."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lading.kube.resource import BUDGETS, PODS
from tests.fakes.busy_cluster import BusyCluster
from tests.fakes.kube_server import FakeKubeServer, Fault
from tests.fakes.kubectl_lading import Cli, served


@pytest.fixture
def server() -> FakeKubeServer:
    return FakeKubeServer()


@pytest.fixture
def cli(server: FakeKubeServer, tmp_path: Path) -> Iterator[Cli]:
    with served(BusyCluster(), tmp_path, server=server) as cli:
        yield cli


def advice(cli: Cli) -> dict[str, Any]:
    done = cli.run("defrag", "-o", "json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def moved(found: dict[str, Any], pod: str) -> list[str]:
    (opening,) = [one for one in found["openings"] if one["pod"] == pod]
    return [move["pod"] for move in opening.get("moves", [])]


def test_a_namespace_limits_whom_room_is_made_for(cli: Cli) -> None:
    every = [one["pod"] for one in advice(cli)["openings"]]
    assert every
    for words, pods in ((("-n", "team-b"), []), (("-n", "team-b", "-A"), every), (("-n", "team-a"), every)):
        assert [one["pod"] for one in json.loads(cli.run("defrag", "-o", "json", *words).stdout)["openings"]] == pods


def test_room_is_made_and_nothing_is_written(server: FakeKubeServer, cli: Cli) -> None:
    found = advice(cli)
    assert moved(found, "eight") == ["finetune"]
    assert moved(found, "three") == ["busy-b-0"]
    assert {request.method for request in server.requests} == {"GET"}


def test_pods_of_a_daemon_set_stay(cli: Cli) -> None:
    found = advice(cli)
    assert moved(found, "share") == []
    assert {f"team-a/busy-c-{number}" for number in range(8)} <= found["stay"].keys()


def test_a_budget_that_lets_nobody_go(server: FakeKubeServer, cli: Cli) -> None:
    path = BUDGETS.path("team-a", "most-stay")
    server.store.put(path, server.store.objects[path] | {"status": {"disruptionsAllowed": 0}})
    found = advice(cli)
    assert moved(found, "three") == ["busy-a-0", "busy-a-1", "busy-a-2"]  # others, who would not be the first choice
    assert "team-a/busy-b-0" in found["stay"]


def test_one_that_has_ended_meanwhile_is_nobody_to_move(server: FakeKubeServer, cli: Cli) -> None:
    path = PODS.path("team-a", "finetune")
    server.fail(Fault(status=404, reason="NotFound"), when=lambda request: request.path == path, times=9)
    found = advice(cli)
    assert "finetune" not in moved(found, "eight")
    assert "team-a/finetune" in found["stay"]


def test_budgets_that_may_not_be_read(server: FakeKubeServer, cli: Cli) -> None:
    server.fail(Fault(status=403, reason="Forbidden"), when=lambda request: request.path == BUDGETS.path())
    done = cli.run("defrag", "-o", "json")
    assert json.loads(done.stdout)["budgets_read"] is False
    assert "disruption budgets" in done.stderr
