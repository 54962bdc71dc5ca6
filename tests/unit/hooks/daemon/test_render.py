"""Test `lading-hooks render` on a simulated node."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hooks.attach.overlay import holdings_of
from hooks.daemon import render
from hooks.grant.decide import View
from hooks.ledger.store import Ledger
from hooks.main import main
from hooks.model.assignment import GrantedDevices, GrantedGpu, Refusal
from hooks.model.attachment import NetdevPolicy, VfConfig, VfSettings
from hooks.model.container import Answer
from hooks.model.grant import Grant
from lading.errors import ConfigError
from lading.reasons import Reason
from lading.vocabulary import GpuUuid
from tests.conftest import BuildNode
from tests.fakes.holders import row
from tests.unit.hooks.grant.test_decide import VIEW
from tests.unit.hooks.inventories import gpu, inventory, vf
from tests.unit.hooks.rules import RULES

POD = """
apiVersion: v1
kind: Pod
metadata:
  name: p
  annotations: {%s}
spec:
  initContainers: [{name: prepare}]
  containers: [{name: train, env: [{name: A, value: b}, {name: C, valueFrom: {}}]}, {name: side}]
"""


def pod(annotations: str = "", text: str = POD) -> render.Pod:
    return render.read_pod(text % annotations, "pod.yaml")


def rendered(manifest: render.Pod, view: View = VIEW, *grants: Grant) -> dict[str, Answer | Refusal]:
    return dict(render.render_pod(manifest, RULES, view, grants))


def given(result: Answer | Refusal) -> list[str]:
    assert isinstance(result, Answer), result
    return [vf.bdf for vf in result.grant.devices.vfs] if result.grant else []


# the manifest


def test_containers_come_in_kubelets_order() -> None:
    text = POD + "  ephemeralContainers: [{name: debug}]\n"
    assert list(rendered(pod(text=text))) == ["prepare", "train", "side", "debug"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kind: [", ()),
        ("[" * 500, ()),
        ("kind: Deployment", ("Deployment",)),
        ("a: 1\n---\nb: 2", ("None",)),
        ("", ("[]",)),
        ("just text", ("str",)),
        ("kind: Pod\nspec: {containers: []}", ("metadata",)),
        ("kind: Pod\nmetadata: {}\nspec: {}", ("spec", "containers")),
        ("kind: Pod\nmetadata: {name: 5}\nspec: {containers: []}", ("metadata.name", "str", "int")),
        ("kind: Pod\nmetadata: {annotations: {a: b, lading.dev/vfs: 1}}\nspec: {containers: []}", ("lading.dev/vfs = 1",)),
        ("kind: Pod\nmetadata: {annotations: {1: b}}\nspec: {containers: []}", ("metadata.annotations",)),
        (
            "kind: Pod\nmetadata: {}\nspec: {containers: [{name: c, env: [{name: A, value: 5}]}]}",
            ("containers[0].env[0].value",),
        ),
        ("kind: Pod\nmetadata: {}\nspec: {containers: [{name: c, env: [x]}]}", ("containers[0].env[0]",)),
        ("kind: Pod\nmetadata: {}\nspec: {containers: [{name: c}, 5]}", ("containers[1]",)),
        ("kind: Pod\nmetadata: {}\nspec: {containers: [{name: c, securityContext: {privileged: maybe}}]}", ("privileged",)),
    ],
)
def test_what_is_wrong_is_named_by_file_and_key(text: str, words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as e:
        render.read_pod(text, "pod.yaml")
    for word in ("pod.yaml", *words):
        assert word in e.value.message


def test_empty_parts_are_none() -> None:
    text = "kind: Pod\nmetadata: {annotations: null}\nspec: {initContainers: null, containers: [{name: c, env: null}]}\n---\n"
    assert list(rendered(render.read_pod(text, "pod.yaml"))) == ["c"]


def test_what_a_decision_depends_on_is_read() -> None:
    annotations = "lading.dev/gpus: '0'"
    for old, new, reason in (
        ("{name: side}", "{name: side, securityContext: {privileged: true}}", Reason.PRIVILEGED),
        ("{name: side}", "{name: side, securityContext: {capabilities: {add: [SYS_ADMIN]}}}", Reason.PRIVILEGED),
        ("spec:", "spec:\n  hostUsers: false", Reason.USER_NAMESPACE),
    ):
        result = rendered(pod(annotations, POD.replace(old, new)))["side"]
        assert isinstance(result, Refusal)
        assert result.reason is reason
    exempt = replace(RULES, unassigned=replace(RULES.unassigned, exempt_namespaces=frozenset({"default"})))
    answers = render.render_pod(pod(), exempt, VIEW, ())
    assert all(isinstance(one.result, Answer) and not one.result.adjustment.env for one in answers)


def test_an_annotation_for_a_container_that_is_not_there_is_reported() -> None:
    manifest = pod("lading.dev/gpus.trian: '0', lading.dev/vfs.side: '1', lading.dev/gpus: '1', lading.dev/vfs.prepare: '1'")
    (warning,) = render.warnings(manifest)
    for word in ("lading.dev/gpus.trian", "train"):
        assert word in warning


# the decision


def test_each_container_holds_what_it_was_given() -> None:
    results = rendered(pod("lading.dev/vfs.train: '1', lading.dev/vfs.side: '1'"))
    assert given(results["train"]) != given(results["side"])
    assert len(given(results["train"])) == len(given(results["side"])) == 1
    assert given(results["prepare"]) == []
    pod_wide = rendered(pod("lading.dev/vfs: '1'"))
    assert given(pod_wide["train"]) == given(pod_wide["side"])


def test_one_refusal_does_not_hide_the_others() -> None:
    results = rendered(pod("lading.dev/gpus.train: '9', lading.dev/gpus.side: '0'"))
    assert isinstance(results["train"], Refusal)
    assert isinstance(results["side"], Answer)


def test_a_pod_of_the_ledger_keeps_what_it_has() -> None:
    """Check shares too: the container's own share is not counted against it."""
    text = POD.replace("name: p\n", "name: p\n  uid: u1\n")
    manifest = pod("lading.dev/gpus.train: '0:core=60', lading.dev/vfs.train: '1'", text)
    first = rendered(manifest)["train"]
    assert isinstance(first, Answer)
    assert first.grant is not None
    again = rendered(manifest, VIEW, first.grant)["train"]
    assert isinstance(again, Answer)
    assert again.reused
    assert again.adjustment == first.adjustment
    changed = rendered(pod("lading.dev/gpus.train: '1'", text), VIEW, first.grant)["train"]
    assert isinstance(changed, Refusal)
    assert changed.reason is Reason.ASSIGNMENT_CHANGED


