"""The folder of registrations, on a real file system; what is looked at is waited for."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from lading.log import Event, Log
from runtimeproxy.chain.hooksdir import MAX_FILE_BYTES, HooksDir
from runtimeproxy.chain.registrations import Registration
from tests.unit.runtimeproxy.conftest import Records


def content(endpoint: str = "/run/a.sock", *hooks: str) -> str:
    return json.dumps({"remote-endpoint": endpoint, "runtime-hooks": hooks or ["PreCreateContainer"]})


class Published:
    def __init__(self) -> None:
        self.all: list[tuple[Registration, ...]] = []
        self._new = asyncio.Event()

    def __call__(self, registrations: tuple[Registration, ...]) -> None:
        self.all.append(registrations)
        self._new.set()

    def last(self) -> dict[str, str]:
        return {registration.name: registration.endpoint for registration in self.all[-1]}

    async def until(self, *names: str) -> None:
        while list(self.last()) != list(names):
            await self._next()

    async def until_endpoint(self, name: str, endpoint: str) -> None:
        while self.last().get(name) != endpoint:
            await self._next()

    async def _next(self) -> None:
        self._new.clear()
        await self._new.wait()


def read_once(folder: Path, log: Log, **options: Any) -> dict[str, str]:
    published = Published()
    HooksDir(folder, published, log, **options).read()
    return published.last()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "hooks.d"
    made.mkdir()
    return made


def write(path: Path, text: str) -> None:
    """Write the file as a careful writer does: whole, by rename."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text)
    temporary.replace(path)


def test_registrations_come_in_order_of_file_name(folder: Path, log: Log) -> None:
    for name in ("20-b.json", "10-a.json", "30-c.json"):
        (folder / name).write_text(content(f"/run/{name}"))
    assert list(read_once(folder, log)) == ["10-a.json", "20-b.json", "30-c.json"]


@pytest.mark.parametrize("name", ["a.json~", ".a.json", ".a.json.swp", "#a.json#", "a.json.bak", "README", "a.JSON"])
def test_editors_leftovers_are_no_registrations(folder: Path, log: Log, records: Records, name: str) -> None:
    (folder / name).write_text("{")
    assert read_once(folder, log) == {}
    assert records.events() == []


def test_an_absent_folder_is_an_empty_one(tmp_path: Path, log: Log, records: Records) -> None:
    assert read_once(tmp_path / "absent" / "hooks.d", log) == {}
    assert records.events() == []


def bad(folder: Path, log: Log, records: Records) -> str:
    assert read_once(folder, log) == {}
    assert records.events() == [Event.HOOK_INVALID]
    return records.written[0][2]


def test_a_bad_file_is_named_with_its_place(folder: Path, log: Log, records: Records) -> None:
    (folder / "10.json").write_text('{"remote-endpoint": "/run/a.sock", "runtime-hook": []}')
    message = bad(folder, log, records)
    assert str(folder / "10.json") in message
    assert "runtime-hook" in message


def test_a_file_that_others_can_write_is_not_trusted(folder: Path, log: Log, records: Records) -> None:
    (folder / "10.json").write_text(content())
    (folder / "10.json").chmod(0o664)
    bad(folder, log, records)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_another_users_file_is_not_trusted(folder: Path, log: Log, records: Records) -> None:
    (folder / "10.json").write_text(content())
    os.chown(folder / "10.json", 65534, 65534)
    bad(folder, log, records)


def test_a_folder_that_others_can_write_is_not_trusted(folder: Path, log: Log, records: Records) -> None:
    (folder / "10.json").write_text(content())
    folder.chmod(0o777)
    bad(folder, log, records)


def test_what_is_no_regular_file_does_not_hang_us(folder: Path, log: Log, records: Records) -> None:
    os.mkfifo(folder / "10.json")
    bad(folder, log, records)


def test_a_file_has_a_bounded_size(folder: Path, log: Log, records: Records) -> None:
    (folder / "10.json").write_text(content() + " " * MAX_FILE_BYTES)
    bad(folder, log, records)


def test_the_last_good_of_a_file_stays_in_force_and_it_is_said_once(folder: Path, log: Log, records: Records) -> None:
    published = Published()
    hooks = HooksDir(folder, published, log)
    (folder / "10.json").write_text(content("/run/good.sock"))
    hooks.read()
    (folder / "10.json").write_text("{")
    for _ in range(3):
        hooks.read()
    assert published.last() == {"10.json": "/run/good.sock"}
    assert len(published.all) == 1
    assert records.events() == [Event.HOOK_REGISTERED, Event.HOOK_INVALID]
    (folder / "10.json").write_text(content("/run/better.sock"))
    hooks.read()
    assert published.last() == {"10.json": "/run/better.sock"}
    (folder / "10.json").write_text("{")
    hooks.read()
    assert records.events()[-1] is Event.HOOK_INVALID


