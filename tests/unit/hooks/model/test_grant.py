import dataclasses
import json
from typing import Any

import pytest

from hooks.forms.netdev import MAX_ROUTES
from hooks.forms.signed import MAX_BYTES, parse_central
from hooks.model.assignment import (
    Assignment,
    ContainerRequest,
    Form,
    GpuRequest,
    GrantedDevices,
    GrantedGpu,
    GrantedVf,
    VfRequest,
)
from hooks.model.attachment import VfConfig, VfSettings
from hooks.model.canonical import defaults
from hooks.model.grant import Grant, parse_annotation, parse_devices, parse_request, render_annotation, render_json
from lading.devices.isolation import IsolationName
from lading.errors import StateError
from lading.vocabulary import PciAddress, PodUid
from tests.fakes.holders import BOOT, SETTINGS, gpu_uuid, grant, vf_bdf, vfs

SHARE: dict[str, Any] = {
    "memory_mib": 8138,
    "core_percent": 30,
    "core_limit_percent": 80,
    "isolation": IsolationName.TOKENS,
    "pod_wide": True,
    "pod_memory_mib": 9000,
    "pod_core_percent": 40,
}
FULL = dataclasses.replace(
    grant(),
    form=Form.SIGNED,
    gen=7,
    request=ContainerRequest(
        gpus=(GpuRequest(name="GPU-x", bdf=PciAddress("0000:1b:00.0"), **SHARE),),
        vfs=(VfRequest(name="mlx5_7", pf=PciAddress("0000:18:00.0"), ifname="rdma0", netdev=True, settings=SETTINGS),),
        any_vfs=2,
        any_vfs_pod_wide=True,
    ),
    devices=GrantedDevices(
        gpus=(
            GrantedGpu(uuid=gpu_uuid(1), **SHARE),
            GrantedGpu(uuid=gpu_uuid(2), mig_uuid=f"MIG-{str(gpu_uuid(3))[4:]}"),
        ),
        vfs=(GrantedVf(bdf=vf_bdf(3), ifname="rdma0", pod_wide=True),),
    ),
)


def parse(text: str, like: Grant = FULL) -> Grant:
    return parse_annotation(text, sandbox=like.sandbox, granted_at=like.granted_at, boot_id=BOOT)


@pytest.mark.parametrize("value", [FULL, grant(), grant(devices=GrantedDevices())])
def test_both_written_forms_are_read_back(value: Grant) -> None:
    assert parse(render_annotation(value), value) == value
    assert parse_request(render_json(value.request)) == value.request
    assert parse_devices(render_json(value.devices)) == value.devices


def test_every_field_of_request_and_devices_is_written() -> None:
    """Check that FULL sets every field, so that the tests above cover a new field."""
    items: list[ContainerRequest | GpuRequest | VfRequest | VfSettings | VfConfig | GrantedVf | GrantedDevices]
    items = [FULL.request, FULL.devices, SETTINGS, SETTINGS.config]
    for item in (*items, *FULL.request.gpus, *FULL.request.vfs, *FULL.devices.vfs):
        kind: type = type(item)
        for name, default in defaults(kind) or ():
            assert getattr(item, name) != default, name
    text = {f.name for gpu in FULL.devices.gpus for f in dataclasses.fields(gpu) if getattr(gpu, f.name) != f.default}
    assert text == {f.name for f in dataclasses.fields(GrantedGpu)}


def test_the_annotation_of_a_released_version_stays_readable() -> None:
    """Check the bytes that are on running containers of released versions."""
    text = (
        '{"container":"train","devices":{"gpus":[{"memory_mib":1024,"uuid":"GPU-00000000-0000-0000-0000-000000000001"}],'
        '"vfs":[{"bdf":"0000:3b:00.2"}]},"form":"unsigned","gen":3,"name":"p","namespace":"n","pod":"u",'
        '"request":{"gpus":[{"core_percent":10,"name":"0"}]},"v":1}'
    )
    result = parse(text)
    assert render_annotation(result) == text
    assert (result.pod, result.container, result.form, result.gen) == ("u", "train", Form.UNSIGNED, 3)
    assert result.devices.gpus[0].memory_mib == 1024