# how it is shown


def test_text_is_one_line_a_thing_and_harmless_on_a_terminal() -> None:
    text = POD.replace("name: side", 'name: "si\\e[2Jde"')
    shown = render.as_text(render.render_pod(pod("lading.dev/gpus.train: '0'", text), RULES, VIEW, ()))
    assert "\x1b" not in shown
    assert "device     /dev/nvidia7 rw" in shown
    assert "lading.dev/grant" not in shown


def test_json_is_the_adjustment() -> None:
    view = replace(VIEW, inventory=inventory(gpus=(gpu(0),), vfs=(vf(0),)))
    shown = render.as_json(render.render_pod(pod("lading.dev/vfs.train: '1', lading.dev/gpus.side: '3'"), RULES, view, ()))
    assert [one["container"] for one in shown] == ["prepare", "train", "side"]
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in shown[1]["adjustment"]["env"]
    assert shown[2]["refused"]["reason"] == "device-unknown"
    json.dumps(shown)


def test_network_devices_are_shown_with_their_settings_as_the_node_adds_them() -> None:
    policy = NetdevPolicy(attaches=True, by_default=True, settings=VfSettings(config=VfConfig(vlan=7), mtu=9000))
    attaches = replace(RULES, netdev=policy)
    one = render.render_pod(pod("lading.dev/vfs.train: '1'"), attaches, VIEW, ())
    assert f"  netdev     rdma<n>  (of {vf(0).bdf}) vlan=7 mtu=9000\n" in render.as_text(one)
    assert render.as_json(one)[1]["attach"] == [{"vf": vf(0).bdf, "vlan": 7, "mtu": 9000}]
    nodes_only = render.render_pod(pod("lading.dev/vfs.train: '1'"), RULES, VIEW, ())
    assert "netdev" not in render.as_text(nodes_only)
    assert "attach" not in render.as_json(nodes_only)[1]


def test_a_vf_that_is_not_back_is_held() -> None:
    (away,) = holdings_of([replace(row(pod="other"), vf=vf(0))])
    assert given(rendered(pod("lading.dev/vfs.train: '1'"), replace(VIEW, held=(away,)))["train"]) == [vf(1).bdf]


# the command

Command = Callable[..., tuple[int, str, str]]
JSON = ("-o", "json")


