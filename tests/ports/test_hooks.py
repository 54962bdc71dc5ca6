"""A second vendor, dialect, isolation, preparer and front end, each in a folder of its own and registered by one line."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hooks.daemon import parts
from hooks.daemon.daemon import make_attacher, read_configured
from hooks.daemon.registration import render_registration
from hooks.daemon.settings import Settings, check, read_trust
from hooks.forms import annotations
from hooks.inventory.watch import InventoryWatch
from hooks.ledger.store import Ledger
from hooks.node.node import Node
from lading.devices.isolation import IsolationName
from lading.errors import ConfigError
from lading.log import Level, Log
from lading.sockets import listen
from lading.tracing import OFF
from tests.fakes.holders import BOOT
from tests.fakes.records import Records
from tests.fakes.runtime import FakeRuntime
from tests.ports.dialect.cards import KEY, Cards
from tests.ports.front_end.lines import Lines
from tests.ports.isolation.quota import Quota
from tests.ports.preparer.scratch import Scratch
from tests.ports.vendor.acme import CARDS, Acme
from tests.vfs.model import ModelKernel

FIRST, SECOND = (f"GPU-{number:08x}-0000-0000-0000-000000000000" for number in (1, 2))
DeviceRequest = Callable[[dict[str, Any]], Awaitable[Any]]


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the line of each registration."""
    monkeypatch.setattr(parts, "VENDORS", (*parts.VENDORS, lambda _: Acme()))
    monkeypatch.setattr(annotations, "DIALECTS", (*annotations.DIALECTS, Cards()))
    monkeypatch.setattr(parts, "ISOLATIONS", (*parts.ISOLATIONS, lambda _: Quota()))
    scratch = parts.PreparerKind(make=lambda host: Scratch(folder_of(host.settings) / "scratch"), wait_s=lambda _: 0.0)
    monkeypatch.setattr(parts, "PREPARERS", (*parts.PREPARERS, scratch))
    monkeypatch.setattr(parts, "FRONT_ENDS", (*parts.FRONT_ENDS, lambda node, host, _: Lines(node, lines_of(host.settings))))


def folder_of(settings: Settings) -> Path:
    return Path(settings.state_dir)


def lines_of(settings: Settings) -> Path:
    return folder_of(settings) / "lines.sock"


@pytest.fixture
def settings(short_folder: Path) -> Settings:
    root = short_folder / "root"
    for folder in ("sys", "proc/acme", "dev"):
        (root / folder).mkdir(parents=True)
    (root / CARDS).write_text(f"{FIRST} 0000:11:00.0 0\n{SECOND} 0000:12:00.0 1\n")
    return Settings(
        host_root=str(root),
        state_dir=str(short_folder),
        listen=f"unix://{short_folder}/h/hooks.sock",
        node_name="n1",
        assignments=("cards",),
        nvml_library="/absent/libnvidia-ml.so.1",
        isolations=(IsolationName.MIG,),
    )


@asynccontextmanager
async def serving(settings: Settings, runtime: FakeRuntime) -> AsyncIterator[DeviceRequest]:
    """Serve as the daemon does, on a runtime that is two lists."""
    log = Log(Records(), Level.DEBUG)
    with Ledger.open(folder_of(settings) / "state" / "node.db") as ledger, listen(Path(settings.listen[7:])) as listener:
        attacher = make_attacher(settings, ModelKernel([]), runtime, ledger, BOOT, log)  # type: ignore[arg-type]
        vendors = parts.make_vendors(settings)
        host = parts.Host(
            settings=settings,
            vendors=vendors,
            ledger=ledger,
            runtime=runtime,  # type: ignore[arg-type]
            attacher=attacher,
            log=log,
        )
        rules = parts.make_rules(settings, read_trust(settings), vendors, cdi_refusal="")
        node = Node(
            ledger=ledger,
            lists=runtime.lists,
            host_root=Path(settings.host_root),
            boot_id=BOOT,
            log=log,
            rules=lambda: rules,
            reconcile_interval_s=3600.0,
            preparers=parts.make_preparers(host),
        )
        read = partial(read_configured, settings, vendors)
        node.watch = InventoryWatch(read, on_change=node.inventory_changed, on_failure=node.inventory_failed)
        await node.watch.start()
        front_ends = parts.make_front_ends(node, host, parts.Door(listener=listener, tracing=OFF))
        for front_end in front_ends:
            await front_end.start()
        reader, writer = await asyncio.open_unix_connection(lines_of(settings))

        async def ask(what: dict[str, Any]) -> Any:
            writer.write(json.dumps(what).encode() + b"\n")
            return json.loads(await reader.readline())

        try:
            await node.reconcile()
            yield ask
        finally:
            writer.close()
            for front_end in front_ends:
                await front_end.close()
            await node.watch.close()


def create(sandbox: str, cards: str = "", pod: str = "pod-1") -> dict[str, Any]:
    text = {KEY: cards} if cards else {}
    return {"sandbox": {"id": sandbox, "uid": pod, "annotations": text}, "container": {"name": "train"}}


async def test_a_container_passes_through_all_second_implementations(settings: Settings) -> None:
    runtime = FakeRuntime()
    async with serving(settings, runtime) as ask:
        sandbox = runtime.run("pod-1")
        given = await ask(create(sandbox, f"{SECOND}"))
        scratch = folder_of(settings) / "scratch" / sandbox
        assert {env["name"]: env["value"] for env in given["env"]} == {
            "ACME_VISIBLE_DEVICES": "1",
            "QUOTA_MIB": "1000",
            "NVIDIA_VISIBLE_DEVICES": "void",
        }
        assert [device["container_path"] for device in given["devices"]] == ["/dev/acme1"]
        assert [mount["host_path"] for mount in given["mounts"]] == [str(scratch)]
        assert scratch.is_dir()
        assert (await ask(create("s2", SECOND, pod="pod-2"))) == {"refused": "capacity-exceeded"}
        assert await ask({"stop": create(sandbox)["sandbox"]}) is None
        assert not scratch.exists()


async def test_a_container_without_cards_sees_those_of_no_vendor(settings: Settings) -> None:
    async with serving(settings, FakeRuntime()) as ask:
        given = await ask(create("s1"))
        assert [env["name"] for env in given["env"]] == ["NVIDIA_VISIBLE_DEVICES", "ACME_VISIBLE_DEVICES"]


async def test_refusals_of_the_dialect_are_refusals_of_the_node(settings: Settings) -> None:
    async with serving(settings, FakeRuntime()) as ask:
        assert await ask(create("s1", "card-1")) == {"refused": "annotation-malformed"}
        both = create("s1", FIRST)
        both["sandbox"]["annotations"]["lading.dev/gpus"] = "0"
        assert await ask(both) == {"refused": "annotation-conflict"}


def test_the_registration_has_the_second_dialect_and_vendor(settings: Settings) -> None:
    registration = render_registration(settings)
    assert registration["annotation-prefixes"] == ["lading.dev/", "cards.example.com/"]
    hidden = [entry["env"] for entry in registration["static-adjustments"]["hide-unassigned"]]
    assert hidden == [{"NVIDIA_VISIBLE_DEVICES": "void"}, {"ACME_VISIBLE_DEVICES": "none"}]


def test_the_configuration_names_the_dialects_there_are(settings: Settings) -> None:
    check(msgspec.structs.replace(settings, isolations=(IsolationName.NONE,)))
    with pytest.raises(ConfigError, match="'card' is none of manual, signed, unsigned, cards"):
        check(Settings(assignments=("card",)))
