"""Test completion by the shell and by kubectl: commands, and names of objects."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from kubectl_lading.main import complete_for_kubectl, main
from tests.fakes.kubectl_lading import served
from tests.fakes.small_cluster import SmallCluster


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell(shell: str) -> None:
    done = CliRunner().invoke(main, ["completion", shell])
    assert done.exit_code == 0
    assert "_KUBECTL_LADING_COMPLETE" in done.output


def _complete(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *text: str) -> list[str]:
    monkeypatch.setattr("sys.argv", ["kubectl_complete-lading", *text])
    complete_for_kubectl()
    return capsys.readouterr().out.splitlines()


def test_kubectl_is_given_commands_with_what_they_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    *result, directive = _complete(monkeypatch, capsys, "no")
    assert [one.partition("\t")[0] for one in result] == ["nodes", "node"]
    assert all(one.partition("\t")[2] for one in result)
    assert directive == ":4"


def test_names_come_from_the_api_server(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with served(SmallCluster(), tmp_path) as cli:
        monkeypatch.setenv("KUBECONFIG", str(cli.kubeconfig))
        assert _complete(monkeypatch, capsys, "node", "h1") == ["h100-1", "h100-2", ":4"]
        assert _complete(monkeypatch, capsys, "-n", "team-a", "pod", "train") == ["train-0", "train-1", ":4"]


def test_without_a_server_there_are_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert _complete(monkeypatch, capsys, "node", "") == [":4"]
