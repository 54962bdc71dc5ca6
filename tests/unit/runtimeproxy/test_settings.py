from pathlib import Path

import pytest

from lading.errors import ConfigError
from lading.log import Level
from runtimeproxy.main import check, main
from runtimeproxy.settings import Settings


def test_the_defaults_are_fit_and_guard_our_annotations() -> None:
    check(Settings())
    assert Settings().guarded_prefixes == ("lading.dev/",)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        (Settings(listen="tcp://0.0.0.0:1"), "tcp://0.0.0.0:1"),
        (Settings(runtime_endpoint="containerd.sock"), "containerd.sock"),
        (Settings(listen="unix:///run/x.sock", runtime_endpoint="/run/x.sock"), "/run/x.sock"),
        (Settings(guarded_prefixes=("lading.dev/", "")), "guarded_prefixes"),
        (Settings(guarded_prefixes=("lädt.dev/",)), "lädt.dev/"),
    ],
)
def test_what_does_not_go_together_is_named(settings: Settings, word: str) -> None:
    with pytest.raises(ConfigError) as e:
        check(settings)
    assert word in e.value.message


def config(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "runtimeproxy.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("drain_timeout = -1", ("drain_timeout", "-1")),
        ("max_connections = 1", ("max_connections", "1")),
        ('log_level = "verbose"', ("log_level", "'verbose'", "debug")),
        ("hook_dir = '/x'", ("'hook_dir'", "hooks_dir")),
        ('listen = "http://x"', ("http://x",)),
    ],
)
def test_check_config_names_file_key_and_value(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: tuple[str, ...]
) -> None:
    path = config(tmp_path, text)
    with pytest.raises(SystemExit) as e:
        main(["--check-config", "--config", str(path)])
    assert e.value.code == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    for word in (str(path), *words):
        assert word in shown.err


def test_check_config_accepts_and_print_config_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config(tmp_path, f'log_level = "{Level.DEBUG}"\ndrain_timeout = 0.5\n')
    for flag, shown in (("--check-config", "ok"), ("--print-config", "drain_timeout = 0.5")):
        with pytest.raises(SystemExit) as e:
            main([flag, "--config", str(path)])
        assert e.value.code == 0
        assert shown in capsys.readouterr().out
