"""Test `why POD`: what is read, which questions central gets, and the output without central."""

import json
from typing import Any

import pytest

from central.decide.why_pod import Why
from kubectl_lading.central import Central
from kubectl_lading.objects import Unread
from kubectl_lading.pods.situation import Stand
from lading.kube.resource import EVENTS
from tests.fakes.busy_cluster import BusyCluster, a_pod_that_waits
from tests.fakes.kube_server import FakeKubeServer, Fault
from tests.fakes.kubectl_lading import Cli
from tests.fakes.small_cluster import uid_of


@pytest.fixture
def cluster() -> BusyCluster:
    cluster = BusyCluster()
    cluster.keep_pod(a_pod_that_waits("fits", {"gpu": 1}))
    return cluster


def answer(cli: Cli, *text: str) -> dict[str, Any]:
    done = cli.run("why", *text, "-o", "json")
    assert done.exit_code == 0, done.output
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def central_says(monkeypatch: pytest.MonkeyPatch, text: Why | Unread | None) -> list[str]:
    """Answer as central for these pods."""
    requested, others = [], Central.ask

    async def ask(self: Central, path: str, kind: type[Any]) -> Any:
        if not path.startswith("/v1/why/"):
            return await others(self, path, kind)
        requested.append(path.removeprefix("/v1/why/"))
        return text

    monkeypatch.setattr(Central, "ask", ask)
    return requested


def known(uid: str) -> Why:
    return Why(namespace="team-a", name="eight", uid=uid, state="pending", asks="x", refused_s=130.0, making_room_on="a100-1")


def test_central_is_asked_for_what_only_it_knows(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    requested = central_says(monkeypatch, known(uid_of("eight")))
    wait = answer(cli, "-n", "team-a", "eight")["wait"]
    assert requested == ["team-a/eight"]
    assert (wait["from_central"], wait["why"]["refused_s"], wait["why"]["making_room_on"]) == (True, 130.0, "a100-1")
    shown = cli.run("why", "team-a/eight").stdout
    assert "2m10s" in shown
    assert "a100-1" in shown


def test_what_it_says_of_another_pod_of_that_name_is_not_used(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    central_says(monkeypatch, known("another"))
    assert not answer(cli, "team-a/eight")["wait"]["from_central"]


def test_that_it_is_silent_is_reported_once_and_beside_the_answer(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    central_says(monkeypatch, Unread(why="it is away"))
    done = cli.run("why", "team-a/eight")
    assert done.exit_code == 0
    assert done.stderr.count("warning") == 1


def test_a_pod_that_does_not_wait_needs_neither_central_nor_the_cluster(
    server: FakeKubeServer, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested = central_says(monkeypatch, None)
    assert answer(cli, "team-a/train-0")["situation"]["stand"] == Stand.RUNNING
    assert answer(cli, "team-a/busy-b-5")["situation"]["stand"] == Stand.REFUSED
    assert not requested
    assert not [request for request in server.requests if request.path.endswith("nodedevices")]
    selectors = [request.query["fieldSelector"] for request in server.requests if request.path == EVENTS.path("team-a")]
    assert selectors == [f"involvedObject.uid={uid_of(name)}" for name in ("train-0", "busy-b-5")]


def test_without_the_right_to_read_events(server: FakeKubeServer, cli: Cli) -> None:
    def ask(command: str) -> tuple[Any, str]:
        server.fail(Fault(status=403, reason="Forbidden"), when=lambda request: request.path == EVENTS.path("team-a"))
        done = cli.run(command, "team-a/busy-b-5", "-o", "json")
        return json.loads(done.stdout), done.stderr

    text, output = ask("why")
    assert text["situation"]["refusals"][0]["code"] == "device-held"
    assert "Events of namespace team-a" in output
    assert ask("pod") == (ask("pod")[0] | {"events": []}, output)  # in the same words


def test_pods_of_daemon_sets_are_nobodys_hope(cli: Cli) -> None:
    by_node = {one["node"]: one for one in answer(cli, "team-a/share")["wait"]["helps"]}
    assert (by_node["busy-c"]["together"], len(by_node["busy-c"]["stay"])) == (0, 8)
    assert {one["node"]: one["together"] for one in answer(cli, "team-a/eight")["wait"]["helps"]}["busy-b"] == 6


@pytest.mark.parametrize(("said", "named"), [(Unread(why="it is away"), "kubectl lading status"), (None, "kube-scheduler")])
def test_what_to_do_where_the_devices_are_free(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, said: Unread | None, named: str
) -> None:
    central_says(monkeypatch, said)
    assert named in answer(cli, "team-a/fits")["wait"]["fixes"]["fits"]
    assert f"do  {'central did not answer' if said else 'look at'}" in cli.run("why", "team-a/fits").stdout
    assert "cpu" in answer(cli, "team-a/hungry")["wait"]["fixes"]["fits"]


def test_a_pod_of_another_namespace_is_named(server: FakeKubeServer, cli: Cli) -> None:
    done = cli.run("why", "eight")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "team-a/eight" in done.stderr
    server.fail(Fault(status=403, reason="Forbidden"), when=lambda request: "metadata.name" in str(request.query))
    assert "hint" not in cli.run("why", "eight").stderr


def test_devices_of_a_pod_that_has_some(cli: Cli) -> None:
    given = answer(cli, "team-a/train-0")["devices"]["train"]
    assert (len(given["gpus"]), len(given["vfs"])) == (2, 2)
