"""Test the listing as it is shown: golden texts, and JSON with fixed keys."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hooks.ledger.listing import Entry, Kind, LedgerContent, State, list_devices
from hooks.ledger.table import as_json, as_text
from hooks.ledger.unmanaged import Unmanaged
from hooks.model.assignment import Form, GrantedDevices, GrantedGpu, GrantedVf
from hooks.model.attachment import Step
from lading.vocabulary import PciAddress, SandboxId
from tests.fakes import holders
from tests.unit.hooks.inventories import gpu, inventory, mig_gpu, mig_uuid, uuid, vf

NOW = holders.LONG_AGO + 3 * 3600

NODE = inventory(
    gpus=(gpu(0), gpu(1), gpu(2, unhealthy="NVML: GPU is lost"), gpu(3), mig_gpu(4)),
    vfs=(vf(0), vf(1), vf(2), vf(3, unhealthy="elsewhere"), vf(4, unhealthy="no port is active")),
)
UNMANAGED = Unmanaged(held={uuid(3): "process 42 of pod 0d9c"}, host={uuid(1): (99,)})
STUCK = "its network device has not come back"


def share(memory_mib: int | None, core_percent: int | None) -> GrantedDevices:
    return GrantedDevices(gpus=(GrantedGpu(uuid=uuid(1), memory_mib=memory_mib, core_percent=core_percent),))


def entries() -> tuple[Entry, ...]:
    both = GrantedDevices(gpus=(GrantedGpu(uuid=uuid(0)),), vfs=(GrantedVf(bdf=vf(0).bdf),))
    content = LedgerContent(
        grants=(
            replace(holders.grant("a", devices=both), form=Form.SIGNED, gen=7),
            holders.grant("b", devices=share(8138, 30), granted_at=NOW - 59),
            holders.grant("c", devices=share(None, 20), granted_at=NOW - 60 * 60 * 24 * 5),
            replace(
                holders.grant("d", devices=GrantedDevices(gpus=(GrantedGpu(uuid=uuid(4), mig_uuid=mig_uuid(40)),))),
                form=Form.UNSIGNED,
            ),
        ),
        attachments=(
            replace(holders.row(1, "a", generation=12), vf=vf(0)),
            replace(holders.row(2, "gone", generation=9, step=Step.RETURNING, failure=STUCK), vf=vf(1)),
        ),
        stopped={SandboxId("c-s0"): NOW},
    )
    return list_devices(NODE, content, unmanaged=UNMANAGED, strays={vf(3).bdf})


GOLDEN = Path(__file__).with_name("table.txt")


def test_the_table() -> None:
    assert as_text(entries(), now=NOW) == GOLDEN.read_text()


def test_a_node_without_devices_is_a_head() -> None:
    assert len(as_text((), now=NOW).splitlines()) == 1


def test_names_are_harmless_on_a_terminal() -> None:
    grant = replace(holders.grant(devices=share(1, None)), pod_name="a\x1b[2J\nb")
    shown = as_text(list_devices(NODE, LedgerContent(grants=[grant]), unmanaged=Unmanaged()), now=NOW)
    assert "\x1b" not in shown
    assert len(shown.splitlines()) == len(
        as_text(list_devices(NODE, LedgerContent(), unmanaged=Unmanaged()), now=NOW).splitlines()
    )


@pytest.mark.parametrize(
    ("seconds", "age"),
    [(-5, "0s"), (0, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (172799, "47h"), (172800, "2d")],
)
def test_ages(seconds: int, age: str) -> None:
    one = list_devices(
        NODE, LedgerContent(grants=[holders.grant(devices=share(1, None), granted_at=NOW - seconds)]), unmanaged=Unmanaged()
    )
    assert f"  {age}  " in as_text(one, now=NOW).splitlines()[2]


# ---- for a program: what is taken away or renamed here breaks someone's script

KEYS = {"kind", "device", "bdf", "name", "state", "why", "since", "holders", "attachment"}
HOLDER_KEYS = {"pod_uid", "namespace", "pod", "container", "sandbox", "form", "gen", "since"}
HOLDER_KEYS |= {"memory_mib", "core_percent", "stopped_at"}
ATTACHMENT_KEYS = {"pod_uid", "namespace", "pod", "sandbox", "netns", "ifname", "step", "generation", "since", "failure"}


def test_json_has_every_key_always() -> None:
    shown = as_json(entries(), ledger="/var/lib/lading/node.db", now=NOW)
    assert shown.keys() == {"ledger", "at", "devices"}
    assert len(shown["devices"]) == len(entries())
    for device in shown["devices"]:
        assert device.keys() == KEYS
        assert all(holder.keys() == HOLDER_KEYS for holder in device["holders"])
        assert device["attachment"] is None or device["attachment"].keys() == ATTACHMENT_KEYS
    json.dumps(shown)


def test_json_says_what_the_table_does_with_times_that_are_absolute() -> None:
    shown = {device["device"]: device for device in as_json(entries(), ledger="node.db", now=NOW)["devices"]}
    assert [device["state"] for device in shown.values()] == [entry.state for entry in entries()]
    stuck, free, shared = shown[vf(1).bdf], shown[vf(2).bdf], shown[uuid(1)]
    assert stuck["since"] == "1970-01-12T13:46:40Z"
    assert (
        stuck["attachment"] | {"step": "returning", "generation": 9, "failure": STUCK, "sandbox": "gone-s0"}
        == stuck["attachment"]
    )
    assert (free["why"], free["since"], free["holders"]) == (None, None, [])
    assert [(holder["memory_mib"], holder["core_percent"]) for holder in shared["holders"]] == [(8138, 30), (None, 20)]
    assert [holder["stopped_at"] for holder in shared["holders"]] == [None, "1970-01-12T16:46:40Z"]
    assert {holder["form"] for device in shown.values() for holder in device["holders"]} == {"manual", "signed", "unsigned"}


@pytest.mark.parametrize("seconds", [-1, 2**63 - 1])
def test_a_time_that_no_calendar_has_is_no_error(seconds: int) -> None:
    entry = Entry(
        kind=Kind.VF,
        device="x",
        bdf=PciAddress("0000:3b:00.1"),
        state=State.RETURNING,
        attachment=replace(holders.row(1), since=seconds),
    )
    (shown,) = as_json([entry], ledger="node.db", now=NOW)["devices"]
    assert shown["since"].endswith("Z")
