from pathlib import Path

import pytest

from doctor.config import ConfigReading, decide_config
from doctor.read import read_config
from lading.checks.model import Verdict
from lading.errors import ConfigError
from lading.sockets import Access
from runtimeproxy.settings import Settings
from tests.unit.doctor.verdicts import states

ROOTS, ANYBODYS = Access(0, 0, 0o644), Access(0, 0, 0o666)
PROBLEM = ConfigError("unknown key 'x'", hint="known keys: …")
FILE = Path("/etc/lading/x.toml")


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        (ConfigReading(daemon="d", path=FILE, access=ROOTS), [Verdict.OK]),
        (ConfigReading(daemon="d", path=FILE), [Verdict.OK]),
        (ConfigReading(daemon="d", path=FILE, access=ROOTS, problem=PROBLEM), [Verdict.FAILED]),
        (ConfigReading(daemon="d", path=FILE, access=ANYBODYS), [Verdict.FAILED]),
        (
            ConfigReading(daemon="d", path=FILE, access=Access(1000, 0, 0o600), problem=PROBLEM),
            [Verdict.FAILED, Verdict.FAILED],
        ),
    ],
)
def test_verdicts(reading: ConfigReading, expected: list[Verdict]) -> None:
    assert states(decide_config(reading)) == expected


def strict(settings: Settings) -> None:
    if settings.max_connections == 3:
        raise ConfigError("three is no number")


@pytest.mark.parametrize(
    ("text", "connections", "well"),
    [
        ("max_connections = 2", 2, True),
        ("max_connections = 3", 3, False),  # the values that could be read are in force
        ("max_conections = 3\nmax_connections = 2", 2, False),  # the wrong line is left out
        ("max_connections =", Settings().max_connections, False),
    ],
)
def test_what_can_be_read_of_it(tmp_path: Path, text: str, connections: int, well: bool) -> None:
    path = tmp_path / "x.toml"
    path.write_text(text)
    settings, reading = read_config(Settings, path, FILE, strict, daemon="d")
    assert settings.max_connections == connections
    assert (reading.problem is None) is well
    assert reading.access is not None


def test_one_that_we_may_not_read_is_skipped() -> None:
    denied = ConfigError("cannot read")
    denied.__cause__ = PermissionError()
    assert states(decide_config(ConfigReading(daemon="d", path=FILE, access=ROOTS, problem=denied))) == [Verdict.SKIPPED]
