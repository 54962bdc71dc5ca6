"""Audit who held which device: real containers come and go while the daemon is restarted, killed and away."""

import json
import subprocess
import time
from datetime import datetime
from typing import Any

import pytest

from simnode.daemons import LadingNode
from tests.node.conftest import StartLading
from tests.node.observe import metric
from tests.node.site import Site, eventually
from tests.node.test_signed import KEY_ID, gpus, run_assigned, trusting

pytestmark = pytest.mark.node

Entry = dict[str, Any]


@pytest.fixture(scope="module")
def running(share_lading: StartLading, tmp_path_factory: pytest.TempPathFactory) -> LadingNode:
    return share_lading(hooks={**trusting(tmp_path_factory.mktemp("keys")), "metrics": "127.0.0.1:0"})


def command(site: Site, *argv: str) -> str:
    hooks = site.lading.hooks
    done = subprocess.run(
        [hooks.program, argv[0], "--config", str(hooks.config), *argv[1:]], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def audit(site: Site, pod: str, *argv: str) -> list[Entry]:
    entries: list[Entry] = json.loads(command(site, "audit", "-o", "json", "--pod", pod, *argv))["entries"]
    return entries


def ended(site: Site, pod: str) -> list[str | None]:
    return [entry["ended"] for entry in audit(site, pod)]


def await_ended(site: Site, pod: str, *how: str | None) -> None:
    def check() -> None:
        assert ended(site, pod) == [*how]

    eventually(check)


def seconds(time_of: str) -> float:
    return datetime.fromisoformat(time_of).timestamp()


def test_the_history_has_a_device_from_a_containers_creation_to_its_pods_end(site: Site) -> None:
    began = time.time()
    vf = site.vfs[0]
    devices = {
        "gpus": [{"uuid": site.gpu(0)}, {"uuid": site.gpu(1), "memory_mib": 1024, "core_percent": 30}],
        "vfs": [{"bdf": vf}],
    }
    pod = run_assigned(site, {"train": devices}, gen=3)
    container = pod.run_container("train")
    card, share, function = audit(site, pod.spec.uid)
    assert [entry["device"] for entry in (card, share, function)] == [site.gpu(0), site.gpu(1), vf]
    assert {(e["form"], e["gen"], e["key_id"], e["began"]) for e in (card, share, function)} == {
        ("signed", 3, KEY_ID, "created")
    }
    assert (share["memory_mib"], share["core_percent"], share["container"], share["pod"]) == (1024, 30, "train", "assigned")
    assert (card["until"], card["ended"]) == (None, None)
    site.lading.hooks.stop()
    site.lading.hooks.start()
    container.stop()
    eventually(lambda: pod.create_container("train", attempt=1)).start()
    assert audit(site, pod.spec.uid) == [card, share, function]  # a restart, of the daemon or the container, is no end
    pod.remove()
    await_ended(site, pod.spec.uid, "released", "released", "released")
    over = audit(site, pod.spec.uid)
    assert [{**entry, "until": None, "ended": None} for entry in over] == [card, share, function]
    assert int(began) <= seconds(over[0]["since"]) <= seconds(over[0]["until"]) <= time.time()
    assert audit(site, pod.spec.uid, "--device", vf, "--since", "1h") == [over[2]]
    assert site.gpu(0) in command(site, "audit")


def test_a_crash_loses_no_entry_of_the_history_and_ends_none_twice(site: Site) -> None:
    deleted, stays = (run_assigned(site, {"train": gpus(site.gpu(index))}) for index in (2, 3))
    for pod in (deleted, stays):
        pod.run_container("train")
    deleted.stop()
    site.lading.hooks.kill()  # before its grant is freed, or just after
    deleted.remove()
    assert ended(site, stays.spec.uid) == [None]
    site.lading.hooks.start()
    await_ended(site, deleted.spec.uid, "released")
    assert ended(site, stays.spec.uid) == [None]


def test_a_container_that_was_refused_held_nothing(site: Site) -> None:
    first, second = (run_assigned(site, {"train": gpus(site.gpu(4))}) for _ in range(2))
    first.run_container("train")
    site.refused(second, "train")
    assert (ended(site, first.spec.uid), audit(site, second.spec.uid)) == ([None], [])


@pytest.mark.long
def test_a_release_by_hand_is_recorded_with_the_users_id(site: Site) -> None:
    pod = run_assigned(site, {"train": gpus(site.gpu(5))})
    pod.run_container("train")
    site.lading.hooks.stop()
    try:
        pod.remove()
        command(site, "release", site.gpu(5), "--force")
    finally:
        site.lading.hooks.start()
    (entry,) = audit(site, pod.spec.uid)
    assert (entry["ended"], entry["ended_by_uid"]) == ("forced", 0)


@pytest.mark.long
def test_a_rebuilt_ledger_continues_the_history(site: Site) -> None:
    deleted, stays = (run_assigned(site, {"train": gpus(site.gpu(index))}) for index in (6, 7))
    for pod in (deleted, stays):
        pod.run_container("train")
    before = audit(site, stays.spec.uid)
    site.lading.hooks.stop()
    try:
        deleted.remove()
        command(site, "rebuild-ledger")
    finally:
        site.lading.hooks.start()
    assert ended(site, deleted.spec.uid) == ["lost"]
    assert audit(site, stays.spec.uid) == before
    eventually(stays.remove)
    await_ended(site, stays.spec.uid, "released")


@pytest.mark.long
def test_after_a_deleted_ledger_the_history_begins_with_the_present_holders(site: Site) -> None:
    pod = run_assigned(site, {"train": gpus(site.gpu(6))})
    pod.run_container("train")
    (before,) = audit(site, pod.spec.uid)
    site.lading.hooks.stop()
    site.delete_ledger()
    site.lading.hooks.start()
    await_ended(site, pod.spec.uid, None)
    (adopted,) = audit(site, pod.spec.uid)
    assert (adopted["began"], adopted["key_id"], adopted["form"], adopted["gen"]) == ("adopted", None, "signed", before["gen"])
    assert abs(seconds(adopted["since"]) - seconds(before["since"])) <= 2  # the start that the runtime knows


def test_the_metric_names_the_pod_of_a_device_while_it_has_it(site: Site) -> None:
    log = site.lading.hooks.log
    pod = run_assigned(site, {"train": gpus(site.gpu(0))})
    pod.run_container("train")
    who = {"kind": "gpu", "namespace": "default", "pod": "assigned", "container": "train"}
    assert metric(log, "lading_device_holder", device=site.gpu(0), **who) == metric(log, "lading_device_holder") == 1
    released = metric(log, "lading_hooks_release_seconds_count")
    pod.remove()

    def no_one() -> None:
        assert metric(log, "lading_device_holder") == 0
        assert metric(log, "lading_hooks_release_seconds_count") == released + 1

    eventually(no_one)
