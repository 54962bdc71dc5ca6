"""`why POD`: what is read, what central is asked for, and what is said without it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from central.why import Why
from kubectl_lading.central import Silent
from kubectl_lading.pods.situation import Stand
from lading.kube.resource import EVENTS
from tests.fakes.busy_cluster import BusyCluster
from tests.fakes.kube_server import FakeKubeServer, Fault
from tests.fakes.kubectl_lading import Cli, served
from tests.fakes.small_cluster import uid_of


@pytest.fixture
def server() -> FakeKubeServer:
    return FakeKubeServer()


@pytest.fixture
def cli(server: FakeKubeServer, tmp_path: Path) -> Iterator[Cli]:
    with served(BusyCluster(), tmp_path, server=server) as cli:
        yield cli


def answer(cli: Cli, *words: str) -> dict[str, Any]:
    done = cli.run("why", *words, "-o", "json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def central_says(monkeypatch: pytest.MonkeyPatch, said: Why | Silent | None) -> list[str]:
    """The pods that it is asked for."""
    asked = []

    async def why(self: object, namespace: str, name: str) -> Why | Silent | None:
        asked.append(f"{namespace}/{name}")
        return said

    monkeypatch.setattr("kubectl_lading.pods.why.Central.why", why)
    return asked


def known(uid: str) -> Why:
    return Why(namespace="team-a", name="eight", uid=uid, state="pending", asks="x", refused_s=130.0, making_room_on="a100-1")


def test_central_is_asked_for_what_only_it_knows(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = central_says(monkeypatch, known(uid_of("eight")))
    wait = answer(cli, "-n", "team-a", "eight")["wait"]
    assert asked == ["team-a/eight"]
    assert (wait["from_central"], wait["why"]["refused_s"], wait["why"]["making_room_on"]) == (True, 130.0, "a100-1")
    shown = cli.run("why", "team-a/eight").stdout
    assert "2m10s" in shown
    assert "a100-1" in shown


def test_what_it_says_of_another_pod_of_that_name_is_not_used(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    central_says(monkeypatch, known("another"))
    assert not answer(cli, "team-a/eight")["wait"]["from_central"]


def test_that_it_is_silent_is_said_once_and_beside_the_answer(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    central_says(monkeypatch, Silent(why="it is away"))
    done = cli.run("why", "team-a/eight")
    assert done.exit_code == 0
    assert done.stderr.count("warning") == 1


def test_a_pod_that_does_not_wait_needs_neither_central_nor_the_cluster(
    server: FakeKubeServer, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = central_says(monkeypatch, None)
    assert answer(cli, "team-a/train-0")["situation"]["stand"] == Stand.RUNNING
    assert answer(cli, "team-a/busy-b-5")["situation"]["stand"] == Stand.REFUSED
    assert not asked
    assert not [request for request in server.requests if request.path.endswith("nodedevices")]
    selectors = [request.query["fieldSelector"] for request in server.requests if request.path == EVENTS.path("team-a")]
    assert selectors == [f"involvedObject.uid={uid_of(name)}" for name in ("train-0", "busy-b-5")]


def test_without_the_right_to_read_events(server: FakeKubeServer, cli: Cli) -> None:
    server.fail(Fault(status=403, reason="Forbidden"), when=lambda request: request.path == EVENTS.path("team-a"))
    done = cli.run("why", "team-a/busy-b-5", "-o", "json")
    assert json.loads(done.stdout)["situation"]["refusals"][0]["code"] == "device-held"
    assert "events" in done.stderr


def test_devices_of_a_pod_that_has_some(cli: Cli) -> None:
    given = answer(cli, "team-a/train-0")["devices"]["train"]
    assert (len(given["gpus"]), len(given["vfs"])) == (2, 2)