def test_a_removed_file_is_removed_even_if_it_was_bad(folder: Path, log: Log, records: Records) -> None:
    published = Published()
    hooks = HooksDir(folder, published, log)
    (folder / "10.json").write_text(content())
    hooks.read()
    (folder / "10.json").write_text("{")
    hooks.read()
    (folder / "10.json").unlink()
    hooks.read()
    assert published.last() == {}
    assert records.events()[-1] is Event.HOOK_REMOVED


def test_a_folder_that_turns_untrusted_keeps_what_is_known(folder: Path, log: Log) -> None:
    published = Published()
    hooks = HooksDir(folder, published, log)
    (folder / "10.json").write_text(content())
    hooks.read()
    folder.chmod(0o777)
    (folder / "10.json").unlink()
    hooks.read()
    assert list(published.last()) == ["10.json"]


def test_of_two_that_ask_one_endpoint_for_one_stage_the_later_is_wrong(folder: Path, log: Log, records: Records) -> None:
    for name in ("10.json", "20.json"):
        (folder / name).write_text(content("/run/a.sock"))
    assert list(read_once(folder, log)) == ["10.json"]
    assert records.fields(Event.HOOK_INVALID) == [{"hook": "20.json"}]


def test_a_clash_falls_back_to_the_last_good(folder: Path, log: Log) -> None:
    published = Published()
    hooks = HooksDir(folder, published, log)
    (folder / "10.json").write_text(content("/run/a.sock"))
    (folder / "20.json").write_text(content("/run/b.sock"))
    hooks.read()
    (folder / "20.json").write_text(content("/run/a.sock"))
    hooks.read()
    assert published.last() == {"10.json": "/run/a.sock", "20.json": "/run/b.sock"}
    (folder / "10.json").write_text(content("/run/b.sock"))
    hooks.read()
    assert published.last() == {"10.json": "/run/b.sock", "20.json": "/run/a.sock"}


def watched(folder: Path, log: Log, body: Callable[[Published], Awaitable[None]]) -> None:
    async def run() -> None:
        published = Published()
        hooks = HooksDir(folder, published, log)
        hooks.start()
        try:
            async with asyncio.timeout(20):
                await body(published)
        finally:
            hooks.close()
            hooks.close()

    asyncio.run(run())


def test_files_are_noticed_as_they_come_change_and_go(folder: Path, log: Log) -> None:
    async def body(published: Published) -> None:
        assert published.all == [()]
        write(folder / "10.json", content("/run/a.sock"))
        await published.until("10.json")
        (folder / "20.json").write_text(content("/run/b.sock"))
        await published.until("10.json", "20.json")
        (folder / "10.json").unlink()
        await published.until("20.json")
        (folder / "20.json").rename(folder / "30.json")
        await published.until("30.json")

    watched(folder, log, body)


def test_a_repaired_mode_is_noticed(folder: Path, log: Log) -> None:
    async def body(published: Published) -> None:
        (folder / "10.json").chmod(0o644)
        await published.until("10.json")

    (folder / "10.json").write_text(content())
    (folder / "10.json").chmod(0o666)
    watched(folder, log, body)


def test_a_repaired_folder_is_noticed(folder: Path, log: Log) -> None:
    def repair() -> None:
        folder.chmod(0o755)

    async def body(published: Published) -> None:
        repair()
        await published.until("10.json")

    (folder / "10.json").write_text(content())
    folder.chmod(0o777)
    watched(folder, log, body)


def test_a_folder_that_comes_goes_and_comes_back_is_noticed(tmp_path: Path, log: Log) -> None:
    folder = tmp_path / "lading" / "hooks.d"

    async def body(published: Published) -> None:
        for _ in range(2):
            assert published.last() == {}
            folder.mkdir(parents=True)
            write(folder / "10.json", content())
            await published.until("10.json")
            write(folder / "20.json", content("/run/b.sock"))
            await published.until("10.json", "20.json")
            for path in (folder / "10.json", folder / "20.json"):
                path.unlink()
            folder.rmdir()
            folder.parent.rmdir()
            await published.until()

    watched(folder, log, body)


def test_a_folder_that_is_replaced_under_its_name_is_noticed(folder: Path, log: Log) -> None:
    def replace() -> None:
        folder.rename(folder.with_name("old"))
        folder.mkdir()

    async def body(published: Published) -> None:
        replace()
        write(folder / "20.json", content("/run/b.sock"))
        await published.until("20.json")
        write(folder / "30.json", content("/run/c.sock"))
        await published.until("20.json", "30.json")

    (folder / "10.json").write_text(content())
    watched(folder, log, body)
