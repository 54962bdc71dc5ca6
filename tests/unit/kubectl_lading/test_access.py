"""Test which API server and namespace are used, as kubectl finds them, and the message for a refusal by the API server."""

import asyncio
import json
from pathlib import Path

import pytest

from kubectl_lading.access import connect, find_namespace, find_node_name, find_pod
from kubectl_lading.flags import Flags
from lading.errors import ConfigError, LadingError
from lading.kube.config import KubectlRules
from lading.kube.resource import NODE_DEVICES
from tests.fakes.kube_server import FakeKubeServer, Fault
from tests.fakes.simulated_time import run_simulated


@pytest.fixture
def config(tmp_path: Path) -> Path:
    contexts = [
        {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}},
        {"name": "there", "context": {"cluster": "c", "user": "u"}},
    ]
    path = tmp_path / "config"
    clusters, users = [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}], [{"name": "u", "user": {"token": "t"}}]
    path.write_text(json.dumps({"current-context": "here", "contexts": contexts, "clusters": clusters, "users": users}))
    return path


def test_the_flag_is_preferred_to_the_environment_and_that_to_the_home_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert KubectlRules(kubeconfig="/c", environment={"KUBECONFIG": "/a:/b"}).find_files() == (Path("/c"),)
    assert KubectlRules(environment={"KUBECONFIG": "/a::/b:/a"}).find_files() == (Path("/a"), Path("/b"))
    assert KubectlRules(environment={}).find_files() == (tmp_path / ".kube" / "config",)


@pytest.mark.parametrize(
    ("flags", "namespace"),
    [
        ({}, "team"),
        ({"context": "there"}, "default"),
        ({"context": "there", "namespace": "said"}, "said"),
        ({"namespace": "said"}, "said"),
    ],
)
def test_the_namespace_is_that_of_the_flag_or_of_the_context(config: Path, flags: dict[str, str], namespace: str) -> None:
    assert find_namespace(Flags(kubeconfig=str(config), **flags)) == namespace  # type: ignore[arg-type]


def test_no_kubeconfig_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        find_namespace(Flags(kubeconfig=str(tmp_path / "none")))
    assert "none" in caught.value.message


def test_a_named_context_needs_no_current_context(config: Path) -> None:
    text = json.loads(config.read_text())
    del text["current-context"]
    config.write_text(json.dumps(text))
    assert find_namespace(Flags(kubeconfig=str(config), context="here")) == "team"


@pytest.mark.parametrize("text", ["words", "contexts: [", "[]"])
def test_a_malformed_kubeconfig_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(ConfigError):
        find_namespace(Flags(kubeconfig=str(tmp_path / "config")))
    with pytest.raises(ConfigError):
        find_namespace(Flags(kubeconfig=str(tmp_path)))


def test_a_pod_is_named_with_its_namespace_or_without(config: Path) -> None:
    flags = Flags(kubeconfig=str(config))
    assert find_pod(flags, "p") == ("team", "p")
    assert find_pod(flags, "other/p") == ("other", "p")
    assert find_pod(flags, "pod/p") == ("team", "p")
    assert find_pod(Flags(kubeconfig=str(config), namespace="pod"), "p") == ("pod", "p")


def test_a_node_is_named_as_kubectl_prints_it_or_by_its_name() -> None:
    assert [find_node_name(word) for word in ("n1", "node/n1", "nodes/n1", "team/n1")] == ["n1", "n1", "n1", "team/n1"]


async def test_as_sends_the_user_whose_rights_count(tmp_path: Path) -> None:
    async with FakeKubeServer() as server:
        flags = Flags(kubeconfig=str(server.write_kubeconfig(tmp_path / "config")), as_user="jane")
        await get(flags)
        assert server.requests[-1].headers["Impersonate-User"] == "jane"


@pytest.mark.parametrize("word", ["", "/", "team/"])
def test_a_pod_argument_without_a_name_is_an_error(config: Path, word: str) -> None:
    with pytest.raises(ConfigError):
        find_pod(Flags(kubeconfig=str(config)), word)


async def get(flags: Flags) -> None:
    async with connect(flags) as client:
        await client.get(NODE_DEVICES.path())


async def list_pages(flags: Flags) -> None:
    async with connect(flags) as client:
        async for _ in client.list_pages(NODE_DEVICES.path()):
            pass


@pytest.mark.parametrize(("status", "hint"), [(403, "lading-reader"), (401, "log in again")])
async def test_a_refusal_says_what_is_missing_a_right_or_a_login(tmp_path: Path, status: int, hint: str) -> None:
    async with FakeKubeServer() as server:
        server.fail(Fault(status=status, reason="No"))
        with pytest.raises(LadingError) as caught:
            await get(Flags(kubeconfig=str(server.write_kubeconfig(tmp_path / "config"))))
    assert hint in caught.value.hint


async def test_a_server_that_never_answers_is_given_up_after_the_request_timeout(tmp_path: Path) -> None:
    async with FakeKubeServer() as server:
        server.fail(Fault(hang=True), times=2)
        flags = Flags(kubeconfig=str(server.write_kubeconfig(tmp_path / "config")), request_timeout_s=0.1)
        async with asyncio.timeout(5):
            for read in (get, list_pages):
                with pytest.raises(LadingError) as caught:
                    await read(flags)
                assert server.url in caught.value.message
                assert "--request-timeout" in caught.value.hint


def test_a_silent_server_is_named_on_stderr_while_it_is_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def wait() -> str:
        async with FakeKubeServer() as server:
            server.fail(Fault(hang=True))
            flags = Flags(kubeconfig=str(server.write_kubeconfig(tmp_path / "config")), request_timeout_s=8)
            with pytest.raises(LadingError):
                await get(flags)
            return server.url

    url = run_simulated(wait())
    output = capsys.readouterr()
    assert output.out == ""
    assert [(url in line, NODE_DEVICES.path() in line) for line in output.err.splitlines()] == [(True, True)] * 2


async def test_an_unreachable_server_is_an_error_with_the_command_to_run(config: Path) -> None:
    with pytest.raises(LadingError) as caught:
        await get(Flags(kubeconfig=str(config)))
    assert "kubectl" in caught.value.hint
