"""Test `lading-hooks install-proxy` outside of a container; tests/install/test_bare_roots.py has the rest."""

from pathlib import Path

import pytest

from hooks.daemon import proxy_command
from hooks.daemon.proxy_command import find_configuration
from hooks.main import main


def test_the_configuration_is_what_the_installer_takes(tmp_path: Path) -> None:
    data = tmp_path / "..data"  # Kubernetes mounts a ConfigMap with such a folder
    data.mkdir()
    for name in ("hooks.toml", "central-1.pub.pem", "central-2.pub.pem", "shares.toml", "central-1.pem"):
        (data / name).write_text("x")
        (tmp_path / name).symlink_to(f"..data/{name}")
    result = list(find_configuration(tmp_path))
    assert [path.name for path in result] == ["central-1.pub.pem", "central-2.pub.pem", "hooks.toml"]
    assert list(find_configuration(tmp_path / "absent")) == []


@pytest.mark.parametrize("option", ["--wheel", "--image=/x", "--config"])
def test_an_option_that_names_a_file_of_the_node_is_refused(
    option: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy_command, "enter_node", lambda: pytest.fail("it would install on this machine"))
    with pytest.raises(SystemExit) as ended:
        main(["install-proxy", option, "/x"])
    assert ended.value.code == 2
    assert option in capsys.readouterr().err
