import argparse
import tomllib
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import pytest

from lading.errors import ConfigError
from lading.settings import Setting, add_flags, load, load_usable, parse_args, render_toml


class Mode(StrEnum):
    DEVICES = "devices"
    CDI = "cdi"


class Settings(msgspec.Struct, frozen=True):
    listen: Annotated[str, Setting("the socket; 100% ours")] = "/run/x.sock"
    timeout_s: Annotated[float, msgspec.Meta(gt=0), Setting("seconds")] = 2.0
    limit: Annotated[int | None, Setting("how many")] = None
    hide: Annotated[bool, Setting("hide 50%")] = True
    mode: Annotated[Mode, Setting("how")] = Mode.DEVICES
    modes: Annotated[tuple[Mode, ...], Setting("which")] = (Mode.CDI,)
    ports: Annotated[tuple[int, ...], Setting("ports")] = ()
    keys: Annotated[dict[str, str], Setting("public keys by id", flag=False)] = {}


Load = Callable[..., Settings]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "x.toml"


def flags_of(file: Path, *flags: str, kind: type[msgspec.Struct] = Settings) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_flags(parser, kind, config=file)
    return parser.parse_args(flags)


@pytest.fixture
def load_with(file: Path) -> Load:
    def run(toml: str = "", *flags: str) -> Settings:
        file.write_text(toml, encoding="utf-8")
        return load(Settings, flags_of(file, *flags))

    return run


def test_defaults_where_nothing_is_reported(load_with: Load) -> None:
    assert load_with() == Settings()


def test_file_is_read(load_with: Load) -> None:
    settings = load_with('limit = 7\nmode = "cdi"\nmodes = ["devices", "cdi"]\nkeys = { k1 = "/etc/lading/keys/k1.pem" }\n')
    assert settings.limit == 7
    assert settings.mode is Mode.CDI
    assert settings.modes == (Mode.DEVICES, Mode.CDI)
    assert settings.keys == {"k1": "/etc/lading/keys/k1.pem"}


def test_a_table_may_stand_in_a_section(load_with: Load) -> None:
    assert load_with('[keys]\nk1 = "a"\n"k.2" = "b"\n').keys == {"k1": "a", "k.2": "b"}


@pytest.mark.parametrize(
    ("flags", "key", "value"),
    [
        (("--listen", "/run/y.sock"), "listen", "/run/y.sock"),
        (("--limit", "9"), "limit", 9),
        (("--timeout-s", "0.5"), "timeout_s", 0.5),
        (("--no-hide",), "hide", False),
        (("--mode", "cdi"), "mode", Mode.CDI),
        (("--modes", "cdi, devices"), "modes", (Mode.CDI, Mode.DEVICES)),
        (("--ports", "80,443"), "ports", (80, 443)),
    ],
)
def test_a_flag_wins_over_the_file(load_with: Load, flags: tuple[str, ...], key: str, value: object) -> None:
    file = 'listen = "/run/z.sock"\nlimit = 1\ntimeout_s = 9.0\nhide = true\nmode = "devices"\nmodes = []\nports = [1]\n'
    assert getattr(load_with(file, *flags), key) == value


