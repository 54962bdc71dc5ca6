import tomllib
from pathlib import Path

import pytest

from lading.errors import ConfigError
from simnode.containerd_config import ContainerdLayout, has_cdi, parse_version, render_config

LAYOUT = ContainerdLayout(folder=Path("/x"))


def rendered(version: str) -> dict[str, object]:
    text = render_config(LAYOUT, version=version, sandbox_image="pause", snapshotter="native", runc=Path("/sbin/runc"))
    return tomllib.loads(text)


def paths(value: object) -> set[str]:
    """Return every absolute path in the configuration."""
    match value:
        case dict():
            return {p for v in value.values() for p in paths(v)}
        case list():
            return {p for v in value for p in paths(v)}
        case str() if value.startswith("/"):
            return {value}
    return set()


@pytest.mark.parametrize(
    ("text", "parsed"), [("1.6.20~ds1", (1, 6)), ("v1.7.24", (1, 7)), ("2.1.9+ds1-5", (2, 1)), ("1.10.0", (1, 10))]
)
def test_versions_as_distributions_write_them(text: str, parsed: tuple[int, int]) -> None:
    assert parse_version(text) == parsed


@pytest.mark.parametrize("text", ["", "unknown", "1", "v.1"])
def test_an_invalid_version_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_version(text)


@pytest.mark.parametrize(("version", "file_format", "nri"), [("1.6.20", 2, False), ("1.7.24", 2, True), ("2.1.9", 3, True)])
def test_each_version_gets_its_format(version: str, file_format: int, nri: bool) -> None:
    config = rendered(version)
    assert config["version"] == file_format
    plugins = config["plugins"]
    assert isinstance(plugins, dict)
    assert ("io.containerd.nri.v1.nri" in plugins) is nri
    assert ("io.containerd.grpc.v1.cri" in plugins) is (file_format == 2)
    assert has_cdi(version) is nri


@pytest.mark.parametrize("version", ["1.6.20", "1.7.24", "2.1.9"])
def test_everything_lies_in_the_private_folder(version: str) -> None:
    assert {p for p in paths(rendered(version)) if not p.startswith("/x/")} == {"/sbin/runc"}


@pytest.mark.parametrize("version", ["1.6.20", "1.7.24", "2.1.9"])
def test_the_oom_score_is_restricted_without_cap_sys_resource(version: str) -> None:
    plugins = rendered(version)["plugins"]
    assert isinstance(plugins, dict)
    cri = plugins.get("io.containerd.grpc.v1.cri") or plugins["io.containerd.cri.v1.runtime"]
    assert cri["restrict_oom_score_adj"] is True


def test_older_than_1_6_is_refused() -> None:
    with pytest.raises(ConfigError):
        rendered("1.5.9")


def test_two_folders_have_two_cgroup_parents() -> None:
    assert ContainerdLayout(folder=Path("/y")).cgroup_root != LAYOUT.cgroup_root