@pytest.fixture
def command(build_node: BuildNode, fake_nvml: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command on the simulated node with eight cards; return exit status, stdout and stderr."""
    node = build_node("demo-8gpu")
    config = tmp_path / "hooks.toml"
    state = tmp_path / "state"

    def run(*argv: str, annotations: str = "", settings: str = "") -> tuple[int, str, str]:
        lines = ['assignments = ["manual"]', f'host_root = "{node.root}"', f'nvml_library = "{fake_nvml}"']
        config.write_text("\n".join([*lines, f'state_dir = "{state}"', settings]))
        manifest = tmp_path / "pod.yaml"
        manifest.write_text(POD % annotations)
        try:
            main(["render", "--config", str(config), "-f", str(manifest), *argv])
            status: Any = 0
        except SystemExit as e:
            status = e.code
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return run


def test_the_command_shows_what_a_container_gets(command: Command, tmp_path: Path) -> None:
    status, out, err = command(annotations="lading.dev/gpus.train: '0', lading.dev/vfs.train: mlx5_8")
    assert (status, err) == (0, "")
    device = tmp_path / "node/dev/nvidia2"  # index 0 has minor 2 here
    assert f"device     /dev/nvidia2 rw  ({device} on the host)" in out
    assert "container side:" in out
    status, out, _ = command(*JSON, annotations="lading.dev/gpus.train: '0', lading.dev/vfs.train: mlx5_8")
    containers = {one["container"]: one for one in json.loads(out)}
    paths = [device["container_path"] for device in containers["train"]["adjustment"]["devices"]]
    assert "/dev/nvidia2" in paths
    assert any(path.startswith("/dev/infiniband/uverbs") for path in paths)
    assert containers["side"]["adjustment"]["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]


def test_a_refusal_is_status_3(command: Command) -> None:
    status, out, _ = command(annotations="lading.dev/gpus.train: '8'")
    assert status == 3
    assert "device-unknown" in out


def test_a_warning_is_on_stderr_and_no_failure(command: Command) -> None:
    status, out, err = command(annotations="lading.dev/gpus.trian: '0'")
    assert status == 0
    assert "lading.dev/gpus.trian" in err
    assert "warning" not in out


@pytest.mark.parametrize(
    ("settings", "annotations", "words"),
    [
        ('gpu_mode = "cuda"', "", ("hooks.toml", "gpu_mode", "'cuda'", "devices")),
        ("rdma = true", "", ("hooks.toml", "'rdma'")),
        ("", "lading.dev/gpus: 0", ("pod.yaml", "lading.dev/gpus = 0")),
    ],
)
def test_what_cannot_be_read_is_status_2(command: Command, settings: str, annotations: str, words: tuple[str, ...]) -> None:
    status, out, err = command(settings=settings, annotations=annotations)
    assert (status, out) == (2, "")
    for word in words:
        assert word in err


@pytest.mark.parametrize("name", ["absent.yaml", "."])
def test_a_file_that_cannot_be_read(command: Command, name: str) -> None:
    status, _, err = command("-f", name)
    assert status == 2
    assert name in err


def test_no_node_is_status_1(command: Command, tmp_path: Path) -> None:
    status, _, err = command("--host-root", str(tmp_path / "absent"))
    assert status == 1
    assert str(tmp_path / "absent") in err


def test_the_ledger_of_a_running_daemon_is_checked(command: Command, tmp_path: Path) -> None:
    other = rendered(pod("lading.dev/gpus.train: '0'", POD.replace("name: p\n", "name: p\n  uid: other\n")))["train"]
    assert isinstance(other, Answer)
    assert other.grant is not None
    card = GrantedGpu(uuid=GpuUuid("GPU-00000001-4c61-6469-6e67-000000001efc"))
    with Ledger.open(tmp_path / "state" / "node.db") as ledger:
        ledger.record(replace(other.grant, devices=GrantedDevices(gpus=(card,))))
        status, out, _ = command(annotations="lading.dev/gpus.train: '0', lading.dev/gpus.side: '1'")
        assert status == 3
        assert "refused (device-held)" in out
        assert len(ledger.grants()) == 1  # looking grants nothing


def test_a_card_in_use_without_a_grant_is_held(command: Command, tmp_path: Path) -> None:
    state = tmp_path / "node/fake-nvml/state"
    state.write_text(state.read_text() + "process 0 42\n")
    cgroup = tmp_path / "node/proc/42/cgroup"
    cgroup.parent.mkdir()
    cgroup.write_text("0::/kubepods.slice/kubepods-podaaaa_bbbb.slice/cri-containerd-" + "c" * 64 + ".scope\n")
    status, out, _ = command(annotations="lading.dev/gpus.train: '0'")
    assert status == 3
    assert "device-held" in out


def test_cdi_is_rendered_without_asking_a_runtime(command: Command, tmp_path: Path) -> None:
    spec = {"kind": "nvidia.com/gpu", "devices": [{"name": "GPU-00000001-4c61-6469-6e67-000000001efc"}]}
    (tmp_path / "cdi").mkdir()
    (tmp_path / "cdi/nvidia.json").write_text(json.dumps(spec))
    settings = f'gpu_mode = "cdi"\ncdi_specs = "nvidia-ctk"\ncdi_spec_dirs = ["{tmp_path / "cdi"}"]'
    status, out, _ = command(annotations="lading.dev/gpus.train: '0'", settings=settings)
    assert status == 0
    assert "nvidia.com/gpu=GPU-00000001-4c61-6469-6e67-000000001efc" in out


def test_own_cdi_names_are_rendered_without_a_spec(command: Command, tmp_path: Path) -> None:
    settings = f'gpu_mode = "cdi"\ndriver_root = "{tmp_path / "node"}"\ncdi_dir = "{tmp_path / "cdi"}"'
    status, out, _ = command(annotations="lading.dev/gpus.train: '0'", settings=settings)
    assert status == 0
    assert "lading.dev/gpu=GPU-00000001-4c61-6469-6e67-000000001efc" in out
    assert not (tmp_path / "cdi").exists()
