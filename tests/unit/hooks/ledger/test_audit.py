import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hooks.ledger.audit import as_json, as_text, list_entries, parse_since
from hooks.ledger.period import Began, End, Ended, Period, period_of
from hooks.model.assignment import Form, GrantedDevices, GrantedGpu
from lading.errors import ConfigError
from tests.fakes.holders import LONG_AGO, NOW, gpu_uuid, grant, share, vf_bdf, vfs, whole

MIG = "MIG-00000001-1111-2222-3333-444444444444"
GOLDEN = Path(__file__).with_name("audit.txt")


def period(
    number: int, devices: GrantedDevices, end: End | None = None, *, form: Form = Form.MANUAL, key_id: str = ""
) -> Period:
    one = replace(
        grant(f"pod-{number}", devices=devices, granted_at=LONG_AGO + number), form=form, gen=7 * (form is not Form.MANUAL)
    )
    return replace(period_of(one, began=Began.CREATED, key_id=key_id), end=end)


SHARE = GrantedDevices(gpus=(GrantedGpu(uuid=gpu_uuid(1), memory_mib=8138, core_percent=30),))
PERIODS = (
    period(3, share(1, mig_uuid=MIG), End(at=NOW, how=Ended.GIVEN_UP), form=Form.UNSIGNED),
    period(1, GrantedDevices(gpus=whole(0).gpus, vfs=vfs(4).vfs), End(at=NOW), form=Form.SIGNED, key_id="k-2026"),
    period(2, SHARE, End(at=NOW + 1, how=Ended.FORCED, uid=1000)),
    replace(period(4, whole(0)), began=Began.ADOPTED),
    replace(period(5, whole(2), End(at=NOW, how=Ended.LOST)), pod_name="\x1b[31mred"),
)


def test_the_table() -> None:
    assert as_text(list_entries(PERIODS)) == GOLDEN.read_text()


def test_the_keys_of_the_json_stay() -> None:
    result = as_json(list_entries(PERIODS), ledger="/node.db", now=NOW)
    assert (result["ledger"], result["at"]) == ("/node.db", "1970-01-24T03:33:20Z")
    card, vf, forced, instance, held, _ = json.loads(json.dumps(result["entries"]))
    assert card == {
        "kind": "gpu",
        "device": gpu_uuid(0),
        "card": gpu_uuid(0),
        "memory_mib": None,
        "core_percent": None,
        "pod_uid": "pod-1",
        "namespace": "default",
        "pod": "name-of-pod-1",
        "container": "train",
        "form": "signed",
        "gen": 7,
        "key_id": "k-2026",
        "began": "created",
        "since": "1970-01-12T13:46:41Z",
        "until": "1970-01-24T03:33:20Z",
        "ended": "released",
        "ended_by_uid": None,
    }
    assert (vf["kind"], vf["device"], vf["card"]) == ("vf", vf_bdf(4), None)
    assert (forced["memory_mib"], forced["core_percent"], forced["ended"], forced["ended_by_uid"]) == (8138, 30, "forced", 1000)
    assert (instance["kind"], instance["device"], instance["card"], instance["ended"]) == ("mig", MIG, gpu_uuid(1), "given-up")
    assert (held["began"], held["until"], held["ended"], held["key_id"]) == ("adopted", None, None, None)
    assert all(entry.keys() == card.keys() for entry in result["entries"])


def pods(*, devices: frozenset[str] | None = None, pod: str = "") -> list[str]:
    return [entry.period.pod for entry in list_entries(PERIODS, devices=devices, pod=pod)]


def test_of_one_device() -> None:
    assert pods(devices=frozenset({gpu_uuid(0)})) == ["pod-1", "pod-4"]
    assert pods(devices=frozenset({gpu_uuid(1)})) == ["pod-2", "pod-3"]  # and its instances
    assert pods(devices=frozenset({MIG})) == ["pod-3"]
    assert pods(devices=frozenset({vf_bdf(4), gpu_uuid(9)})) == ["pod-1"]


@pytest.mark.parametrize("name", ["pod-2", "name-of-pod-2", "default/name-of-pod-2"])
def test_of_one_pod(name: str) -> None:
    assert pods(pod=name) == ["pod-2"]
    assert pods(pod=f"x{name}") == []


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("90s", NOW - 90),
        ("30m", NOW - 1800),
        ("12h", NOW - 43200),
        ("7d", NOW - 7 * 86400),
        ("2w", NOW - 14 * 86400),
        ("2026-11-01", int(datetime(2026, 11, 1, tzinfo=UTC).timestamp())),
        ("2026-11-01T12:30", int(datetime(2026, 11, 1, 12, 30, tzinfo=UTC).timestamp())),
        ("2026-11-01T12:30:00+02:00", int(datetime(2026, 11, 1, 10, 30, tzinfo=UTC).timestamp())),
    ],
)
def test_since(text: str, at: int) -> None:
    assert parse_since(text, NOW) == at


@pytest.mark.parametrize("text", ["", "7", "d", "-7d", "7 days", "yesterday", "9999999d", "2026-13-01"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as e:
        parse_since(text, NOW)
    assert repr(text) in e.value.message
