from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from central.daemon.scheduler_config import print_scheduler_config, with_dialects
from central.request.dialects.options import DialectOptions
from central.request.parse import OWN_ONLY, Dialects
from kubectl_lading.installation.installation import SchedulerConfig
from kubectl_lading.installation.read_installation import parse_scheduler_config
from lading.errors import ConfigError

FILE = Path(__file__).parents[4] / "deploy/scheduler/config.yaml"


def given() -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(FILE.read_text())
    return config


def enabled(*names: str, **options: Any) -> Dialects:
    return Dialects(msgspec.convert({"enabled": names, **options}, DialectOptions))


def read(config: dict[str, Any]) -> SchedulerConfig:
    result = parse_scheduler_config(yaml.safe_dump(config))
    assert isinstance(result, SchedulerConfig)
    return result


def test_without_dialects_nothing_changes_but_the_order() -> None:
    changed = with_dialects(given(), OWN_ONLY)
    assert read(changed) == read(given())
    assert changed["extenders"][1:] == given()["extenders"][1:]


def test_resources_of_the_dialects_are_left_to_central() -> None:
    dialects = enabled("hami", "gpushare")
    result = read(with_dialects(given(), dialects))
    assert result.asks_central == dialects.resources
    assert {"nvidia.com/gpu", "nvidia.com/gpumem", "aliyun.com/gpu-mem", "lading.dev/gpu"} <= result.asks_central
    assert not result.asks_all


@pytest.mark.parametrize("name", ["kubeshare", "kai"])
def test_dialects_of_labels_and_annotations_are_asked_about_all_pods(name: str) -> None:
    dialects = enabled(name, "gpushare")
    config: dict[str, Any] = with_dialects(given(), dialects)
    result = read(config)
    assert (result.asks_all, result.asks_central) == (True, dialects.resources)
    called, managing = config["extenders"]
    assert not [key for key in managing if key.endswith("Verb")]
    assert "managedResources" not in called


def test_a_file_without_central_is_refused() -> None:
    others: list[dict[str, Any]] = [{"extenders": []}, {"extenders": [{"prioritizeVerb": "x"}]}, {}]
    for config in others:
        with pytest.raises(ConfigError):
            with_dialects(config, OWN_ONLY)


def test_the_command_reads_central_toml(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    central = tmp_path / "central.toml"
    central.write_text('dialects = { enabled = ["volcano"] }\n')
    print_scheduler_config([str(FILE), "--config", str(central)])
    assert "volcano.sh/vgpu-number" in capsys.readouterr().out
    central.write_text('dialects = { enabled = ["nvidia", "hami"] }\n')
    with pytest.raises(ConfigError, match=r"nvidia\.com/gpu"):
        print_scheduler_config([str(FILE), "--config", str(central)])