TEXT = render_annotation(FULL)
LONG = dataclasses.replace(FULL, request=ContainerRequest(gpus=(GpuRequest(name="GPU-x"),) * 40_000))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        TEXT + " ",
        TEXT[:-1],
        TEXT.replace('"v":1', '"v":2'),
        TEXT.replace('"v":1', '"v":1,"w":1'),
        TEXT.replace('"gen":7', '"gen":7,"gen":7'),
        TEXT.replace('"gen":7', '"gen":-7'),
        TEXT.replace('"gen":7', '"gen":NaN'),
        TEXT.replace('"gen":7', '"gen":1e309'),
        TEXT.replace('"gen":7', f'"gen":{2**63}'),
        TEXT.replace('"gen":7', '"gen":' + "9" * 1_000_000),
        TEXT.replace('"signed"', '"for ged"'),
        TEXT.replace('"pod":"pod-1"', '"pod":""'),
        TEXT.replace("GPU-0", "gpu-0", 1),
        TEXT.replace("MIG-0", "MIG-x", 1),
        TEXT.replace(vf_bdf(3), "0000:3B:00.3"),
        TEXT.replace(vf_bdf(3), "../../dev/sda"),
        TEXT.replace('"ifname":"rdma0","pod_wide"', '"ifname":"a b","pod_wide"'),
        TEXT.replace('"memory_mib":8138,"pod_core_percent"', '"memory_mib":-1,"pod_core_percent"'),
        TEXT.replace('"pod_memory_mib":9000', '"pod_memory_mib":-1'),
        TEXT.replace('"pod_core_percent":40', '"pod_core_percent":-1'),
        TEXT.replace('"pod_memory_mib":9000', '"pod_memory_mib":null'),
        TEXT.replace('"default"', '"\\ud800"'),
        render_annotation(LONG),
        "\ud800",
        "[" * 100_000,
        '{"devices":{"gpus":' + "[" * 60_000,
    ],
    ids=lambda text: text[:20],
)
def test_what_this_node_would_not_have_written_is_refused(text: str) -> None:
    assert text != TEXT
    with pytest.raises(StateError):
        parse(text)


@pytest.mark.parametrize("text", ["{}x", '{"gpus":[]}', '{"vfs":[{"bdf":"x"}]}', '{"gpus":[{"uuid":"GPU-1"}]}'])
def test_a_row_that_is_not_ours_is_refused(text: str) -> None:
    with pytest.raises(StateError):
        parse_devices(text)


def test_what_an_assignment_can_say_a_ledger_can_read() -> None:
    """Check 50 VFs with the maximum number of routes: no more than a pod's annotations can hold."""
    routes = [{"to": f"fd00:1111:2222:3333:4444:5555:{n:x}:0/112", "via": "fd00:1111:2222:3333::1"} for n in range(MAX_ROUTES)]
    entries = [{"bdf": vf_bdf(n), "ifname": f"rdma{n}", "mtu": 9000, "routes": routes} for n in range(50)]
    message = {"v": 1, "pod": "p", "node": "n", "gen": 1, "containers": {"train": {"vfs": entries}}}
    text = json.dumps(message, separators=(",", ":"))
    assert len(text) > MAX_BYTES * 0.75
    assignment = parse_central(text, pod=PodUid("p"), node="n", form=Form.SIGNED)
    assert isinstance(assignment, Assignment), assignment
    large = dataclasses.replace(grant(devices=vfs(*range(50))), request=assignment.for_container("train"))
    annotation = parse_annotation(render_annotation(large), sandbox=large.sandbox, granted_at=0, boot_id=BOOT)
    assert annotation.request == large.request
