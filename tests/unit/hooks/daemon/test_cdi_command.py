import json
from pathlib import Path

import pytest

from hooks.host.cdi_files import spec_path
from hooks.main import main
from hooks.model.cdi import KINDS
from simnode.daemons import render_flat_toml
from tests.conftest import BuildNode


def configure(folder: Path, **settings: object) -> str:
    config = folder / "hooks.toml"
    config.write_text(render_flat_toml({"assignments": ["manual"], **settings}))
    return str(config)


def test_the_specs_of_the_node_are_printed_and_not_written(
    build_node: BuildNode, fake_nvml: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = build_node("demo-8gpu")
    config = configure(
        tmp_path,
        gpu_mode="cdi",
        host_root=str(node.root),
        driver_root=str(node.root),
        nvml_library=str(fake_nvml),
        cdi_dir=str(tmp_path / "cdi"),
    )
    main(["cdi-specs", "--config", config])
    decoder, text, kinds = json.JSONDecoder(), capsys.readouterr().out, []
    while text.strip():
        spec, end = decoder.raw_decode(text)
        kinds.append(spec["kind"])
        text = text[end:].lstrip()
    assert kinds == ["lading.dev/gpu", "lading.dev/vf"]
    assert not (tmp_path / "cdi").exists()


@pytest.mark.parametrize("settings", [{}, {"gpu_mode": "cdi", "cdi_specs": "nvidia-ctk"}])
def test_a_node_that_writes_none_says_so(tmp_path: Path, settings: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as e:
        main(["cdi-specs", "--config", configure(tmp_path, **settings)])
    assert e.value.code == 2
    assert "writes no CDI specs" in capsys.readouterr().err


def test_they_are_removed_whatever_the_configuration_says_now(tmp_path: Path) -> None:
    folder = tmp_path / "cdi"
    folder.mkdir()
    for kind in KINDS:
        spec_path(folder, kind).touch()
    (folder / "nvidia.yaml").touch()
    main(["cdi-specs", "--remove", "--config", configure(tmp_path, cdi_dir=str(folder))])
    assert [path.name for path in folder.iterdir()] == ["nvidia.yaml"]
