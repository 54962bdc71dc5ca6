"""Test that kubeconfigs are merged, and a context is chosen, as by a recorded kubectl; `tests/cluster` compares with a live
one."""

import json

import msgspec
import pytest

from lading.errors import ConfigError
from lading.kube.kubeconfig import parse_kubeconfig
from tests.fakes.kubectl_config import GOLDEN, Answer, Case, ask_lading

RECORDED = json.loads(GOLDEN.read_text())["answers"]


@pytest.mark.parametrize("recorded", RECORDED)
def test_the_answer_is_kubectls(recorded: dict[str, object]) -> None:
    answer: Answer = ask_lading(msgspec.convert(recorded["case"], Case))
    assert answer == recorded["answer"]


def test_file_names_are_below_their_files_folder() -> None:
    text = json.dumps(
        {
            "clusters": [{"name": "c", "cluster": {"certificate-authority": "ca.crt"}}],
            "users": [
                {"name": "u", "user": {"tokenFile": "../token", "client-key": "/abs", "exec": {"command": "bin/login"}}},
                {"name": "v", "user": {"exec": {"command": "login"}}},
            ],
        }
    )
    read = parse_kubeconfig(text, "/etc/kube/config")
    assert read.clusters["c"].certificate_authority == "/etc/kube/ca.crt"
    user = read.users["u"]
    assert (user.token_file, user.client_key) == ("/etc/kube/../token", "/abs")
    assert [one.exec.command for one in read.users.values() if one.exec] == ["/etc/kube/bin/login", "login"]


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "a: &a [*a]", "users: [{name: u, user: {token: [s3cret]}}]", "? [s3cret]\n: s3cret"]
)
def test_text_that_is_no_kubeconfig_is_refused_without_it(text: str) -> None:
    with pytest.raises(ConfigError, match="/config") as refused:
        parse_kubeconfig(text, "/config")
    assert "s3cret" not in str(refused.value)
