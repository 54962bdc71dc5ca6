import json
from collections.abc import Callable
from typing import Any

import pytest

from hooks.host.cdi_spec import SpecError, make_spec, nodes_of, parse_spec, render_spec
from hooks.model.cdi import GPU_KIND, CdiDevice, CdiMount, Edits, Hook, Spec
from tests.unit.hooks.inventories import node, uuid

FILE = ("ro", "nosuid", "nodev", "rbind", "rprivate")
HOOK = Hook(
    hook_name="createContainer", path="/usr/bin/nvidia-cdi-hook", args=("nvidia-cdi-hook", "x"), env=("PATH=/usr/bin:/bin",)
)
COMMON = Edits(
    env=("NVIDIA_VISIBLE_DEVICES=void",),
    device_nodes=nodes_of((node("/dev/nvidiactl"), node("/dev/nvidiactl"))),
    mounts=(CdiMount(host_path="/d/libcuda.so.1", container_path="/usr/lib/libcuda.so.1", options=FILE),),
    hooks=(HOOK,),
)


def device(name: str) -> CdiDevice:
    return CdiDevice(name=name, container_edits=Edits(device_nodes=nodes_of((node("/dev/nvidia0"),))))


def a_spec(*names: str) -> Spec:
    spec, problems = make_spec(GPU_KIND, COMMON, map(device, names or (uuid(0), "0000:3b:00.2")))
    assert spec is not None
    assert problems == ()
    return spec


def test_a_spec_is_what_is_read_back_from_its_file() -> None:
    content = render_spec(a_spec())
    assert parse_spec(content) == a_spec()
    written = json.loads(content)
    assert (written["cdiVersion"], written["kind"]) == ("0.5.0", "lading.dev/gpu")
    assert [one["name"] for one in written["devices"]] == [uuid(0), "0000:3b:00.2"]
    assert written["containerEdits"]["deviceNodes"] == [
        {"path": "/dev/nvidiactl", "hostPath": "/node/dev/nvidiactl", "permissions": "rw"}
    ]
    assert written["containerEdits"]["hooks"][0]["env"] == ["PATH=/usr/bin:/bin"]
    assert "env" not in written["devices"][0]["containerEdits"]
    assert a_spec().names == {f"lading.dev/gpu={uuid(0)}", "lading.dev/gpu=0000:3b:00.2"}


def test_a_device_without_a_name_for_a_runtime_is_left_out_and_the_others_stay() -> None:
    spec, problems = make_spec(GPU_KIND, COMMON, map(device, (uuid(0), "../x", "", "x" * 129, uuid(0), uuid(1))))
    assert spec is not None
    assert [one.name for one in spec.devices] == [uuid(0), uuid(1)]
    assert len(problems) == 4
    assert "'../x'" in problems[0]
    assert make_spec(GPU_KIND, COMMON, [device("a/b")])[0] is None
    assert make_spec(GPU_KIND, COMMON, []) == (None, ())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda s: s.update(kind="l/gpu"), "l/gpu"),
        (lambda s: s.update(kind="lading.dev/h"), "lading.dev/h"),
        (lambda s: s.update(kind="lading.dev"), "lading.dev"),
        (lambda s: s.update(kind="lading.dev/gpu/x"), "lading.dev/gpu/x"),
        (lambda s: s.update(kind="lading.dev/gpu\n"), "kind"),
        (lambda s: s.update(kind="lading.dev/a.b"), "lading.dev/a.b"),
        (lambda s: s.update(cdiVersion="0.3.0"), "0.3.0"),
        (lambda s: s.update(annotations={}), "annotations"),
        (lambda s: s.update(devices=[]), "no device"),
        (lambda s: s.pop("kind"), "kind"),
        (lambda s: s["devices"].append(s["devices"][0]), "one name"),
        (lambda s: s["devices"][0].update(name="-x"), "-x"),
        (lambda s: s["devices"][0].update(name=7), "devices"),
        (lambda s: s["devices"][0].update(containerEdits={}), "changes nothing"),
        (lambda s: s["devices"][0].update(containerEdits={"devices": []}), "devices"),
        (lambda s: s["containerEdits"].update(env=["A"]), "'A'"),
        (lambda s: s["containerEdits"].update(env=["A=\0"]), "A="),
        (lambda s: s["containerEdits"]["deviceNodes"][0].update(path="/etc/x"), "/etc/x"),
        (lambda s: s["containerEdits"]["deviceNodes"][0].update(path="/dev/../etc/x"), "/dev/../etc/x"),
        (lambda s: s["containerEdits"]["deviceNodes"][0].update(hostPath="dev/x"), "dev/x"),
        (lambda s: s["containerEdits"]["deviceNodes"][0].update(permissions="rwm"), "rwm"),
        (lambda s: s["containerEdits"]["mounts"][0].update(options=["rw", "nosuid"]), "'rw'"),
        (lambda s: s["containerEdits"]["mounts"][0].update(hostPath="/a//b"), "/a//b"),
        (lambda s: s["containerEdits"]["mounts"][0].update(containerPath="/a\n"), "absolute"),
        (lambda s: s["containerEdits"]["hooks"][0].update(env=[]), "env"),
        (lambda s: s["containerEdits"]["hooks"][0].update(path="nvidia-cdi-hook"), "absolute"),
        (lambda s: s["containerEdits"]["hooks"][0].update(hookName="prestart"), "createContainer"),
    ],
)
def test_a_spec_that_a_runtime_would_not_take_is_none(change: Callable[[dict[str, Any]], object], named: str) -> None:
    spec = json.loads(render_spec(a_spec()))
    change(spec)
    with pytest.raises(SpecError) as e:
        parse_spec(json.dumps(spec).encode())
    assert named in e.value.message


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b"null", b"[" * 100_000])
def test_a_file_that_is_no_json_is_no_spec(content: bytes) -> None:
    with pytest.raises(SpecError):
        parse_spec(content)


def test_a_file_name_that_is_not_utf_8_is_reported() -> None:
    mount = CdiMount(host_path="/d/\udcff", container_path="/x", options=FILE)
    spec, _ = make_spec(GPU_KIND, Edits(mounts=(mount,)), [device("a")])
    assert spec is not None
    with pytest.raises(SpecError, match="UTF-8"):
        render_spec(spec)