@pytest.mark.parametrize(
    ("toml", "parts"),
    [
        ("limit = 'many'", ("x.toml", "limit", "'many'", "int")),
        ("timeout_s = -1.0", ("x.toml", "timeout_s", "-1.0", "> 0")),
        ("mode = 'cid'", ("x.toml", "mode", "'cid'", "devices, cdi")),
        ("modes = ['devices', 'cid']", ("x.toml", "modes[1]", "'cid'", "devices, cdi")),
        ("keys = { k1 = 4 }", ("x.toml", "keys", "4", "str")),
        ("lisen = '/run/x.sock'", ("x.toml", "'lisen'", "listen")),
        ("limit = 1\nlisten = = 3\n", ("x.toml", "line 2, column 10")),
        ("limit = 1\nports = [1,\n", ("x.toml", "line 3, column 1")),  # tomllib says: at end of document
        ("limit = 1\n\n  mode = 'cid'\n", ("x.toml", "line 3, column 3")),
        ("ports = [\n  1,\n  'x',\n]\nlimit = 2", ("ports[1]", "line 1, column 1")),
        ("# limt = 1\nlisten = 'limt = 1'\nlimt = 1\n", ("'limt'", "line 3, column 1")),
        ("[keys]\na = 1\n", ("keys", "line 1, column 1")),
        (
            "lisen = 1\nlimit = 1\nlimt = 1\n",
            ("'lisen' (at line 1, column 1)", "'limt' (at line 3, column 1)", "listen? limit?"),
        ),
    ],
)
def test_an_error_names_file_key_value_and_what_would_be_right(load_with: Load, toml: str, parts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as e:
        load_with(toml)
    for part in parts:
        assert part in str(e.value)


@pytest.mark.parametrize(("flags", "name"), [(("--limit", "ten"), "--limit"), (("--ports", "80,http"), "--ports")])
def test_an_error_names_the_flag_that_set_it(load_with: Load, flags: tuple[str, ...], name: str) -> None:
    with pytest.raises(ConfigError) as e:
        load_with("limit = 1", *flags)
    assert name in str(e.value)
    assert "x.toml" not in str(e.value)


def test_a_file_that_is_no_utf8(file: Path) -> None:
    file.write_bytes(b'limit = 1\nlisten = "\xff"')
    with pytest.raises(ConfigError, match=r"x\.toml.*line 2, column 11"):
        load(Settings, flags_of(file))


def test_the_default_file_may_be_absent_a_named_one_not(file: Path) -> None:
    assert load(Settings, flags_of(file)) == Settings()
    with pytest.raises(ConfigError):
        load(Settings, flags_of(file, "--config", str(file)))


@pytest.mark.parametrize(
    "settings",
    [Settings(), Settings(limit=3, hide=False, mode=Mode.CDI, modes=(), ports=(1, 2), keys={"k 1": 'a"b\\c\n', "k2": "é\x7f"})],
)
def test_printed_settings_are_read_back(load_with: Load, settings: Settings) -> None:
    assert load_with(render_toml(settings)) == settings


def test_print_config_and_check_config_exit(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*argv: str) -> int | str | None:
        with pytest.raises(SystemExit) as e:
            parse_args(Settings, flags_of(file, *argv), lambda _: None)
        return e.value.code

    assert run("--check-config") == 0
    capsys.readouterr()
    assert run("--print-config", "--limit", "5") == 0
    assert tomllib.loads(capsys.readouterr().out)["limit"] == 5


def test_what_the_check_finds_is_reported_with_the_file(file: Path) -> None:
    def refuse(settings: Settings) -> None:
        raise ConfigError(f"listen and limit = {settings.limit} do not go together", hint="change one")

    for flags in ((), ("--check-config",), ("--check-config", "--print-config")):
        with pytest.raises(ConfigError) as e:
            parse_args(Settings, flags_of(file, "--limit", "5", *flags), refuse)
        assert str(file) in e.value.message
        assert "limit = 5" in e.value.message
        assert e.value.hint == "change one"


def test_what_is_not_complete_is_printed_all_the_same(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(settings: Settings) -> None:
        raise ConfigError("listen is empty", hint="listen = FILE")

    with pytest.raises(SystemExit) as e:
        parse_args(Settings, flags_of(file, "--limit", "5", "--print-config"), refuse)
    assert e.value.code == 0
    printed = capsys.readouterr()
    assert tomllib.loads(printed.out)["limit"] == 5
    for word in (str(file), "listen is empty", "listen = FILE"):
        assert word in printed.err


def test_no_hint_is_printed_where_there_is_none(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(settings: Settings) -> None:
        raise ConfigError("vf: it has a VLAN and is none")

    with pytest.raises(SystemExit):
        parse_args(Settings, flags_of(file, "--print-config"), refuse)
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "flags", "limit", "mode"),
    [
        ('limit = 7\nmode = "cdi"', (), 7, Mode.CDI),
        ('limit = "x"\nmode = "cdi"\nlimt = 3', (), Settings().limit, Mode.CDI),  # without what is wrong
        ("limit = 7\nmode", ("--limit", "9"), 9, Settings().mode),  # no TOML: the flags count
        ("limit = 7", ("--limit", "many"), Settings().limit, Settings().mode),
        (None, ("--limit", "9"), 9, Settings().mode),  # no such file
    ],
)
def test_what_is_usable_of_a_configuration(
    file: Path, text: str | None, flags: tuple[str, ...], limit: int, mode: Mode
) -> None:
    if text is not None:
        file.write_text(text)
    usable = load_usable(Settings, flags_of(file, "--config", str(file), *flags))
    assert (usable.limit, usable.mode) == (limit, mode)


def test_a_key_that_is_misspelt_is_reported_its_name(file: Path) -> None:
    file.write_text("lissten = 'x'")
    with pytest.raises(ConfigError, match="lissten") as e:
        load(Settings, flags_of(file))
    assert e.value.hint.startswith("listen?")


def test_help_shows_every_flag_and_no_table(file: Path) -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser, Settings, config=file)
    text = parser.format_help()
    for flag in ("--listen", "--timeout-s", "--no-hide", "--modes"):
        assert flag in text
    assert "--keys" not in text


def test_a_setting_without_default_must_be_set(file: Path) -> None:
    class Strict(msgspec.Struct, frozen=True):
        node_name: Annotated[str, Setting("this node")]

    assert load(Strict, flags_of(file, "--node-name", "n1", kind=Strict)) == Strict(node_name="n1")
    with pytest.raises(ConfigError, match="node_name"):
        load(Strict, flags_of(file, kind=Strict))
